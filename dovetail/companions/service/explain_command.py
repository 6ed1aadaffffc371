"""``dovetail explain``: which columns a model relies on."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dovetail.models.explaining import Explanation


def explain(
    model: Path,
    data: Path,
    row: Annotated[int | None, typer.Option(min=0)] = None,
    label: str | None = None,
    html: Path | None = None,
    rows: Annotated[int, typer.Option(min=1)] = 200,
    seed: int = 0,
    allow_unseen: bool = False,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Show which columns a model relies on, for all rows and for one.

    Importance: how much the score falls if a column is permuted, with 95 % intervals (needs
    labels). Contributions: what each column adds to a row's prediction (TreeSHAP, integrated
    gradients or permutation Shapley). Dependence: the mean prediction along the first few columns.

    Args:
        data: CSV or Parquet with raw columns, best labelled.
        row: also show what each column adds in this row, from 0.
        html: also write a page with pictures.
        rows: rows that are explained one by one, from the first.
        seed: of the draws.
    """
    from dovetail.companions.service.explained import HOW, page
    from dovetail.errors import DataError
    from dovetail.files import taught
    from dovetail.models import load
    from dovetail.models.model_folders import model_folder

    folder = model_folder(model)
    shown = max(rows, 0 if row is None else row + 1)
    explanation = load(folder).explain(
        data, label=label, shared_rows=shown, seed=seed, allow_unseen=allow_unseen
    )
    if row is not None and row >= len(explanation.outputs):
        raise DataError(
            f"{data} has {len(explanation.outputs)} rows that are explained; there is no {row}"
        )
    on = "on the rows that it was trained on" if taught(folder, data) else "on these rows"
    if html is not None:
        html.write_text(
            page(f"What {folder.name} relies on", explanation, row=row, on=on), encoding="utf-8"
        )
    if as_json:
        print(json.dumps(explanation.to_json(row=row)))
        return
    _print(explanation, row, on)
    if not quiet:
        print(
            "dovetail: what columns add to a prediction (log-odds of a class, or a value) was "
            f"found by {HOW[explanation.how]}",
            file=sys.stderr,
        )


#: Heights of a curve that is drawn in a line of text, from the least to the most.
_BARS = "▁▂▃▄▅▆▇█"


def _print(explanation: Explanation, row: int | None, on: str) -> None:
    from dovetail.api.shown import plain_table
    from dovetail.cli.output import console

    out = console()
    if explanation.base is not None:
        out.print(f"{explanation.score} {explanation.base:.4f} {on}", highlight=False)
    importance = {each.column: each for each in explanation.importance}
    lost = (f"{explanation.score} lost without it", "95 %") if importance else ()
    rows = []
    for name, size in explanation.mean_shares().items():
        drop = importance.get(name)
        losing = (f"{drop.mean:.4f}", f"{drop.low:.4f} to {drop.high:.4f}") if drop else ()
        rows.append((name, f"{size:.4f}", *losing))
    out.print(plain_table(("column", "adds, mean size", *lost), rows, right=1 + len(lost)))
    if row is not None:
        out.print(
            f"\nrow {row}: from {explanation.start[row]:.4f} to {explanation.outputs[row]:.4f}",
            highlight=False,
        )
        added = ((name, f"{value:+.4f}") for name, value in explanation.of_row(row).items())
        out.print(plain_table(("column", "adds"), added, right=1))
    if explanation.dependence:
        out.print()
        curves = []
        for column, along in explanation.dependence.items():
            means = [mean for _, mean in along]
            least, most = f"{min(means):.4f}", f"{max(means):.4f}"
            curves.append((column, along[0][0], along[-1][0], _curve(means), least, most))
        head = (f"{explanation.along} along", "from", "to", "", "least", "most")
        out.print(plain_table(head, curves))


def _curve(values: Sequence[float]) -> str:
    """A line of bars.

    >>> _curve([0.0, 0.5, 1.0, 1.0]), _curve([2.0, 2.0])
    ('▁▅██', '▁▁')
    """
    low, high = min(values), max(values)
    steps = (high - low) / (len(_BARS) - 1) or 1.0
    return "".join(_BARS[round((value - low) / steps)] for value in values)
