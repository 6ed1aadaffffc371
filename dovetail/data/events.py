"""Events, several rows a sample, as one row a sample: computed by DuckDB at the party's site.

    count_30d              events in the 30 days before the sample's day
    amount_sum_30d         of a column of numbers: their sum, and ``amount_mean_30d``
    amount_last            its last value before that day
    kind_web_share_30d     of a column of categories: the share of events of one of the most
    frequent days_since_last        days from the last event to that day

No event of that day or later counts. What is counted is decided once, by the training rows, and
kept with the model, so that later events are read alike.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date

import duckdb
import numpy as np

from dovetail.data.duck import first_line
from dovetail.data.kinds import ID, Column, Reading
from dovetail.data.tables import InMemory, Table
from dovetail.errors import DataError
from dovetail.settings.events import EventsSection
from dovetail.settings.sources import literal, quoted

_EPOCH = date(1970, 1, 1).toordinal()
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
#: Text that differs in more than this share of its rows has no commonest category.
_OFTEN_NEW = 0.5


@dataclass(frozen=True)
class Events:
    """Encoding of a table of events.

    Attributes:
        per, time, before, windows: see ``EventsSection``.
        numbers: columns of which there are sums, means and last values.
        categories: column -> those of which there are shares.
        schema: column -> how it is read.
    """

    per: str
    time: str
    before: str | None
    windows: tuple[int, ...]
    numbers: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    schema: Mapping[str, Reading] = field(default_factory=dict)

    @classmethod
    def of(cls, section: EventsSection, table: Table, kept: Sequence[str] = ()) -> Events:
        """Encoding fitted to these training events.

        Args:
            section: the party's.
            table: a row an event.
            kept: columns that say something of the sample, such as its label.

        Raises:
            DataError: a column that is not there, or times that are none.
        """
        special = {section.per, section.time, section.before, *kept}
        numbers, categories = [], {}
        for name in table.names:
            if name in special:
                continue
            column = table.column(name)
            present = column.values[~column.missing]
            if column.is_date or not len(present):
                continue
            if not column.is_text:
                numbers.append(name)
                continue
            counts = Counter(present.tolist())
            if len(counts) <= max(20, _OFTEN_NEW * len(present)):
                ranked = sorted(counts, key=lambda value: (-counts[value], value))
                categories[name] = tuple(ranked[: section.most])
        found = cls(
            section.per,
            section.time,
            section.before,
            tuple(sorted(set(section.windows))),
            tuple(numbers),
            categories,
        )
        found._check(table)
        read = [found.time, *([str(found.before)] if found._is_column else []), *numbers]
        schema = {name: table.reading(name) for name in (*read, *categories)}
        return replace(found, schema=schema)

    @property
    def columns(self) -> dict[str, str]:
        """Name -> what DuckDB computes, of the events of a sample."""
        made = {}
        for days in self.windows:
            inside = f"FILTER (WHERE _time < _before AND _time >= _before - {days})"
            made[f"count_{days}d"] = f"count(*) {inside}"
            for name in self.numbers:
                made[f"{name}_sum_{days}d"] = f"coalesce(fsum({quoted(name)}) {inside}, 0)"
                made[f"{name}_mean_{days}d"] = f"favg({quoted(name)}) {inside}"
            for name, values in self.categories.items():
                for value in values:
                    is_so = f"({quoted(name)} = {literal(value)})::DOUBLE"
                    made[f"{name}_{value}_share_{days}d"] = f"favg({is_so}) {inside}"
        for name in self.numbers:
            there = f"FILTER (WHERE _time < _before AND {quoted(name)} IS NOT NULL)"
            made[f"{name}_last"] = f"arg_max({quoted(name)}, _time) {there}"
        made["days_since_last"] = "any_value(_before) - max(_time) FILTER (WHERE _time < _before)"
        return made

    def are_in(self, table: Table) -> bool:
        """Whether a table has events, and not what becomes of them."""
        return {self.per, self.time} <= {*table.names} and not {*self.columns} <= {*table.names}

    def by_sample(self, table: Table, kept: Sequence[str] = ()) -> Table:
        """Table with a row a sample, in the order of their ids; ``kept`` columns are the same in
        its rows.

        Raises:
            DataError: columns that are not there, an event of nobody, or a sample with two values
                of a kept column.
        """
        self._check(table)
        per, time = table.column(self.per, ID), self._column(table, self.time)
        if per.missing.any():
            raise DataError(
                f"{table.description}: {int(per.missing.sum()):,} events have no {self.per!r}; say "
                "whose they are, or leave these rows out"
            )
        ids, sample_N = np.unique(
            per.values.astype(np.str_) if per.is_text else per.values, return_inverse=True
        )
        first_S = np.unique(sample_N, return_index=True)[1]
        before_N = self._before(table, time)
        named = dict.fromkeys([*kept, *([str(self.before)] if self._is_column else [])])
        rows = {name: table.column(name) for name in named}
        for name, column in rows.items():
            _check_one(table, self.per, name, column, sample_N, ids)
        made = self._computed(table, time, before_N, sample_N)
        columns = {self.per: Column(per.values[first_S], np.zeros(len(ids), dtype=bool))}
        columns |= {name: rows[name].take(first_S) for name in kept}
        columns |= dict(zip(self.columns, made, strict=True))
        return Table(
            f"{table.description}, a row a {self.per}",
            tuple(columns),
            len(ids),
            InMemory(columns.__getitem__),
        )

    def _column(self, table: Table, name: str) -> Column:
        """A column as the training events were read."""
        return table.column(name, self.schema.get(name))

    @property
    def _is_column(self) -> bool:
        return self.before is not None and _DAY.fullmatch(self.before) is None

    def _before(self, table: Table, time: Column) -> np.ndarray:
        """(N,) the day of each event's sample, NaN where it has none."""
        if self._is_column:
            column = self._column(table, str(self.before))
            return np.where(column.missing, np.nan, column.values.astype(np.float64))
        if self.before is not None:
            day = float(date.fromisoformat(self.before).toordinal() - _EPOCH)
        else:
            present = time.values[~time.missing]
            day = float(np.floor(present.max()) + 1) if len(present) else 0.0
        return np.full(len(time.values), day)

    def _check(self, table: Table) -> None:
        """Raises: DataError: a column that is not there, or that should have days."""
        days = [self.time, *([str(self.before)] if self._is_column else [])]
        for name in (self.per, *days, *self.numbers, *self.categories):
            column = table.column(name, ID) if name == self.per else self._column(table, name)
            if name in days and not column.is_date and not column.missing.all():
                raise DataError(
                    f"{table.description}: events.{'time' if name == self.time else 'before'} "
                    f"names {name!r}, which has no dates; write them YYYY-MM-DD"
                )
            if name in self.numbers and column.is_text:
                raise DataError(
                    f"{table.description}: {name!r} has text, but training saw numbers there"
                )

    def _computed(
        self, table: Table, time: Column, before_N: np.ndarray, sample_N: np.ndarray
    ) -> Iterator[Column]:
        """Each column of a row a sample."""
        arrays: dict[str, np.ndarray] = {
            "_sample": sample_N.astype(np.int64),
            "_time": np.where(time.missing, np.nan, time.values.astype(np.float64)),
            "_before": before_N,
        }
        selected = ["_sample", "nullif(_time, 'NaN') AS _time", "nullif(_before, 'NaN') AS _before"]
        for name in self.numbers:
            column = self._column(table, name)
            arrays[name] = np.where(column.missing, np.nan, column.values.astype(np.float64))
            selected.append(f"nullif({quoted(name)}, 'NaN') AS {quoted(name)}")
        for name in self.categories:
            column = self._column(table, name)
            texts = column.values if column.is_text else column.values.astype(np.str_)
            arrays[name] = np.where(column.missing, "", texts).astype(object)
            selected.append(f"nullif({quoted(name)}, '') AS {quoted(name)}")
        made = ", ".join(f"({sql})::DOUBLE" for sql in self.columns.values())
        query = (
            f"SELECT {made} FROM (SELECT {', '.join(selected)} FROM events) "
            "GROUP BY _sample ORDER BY _sample"
        )
        try:
            with duckdb.connect(config={"threads": 1}) as connection:  # sums in the rows' order
                connection.register("events", arrays)
                rows = connection.execute(query).fetchnumpy()
        except duckdb.Error as error:
            raise DataError(
                f"cannot sum up the events of {table.description}: {first_line(error)}"
            ) from None
        for values in rows.values():
            missing = np.ma.getmaskarray(values)
            filled = np.where(missing, np.nan, np.ma.getdata(values)).astype(np.float64)
            yield Column(filled, missing)


def _check_one(
    table: Table, per: str, name: str, column: Column, sample_N: np.ndarray, ids: np.ndarray
) -> None:
    """Refuse a column that says two things of one sample."""
    codes_N = np.unique(
        column.values.astype(np.str_) if column.is_text else column.values, return_inverse=True
    )[1]
    codes_N = np.where(column.missing, -1, codes_N)
    low_S = np.full(len(ids), np.iinfo(np.int64).max)
    high_S = np.full(len(ids), -1, dtype=np.int64)
    np.minimum.at(low_S, sample_N, codes_N)
    np.maximum.at(high_S, sample_N, codes_N)
    if (low_S != high_S).any():
        first = ids.tolist()[np.flatnonzero(low_S != high_S)[0]]
        raise DataError(
            f"{table.description}: {name!r} has several values of {per} {first!r}; a column that "
            "says something of the sample is the same in all of its events"
        )
