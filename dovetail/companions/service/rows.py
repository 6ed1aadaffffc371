"""Rows of a request: JSON, CSV or Parquet, each cell checked and named.

A row that cannot be used is named by its number and column; the others are as they would be
without it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np

from dovetail import data as dd
from dovetail.data import kinds
from dovetail.data.fitted import CategoryColumn, NumberColumn
from dovetail.data.preprocessing import FittedColumn, TableEncoder
from dovetail.data.tables import closest
from dovetail.data.vectors import VectorColumn
from dovetail.errors import DataError

#: Of more rows a column that is as it should be is read whole.
_MANY, _PLAIN = 64, {int, float, type(None)}
#: So many columns that are not the model's are told of, and looked at for what was meant.
_MOST_IGNORED = 20
#: So many bad cells are told of; a table that is all wrong says it in one page.
_MOST_LISTED = 50


@dataclass(frozen=True)
class BadCell:
    """Cell that cannot be used."""

    row: int
    column: str | None
    error: str


@dataclass(eq=False)
class Asked:
    """Rows as an ONNX file takes them.

    Attributes:
        feeds: column -> (N, 1) float64, where NaN is missing, or text, where "" is.
        bad: cells that cannot be used; their rows' values mean nothing.
        ids: (N,) of a column of ids, where one is asked for.
        ignored: columns that the model does not have, the first of them.
    """

    feeds: dict[str, np.ndarray]
    bad: list[BadCell] = field(default_factory=list)
    ids: list[Any] | None = None
    ignored: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.feeds.values())))

    @property
    def bad_rows(self) -> list[int]:
        return sorted({cell.row for cell in self.bad})

    def without_bad(self) -> Asked:
        """The rows that can be used."""
        keep = np.ones(len(self), dtype=bool)
        keep[self.bad_rows] = False
        ids = None if self.ids is None else [self.ids[row] for row in np.flatnonzero(keep)]
        feeds = {name: values[keep] for name, values in self.feeds.items()}
        return Asked(feeds, [], ids, self.ignored)


class RowReader:
    """Reads rows for one model.

    Args:
        encoders: of its blocks.
        allow_unseen: take categories unseen in training as missing.
    """

    def __init__(self, encoders: Sequence[TableEncoder]) -> None:
        self.columns: dict[str, FittedColumn] = {
            column.name: column for encoder in encoders for column in encoder.fitted
        }
        self._schema = {name: each for encoder in encoders for name, each in encoder.schema.items()}
        # Within, a number is one that float32 can tell from its mean; without, it is looked at.
        most = float(np.finfo(np.float32).max) / 2
        self._reach = {
            name: (column.mean - most * column.scale, column.mean + most * column.scale)
            for name, column in self.columns.items()
            if isinstance(column, NumberColumn)
        }
        self._known = {
            name: frozenset(column.categories)
            for name, column in self.columns.items()
            if isinstance(column, CategoryColumn)
        }

    def json(
        self,
        given: Any,
        *,
        most_rows: int,
        allow_unseen: bool = False,
        id_column: str | None = None,
    ) -> Asked:
        """Rows of a parsed body: one object, a list of them, or {"rows": [...]}.

        Columns that the model does not have are ignored, as those of a table are.

        Raises:
            DataError: a body that is none of these, or of too many rows.
        """
        if isinstance(given, dict) and set(given) == {"rows"}:
            given = given["rows"]
        rows = [given] if isinstance(given, dict) else given
        if not isinstance(rows, list):
            raise DataError(
                "the body must be an object of columns, a list of them, or "
                f'{{"rows": [...]}}; got {_kind(given)}'
            )
        check_count(len(rows), most_rows)
        bad: list[BadCell] = []
        whole: list[Mapping[str, Any]] = []
        known = self.columns.keys() | {id_column}
        ignored: dict[str, None] = {}
        for index, row in enumerate(rows):
            if not isinstance(row, dict):
                bad.append(BadCell(index, None, f"expected an object of columns, got {_kind(row)}"))
                whole.append({})
                continue
            whole.append(row)
            if len(ignored) < _MOST_IGNORED and not row.keys() <= known:
                ignored |= dict.fromkeys(_others(row, known))
        feeds = {}
        by_column = _transposed(whole, self.columns)
        for name, column in self.columns.items():
            cells = by_column[name] if by_column else [row.get(name) for row in whole]
            feeds[name] = self._cells(name, column, cells, bad, allow_unseen=allow_unseen)
            if None not in cells:
                continue
            for index, (row, cell) in enumerate(zip(whole, cells, strict=True)):
                if cell is None and name not in row and isinstance(rows[index], dict):
                    text = "the column is missing"
                    if len(bad) < _MOST_LISTED:
                        nearest_name = closest(name, _others(row, known))
                        text += "" if nearest_name is None else f" (is it {nearest_name!r}?)"
                    text += "; give null where there is no value"
                    bad.append(BadCell(index, name, text))
        ids = None if id_column is None else [row.get(id_column) for row in whole]
        return Asked(feeds, bad, ids, (*ignored,)[:_MOST_IGNORED])

    def table(
        self,
        table: dd.Table,
        *,
        most_rows: int,
        allow_unseen: bool = False,
        id_column: str | None = None,
    ) -> Asked:
        """Rows of a CSV or Parquet body; other columns are not read.

        Raises:
            DataError: columns that are not there, or too many rows.
        """
        check_count(table.num_rows, most_rows)
        absent = [name for name in self.columns if name not in table.names]
        if absent:
            raise DataError(
                f"the table lacks the columns {absent[:10]}; there are {list(table.names)[:20]}"
            )
        bad: list[BadCell] = []
        feeds = {}
        for name, column in self.columns.items():
            read = table.cells(name, self._schema[name])
            if isinstance(column, NumberColumn):
                expects = read.reading.expects
                bad += [
                    BadCell(row, name, f"expected {expects} or null, got {_shown(text)}")
                    for row, text in read.unfit.items()
                ]
                numbers = np.where(read.missing, np.nan, read.values.astype(np.float64))
                self._check_numbers(name, column, numbers, bad)
                feeds[name] = numbers[:, None]
                continue
            cells: list[Any] = read.values.tolist()
            for row in np.flatnonzero(read.missing):
                cells[row] = None
            feeds[name] = self._cells(name, column, cells, bad, allow_unseen=allow_unseen)
        ids = None
        if id_column is not None:
            known_ids = id_column in table.names
            ids = (
                table.column(id_column, kinds.ID).values.tolist()
                if known_ids
                else [None] * table.num_rows
            )
        others = _others(table.names, self.columns.keys() | {id_column})
        return Asked(feeds, bad, ids, tuple(others))

    def _cells(
        self,
        name: str,
        column: FittedColumn,
        cells: Sequence[Any],
        bad: list[BadCell],
        *,
        allow_unseen: bool,
    ) -> np.ndarray:
        """(N, 1) of a column's cells."""
        if not isinstance(column, NumberColumn):
            return self._texts(name, column, cells, bad, allow_unseen=allow_unseen)
        low, high = self._reach[name]
        reading = self._schema[name]
        is_plain = reading == kinds.NUMBERS
        if is_plain and len(cells) > _MANY and {*map(type, cells)} <= _PLAIN:
            with suppress(OverflowError):  # an integer that no float64 holds
                plain = np.array(cells, dtype=np.float64)  # None is NaN
                if not ((plain > low) & (plain < high)).all():
                    self._check_numbers(name, column, plain, bad)
                return plain[:, None]
        # Not column by column with numpy: of one row, that takes longer than the model does.
        numbers: list[float] = []
        is_bad = False
        for row, cell in enumerate(cells):
            kind = type(cell)
            if is_plain and (kind is float or kind is int) and low < cell < high:
                numbers.append(cell)
                continue
            value = _number(cell, reading)
            if value is None:
                wanted = f"{reading.expects} or null"
                if reading.kind == "date" and kind in (float, int):
                    wanted += ' as text (pandas: to_json(date_format="iso"))'
                bad.append(BadCell(row, name, f"expected {wanted}, got {_shown(cell)}"))
                value = math.nan
            numbers.append(value)
            is_bad = is_bad or not low < value < high
        values = np.array(numbers, dtype=np.float64)
        if is_bad:
            self._check_numbers(name, column, values, bad)
        return values[:, None]

    def _check_numbers(
        self, name: str, column: NumberColumn, numbers: np.ndarray, bad: list[BadCell]
    ) -> None:
        far = column.too_far(numbers)
        for row in np.flatnonzero(far):
            text = f"expected a number that float32 can tell from its mean, got {numbers[row]:g}"
            bad.append(BadCell(int(row), name, text))
        numbers[far] = np.nan

    def _texts(
        self,
        name: str,
        column: FittedColumn,
        cells: Sequence[Any],
        bad: list[BadCell],
        *,
        allow_unseen: bool,
    ) -> np.ndarray:
        known = self._known.get(name, frozenset())
        reading = self._schema[name]
        categories: Sequence[str] = ()  # the only ones that there may be
        if isinstance(column, CategoryColumn) and not column.other:
            categories = column.categories
        is_plain = len(cells) > _MANY and {*map(type, cells)} == {str} and reading.as_written
        if is_plain and known.issuperset(cells):
            return np.array(cells, dtype=object)[:, None]
        texts = np.empty((len(cells), 1), dtype=object)
        for row, cell in enumerate(cells):
            text = cell
            if type(cell) is not str:
                text_of = _category(cell)
                if text_of is None:
                    wanted = "a text or null"
                    bad.append(BadCell(row, name, f"expected {wanted}, got {_shown(cell)}"))
                text = text_of or ""
            if text not in known or not reading.as_written:
                text = kinds.one_text(text, reading)
                if text and text not in known and categories and not allow_unseen:
                    wanted = ", ".join(map(repr, categories[:8]))
                    more = ", ..." if len(categories) > 8 else ""
                    bad.append(
                        BadCell(row, name, f"expected one of {wanted}{more}, got {_shown(text)}")
                    )
            why = column.refuses(text) if isinstance(column, VectorColumn) else None
            if why is not None:
                bad.append(BadCell(row, name, why))
                text = ""
            texts[row, 0] = text
        return texts


def _transposed(
    rows: Sequence[Mapping[str, Any]], names: Collection[str]
) -> dict[str, Sequence[Any]]:
    """Column -> cells of many rows that have all of them; else nothing."""
    if len(rows) <= _MANY or len(names) < 2:
        return {}
    try:
        return dict(zip(names, zip(*map(itemgetter(*names), rows), strict=True), strict=True))
    except KeyError:
        return {}


def _others(names: Iterable[str], known: Collection[str | None]) -> list[str]:
    """The first of these names that the model does not have."""
    return [name[:100] for name in islice((n for n in names if n not in known), _MOST_IGNORED)]


def check_count(num_rows: int, most_rows: int) -> None:
    """Refuse a request of no row, or of too many.

    Raises:
        DataError: saying how many there may be.
    """
    if not num_rows:
        raise DataError("the body has no rows; give at least one")
    if num_rows > most_rows:
        raise DataError(
            f"the body has {num_rows} rows, more than the {most_rows} that one request may have; "
            "send several"
        )


def errors_json(bad: Sequence[BadCell]) -> list[dict[str, Any]]:
    """The first bad cells, by row; rows count from 1."""
    ordered = sorted(bad, key=lambda cell: cell.row)
    return [{**asdict(cell), "row": cell.row + 1} for cell in ordered[:_MOST_LISTED]]


def _number(cell: Any, reading: kinds.Reading) -> float | None:
    """A cell as a number or date, NaN where it is missing; None where it is neither."""
    if cell is None:
        return math.nan
    if isinstance(cell, bool | int | float):
        if reading.kind == "date":
            return None
        value = float(cell) if not isinstance(cell, int) or abs(cell) < 10**300 else math.inf
        return math.nan if kinds.number_text(cell) in reading.missing else value
    if not isinstance(cell, str) or len(cell) > 64:
        return None
    return kinds.one_number(cell, reading)


def _category(cell: Any) -> str | None:
    """A cell as a category, "" where it is missing; None where it is neither."""
    if cell is None or cell != cell:
        return ""
    is_value = isinstance(cell, bool | int | float) and abs(cell) < 1e300
    return kinds.cell_text(cell) if is_value else None


def _kind(given: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "a boolean"}
    if given is None:
        return "null"
    return kinds.get(type(given), "a number")


def _shown(cell: Any) -> str:
    if isinstance(cell, dict | list):
        return _kind(cell)
    shown = repr(cell)
    return shown if len(shown) <= 60 else shown[:59] + "…"
