"""How one raw column becomes features, as fitted on a party's training rows.

number     impute the training median; clip to the limits; (value - mean) / scale
date       the same of days since 1970; two triangle waves of the year, the week and, of times, the
           day, a quarter apart: together they say when in it (exact in any library, as sines are
           not: trees split between neighbouring numbers)
category   one 0/1 feature per training category; missing: all zeros
both       a 0/1 feature "is missing", if any training value was

What becomes several numbers without a feature for each value is in ``vectors.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Annotated, Literal

import numpy as np
from pydantic import ConfigDict, Field

from dovetail.data import kinds
from dovetail.data.kinds import Column, as_text, texts_of
from dovetail.data.tables import Table
from dovetail.errors import DataError

_Finite = Annotated[float, Field(allow_inf_nan=False)]

#: Quantiles between the bins of what training saw: twenty bins of about as many rows.
_SEEN_AT = np.arange(1, 20) / 20

#: So many spreads from the median a value is far: a code such as 9999999999 or 9999-12-31, or a
#: slip. A spread is the median distance from the median, of values that differ from it.
FAR = 1000.0

#: Rows that are looked at for such values before training.
_LOOKED_AT = 200_000

#: Codes of values that have no feature of their own.
_MISSING, UNSEEN_CODE = -1, -2

#: Days after which a date comes round again: a year, a week, a day.
PERIODS = {365.2425: "year", 7.0: "week", 1.0: "day"}


@dataclass(frozen=True)
class NumbersSeen:
    """Statistics of a column of numbers in the training rows, to compare later rows with.

    Attributes:
        edges: between bins, rising: quantiles; a bin ends with its edge.
        counts: rows with a value in each bin; one more than edges.
        missing: rows without one.
        low, high: the least and the most.
        what: what they are; a date is in days since 1970.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    edges: tuple[_Finite, ...]
    counts: tuple[int, ...]
    missing: int
    low: _Finite
    high: _Finite
    what: Literal["number", "date"] = "number"

    @classmethod
    def of(
        cls, numbers: np.ndarray, missing: int, what: Literal["number", "date"] = "number"
    ) -> NumbersSeen | None:
        """Of these values and so many missing ones; None where there is no value."""
        if not len(numbers):
            return None
        edges = np.unique(np.quantile(numbers, _SEEN_AT, method="lower"))
        edges = edges[edges < numbers.max()]
        empty = cls(
            tuple(edges.tolist()), (), missing, float(numbers.min()), float(numbers.max()), what
        )
        return replace(empty, counts=tuple(empty.count(numbers).tolist()))

    def count(self, numbers: np.ndarray) -> np.ndarray:
        """How many of these values, missing ones apart, fall into each bin."""
        bins = np.searchsorted(np.array(self.edges), numbers, side="left")
        return np.bincount(bins, minlength=len(self.edges) + 1)


@dataclass(frozen=True)
class Limits:
    """Limits to which a column's values are clipped, so that a far one does not drown the others.

    Attributes:
        low, high: the limits. Training values lie within, but for far ones.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    low: _Finite
    high: _Finite

    @classmethod
    def of(cls, present: np.ndarray) -> Limits | None:
        """Of the values that are there; None where all are equal, or none is finite.

        Where one is far, the others' range and as much again on each side; else what is not far.
        """
        present = present[np.isfinite(present)]
        if not len(present):
            return None
        middle = float(np.median(present))
        with np.errstate(over="ignore"):
            distances = np.abs(present - middle)
            spread = float(np.median(distances[distances > 0])) if distances.any() else 0.0
            reach = FAR * spread
            near = present[distances <= reach]
            if not spread or not np.isfinite([middle - reach, middle + reach]).all():
                return None
        if len(near) == len(present):
            return cls(middle - reach, middle + reach)
        low, high = float(near.min()), float(near.max())
        more = max(high - low, spread)
        return cls(low - more, high + more)

    def clip(self, values: np.ndarray) -> np.ndarray:
        """The values, those beyond a limit moved to it."""
        clipped: np.ndarray = np.clip(values, self.low, self.high)
        return clipped

    def beyond(self, values: np.ndarray) -> np.ndarray:
        """(N,) bool: whether a value is clipped; a missing one is not."""
        return (values < self.low) | (values > self.high)


@dataclass(frozen=True)
class CategoriesSeen:
    """Statistics of a column of categories in the training rows.

    Attributes:
        counts: rows of each of its categories.
        other: rows of categories without a feature of their own.
        missing: rows without a value.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    counts: tuple[int, ...]
    other: int
    missing: int


def is_constant(scale: float, mean: float) -> bool:
    """Whether values of this deviation are one, but for rounding."""
    return scale <= 1e-12 * max(1.0, abs(mean))


@dataclass(frozen=True)
class NumberColumn:
    """How a column of numbers or dates becomes features.

    Attributes:
        name: the column's.
        median: what stands in for a missing value.
        mean, scale: of the training values, after imputation.
        flag: whether there is a feature "is missing".
        periods: days after which a date comes round; each has two waves.
        seen: what the training rows had; None in models of earlier versions.
        limits: what values are clipped to; None: they are not.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    median: _Finite
    mean: _Finite
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    flag: bool
    kind: Literal["number"] = "number"
    seen: NumbersSeen | None = None
    periods: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = ()
    limits: Limits | None = None

    is_text = False

    @property
    def feature_names(self) -> list[str]:
        rounds = [PERIODS.get(period, f"{period:g} days") for period in self.periods]
        return [
            self.name,
            *(f"{self.name} in the {each}{at}" for each in rounds for at in ("", ", shifted")),
            *[f"{self.name} is missing"] * self.flag,
        ]

    @classmethod
    def fit(cls, name: str, column: Column, where: str, *, calendar: bool) -> NumberColumn:
        """Of a column that has a value; ``calendar``: whether dates come round."""
        values = column.values.astype(np.float64)
        present = values[~column.missing]
        _check_finite(present, where)
        median = float(np.median(present))
        values[column.missing] = median
        limits = Limits.of(present)
        if limits is not None:
            values = limits.clip(values)
        with np.errstate(over="ignore"):  # refused below
            mean, scale = float(values.mean()), float(values.std())
        if not (np.isfinite(mean) and np.isfinite(scale)):
            raise DataError(f"{where} has values too large to standardise; give it another unit")
        # Rounding leaves a constant column's std a little above 0.
        if values.min() == values.max() or not scale:
            mean, scale = median, 1.0
        periods: tuple[float, ...] = ()
        if calendar and column.is_date:
            has_times = bool((present != np.floor(present)).any())
            periods = tuple(PERIODS)[: 2 + has_times]
        flag = bool(column.missing.any())
        return cls(name, median, mean, scale, flag, periods=periods, limits=limits)

    def on_site(self, column: Column) -> NumberColumn:
        """With limits of this site's own values, which leave those that are not far as they are."""
        present = column.values[~column.missing]
        return replace(self, limits=None if column.is_text else Limits.of(present.astype(float)))

    def watching(self, column: Column) -> NumberColumn:
        """With what the training rows had."""
        numbers = column.values[~column.missing].astype(np.float64)
        what: Literal["number", "date"] = "date" if column.is_date else "number"
        seen = NumbersSeen.of(numbers, int(column.missing.sum()), what)
        return self if seen is None else replace(self, seen=seen)

    def encode(
        self, out: np.ndarray, column: Column, where: str, *, allow_unseen: bool = False
    ) -> None:
        """Fill ``out`` (N, features).

        Raises:
            DataError: values that do not fit, or that float32 does not hold.
        """
        values = self.raw(column, where)
        _check_finite(values[~column.missing], where)
        self.fill(out, np.where(column.missing, self.median, values), where)
        if self.flag:
            out[:, -1] = column.missing

    def fill(self, out: np.ndarray, values: np.ndarray, where: str) -> None:
        """Fill ``out`` (N, features) but for "is missing" with (N,) float64 values.

        Raises:
            DataError: values that float32 does not hold.
        """
        if self.limits is not None:
            values = self.limits.clip(values)
        for index, period in enumerate(self.periods):
            part = np.fmod(np.fmod(values, period) + period, period) / period
            for shift in (0, 1):
                moved = np.fmod(part + 0.25 * shift, 1.0)
                out[:, 1 + 2 * index + shift] = 4 * np.abs(moved - 0.5) - 1
        centred = values - self.mean
        with np.errstate(over="ignore"):  # refused below
            np.divide(centred, self.scale, out=out[:, 0], casting="same_kind")
        if not np.isfinite(out[:, 0]).all():
            raise DataError(
                f"{where} has the value {values[np.abs(centred).argmax()]:g}, too far from the "
                f"training mean {self.mean:g} for float32; correct it"
            )

    def too_far(self, numbers: np.ndarray) -> np.ndarray:
        """(N,) bool: whether a value is infinite, or float32 does not hold what becomes of it."""
        if self.limits is not None:
            infinite: np.ndarray = np.isinf(numbers)
            return infinite
        with np.errstate(over="ignore", invalid="ignore"):
            centred = np.abs((numbers - self.mean) / self.scale)
        too_far: np.ndarray = centred > np.finfo(np.float32).max
        return too_far

    def raw(self, column: Column, where: str) -> np.ndarray:
        """(N,) float64, NaN where a value is missing.

        Raises:
            DataError: values that do not fit.
        """
        if column.unfit:
            raise DataError(
                f"{where}: {kinds.unfit_text(column)}; partial (--partial) predicts the other rows"
            )
        return np.where(column.missing, np.nan, column.values.astype(np.float64))

    def watched(self, raw: np.ndarray) -> np.ndarray:
        """(N,) float64 of what is watched of (N,) raw values: the values."""
        return raw


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

    is_text = True

    @property
    def feature_names(self) -> list[str]:
        return [
            *(f"{self.name} = {category}" for category in self.categories),
            *[f"{self.name} is another"] * self.other,
            *[f"{self.name} is missing"] * self.flag,
        ]

    @classmethod
    def fit(cls, name: str, column: Column, max_categories: int) -> CategoryColumn:
        """Of a column that has a value."""
        return cls.of(name, counts_of(column), max_categories, flag=bool(column.missing.any()))

    @classmethod
    def of(
        cls, name: str, counts: Counter[str], max_categories: int, *, flag: bool
    ) -> CategoryColumn:
        """Of categories with so many rows each; the most frequent have a feature."""
        # Of equally frequent ones, the first by name.
        ranked = sorted(counts, key=lambda category: (-counts[category], category))
        kept = tuple(sorted(ranked[:max_categories]))
        return cls(name, kept, other=len(ranked) > max_categories, flag=flag)

    def watching(self, column: Column) -> CategoryColumn:
        """With what the training rows had."""
        counted = counts_of(column)
        counts = tuple(counted[category] for category in self.categories)
        missing = int(column.missing.sum())
        return replace(self, seen=CategoriesSeen(counts, counted.total() - sum(counts), missing))

    def encode(
        self, out: np.ndarray, column: Column, where: str, *, allow_unseen: bool = False
    ) -> None:
        """Fill ``out`` (N, features) with zeros and ones; it comes all zeros.

        Raises:
            DataError: a category that training did not see, unless these are taken as missing.
        """
        codes = self.codes(column)
        unseen = codes == UNSEEN_CODE
        if self.other:
            codes[unseen] = len(self.categories)
        elif unseen.any() and not allow_unseen:
            value = texts_of(column)[unseen][0]
            same = int(unseen.sum())
            raise DataError(
                f"{where} has {same} row{'s' * (same != 1)} with a value that training did not "
                f"see, such as {value!r}; allow_unseen (--allow-unseen) takes them as missing, "
                "partial (--partial) predicts the other rows"
            )
        rows = np.flatnonzero(codes >= 0)
        out[rows, codes[rows]] = 1
        if self.flag:
            out[:, -1] = codes < 0

    def raw(self, column: Column, where: str) -> np.ndarray:
        """(N,) texts, "" where a value is missing."""
        return texts_of(column)

    def codes(self, column: Column) -> np.ndarray:
        """(N,) int64 index of each row's category; -1 where it is missing, -2 where unseen."""
        index = {category: code for code, category in enumerate(self.categories)}
        # map and fromiter loop in C: five million rows take about a second.
        codes = np.fromiter(
            map(index.get, texts_of(column), repeat(UNSEEN_CODE)), np.int64, len(column.values)
        )
        codes[column.missing] = _MISSING
        return codes


def far_values(columns: Mapping[str, Column], limits: Mapping[str, Limits | None]) -> list[str]:
    """A clause for each column of numbers that has values beyond its limits, and so clipped."""
    far = {name: FarValues(name, limit) for name, limit in limits.items() if limit is not None}
    for name, each in far.items():
        each.add(columns[name])
    return [clause for each in far.values() if (clause := each.clause()) is not None]


@dataclass(eq=False)
class FarValues:
    """Counts values of a column beyond its limits, which are clipped."""

    name: str
    limit: Limits
    values: int = 0
    far: int = 0
    farthest: float = 0.0
    is_date: bool = False

    def add(self, column: Column) -> None:
        """These rows, too."""
        if column.is_text:
            return
        values = column.values[~column.missing].astype(np.float64)
        far = values[self.limit.beyond(values)]
        self.values, self.far = self.values + len(values), self.far + len(far)
        self.is_date = column.is_date
        if len(far):
            self.farthest = max(self.farthest, float(far[np.abs(far).argmax()]), key=abs)

    def clause(self) -> str | None:
        """Remark on them; None if there are none."""
        if not self.far:
            return None
        farthest = np.array([self.farthest])
        written = [
            kinds.day_text(number) if self.is_date else f"{number:.10g}"
            for number in (*farthest.tolist(), *self.limit.clip(farthest).tolist())
        ]
        remark = (
            f"is far from all others: {written[0]} is read as {written[1]}; leave it empty "
            "if it stands for no value"
            if self.far == 1
            else f"are far from all others, such as {written[0]}, and are read as {written[1]}; "
            "leave them empty if they stand for no value"
        )
        return f"{self.far:,} of {self.values:,} values of {self.name!r} {remark}"


def far_in(table: Table, names: Iterable[str]) -> list[str]:
    """Such a clause for each of these columns by its own values; of the first rows."""
    table = table.take(np.arange(min(table.num_rows, _LOOKED_AT)))
    columns = {name: table.column(name) for name in names}
    limits = {
        name: Limits.of(column.values[~column.missing].astype(np.float64))
        for name, column in columns.items()
        if not column.is_text
    }
    return far_values(columns, limits)


def _check_finite(present: np.ndarray, where: str) -> None:
    num_infinite = int((~np.isfinite(present)).sum())
    if num_infinite:
        raise DataError(
            f"{where} has {num_infinite} infinite values; replace them, or leave them empty to "
            "have them taken as missing"
        )


def counts_of(column: Column) -> Counter[str]:
    """Category -> the rows that have it."""
    present = column.values[~column.missing]
    if column.is_text:
        return Counter(present.tolist())
    values, counts = np.unique(present, return_counts=True)
    return Counter(dict(zip(as_text(values), counts.tolist(), strict=True)))
