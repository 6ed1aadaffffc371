"""What commands print: the table of a result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from dovetail.face.scores import cell, result_rows
from dovetail.face.talk import SCORES


def console() -> Console:
    """Standard output."""
    return Console()


def result_table(result: Mapping[str, Any], *, title: str | None = None) -> Table:
    """The scores of a run and its rulers; mean and spread where there are several seeds.

    Where several parties have a model of their own: a row for each, and their mean. Rulers are
    told by the mean over their parties.
    """
    rows = result_rows(result)
    return score_table(rows, title=title, num_seeds=len(result.get("seeds", [0])))


def score_table(
    rows: Mapping[str, Mapping[str, Any]], *, title: str | None, num_seeds: int
) -> Table:
    """One row per name, one column per score."""
    spread = f"mean ± std of {num_seeds} seeds" if num_seeds > 1 else None
    table = Table(title=title, caption=spread, title_justify="left", caption_justify="left")
    table.add_column("on the test rows")
    names = [name for name in SCORES if any(name in scores for scores in rows.values())]
    for name in names:
        table.add_column(name, justify="right")
    for title_, scores in rows.items():
        table.add_row(title_, *(cell(scores.get(name)) for name in names))
    return table
