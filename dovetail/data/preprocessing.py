"""From raw columns to numbers, as fitted on a party's training rows: a table's encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from dovetail.data.encode import FittedColumn, fit_column, fixed_how
from dovetail.data.events import Events
from dovetail.data.fitted import NumberColumn, far_values
from dovetail.data.saving import read_saved
from dovetail.data.stored import side_by_side
from dovetail.data.tables import Table
from dovetail.data.vectors import VectorColumn
from dovetail.errors import DataError
from dovetail.settings.encode import Asked


@dataclass(frozen=True)
class _Stored:
    party: str
    columns: tuple[Annotated[FittedColumn, Field(discriminator="kind")], ...]
    may_lack: bool = False
    events: Events | None = None


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
    """

    kind: ClassVar[str] = "table"
    kinds: ClassVar[tuple[str, ...]] = ()

    party: str
    fitted: Sequence[FittedColumn]
    may_lack: bool = False
    events: Events | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "fitted", tuple(self.fitted))

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
        for name in names:
            column = table.column(name)
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
        return cls(party, fitted, events=asked.events)

    def watching(self, table: Table) -> TableEncoder:
        """An encoder that keeps what its columns have in these training rows."""
        fitted = [each.watching(table.column(each.name)) for each in self.fitted]
        events = None if table.asked is None else table.asked.events
        return replace(self, fitted=fitted, events=events or self.events)

    def on_site(self, table: Table) -> TableEncoder:
        """An encoder of common columns with this site's encoders and limits of numbers.

        Raises:
            DataError: the site encodes a column otherwise than was agreed.
        """
        fitted = list(self.fitted)
        for index, column in enumerate(fitted):
            if isinstance(column, NumberColumn):
                fitted[index] = column.on_site(table.column(column.name))
            if not isinstance(column, VectorColumn):
                continue
            how = fixed_how(table, column.name)
            if how.shared() != column.how:
                raise DataError(f"it encodes {column.name!r} otherwise than was agreed")
            fitted[index] = replace(column, how=how)
        return replace(self, fitted=fitted)

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

        def fill(part: int, out: np.ndarray) -> None:
            fitted = self.fitted[part]
            where = f"party {self.party!r}: column {fitted.name!r} of {table.description}"
            fitted.encode(out, table.column(fitted.name), where, allow_unseen=allow_unseen)

        # Filled one column at a time: the whole table never exists in float64.
        widths = [len(fitted.feature_names) for fitted in self.fitted]
        features_NF = side_by_side(table.num_rows, widths, fill, self.party)
        if self.may_lack and self.fitted:
            missing = [table.column(name).missing for name in self.columns]
            features_NF[np.logical_and.reduce(missing)] = np.nan
        return torch.from_numpy(features_NF)

    def far(self, table: Table) -> list[str]:
        """A clause for each column that has values far from all those of training."""
        numbers = (each for each in self.fitted if isinstance(each, NumberColumn))
        limits = {each.name: each.limits for each in numbers if table.has(each.name)}
        return far_values(table, limits)

    def raw(self, table: Table) -> dict[str, np.ndarray]:
        """Column -> (N,) float64 where NaN is missing, or text where "" is.

        Raises:
            DataError: a column that is not there, or text where numbers are expected.
        """
        where = f"party {self.party!r}: column {{!r}} of {table.description}"
        return {
            each.name: each.raw(table.column(each.name), where.format(each.name))
            for each in self.fitted
        }

    def to_json(self) -> dict[str, Any]:
        saved = _Stored(self.party, tuple(self.fitted), self.may_lack, self.events)
        stored = _STORED.dump_python(saved, mode="json")
        for column in stored["columns"]:
            for name in ("seen", "periods", "limits"):  # of few columns
                if not column.get(name, True):
                    del column[name]
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
        return cls(found.party, found.columns, found.may_lack, found.events)
