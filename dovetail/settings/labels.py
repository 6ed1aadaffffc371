"""Labels: their task, and labels of more than one column as one name.

What a file says is called in all else as R writes it:

    label = { time = "days", event = "died" }            Surv(days, died)
    label = ["relapse", "sepsis"]                        cbind(relapse, sepsis)
    label = { count = "claims", exposure = "years" }     Rate(claims, years)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator

_CALLED = re.compile(r"(Surv|cbind|Rate)\(([^()]+)\)")

#: What a label can be, as files say it.
Kind = Literal[
    "classification",
    "regression",
    "survival",
    "counts",
    "amounts",
    "quantiles",
    "multilabel",
    "multitarget",
]


@dataclass(frozen=True)
class TimeToEvent:
    """When an event comes.

    Attributes:
        time: the column of times until the event, or until a row was seen last.
        event: the column that says whether the event came.
        intervals: so many of training; None: by the events.
    """

    time: str
    event: str
    intervals: int | None = None

    kinds: ClassVar[Mapping[str, str]] = dict.fromkeys(("classification", "survival"), "survival")

    def __str__(self) -> str:
        more = "" if self.intervals is None else f", {self.intervals}"
        return f"Surv({self.time}, {self.event}{more})"

    @property
    def columns(self) -> tuple[str, ...]:
        return self.time, self.event

    @property
    def prediction(self) -> str:
        return f"median({self.time})"


@dataclass(frozen=True)
class SeveralLabels:
    """Several labels of a row, of which some may be missing.

    Attributes:
        columns: L of them: yes or no, or numbers.
    """

    columns: tuple[str, ...]

    kinds: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("classification", "multilabel"), "multilabel"),
        **dict.fromkeys(("regression", "multitarget"), "multitarget"),
    }

    def __str__(self) -> str:
        return f"cbind({', '.join(self.columns)})"

    @property
    def prediction(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Rate:
    """How often, in a time or at a risk that differs from row to row.

    Attributes:
        count: the column of counts.
        exposure: the column of times, distances, persons at risk.
    """

    count: str
    exposure: str

    kinds: ClassVar[Mapping[str, str]] = dict.fromkeys(("classification", "counts"), "counts")

    def __str__(self) -> str:
        return f"Rate({self.count}, {self.exposure})"

    @property
    def columns(self) -> tuple[str, ...]:
        return self.count, self.exposure

    @property
    def prediction(self) -> str:
        return self.count


def composed(label: object) -> TimeToEvent | SeveralLabels | Rate | None:
    """Columns in a label's name, if it has several; None: it is a column.

    >>> composed("Surv(days, died)").columns, composed("cbind(a, b, c)").columns, composed("died")
    (('days', 'died'), ('a', 'b', 'c'), None)
    """
    found = _CALLED.fullmatch(label) if isinstance(label, str) else None
    if found is None:
        return None
    kind, columns = found[1], tuple(found[2].split(", "))
    if kind == "cbind":
        return SeveralLabels(columns)
    if kind == "Rate":
        return Rate(*columns) if len(columns) == 2 else None
    if len(columns) == 2:
        return TimeToEvent(*columns)
    if len(columns) == 3 and columns[2].isdecimal():
        return TimeToEvent(columns[0], columns[1], int(columns[2]))
    return None


def label_columns(label: str) -> tuple[str, ...]:
    """The columns that a label is made of.

    >>> label_columns("Surv(days, died)"), label_columns("died")
    (('days', 'died'), ('died',))
    """
    several = composed(label)
    return (label,) if several is None else several.columns


def label_name(label: Any) -> Any:
    """The name of a label as a file writes it.

    Raises:
        ValueError: a table that is no label.

    >>> label_name({"time": "days", "event": "died"}), label_name(["relapse", "sepsis"])
    ('Surv(days, died)', 'cbind(relapse, sepsis)')
    >>> label_name(["relapse"])
    'relapse'
    """
    if isinstance(label, Mapping):
        made: TimeToEvent | SeveralLabels | Rate = _of_table(label)
    elif isinstance(label, list | tuple):
        if not label or len(set(label)) < len(label) or not _names(label):
            raise ValueError(f"several labels are columns, each once; got {list(label)!r}")
        if len(label) == 1:
            return label[0]
        made = SeveralLabels(tuple(label))
    else:
        return label
    if set(",()") & set("".join(made.columns)):
        raise ValueError(
            f"columns of a label have no comma or bracket in names: {', '.join(made.columns)}"
        )
    return str(made)


def _names(given: Sequence[Any]) -> bool:
    return all(isinstance(each, str) and each for each in given)


def _of_table(label: Mapping[str, Any]) -> TimeToEvent | Rate:
    keys, intervals = set(label), label.get("intervals")
    if keys == {"count", "exposure"} and _names([*label.values()]):
        return Rate(label["count"], label["exposure"])
    is_time = {"time", "event"} <= keys <= {"time", "event", "intervals"}
    if not is_time or not _names([label["time"], label["event"]]):
        raise ValueError(
            'a label is a column, or { time = "COLUMN", event = "COLUMN" } of a time to an event, '
            "with intervals = 10 if you like, or a list of columns, or "
            f'{{ count = "COLUMN", exposure = "COLUMN" }}; got {dict(label)!r}'
        )
    if intervals is not None and (type(intervals) is not int or intervals < 1):
        raise ValueError(f"intervals of a label are 1 or more, got {intervals!r}")
    return TimeToEvent(label["time"], label["event"], intervals)


def prediction_name(label: object) -> str:
    """Name of a column of predictions of a label.

    >>> prediction_name("Surv(days, died)"), prediction_name("died"), prediction_name(None)
    ('median(days)', 'died', 'prediction')
    """
    several = composed(label)
    if several is not None:
        return several.prediction
    return "prediction" if label is None else str(label)


#: A label in a file or a call: a column, or columns; kept as its name.
Label = Annotated[str, BeforeValidator(label_name)]


def with_task(values: Any) -> Any:
    """The keys of a section, with the task that its label says.

    Raises:
        ValueError: a task beside it that a label of several columns is not.
    """
    several = composed(label_name(values.get("label"))) if isinstance(values, Mapping) else None
    if several is None:
        return values
    kind = several.kinds.get(values.get("task", "classification"))
    if kind is None:
        own = " or ".join(f'"{each}"' for each in dict.fromkeys(several.kinds.values()))
        raise ValueError(
            f"a label of {' and '.join(several.columns)} is a task {own}, got "
            f"{values['task']!r}; leave task out"
            + (', or say "regression" of numbers' if isinstance(several, SeveralLabels) else "")
        )
    return {**values, "task": kind}
