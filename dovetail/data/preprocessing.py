"""From raw columns to numbers, as fitted on a party's training rows: a table's encoder.

``TableEncoder.transform`` refuses a whole table for one row that a model cannot use.
``unusable_rows`` names each with its reason, so that the others are predicted.
A column is read as ``[party.encode]`` of a party's file asks, else as it looks.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from dovetail.data import kinds
from dovetail.data.events import Events
from dovetail.data.fitted import UNSEEN_CODE, CategoryColumn, FarValues, NumberColumn, is_constant
from dovetail.data.images import ImageInput, ImageRegion
from dovetail.data.kinds import Column, Reading, texts_of
from dovetail.data.saving import of_kind, read_saved
from dovetail.data.stored import side_by_side
from dovetail.data.tables import Table
from dovetail.data.vectors import Frequency, Frozen, Hashed, VectorColumn, Words
from dovetail.errors import DataError
from dovetail.settings.encode import Asked, Encode

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


@dataclass(frozen=True)
class _Stored:
    party: str
    columns: tuple[Annotated[FittedColumn, Field(discriminator="kind")], ...]
    may_lack: bool = False
    events: Events | None = None
    schema: Mapping[str, Reading] | None = None  # None in models of earlier versions


_STORED = TypeAdapter(_Stored)


@dataclass(frozen=True, eq=False)
class TableEncoder:
    """Raw columns to (N, F) float32 features, by what the training rows held.

    Attributes:
        party: whose columns they are, for errors.
        fitted: what ``fit`` found out about each column, in the order of their features.
        may_lack: whether a row without any value lacks them all: its features are NaN. Else each
            missing value is filled.
        events: how events become the rows that it encodes; None: rows are samples.
        schema: column -> how its values are read, decided once; of a column without, as the
            training table is.
    """

    kind: ClassVar[str] = "table"
    kinds: ClassVar[tuple[str, ...]] = ()

    party: str
    fitted: Sequence[FittedColumn]
    may_lack: bool = False
    events: Events | None = None
    schema: Mapping[str, Reading] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fitted", tuple(self.fitted))

    def cells(self, table: Table, name: str) -> Column:
        """A column of a table as this encoder reads it; what does not fit is reported in it."""
        reading = self.schema.get(name)
        if reading is None:
            reading = _reading_of(table, name, self.fitted[self.columns.index(name)])
        return table.cells(name, reading)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the raw columns, in the order of their features."""
        return tuple(column.name for column in self.fitted)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """(F,) such as "age", "age is missing", "job = clerk"."""
        return tuple(name for column in self.fitted for name in column.feature_names)

    @property
    def num_features(self) -> int:
        return len(self.feature_names)

    @classmethod
    def fit(
        cls,
        table: Table,
        names: Sequence[str],
        *,
        categorical: Sequence[str] = (),
        max_categories: int = 100,
        party: str,
    ) -> TableEncoder:
        """An encoder of these columns, fitted on all rows of ``table``.

        Args:
            table: the training rows.
            names: columns to encode.
            categorical: globs of number columns whose values are names, such as postcodes.
            max_categories: a column with more keeps so many of the most frequent; the rest, and
                those not seen in training, share one feature.
            party: whose columns they are, for errors.

        Raises:
            DataError: no columns, a column that is not there, is wholly missing or has infinite
                values.
        """
        if not names:
            raise DataError(f"party {party!r} has no columns: give it at least one")
        named_categories = set(table.select(categorical))
        asked = table.asked or Asked({})
        fitted: list[FittedColumn] = []
        schema: dict[str, Reading] = {}
        for name in names:
            schema[name] = table.reading(name, categorical=name in named_categories)
            column = table.column(name, schema[name])
            where = f"party {party!r}: column {name!r} of {table.description}"
            if column.missing.all():
                raise DataError(f"{where} has no value in the training rows; leave it out")
            fitted.append(
                fit_column(
                    name,
                    column,
                    where,
                    asked=asked.columns.get(name),
                    store=asked.store,
                    categorical=name in named_categories,
                    max_categories=max_categories,
                )
            )
        return cls(party, fitted, events=asked.events, schema=schema)

    def watching(self, table: Table) -> TableEncoder:
        """An encoder that keeps what its columns have in these training rows."""
        fitted = [each.watching(self.cells(table, each.name)) for each in self.fitted]
        events = None if table.asked is None else table.asked.events
        return replace(self, fitted=fitted, events=events or self.events).reading_as(table)

    def reading_as(self, table: Table) -> TableEncoder:
        """An encoder that keeps how these training rows are read."""
        unread = [each for each in self.fitted if each.name not in self.schema]
        schema = {each.name: _reading_of(table, each.name, each) for each in unread}
        return replace(self, schema={**self.schema, **schema})

    def on_site(self, table: Table) -> TableEncoder:
        """An encoder of common columns with this site's readings, encoders and limits of numbers.

        Raises:
            DataError: the site encodes a column otherwise than was agreed.
        """
        local = replace(self, schema={}).reading_as(table)
        fitted = list(self.fitted)
        for index, column in enumerate(fitted):
            if isinstance(column, NumberColumn):
                if is_constant(column.scale, column.mean):  # nobody agrees on it: it would overflow
                    raise DataError(f"{column.name!r} has no scale")  # and so reveal extremes
                fitted[index] = column.on_site(local.cells(table, column.name))
            if not isinstance(column, VectorColumn):
                continue
            how = fixed_how(table, column.name)
            if how.shared() != column.how:
                raise DataError(f"it encodes {column.name!r} otherwise than was agreed")
            fitted[index] = replace(column, how=how)
        return replace(local, fitted=fitted)

    def of_a_block(self) -> TableEncoder:
        """An encoder by which a row without any value lacks the block."""
        return replace(self, may_lack=True)

    def transform(self, table: Table, *, allow_unseen: bool = False) -> Tensor:
        """(N, F) float32 features of all rows of ``table``.

        Args:
            table: at least this encoder's columns; others are not read.
            allow_unseen: take a category that training did not see as missing.

        Raises:
            DataError: columns that are not there, a category that training did not see, text
                where numbers are expected, or infinite values.
        """
        absent = [name for name in self.columns if name not in table.names]
        if absent:
            raise DataError(
                f"party {self.party!r}: {table.description} lacks the columns {absent}; "
                "give all columns that the model was trained on"
            )

        lacking = np.ones(table.num_rows if self.may_lack else 0, dtype=bool)

        def fill(part: int, out: np.ndarray) -> None:
            fitted = self.fitted[part]
            where = f"party {self.party!r}: column {fitted.name!r} of {table.description}"
            column = self.cells(table, fitted.name)
            fitted.encode(out, column, where, allow_unseen=allow_unseen)
            if self.may_lack:
                np.logical_and(lacking, column.missing, out=lacking)

        # Filled one column at a time: the whole table never exists in float64.
        widths = [len(fitted.feature_names) for fitted in self.fitted]
        features_NF = side_by_side(table.num_rows, widths, fill, self.party)
        if self.may_lack and self.fitted:
            features_NF[lacking] = np.nan
        return torch.from_numpy(features_NF)

    def far(self, table: Table) -> list[str]:
        """A clause for each column that has values far from all those of training."""
        counted = [each for each in self.counting_far() if table.has(each.name)]
        for each in counted:
            each.add(self.cells(table, each.name))
        return [clause for each in counted if (clause := each.clause()) is not None]

    def counting_far(self) -> list[FarValues]:
        """Counter of such values, of each column that has limits."""
        numbers = (each for each in self.fitted if isinstance(each, NumberColumn))
        return [FarValues(each.name, each.limits) for each in numbers if each.limits is not None]

    def raw(self, table: Table) -> dict[str, np.ndarray]:
        """Column -> (N,) float64 where NaN is missing, or text where "" is.

        Raises:
            DataError: a column that is not there, or values that do not fit.
        """
        where = f"party {self.party!r}: column {{!r}} of {table.description}"
        return {
            each.name: each.raw(self.cells(table, each.name), where.format(each.name))
            for each in self.fitted
        }

    def to_json(self) -> dict[str, Any]:
        saved = _Stored(self.party, tuple(self.fitted), self.may_lack, self.events, self.schema)
        stored = _STORED.dump_python(saved, mode="json")
        for column in stored["columns"]:
            for name in ("seen", "periods", "limits"):  # of few columns
                if not column.get(name, True):
                    del column[name]
        for reading in stored["schema"].values():
            for name in [name for name, value in reading.items() if not value or value == "."]:
                del reading[name]
        for name in ("may_lack", "events"):  # of few tables
            if not stored[name]:
                del stored[name]
        return {"kind": self.kind, **stored}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> TableEncoder:
        """The encoder that ``to_json`` stored.

        Raises:
            ModelError: fields that are missing or cannot be.
        """
        found = read_saved(_STORED, stored, "the model's table input")
        schema = found.schema
        if schema is None:
            schema = {each.name: inferred(each) for each in found.columns}
            if "date" in {each.kind for each in schema.values()}:
                warnings.warn(
                    f"the model of party {found.party!r} is of an earlier version and does not say "
                    "how dates are written: they are read as ISO 8601 (2026-01-31) only; train it "
                    "again, or write dates so (docs/upgrade.md)",
                    stacklevel=2,
                )
        return cls(found.party, found.columns, found.may_lack, found.events, schema)


def _reading_of(table: Table, name: str, fitted: FittedColumn) -> Reading:
    """How a table says that a column is read which becomes these features."""
    return table.reading(name, categorical=not isinstance(fitted, NumberColumn))


def inferred(fitted: FittedColumn) -> Reading:
    """How values are read of which only the features are known."""
    if isinstance(fitted, NumberColumn):
        is_date = fitted.seen is not None and fitted.seen.what == "date"
        return kinds.DATES if is_date or fitted.periods else kinds.NUMBERS
    if isinstance(fitted, VectorColumn):
        return kinds.TEXT
    return kinds.WORDS if set(fitted.categories) == {*kinds.BOOLEANS} else kinds.CATEGORY


Input = TableEncoder | ImageInput | ImageRegion


def input_from_json(stored: Mapping[str, Any]) -> Input:
    """The input a model was saved with.

    Raises:
        ModelError: an unknown kind of input, or fields that cannot be.
    """
    read: Input = of_kind(Input, stored)
    return read


def unusable_rows(
    encoders: Iterable[TableEncoder], table: Table, *, allow_unseen: bool = False
) -> dict[int, str]:
    """Row -> why the encoders refuse it, by its first such column; other rows are not in it.

    Columns that the table lacks are left to ``transform``, which names all of them.
    """
    refused: dict[int, str] = {}
    for encoder in encoders:
        for fitted in encoder.fitted:
            if fitted.name not in table.names:
                continue
            column = encoder.cells(table, fitted.name)
            if isinstance(fitted, NumberColumn):
                found = _numbers(fitted, column)
            elif isinstance(fitted, CategoryColumn) and not (allow_unseen or fitted.other):
                found = _categories(fitted, column)
            elif isinstance(fitted, VectorColumn):
                found = _vectors(fitted, column)
            else:
                continue
            for row, why in found.items():
                refused.setdefault(row, f"column {fitted.name!r}: {why}")
    return dict(sorted(refused.items()))


def _categories(fitted: CategoryColumn, column: Column) -> dict[int, str]:
    rows = np.flatnonzero(fitted.codes(column) == UNSEEN_CODE)
    values = texts_of(column)[rows].tolist()
    return {
        int(row): f"{value!r} was not seen in training"
        for row, value in zip(rows, values, strict=True)
    }


def _vectors(fitted: VectorColumn, column: Column) -> dict[int, str]:
    reasons = ((row, fitted.refuses(text)) for row, text in enumerate(texts_of(column).tolist()))
    return {row: why for row, why in reasons if why is not None}


def _numbers(fitted: NumberColumn, column: Column) -> dict[int, str]:
    expects = column.reading.expects
    found = {row: f"{text!r} is not {expects}" for row, text in column.unfit.items()}
    numbers = np.where(column.missing, np.nan, column.values.astype(np.float64))
    for row in np.flatnonzero(np.isinf(numbers)):
        found[int(row)] = "the value is infinite"
    for row in np.flatnonzero(fitted.too_far(numbers) & np.isfinite(numbers)):
        found[int(row)] = f"{numbers[row]:g} is too far from the training mean {fitted.mean:g}"
    return found
