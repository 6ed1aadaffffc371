"""From raw columns to numbers, as fitted on a party's training rows.

number     impute the training median; (value - mean) / scale
category   one 0/1 feature per training category; missing: all zeros
both       a 0/1 feature "is missing", if any training value was
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from itertools import repeat
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from torch import Tensor

from dovetail.data.tables import Column, Table, What
from dovetail.errors import DataError, ModelError

_Finite = Annotated[float, Field(allow_inf_nan=False)]

#: Quantiles between the bins of what training saw: twenty bins of about as many rows.
_SEEN_AT = np.arange(1, 20) / 20

#: Codes of values that have no feature of their own.
_MISSING, UNSEEN_CODE = -1, -2


@dataclass(frozen=True)
class NumbersSeen:
    """What a column of numbers had in the training rows, for those who watch later ones.

    Attributes:
        edges: between bins, rising: quantiles; a bin ends with its edge.
        counts: rows with a value in each bin; one more than edges.
        missing: rows without one.
        low, high: the least and the most.
        what: see ``Column``.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    edges: tuple[_Finite, ...]
    counts: tuple[int, ...]
    missing: int
    low: _Finite
    high: _Finite
    what: What = "number"

    def count(self, numbers: np.ndarray) -> np.ndarray:
        """How many of these values, missing ones apart, fall into each bin."""
        bins = np.searchsorted(np.array(self.edges), numbers, side="left")
        return np.bincount(bins, minlength=len(self.edges) + 1)


@dataclass(frozen=True)
class CategoriesSeen:
    """What a column of categories had in the training rows.

    Attributes:
        counts: rows of each of its categories.
        other: rows of categories without a feature of their own.
        missing: rows without a value.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    counts: tuple[int, ...]
    other: int
    missing: int


@dataclass(frozen=True)
class NumberColumn:
    """How a column of numbers becomes features.

    Attributes:
        name: the column's.
        median: what stands in for a missing value.
        mean, scale: of the training values, after imputation.
        flag: whether there is a feature "is missing".
        seen: what the training rows had; None in models of earlier versions.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    median: _Finite
    mean: _Finite
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    flag: bool
    kind: Literal["number"] = "number"
    seen: NumbersSeen | None = None

    @property
    def feature_names(self) -> list[str]:
        return [self.name, *[f"{self.name} is missing"] * self.flag]


@dataclass(frozen=True)
class CategoryColumn:
    """How a column of categories becomes features.

    Attributes:
        name: the column's.
        categories: those with a feature of their own, sorted.
        other: whether all others share a feature.
        flag: whether there is a feature "is missing".
        seen: as of ``NumberColumn``.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    categories: tuple[str, ...]
    other: bool
    flag: bool
    kind: Literal["category"] = "category"
    seen: CategoriesSeen | None = None

    @property
    def feature_names(self) -> list[str]:
        return [
            *(f"{self.name} = {category}" for category in self.categories),
            *[f"{self.name} is another"] * self.other,
            *[f"{self.name} is missing"] * self.flag,
        ]


_FittedColumn = Annotated[NumberColumn | CategoryColumn, Field(discriminator="kind")]
_STORED = TypeAdapter(tuple[_FittedColumn, ...])


class TableEncoder:
    """Raw columns to (N, F) float32 features, by what the training rows held.

    Args:
        party: whose columns they are, for errors.
        fitted: what ``fit`` found out about each column.
        may_lack: whether a row without any value lacks them all: its features are NaN. Else each
            missing value is filled.
    """

    def __init__(
        self,
        party: str,
        fitted: Sequence[NumberColumn | CategoryColumn],
        *,
        may_lack: bool = False,
    ) -> None:
        self.party = party
        self._fitted = tuple(fitted)
        self.may_lack = may_lack

    @property
    def fitted(self) -> tuple[NumberColumn | CategoryColumn, ...]:
        """How each raw column becomes features, in their order."""
        return self._fitted

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the raw columns, in the order of their features."""
        return tuple(column.name for column in self._fitted)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """(F,) such as "age", "age is missing", "job = clerk"."""
        return tuple(name for column in self._fitted for name in column.feature_names)

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
        fitted: list[NumberColumn | CategoryColumn] = []
        for name in names:
            column = table.column(name)
            where = f"party {party!r}: column {name!r} of {table.description}"
            if column.missing.all():
                raise DataError(f"{where} has no value in the training rows; leave it out")
            if column.is_text or name in named_categories:
                one: NumberColumn | CategoryColumn = _fit_categories(name, column, max_categories)
            else:
                one = _fit_numbers(name, column, where)
            fitted.append(_watching(one, column))
        return cls(party, fitted)

    def watching(self, table: Table) -> TableEncoder:
        """An encoder that keeps what its columns have in these training rows."""
        return TableEncoder(
            self.party,
            [_watching(each, table.column(each.name)) for each in self._fitted],
            may_lack=self.may_lack,
        )

    def of_a_block(self) -> TableEncoder:
        """An encoder by which a row without any value lacks the block."""
        return TableEncoder(self.party, self._fitted, may_lack=True)

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
        # Filled one column at a time: the whole table never exists in float64.
        features_NF = np.zeros((table.num_rows, self.num_features), dtype=np.float32)
        start = 0
        for fitted in self._fitted:
            stop = start + len(fitted.feature_names)
            column = table.column(fitted.name)
            where = f"party {self.party!r}: column {fitted.name!r} of {table.description}"
            if isinstance(fitted, NumberColumn):
                _encode_numbers(features_NF[:, start:stop], fitted, column, where)
            else:
                _encode_categories(
                    features_NF[:, start:stop], fitted, column, where, allow_unseen=allow_unseen
                )
            start = stop
        if self.may_lack and self._fitted:
            missing = [table.column(name).missing for name in self.columns]
            features_NF[np.logical_and.reduce(missing)] = np.nan
        return torch.from_numpy(features_NF)

    def raw(self, table: Table) -> dict[str, np.ndarray]:
        """Column -> (N,) float64 where NaN is missing, or text where "" is.

        Raises:
            DataError: a column that is not there, or text where numbers are expected.
        """
        columns: dict[str, np.ndarray] = {}
        for fitted in self._fitted:
            column = table.column(fitted.name)
            if isinstance(fitted, CategoryColumn):
                columns[fitted.name] = _texts(column)
                continue
            where = f"party {self.party!r}: column {fitted.name!r} of {table.description}"
            numbers = np.full(table.num_rows, np.nan)
            numbers[~column.missing] = _present_numbers(column, fitted, where)
            columns[fitted.name] = numbers
        return columns

    def to_json(self) -> dict[str, Any]:
        fitted = [asdict(column) for column in self._fitted]
        for stored in fitted:
            if "categories" in stored:
                stored["categories"] = list(stored["categories"])
            seen = stored.pop("seen")
            if seen is not None:
                lists = {
                    key: list(values) for key, values in seen.items() if isinstance(values, tuple)
                }
                stored["seen"] = {**seen, **lists}
        lacking = {"may_lack": True} if self.may_lack else {}
        return {"kind": "table", "party": self.party, "columns": fitted, **lacking}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> TableEncoder:
        """The encoder that ``to_json`` stored.

        Raises:
            ModelError: fields that are missing or cannot be.
        """
        try:
            columns = _STORED.validate_python(stored["columns"])
            return cls(str(stored["party"]), columns, may_lack=bool(stored.get("may_lack", False)))
        except (KeyError, TypeError) as error:
            cause = repr(error)
        except ValidationError as error:
            first = error.errors()[0]
            cause = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ModelError(f"the model's table input cannot be read ({cause}); save the model again")


def _watching(
    fitted: NumberColumn | CategoryColumn, column: Column
) -> NumberColumn | CategoryColumn:
    """The fitted column with what the training rows had."""
    missing = int(column.missing.sum())
    if isinstance(fitted, CategoryColumn):
        counted = _counts(column)
        counts = tuple(counted[category] for category in fitted.categories)
        return replace(fitted, seen=CategoriesSeen(counts, counted.total() - sum(counts), missing))
    numbers = column.values[~column.missing].astype(np.float64)
    if not len(numbers):
        return fitted
    edges = np.unique(np.quantile(numbers, _SEEN_AT, method="lower"))
    edges = edges[edges < numbers.max()]
    empty = NumbersSeen(
        tuple(edges.tolist()), (), missing, float(numbers.min()), float(numbers.max()), column.what
    )
    return replace(fitted, seen=replace(empty, counts=tuple(empty.count(numbers).tolist())))


def date_text(days: float) -> str:
    """Days since 1970 as a date."""
    return date.fromordinal(date(1970, 1, 1).toordinal() + math.floor(days)).isoformat()


def _fit_numbers(name: str, column: Column, where: str) -> NumberColumn:
    values = column.values.astype(np.float64)
    present = values[~column.missing]
    _check_finite(present, where)
    median = float(np.median(present))
    values[column.missing] = median
    with np.errstate(over="ignore"):  # refused below
        mean, scale = float(values.mean()), float(values.std())
    if not (np.isfinite(mean) and np.isfinite(scale)):
        raise DataError(f"{where} has values too large to standardise; give it another unit")
    # Rounding leaves a constant column's std a little above 0.
    if values.min() == values.max() or not scale:
        mean, scale = median, 1.0
    return NumberColumn(name, median, mean, scale, bool(column.missing.any()))


def _encode_numbers(out: np.ndarray, fitted: NumberColumn, column: Column, where: str) -> None:
    """Fill ``out`` (N, 1 or 2) with the number and its flag."""
    values = column.values
    if column.is_text:
        values = np.zeros(len(values))
        values[~column.missing] = _present_numbers(column, fitted, where)
    _check_finite(values[~column.missing], where)
    centred = np.where(column.missing, fitted.median, values)
    with np.errstate(over="ignore"):  # refused below
        centred -= fitted.mean  # in place: a column may have millions of rows
        np.divide(centred, fitted.scale, out=out[:, 0], casting="same_kind")
    if not np.isfinite(out[:, 0]).all():
        furthest = (np.where(column.missing, fitted.median, values))[np.abs(centred).argmax()]
        raise DataError(
            f"{where} has the value {furthest:g}, too far from the training mean "
            f"{fitted.mean:g} for float32; correct it"
        )
    if fitted.flag:
        out[:, 1] = column.missing


def _present_numbers(column: Column, fitted: NumberColumn, where: str) -> np.ndarray:
    """float64 of the values that are there.

    Raises:
        DataError: text that is no number.
    """
    present = column.values[~column.missing]
    if {*present} <= {"false", "true"}:  # a model of numbers that stood for them
        present = np.array(["01"[text == "true"] for text in present])
    try:
        numbers: np.ndarray = present.astype(np.float64)
    except ValueError:
        is_date = fitted.seen is not None and fitted.seen.what == "date"
        saw = "dates there (ISO 8601, such as 2026-01-31)" if is_date else "numbers there"
        raise DataError(
            f"{where} has the text {_first_not_number(present)!r}, but training saw {saw}"
        ) from None
    return numbers


def _check_finite(present: np.ndarray, where: str) -> None:
    num_infinite = int((~np.isfinite(present)).sum())
    if num_infinite:
        raise DataError(
            f"{where} has {num_infinite} infinite values; replace them, or leave them empty to "
            "have them taken as missing"
        )


def _first_not_number(texts: np.ndarray) -> str:
    for text in texts:
        try:
            float(text)
        except ValueError:
            return str(text)
    raise AssertionError("every text is a number")


def _fit_categories(name: str, column: Column, max_categories: int) -> CategoryColumn:
    counts = _counts(column)
    # The most frequent first; of equally frequent ones, the first by name.
    ranked = sorted(counts, key=lambda category: (-counts[category], category))
    return CategoryColumn(
        name,
        tuple(sorted(ranked[:max_categories])),
        other=len(ranked) > max_categories,
        flag=bool(column.missing.any()),
    )


def _encode_categories(
    out: np.ndarray, fitted: CategoryColumn, column: Column, where: str, *, allow_unseen: bool
) -> None:
    """Fill ``out`` (N, categories + other + flag) with zeros and ones; it comes all zeros."""
    codes = codes_of(fitted, column)
    unseen = codes == UNSEEN_CODE
    if fitted.other:
        codes[unseen] = len(fitted.categories)
    elif unseen.any() and not allow_unseen:
        value = as_text(column.values[unseen][:1])[0]
        same = int(unseen.sum())
        raise DataError(
            f"{where} has {same} row{'s' * (same != 1)} with a value that training did not see, "
            f"such as {value!r}; allow_unseen (--allow-unseen) takes them as missing, partial "
            "(--partial) predicts the other rows"
        )
    rows = np.flatnonzero(codes >= 0)
    out[rows, codes[rows]] = 1
    if fitted.flag:
        out[:, -1] = codes < 0


def _counts(column: Column) -> Counter[str]:
    """Category -> the rows that have it."""
    present = column.values[~column.missing]
    if column.is_text:
        return Counter(present.tolist())
    values, counts = np.unique(present, return_counts=True)
    return Counter(dict(zip(as_text(values), counts.tolist(), strict=True)))


def codes_of(fitted: CategoryColumn, column: Column) -> np.ndarray:
    """(N,) int64 index of each row's category; -1 where it is missing, -2 where it is unseen."""
    index = {category: code for code, category in enumerate(fitted.categories)}
    if fitted.categories == ("false", "true") and not column.is_text:
        index |= {"0": 0, "1": 1}
    if column.is_text:
        # map and fromiter loop in C: five million rows take about a second.
        codes = np.fromiter(
            map(index.get, column.values, repeat(UNSEEN_CODE)), np.int64, len(column.values)
        )
    else:
        values, inverse = np.unique(column.values, return_inverse=True)
        indices = [index.get(text, UNSEEN_CODE) for text in as_text(values)]
        codes = np.array(indices, dtype=np.int64)[inverse]
    codes[column.missing] = _MISSING
    return codes


def _texts(column: Column) -> np.ndarray:
    """(N,) objects that are all ``str``; "" where a value is missing."""
    if column.is_text:
        return column.values
    values, inverse = np.unique(column.values, return_inverse=True)
    texts = np.array(as_text(values), dtype=object)[inverse]
    texts[column.missing] = ""
    return texts


def as_text(values: np.ndarray) -> list[str]:
    """Categories as text; 3 and 3.0 are one, however the file stores them."""
    return [
        str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
        for value in values.tolist()
    ]
