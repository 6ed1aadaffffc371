"""Columns that several parties have: encoded the same way at each, without pooling their rows.

Each party summarises its own training rows. The summaries of all are combined into one encoding.
A mean and a variance combine exactly (Chan, Golub, LeVeque 1983); a median does not, so a missing
number takes the mean of all parties instead of the median that ``TableEncoder.fit`` takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import TypeAdapter, ValidationError

from dovetail.data.fitted import CategoryColumn, Limits, NumberColumn, counts_of, is_constant
from dovetail.data.kinds import DATES
from dovetail.data.preprocessing import (
    FittedColumn,
    TableEncoder,
    fixed_how,
    inferred,
    is_free_text,
)
from dovetail.data.tables import Table
from dovetail.data.vectors import Fixed, Frozen, Hashed, VectorColumn
from dovetail.errors import DataError


@dataclass(frozen=True)
class NumberSummary:
    """Summary of one party's column of numbers for the mean and variance of all.

    Attributes:
        count: rows with a value.
        missing: rows without.
        mean: of the values; 0 where there are none.
        squares: sum of (value - mean)^2.
        dates: whether they are days since 1970.
    """

    count: int
    missing: int
    mean: float
    squares: float
    dates: bool = False


@dataclass(frozen=True)
class CategorySummary:
    """How many rows have each category, in one party's column.

    Attributes:
        counts: category -> rows.
        missing: rows without a value.
    """

    counts: Mapping[str, int]
    missing: int


@dataclass(frozen=True)
class FixedSummary:
    """Summary of a column whose features at one party are the same for any rows.

    Attributes:
        how: as JSON, without what only that party's machine knows.
        missing: rows without a value.
    """

    how: str
    missing: int


Summary = NumberSummary | CategorySummary | FixedSummary

_FIXED: TypeAdapter[Hashed | Frozen] = TypeAdapter(Fixed)


def kind_of(summary: Summary) -> str:
    """Kind of a column, as errors name it."""
    if isinstance(summary, FixedSummary):
        return f"values that {summary.how} encodes"
    if isinstance(summary, NumberSummary):
        return "dates" if summary.dates else "numbers"
    return "categories"


def summarise(
    table: Table, names: Sequence[str], *, categorical: Sequence[str] = (), party: str
) -> dict[str, Summary]:
    """Column -> what this party's rows add; all that other parties need to encode alike.

    Args:
        table: the party's training rows.
        names: columns that other parties have too.
        categorical: names of number columns whose values are names, such as postcodes.
        party: whose columns they are, for errors.

    Raises:
        DataError: a column that is not there, has infinite values, or whose features are fitted to
            one party's rows.
    """
    summaries: dict[str, Summary] = {}
    for name in names:
        column = table.column(name, table.reading(name, categorical=name in categorical))
        missing = int(column.missing.sum())
        present = column.values[~column.missing]
        asked = None if table.asked is None else table.asked.columns.get(name)
        if asked is not None and asked.is_fixed:
            how = fixed_how(table, name)
            summaries[name] = FixedSummary(_FIXED.dump_json(how.shared()).decode(), missing)
            continue
        if is_free_text(column) if asked is None else asked.is_fitted:
            raise DataError(
                f"party {party!r}: column {name!r} of {table.description} is read as text or by "
                "frequency, which is fitted to one party's rows, so it cannot be common; leave it "
                f"out of the common columns, or name in encode.{name} what is the same at all: a "
                'model, or kind = "hash"'
            )
        if column.is_text:
            summaries[name] = CategorySummary(dict(counts_of(column)), missing)
            continue
        numbers = present.astype(np.float64)
        limits = Limits.of(numbers)
        if limits is not None and np.isfinite(numbers).all():
            numbers = limits.clip(numbers)
        with np.errstate(over="ignore", invalid="ignore"):  # refused below
            mean = float(numbers.mean()) if len(numbers) else 0.0
            squares = float(((numbers - mean) ** 2).sum())
        if not (np.isfinite(mean) and np.isfinite(squares)):
            raise DataError(
                f"party {party!r}: column {name!r} of {table.description} has infinite or too "
                "large values; replace them, or leave them empty to have them taken as missing"
            )
        summaries[name] = NumberSummary(len(numbers), missing, mean, squares, column.is_date)
    return summaries


def agree(
    summaries: Mapping[str, Mapping[str, Summary]], *, max_categories: int = 100
) -> TableEncoder:
    """How all parties encode the columns that all of them summarised.

    Args:
        summaries: party -> column -> summary; the same columns in the same order for each.
        max_categories: a column with more keeps so many of the most frequent.

    Raises:
        DataError: a column of one kind at one party and of another elsewhere, or that no party
            has a value of.
    """
    first, *_ = summaries
    fitted = [
        _agree_on(name, {party: each[name] for party, each in summaries.items()}, max_categories)
        for name in summaries[first]
    ]
    dates = {name for name, each in summaries[first].items() if kind_of(each) == "dates"}
    schema = {each.name: DATES if each.name in dates else inferred(each) for each in fitted}
    return TableEncoder("all", fitted, schema=schema)


def _agree_on(name: str, summaries: Mapping[str, Summary], max_categories: int) -> FittedColumn:
    first, *_ = summaries
    for party, summary in summaries.items():
        if kind_of(summary) != kind_of(summaries[first]):
            raise DataError(
                f"the common column {name!r} has {kind_of(summaries[first])} at party {first!r} "
                f"but {kind_of(summary)} at party {party!r}; make them one type, or leave it out "
                "of the common columns"
            )
    flag = any(summary.missing for summary in summaries.values())
    one = summaries[first]
    if isinstance(one, FixedSummary):
        try:
            return VectorColumn(name, _FIXED.validate_json(one.how), flag)
        except ValidationError as error:
            raise DataError(
                f"the common column {name!r} cannot be encoded as party {first!r} says "
                f"({error.errors()[0]['msg']})"
            ) from None
    counts: Counter[str] = Counter()
    count, mean, squares = 0, 0.0, 0.0
    for summary in summaries.values():
        if isinstance(summary, CategorySummary):
            counts.update(summary.counts)
        elif isinstance(summary, NumberSummary) and summary.count:
            total = count + summary.count
            shift = summary.mean - mean
            mean += shift * summary.count / total
            squares += summary.squares + shift**2 * count * summary.count / total
            count = total
    if not counts and not count:
        raise DataError(f"the common column {name!r} has no value at any party; leave it out")
    if counts:
        return CategoryColumn.of(name, counts, max_categories, flag=flag)
    scale = float(np.sqrt(squares / count))
    if is_constant(scale, mean):
        scale = 1.0
    return NumberColumn(name, mean, mean, scale, flag)


def common_first(agreed: TableEncoder, private: TableEncoder | None, *, party: str) -> TableEncoder:
    """A party's encoder: the agreed columns, then its own."""
    if private is None:
        return TableEncoder(party, agreed.fitted, schema=agreed.schema)
    schema = {**agreed.schema, **private.schema}
    return TableEncoder(party, [*agreed.fitted, *private.fitted], schema=schema)


def fit_rest(
    table: Table,
    agreed: Sequence[str],
    categorical: Sequence[str],
    max_categories: int,
    *,
    party: str,
) -> TableEncoder | None:
    """How a party encodes its other columns, by its own training rows; None: it has none."""
    names = [name for name in table.names if name not in set(agreed)]
    if not names:
        return None
    return TableEncoder.fit(
        table,
        names,
        categorical=[name for name in categorical if name in names],
        max_categories=max_categories,
        party=party,
    )
