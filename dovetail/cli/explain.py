"""``dovetail explain``: which columns a model leans on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.options import AsJson, Quiet


def explain(
    model: Annotated[Path, typer.Argument(help="A model's folder, RUN/models/PARTY, or a RUN.")],
    data: Annotated[Path, typer.Argument(help="CSV or Parquet with raw columns, best labelled.")],
    row: Annotated[
        int | None,
        typer.Option(min=0, help="Also tell what each column adds in this row, from 0."),
    ] = None,
    label: Annotated[str | None, typer.Option(help="The label's column. [as in training]")] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page with pictures.")] = None,
    rows: Annotated[
        int, typer.Option(min=1, help="Rows that are explained one by one, from the first.")
    ] = 200,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    allow_unseen: Annotated[
        bool, typer.Option("--allow-unseen", help="Take categories unseen in training as missing.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show which columns a model leans on, for all rows and for one.

    How much its score loses without a column, with 95 % intervals (of labelled rows); what each
    column adds to what is said of a row (TreeSHAP, integrated gradients, or drawn orders); and the
    mean of what is said along the first few columns.
    """
    from dovetail.errors import DataError
    from dovetail.face.reading import model_folder
    from dovetail.models import load
    from dovetail.service.explained import HOW, page

    folder = model_folder(model)
    shown = max(rows, 0 if row is None else row + 1)
    told = load(folder).explain(
        data, label=label, shared_rows=shown, seed=seed, allow_unseen=allow_unseen
    )
    if row is not None and row >= len(told.said):
        raise DataError(f"{data} has {len(told.said)} rows that are explained; there is no {row}")
    if html is not None:
        html.write_text(page(f"What {folder.name} leans on", told, row=row), encoding="utf-8")
    if as_json:
        print(json.dumps(told.to_json(row=row)))
        return
    importance = {each.column: each for each in told.importance}
    if told.base is not None:
        print(f"{told.score} {told.base:.4f} on these rows")
    for name, size in told.mean_shares().items():
        own = importance.get(name)
        lost = f"  loses {own.mean:.4f} ({own.low:.4f} to {own.high:.4f})" if own else ""
        print(f"{name}: adds {size:.4f}{lost}")
    if row is not None:
        print(f"row {row}: from {told.start[row]:.4f} to {told.said[row]:.4f}")
        for name, value in told.of_row(row).items():
            print(f"  {name}: {value:+.4f}")
    for column, along in told.dependence.items():
        shown_values = ", ".join(f"{value}: {mean:.4f}" for value, mean in along)
        print(f"along {column}: {shown_values}")
    if not quiet:
        print(f"dovetail: what columns add was found by {HOW[told.how]}", file=sys.stderr)
