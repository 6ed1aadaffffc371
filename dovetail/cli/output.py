"""What commands print: the table of a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from dovetail.experiment.coverage import printable
from dovetail.face.scores import caption, cell, result_intervals, result_rows
from dovetail.models.metrics import shown_first


def console() -> Console:
    """Standard output."""
    return Console()


def result_table(result: Mapping[str, Any], *, title: str | None = None) -> Table:
    """The scores of a run and its rulers; mean and spread where there are several seeds.

    Where several parties have a model of their own: a row for each, and their mean. Rulers are
    told by the mean over their parties.
    """
    rows = result_rows(result)
    return score_table(
        rows,
        title=title,
        num_seeds=len(result.get("seeds", [0])),
        intervals=result_intervals(result),
    )


def score_table(
    rows: Mapping[str, Mapping[str, Any]],
    *,
    title: str | None,
    num_seeds: int,
    intervals: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
) -> Table:
    """One row per name, one column for each of the one or two scores that matter most."""
    spread = caption(num_seeds, bool(intervals)) or None
    table = Table(title=title, caption=spread, title_justify="left", caption_justify="left")
    table.add_column("on the test rows")
    shown = shown_first({name for scores in rows.values() for name in scores})
    names = list(enumerate(shown))
    for _, name in names:
        table.add_column(name, justify="right")
    for title_, scores in rows.items():
        own = (intervals or {}).get(title_, {})
        cells = [cell(scores.get(name), own.get(name) if not at else None) for at, name in names]
        table.add_row(title_, *cells)
    return table


def plain_table(*columns: str, right: int = 0) -> Table:
    """A plain table; its last ``right`` columns are numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, name in enumerate(columns):
        is_number = place >= len(columns) - right
        table.add_column(
            printable(name), justify="right" if is_number else "left", no_wrap=is_number
        )
    return table
