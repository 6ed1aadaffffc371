"""``dovetail card``: what a model is, in card.md and card.json beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def card(
    model: Path,
    data: Annotated[Path | None, typer.Argument()] = None,
    by: Annotated[str | None, typer.Option(metavar="A,B")] = None,
    label: str | None = None,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Write a model's card: columns, rows, method, scores, groups, ledger, hashes.

    Writes card.json and card.md beside the model. DATA adds scores on its rows with 95 % intervals,
    and --by those of groups.

    Args:
        data: labelled rows that it was not trained on.
        by: columns whose groups are scored apart.
    """
    from dovetail.errors import DataError
    from dovetail.files import taught
    from dovetail.models.card import card as make
    from dovetail.models.card import kept_heads, write_card
    from dovetail.models.model_folders import model_folder
    from dovetail.network.printable import visible

    folder = model_folder(model)
    if data is not None and data.is_file() and taught(folder, data):
        raise DataError(
            f"{data} taught this model, and a card has scores of rows that did not; those of the "
            "run's test rows are in it without DATA"
        )
    columns = tuple(name.strip() for name in by.split(",")) if by else ()
    model_card = make(folder, rows=data, by=columns, label=label, heads=kept_heads(folder))
    write_card(folder, model_card)
    if as_json:
        print(json.dumps(model_card))
    elif not quiet:
        for line in (folder / "card.md").read_text(encoding="utf-8").split("\n")[:-1]:
            print(visible(line))
