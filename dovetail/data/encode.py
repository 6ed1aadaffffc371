"""How a column is read: as ``[party.encode]`` of a party's file asks, else as it looks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dovetail.data.fitted import CategoryColumn, NumberColumn
from dovetail.data.frozen import Frozen
from dovetail.data.kinds import Column, texts_of
from dovetail.data.tables import Table
from dovetail.data.vectors import Frequency, Hashed, VectorColumn, Words
from dovetail.errors import DataError
from dovetail.settings.encode import Encode

FittedColumn = NumberColumn | CategoryColumn | VectorColumn

#: Text whose values have more words than this and hardly repeat is free text.
_FREE_WORDS, _OFTEN_NEW, _LEAST = 3, 0.5, 20


def how_of(
    asked: Encode, values: np.ndarray, store: Path | None
) -> Words | Frequency | Hashed | Frozen:
    """Encoding that makes features of (N,) texts that are there."""
    if asked.model is not None:
        return Frozen.trusting(
            asked.model,
            "picture" if asked.kind == "picture" else "text",
            values,
            arguments=asked.arguments,
            folder=asked.folder if asked.kind == "picture" else "",
            pixels=asked.pixels,
            store=store,
        )
    if asked.kind == "text":
        return Words.fit(values, asked.size)
    return Frequency.fit(values) if asked.kind == "frequency" else Hashed(asked.size)


def fixed_how(table: Table, name: str) -> Hashed | Frozen:
    """Encoding that makes features of a column's values, of a party that asks for what is fixed.

    Raises:
        DataError: it does not ask for that, or no row has a value.
    """
    asked, column = table.asked, table.column(name)
    if asked is None or name not in asked.columns or not asked.columns[name].is_fixed:
        raise DataError(
            f"other parties encode the common column {name!r} by what is the same at all; name it "
            f"in encode.{name} here, too"
        )
    values = texts_of(column)[~column.missing]
    if not len(values):
        raise DataError(f"the common column {name!r} has no value; leave it out")
    how = how_of(asked.columns[name], values, asked.store)
    assert isinstance(how, Hashed | Frozen)
    return how


def is_free_text(column: Column) -> bool:
    """Whether it is sentences that hardly repeat, of which no category could be learned."""
    if not column.is_text:
        return False
    present = column.values[~column.missing]
    if len(present) < _LEAST:
        return False
    sample = present[:: max(1, len(present) // 200)]
    if np.mean([len(value.split()) for value in sample]) <= _FREE_WORDS:
        return False
    return len(set(present.tolist())) > max(_LEAST, _OFTEN_NEW * len(present))


def read_as(column: Column, asked: Encode | None, *, categorical: bool, max_categories: int) -> str:
    """Description of how a column is read; ``fit_column`` does it."""
    present = column.values[~column.missing]
    if not len(present):
        return "has no value"
    kind = None if asked is None else asked.kind
    if kind is None and is_free_text(column):
        kind = "text"
    if asked is not None and asked.model is not None:
        return f"{kind}, by the frozen encoder {Path(asked.model).name}"
    if kind == "text":
        return f"text: hashed words, in {asked.size if asked else Encode().size} features"
    if kind == "hash" and asked is not None:
        return f"values hashed into {asked.size} features"
    if kind == "frequency":
        return "how frequent each value is"
    if column.is_text or categorical:
        distinct = len(set(present.tolist()))
        if distinct <= max_categories:
            return f"{distinct:,} categories"
        return (
            f"{distinct:,} categories, of which the {max_categories:,} most frequent have a "
            'feature; encode = {kind = "hash"} or "frequency" reads them all'
        )
    if column.is_date:
        return "date: days" + (", place in the year and week" if kind != "number" else "")
    return "number"


def fit_column(
    name: str,
    column: Column,
    where: str,
    *,
    asked: Encode | None,
    store: Path | None,
    categorical: bool,
    max_categories: int,
) -> FittedColumn:
    """How a column that has a value becomes features, by these training rows.

    Args:
        where: the column, for errors.
        asked: what the party says of it; None: as it looks.
        store: as of ``Asked``.
        categorical: whether numbers are names, such as postcodes.
        max_categories: a column with more keeps so many of the most frequent.

    Raises:
        DataError: values that cannot be used.
        ConfigError: an encoder that cannot.
    """
    kind = None if asked is None else asked.kind
    if kind in ("text", "picture", "hash", "frequency") or (
        kind is None and not categorical and is_free_text(column)
    ):
        values = texts_of(column)[~column.missing]
        try:
            how = how_of(asked if asked and kind else Encode(kind="text"), values, store)
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
        return VectorColumn(name, how, bool(column.missing.any())).watching(column)
    if column.is_text:
        return CategoryColumn.fit(name, column, max_categories).watching(column)
    return NumberColumn.fit(name, column, where, calendar=kind != "number").watching(column)
