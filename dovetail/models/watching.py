"""Whether new rows are like those that a model was trained on, column by column.

    PSI = sum_b (q_b - p_b) ln(q_b / p_b)        over bins; p of training, q of the new rows
    KS  = max_b |P_b - Q_b|                      at the edges of the bins

Both are above 0 by chance: m n / (m + n) PSI is about chi-squared with (bins - 1) degrees of
freedom where nothing changed (Yurdakul 2018, Sec. 3), and sqrt(m n / (m + n)) KS has Kolmogorov's
distribution. An alarm needs a difference that is large and no chance: PSI above 0.2 or KS above
0.15, each with a probability below 1 in 1000 over all columns together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.data.fitted import CategoriesSeen, CategoryColumn
from dovetail.data.preprocessing import FittedColumn, TableEncoder
from dovetail.data.tables import Table, read_table
from dovetail.errors import DataError

#: "A significant change" where scorecards are watched (Siddiqi 2006).
PSI_ALARM = 0.2
KS_ALARM = 0.15
#: Shares of missing or of unseen values that differ by more are told of.
SHARE_ALARM = 0.05
UNSEEN_ALARM = 0.01
#: Of all columns together, by chance.
ALPHA = 1e-3
#: Fewer rows than this say nothing.
LEAST_ROWS = 50
#: Rows that a service looks back on, and after how many it looks.
_WINDOW, _LOOK = 2000, 250
#: Fewer bins than this may be as full by chance.
_MANY_BINS = 20
#: What stands for a share of 0 in a logarithm: half a row.
_HALF = 0.5


@dataclass(frozen=True)
class ColumnDrift:
    """How one column of new rows differs from training.

    Attributes:
        column: its name.
        psi, ks: see above; ks is None of categories.
        missing, missing_then: shares of rows without a value, now and in training.
        unseen: share of rows with a category that training did not see.
        alarms: what is more than chance, in words.
    """

    column: str
    psi: float
    ks: float | None
    missing: float
    missing_then: float
    unseen: float
    alarms: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "column": self.column,
            "psi": round(self.psi, 6),
            "ks": None if self.ks is None else round(self.ks, 6),
            "missing": self.missing,
            "missing_then": self.missing_then,
            "unseen": self.unseen,
            "alarms": list(self.alarms),
        }


@dataclass(eq=False)
class Counts:
    """How many new rows of one column fall in each bin, are missing, or are unseen."""

    bins: np.ndarray
    missing: int = 0
    unseen: int = 0

    @property
    def rows(self) -> int:
        return int(self.bins.sum()) + self.missing + self.unseen


def summed(parts: Sequence[Counts]) -> Counts:
    """Counts of all rows of these parts."""
    return Counts(
        np.sum([each.bins for each in parts], axis=0),
        sum(each.missing for each in parts),
        sum(each.unseen for each in parts),
    )


def count(column: FittedColumn, values: np.ndarray) -> Counts:
    """Counts of (N,) raw values as ``TableEncoder.raw`` gives them."""
    if not isinstance(column, CategoryColumn):
        assert column.seen is not None
        watched = column.watched(values)
        there = watched[~np.isnan(watched)]
        return Counts(column.seen.count(there), len(values) - len(there))
    index = {name: position for position, name in enumerate(column.categories)}
    size = len(column.categories)
    indices = np.array([index.get(text, size if text else size + 1) for text in values.tolist()])
    bins = np.bincount(indices, minlength=size + 2)
    if column.other:
        return Counts(bins[: size + 1], int(bins[size + 1]))
    return Counts(bins[:size], int(bins[size + 1]), int(bins[size]))


def holds_training(inputs: Mapping[str, Any], table: Table) -> bool:
    """Whether these rows are, or have among them, those of training, as far as counts can say.

    In each bin of each column there are at least as many as in training, which rows of their own
    hardly have: of about as many, half of the bins have fewer.
    """
    num_bins = 0
    for encoder in inputs.values():
        if not isinstance(encoder, TableEncoder):
            continue
        values = encoder.raw(table)
        for column in encoder.fitted:
            if column.seen is None:
                continue
            now, then = count(column, values[column.name]), np.array(column.seen.counts)
            num_bins += len(then)
            if now.rows > 2 * (then.sum() + column.seen.missing):
                return False
            if (now.bins[: len(then)] < then).any() or now.missing < column.seen.missing:
                return False
    return num_bins >= _MANY_BINS


def compare(column: FittedColumn, now: Counts, *, num_columns: int) -> ColumnDrift | None:
    """Comparison of a column now and then; None if training kept nothing of it, or too few rows
    came."""
    seen = column.seen
    if seen is None or now.rows < LEAST_ROWS:
        return None
    then = np.array(seen.counts, dtype=float)
    if isinstance(column, CategoryColumn) and column.other:
        assert isinstance(seen, CategoriesSeen)
        then = np.append(then, seen.other)
    from scipy import special  # when all rows are predicted, so that its memory is that of theirs

    bins = now.bins.astype(float)
    m, n = then.sum(), bins.sum()
    alpha = ALPHA / max(num_columns, 1) / 3  # of three questions a column
    alarms: list[str] = []
    psi, ks = 0.0, None
    if m and n:
        p = np.maximum(then, _HALF) / m
        q = np.maximum(bins, _HALF) / n
        psi = float(((q - p) * np.log(q / p)).sum())
        size = m * n / (m + n)
        many = max(len(then) - 1, 1)
        if psi > PSI_ALARM and special.gammaincc(many / 2, size * psi / 2) < alpha:
            alarms.append(f"its values are distributed otherwise (PSI {psi:.2f})")
        if not isinstance(column, CategoryColumn):
            ks = float(np.abs(then.cumsum() / m - bins.cumsum() / n).max())
            if not alarms and ks > KS_ALARM and special.kolmogorov(ks * np.sqrt(size)) < alpha:
                alarms.append(f"its values are distributed otherwise (KS {ks:.2f})")
    rows_then = m + seen.missing
    missing, missing_then = now.missing / now.rows, seen.missing / rows_then if rows_then else 0.0
    if abs(missing - missing_then) > SHARE_ALARM:
        pooled = (now.missing + seen.missing) / (now.rows + rows_then)
        spread = np.sqrt(pooled * (1 - pooled) * (1 / now.rows + 1 / rows_then))
        if 2 * special.ndtr(-abs(missing - missing_then) / max(spread, 1e-12)) < alpha:
            alarms.append(f"{missing:.1%} are missing, {missing_then:.1%} in training")
    unseen = now.unseen / now.rows
    if unseen > UNSEEN_ALARM and now.unseen >= 5:
        alarms.append(f"{unseen:.1%} have a category that training did not see")
    return ColumnDrift(column.name, psi, ks, missing, missing_then, unseen, tuple(alarms))


def drift(encoders: Sequence[TableEncoder], table: Table) -> list[ColumnDrift]:
    """Column by column of a table; those that training kept nothing of are left out.

    Raises:
        DataError: columns that are not there, or text where numbers are expected.
    """
    return _drifts(_counted(encoders, table), encoders)


def _counted(
    encoders: Iterable[TableEncoder], table: Table
) -> dict[str, tuple[FittedColumn, Counts]]:
    """Name -> column and counts of a table, of those of which training kept something.

    Raises:
        DataError: columns that are not there, or text where numbers are expected.
    """
    return {
        column.name: (column, count(column, raw[column.name]))
        for encoder, raw in ((each, each.raw(table)) for each in encoders)
        for column in encoder.fitted
        if column.seen is not None
    }


def _drifts(
    counts: Mapping[str, tuple[FittedColumn, Counts]], encoders: Iterable[TableEncoder]
) -> list[ColumnDrift]:
    """Comparisons of these counts with training, of columns that had rows enough."""
    num_columns = len({each.name for encoder in encoders for each in encoder.fitted})
    compared = (compare(*each, num_columns=num_columns) for each in counts.values())
    return [each for each in compared if each is not None]


def warning(drifts: Sequence[ColumnDrift], *, of: int | None = None) -> str | None:
    """A clause of the columns that differ; None where none does.

    Args:
        drifts: of each column.
        of: how many were looked at; None: these.
    """
    differing = [each for each in drifts if each.alarms]
    if not differing:
        return None
    shown = "; ".join(f"{each.column}: {', '.join(each.alarms)}" for each in differing[:5])
    more = f"; and {len(differing) - 5} more" if len(differing) > 5 else ""
    return (
        f"these rows are not like those of training in {len(differing)} of {of or len(drifts)} "
        f"columns ({shown}{more})"
    )


def shift(inputs: Mapping[str, Any], source: str | Path) -> str | None:
    """The warning for a table that is predicted; None where nothing is known."""
    try:
        found = Shift(inputs)
        found.add(read_table(source))
    except DataError:  # told of by whoever predicts
        return None
    return found.text()


class Shift:
    """Counts how rows that are predicted differ from those of training, part by part."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        encoders = [each for each in inputs.values() if isinstance(each, TableEncoder)]
        self._encoders = [(each, each.counting_far()) for each in encoders]
        self._counts: dict[str, tuple[FittedColumn, Counts]] = {}

    def add(self, table: Table) -> None:
        """These rows, too.

        Raises:
            DataError: columns that are not there, or values that do not fit.
        """
        for encoder, far in self._encoders:
            for each in far:
                each.add(encoder.cells(table, each.name))
        for name, (column, counts) in _counted((each for each, _ in self._encoders), table).items():
            before = [self._counts[name][1]] if name in self._counts else []
            self._counts[name] = column, summed([*before, counts])

    def text(self) -> str | None:
        """The warning; None where nothing is known or differs."""
        clauses = [clause for _, far in self._encoders for each in far if (clause := each.clause())]
        text = warning(_drifts(self._counts, (each for each, _ in self._encoders)))
        if text is not None:
            clauses.append(f"{text}; dovetail drift tells more")
        return "; ".join(clauses) or None


class Watcher:
    """Watches the latest rows of a service, a window at a time.

    Args:
        name, version: of the model.
        columns: its own.
    """

    def __init__(self, name: str, version: str, columns: Sequence[FittedColumn]) -> None:
        self.name = name
        self.version = version
        self.alarming: dict[str, tuple[str, ...]] = {}
        self._columns = [each for each in columns if each.seen is not None]
        self._waiting: list[Mapping[str, np.ndarray]] = []
        self._num_waiting = 0
        self._parts: list[dict[str, Counts]] = []

    def add(self, feeds: Mapping[str, np.ndarray]) -> list[ColumnDrift]:
        """Take rows; now and then, what the latest ones say of each column."""
        if not self._columns:
            return []
        self._waiting.append(feeds)
        self._num_waiting += len(next(iter(feeds.values())))
        if self._num_waiting < _LOOK:
            return []
        part = {}
        for column in self._columns:
            values = np.concatenate([each[column.name][:, 0] for each in self._waiting])
            part[column.name] = count(column, values)
        self._waiting, self._num_waiting = [], 0
        self._parts.append(part)
        while len(self._parts) > 1 and self._rows() > _WINDOW:
            del self._parts[0]
        found_drifts = []
        for column in self._columns:
            now = summed([each[column.name] for each in self._parts])
            drift_found = compare(column, now, num_columns=len(self._columns))
            if drift_found is not None:
                found_drifts.append(drift_found)
        return found_drifts

    def _rows(self) -> int:
        first = self._columns[0].name
        return sum(part[first].rows for part in self._parts)

    def news(self, drifts: Sequence[ColumnDrift]) -> str | None:
        """A warning where columns differ that did not before; None otherwise."""
        now = {each.column: each.alarms for each in drifts if each.alarms}
        fresh = [each for each in drifts if each.alarms and each.column not in self.alarming]
        if drifts:
            self.alarming = now
        return warning(fresh, of=len(drifts)) if fresh else None
