"""Labels of more than one column, as one name and one column of numbers.

``label = { time = "days", event = "died" }`` of a file is called ``Surv(days, died)`` in all else,
as R writes it. Its values are times, below zero where a row was censored then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import BeforeValidator

from dovetail.errors import DataError

_SURVIVAL = re.compile(r"Surv\(([^,()]+), ([^,()]+)(?:, (\d+))?\)")
#: How an event is written, besides 1 and 0.
_HAPPENED, _CENSORED = ("true", "yes", "1", "dead"), ("false", "no", "0", "censored", "alive")


@dataclass(frozen=True)
class TimeToEvent:
    """A label of two columns.

    Attributes:
        time: the column of times until the event, or until a row was seen last.
        event: the column that says whether the event came.
        intervals: so many of training; None: by the events.
    """

    time: str
    event: str
    intervals: int | None = None

    def __str__(self) -> str:
        more = "" if self.intervals is None else f", {self.intervals}"
        return f"Surv({self.time}, {self.event}{more})"


def time_to_event(label: object) -> TimeToEvent | None:
    """What a label's name says of two columns; None: it is a column.

    >>> time_to_event("Surv(days, died)").event, time_to_event("died")
    ('died', None)
    """
    found = _SURVIVAL.fullmatch(label) if isinstance(label, str) else None
    if found is None:
        return None
    time, event, intervals = found.groups()
    return TimeToEvent(time, event, None if intervals is None else int(intervals))


def label_columns(label: str) -> tuple[str, ...]:
    """The columns that a label is made of.

    >>> label_columns("Surv(days, died)"), label_columns("died")
    (('days', 'died'), ('died',))
    """
    several = time_to_event(label)
    return (label,) if several is None else (several.time, several.event)


def label_name(label: Any) -> Any:
    """The name of a label as a file writes it.

    Raises:
        ValueError: a table that is no label.

    >>> label_name({"time": "days", "event": "died"})
    'Surv(days, died)'
    """
    if not isinstance(label, Mapping):
        return label
    unknown = [key for key in label if key not in ("time", "event", "intervals")]
    time, event = label.get("time"), label.get("event")
    if unknown or not isinstance(time, str) or not isinstance(event, str):
        raise ValueError(
            'a label is a column, or { time = "COLUMN", event = "COLUMN" } of a time to an event, '
            f"with intervals = 10 if you like; got {dict(label)!r}"
        )
    intervals = label.get("intervals")
    if intervals is not None and (type(intervals) is not int or intervals < 1):
        raise ValueError(f"intervals of a label are 1 or more, got {intervals!r}")
    if set(",()") & set(time + event):
        raise ValueError(
            f"columns of a label have no comma or bracket in names: {time!r}, {event!r}"
        )
    return str(TimeToEvent(time, event, intervals))


def prediction_name(label: object) -> str:
    """What a column of predictions of a label is called.

    >>> prediction_name("Surv(days, died)"), prediction_name("died"), prediction_name(None)
    ('median(days)', 'died', 'prediction')
    """
    several = time_to_event(label)
    if several is not None:
        return f"median({several.time})"
    return "prediction" if label is None else str(label)


#: A label in a file or a call: a column, or columns; kept as its name.
Label = Annotated[str, BeforeValidator(label_name)]


def with_task(values: Any) -> Any:
    """The keys of a section, with the task that its label says.

    Raises:
        ValueError: another task is said beside it.
    """
    if not isinstance(values, Mapping) or time_to_event(label_name(values.get("label"))) is None:
        return values
    if values.get("task", "survival") not in ("survival", "classification"):
        raise ValueError(
            f'a label of a time and an event is a task "survival", got {values["task"]!r}; leave '
            "task out"
        )
    return {**values, "task": "survival"}


class Raw(Protocol):
    """A column's raw values, as ``Column`` has them."""

    @property
    def values(self) -> np.ndarray: ...
    @property
    def missing(self) -> np.ndarray: ...
    @property
    def is_text(self) -> bool: ...


def signed_times(time: Raw, event: Raw, label: TimeToEvent) -> tuple[np.ndarray, np.ndarray]:
    """(N,) times, below zero of rows that are censored, and which rows lack one of the two.

    Raises:
        DataError: times below 0 or that are text, or an event that is neither yes nor no.
    """
    missing = time.missing | event.missing
    if time.is_text:
        raise DataError(f"column {label.time!r} is text; a time to an event is a number")
    times = np.where(missing, 1.0, time.values.astype(np.float64))
    if not np.isfinite(times).all() or (times < 0).any():
        raise DataError(
            f"column {label.time!r} has times below 0 or without end, such as {times.min():g}; "
            "a time to an event is 0 or more"
        )
    if event.is_text:
        words = np.array([str(each).strip().casefold() for each in event.values], dtype=object)
        happened, known = np.isin(words, _HAPPENED), np.isin(words, (*_HAPPENED, *_CENSORED))
    else:
        happened = event.values == 1
        known = happened | (event.values == 0)
    odd = event.values[~known & ~missing]
    if len(odd):
        raise DataError(
            f"column {label.event!r} says whether the event came, as 1 or 0 (or true or false), "
            f"and has {odd[0]!r} in one of {len(odd)} rows"
        )
    # Whoever had the event at 0 had it before whatever else is seen.
    above = times[times > 0]
    times = np.where(times == 0, above.min() / 2 if len(above) else 1.0, times)
    signed: np.ndarray = np.where(missing, 0.0, np.where(happened, times, -times))
    return signed, missing
