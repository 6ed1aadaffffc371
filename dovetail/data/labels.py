"""Values of labels of more than one column, as one array of numbers.

Times are below zero where a row was censored then. Several labels are (N, L), NaN where a row lacks
one of them; a rate is (N, 2), the count and its exposure. ``settings/labels.py`` says what they are
called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dovetail.errors import DataError
from dovetail.settings.labels import Rate, SeveralLabels, TimeToEvent

#: How yes and no are written, besides 1 and 0.
_YES, _NO = ("true", "yes", "1", "dead"), ("false", "no", "0", "censored", "alive")


class Raw(Protocol):
    """A column's raw values, as ``Column`` has them."""

    @property
    def values(self) -> np.ndarray: ...
    @property
    def missing(self) -> np.ndarray: ...
    @property
    def is_text(self) -> bool: ...


def read_label(
    label: TimeToEvent | SeveralLabels | Rate, columns: Sequence[Raw]
) -> tuple[np.ndarray, np.ndarray]:
    """Values of a label of several columns for each row, and which rows have none.

    Raises:
        DataError: values that it cannot have.
    """
    match label:
        case TimeToEvent():
            return _read_times(label, columns)
        case Rate():
            return _read_rates(label, columns)
    return _read_several(label, columns)


def _read_times(label: TimeToEvent, columns: Sequence[Raw]) -> tuple[np.ndarray, np.ndarray]:
    """(N,) times, below zero of rows that are censored, and which rows lack one of the two.

    Raises:
        DataError: times below 0 or that are text, or an event that is neither yes nor no.
    """
    time, event = columns
    missing = time.missing | event.missing
    times = np.where(missing, 1.0, _numbers(time, label.time, "a time to an event"))
    happened = _yes(event, label.event, "whether the event came") == 1
    # Whoever had the event at 0 had it before whatever else is seen.
    above = times[times > 0]
    times = np.where(times == 0, above.min() / 2 if len(above) else 1.0, times)
    signed: np.ndarray = np.where(missing, 0.0, np.where(happened, times, -times))
    return signed, missing


def _read_several(label: SeveralLabels, columns: Sequence[Raw]) -> tuple[np.ndarray, np.ndarray]:
    """(N, L) numbers, yes as 1 and no as 0, NaN where missing, and which rows have none.

    Raises:
        DataError: a text that is neither yes nor no, or an infinite number.
    """
    parts = []
    for name, column in zip(label.columns, columns, strict=True):
        if column.is_text:
            values = _yes(column, name, "yes or no", _OF_SEVERAL)
        else:
            values = column.values.astype(np.float64)
        parts.append(np.where(column.missing, np.nan, values))
    values_NL = np.stack(parts, axis=1)
    if np.isinf(values_NL).any():
        raise DataError(f"label {label}: a value is infinite; labels are finite")
    return values_NL, np.isnan(values_NL).all(axis=1)


def _read_rates(label: Rate, columns: Sequence[Raw]) -> tuple[np.ndarray, np.ndarray]:
    """(N, 2) counts and exposures, and which rows lack one of the two.

    Raises:
        DataError: one that is text or below 0, or an exposure of 0.
    """
    count, exposure = columns
    missing = count.missing | exposure.missing
    counts = _numbers(count, label.count, "a count")
    exposures = _numbers(exposure, label.exposure, "an exposure")
    if (exposures[~missing] == 0).any():
        raise DataError(f"column {label.exposure!r} is 0 in a row; an exposure is above 0")
    return np.where(missing[:, None], np.nan, np.stack([counts, exposures], axis=1)), missing


def _numbers(column: Raw, name: str, what: str) -> np.ndarray:
    """(N,) numbers of 0 or more; 1 where missing.

    Raises:
        DataError: text, or another number.
    """
    if column.is_text:
        raise DataError(f"column {name!r} is text; {what} is a number")
    values: np.ndarray = np.where(column.missing, 1.0, column.values.astype(np.float64))
    if not (good := np.isfinite(values) & (values >= 0)).all():
        raise DataError(
            f"column {name!r} has values below 0 or without end, such as {values[~good][0]:g}; "
            f"{what} is 0 or more"
        )
    return values


#: What to do with a text that is none of several labels.
_OF_SEVERAL = "; give it a run of its own, or make it a column of yes and no for each value"


def _yes(column: Raw, name: str, what: str, advice: str = "") -> np.ndarray:
    """(N,) 1 of yes and 0 of no; anything where missing.

    Raises:
        DataError: a value that is neither.
    """
    if column.is_text:
        words = np.array([str(each).strip().casefold() for each in column.values], dtype=object)
        yes, known = np.isin(words, _YES), np.isin(words, (*_YES, *_NO))
    else:
        yes = column.values == 1
        known = yes | (column.values == 0)
    odd = column.values[~known & ~column.missing]
    if len(odd):
        raise DataError(
            f"column {name!r} says {what}, as 1 or 0 (or true or false), and has {odd[0]!r} in one "
            f"of {len(odd)} rows{advice}"
        )
    values: np.ndarray = yes.astype(np.float64)
    return values
