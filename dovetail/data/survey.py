"""Survey of a table: which column may be the id or the label, and which teach nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.data.doubts import LOOKED_AT, Doubt, doubts
from dovetail.data.kinds import Column, texts_of
from dovetail.data.preprocessing import is_free_text
from dovetail.data.tables import Table

#: Columns with these words in their names are likelier to be what they say.
_ID_WORDS = {"id", "key", "customer", "patient", "person", "client", "user", "member", "account"}
_LABEL_WORDS = {
    "label",
    "target",
    "class",
    "outcome",
    "y",
    "churn",
    "default",
    "bought",
    "response",
    "diagnosis",
    "progression",
    "survived",
    "price",
}
_TIME_WORDS = {"time", "day", "date", "when", "timestamp", "at"}
#: From so many rows a sample on, rows are events.
EVENTS_FROM = 1.5
_CODE_WORDS = {"zip", "postcode", "code", "branch", "region", "plz"}

#: A label of more different numbers than this is a number, not a class.
MAX_CLASSES = 20

#: Text of which more than this share differs from row to row names rows and teaches nothing.
_OFTEN_NEW = 0.5
_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}")


@dataclass(frozen=True)
class Surveyed:
    """Column of a survey.

    Attributes:
        name: the column's.
        is_text: whether it is text; else numbers (dates are days).
        missing: rows without a value.
        distinct: different values.
        unique: whether each row has a value of its own.
        why_not: why it would teach nothing; "" where it may.
        advice: what to look at, although it is used.
        rows_of_value: rows of the middle value, and of the one with most.
    """

    name: str
    is_text: bool
    missing: int
    distinct: int
    unique: bool
    why_not: str = ""
    advice: str = ""
    rows_of_value: tuple[int, int] = (1, 1)


def texts_in(table: Table, name: str) -> Counter[str]:
    """The texts of a column as they are stored, in the first rows, and how many have each."""
    stored = table.take(np.arange(min(table.num_rows, LOOKED_AT))).stored(name)
    return Counter(texts_of(stored)[~stored.missing].tolist())


def doubts_in(
    table: Table, names: Iterable[str], *, categorical: Collection[str] = ()
) -> Iterator[tuple[str, Doubt]]:
    """Columns that could be read in another way, and how."""
    for name in names:
        reading = table.reading(name, categorical=name in categorical)
        for doubt in doubts(reading, texts_in(table, name)):
            yield name, doubt


def lost_in(
    table: Table, names: Iterable[str], *, categorical: Collection[str] = ()
) -> Iterator[tuple[str, Doubt]]:
    """Columns that are read as categories, and what reads the numbers or dates in them."""
    asked = {} if table.asked is None else table.asked.columns
    texts = [
        name
        for name in names
        if (name not in asked or asked[name].kind is None)
        and table.reading(name, categorical=name in categorical).kind == "text"
    ]
    found = doubts_in(table, texts, categorical=categorical)
    return ((name, doubt) for name, doubt in found if doubt.loses)


def survey(table: Table) -> tuple[Surveyed, ...]:
    """Each column, in the table's order; reads one at a time."""
    return tuple(_surveyed(name, table.column(name)) for name in table.names)


def _surveyed(name: str, column: Column) -> Surveyed:
    present = column.values[~column.missing]
    counts = np.unique(present, return_counts=True)[1]
    num_rows, distinct = len(column.values), len(counts)
    rows_of_value = (int(np.median(counts)), int(counts.max())) if distinct else (0, 0)
    whole = not column.is_text and bool(np.array_equal(present, np.rint(present)))
    unique = len(present) == distinct == num_rows and (column.is_text or whole)
    why_not = advice = ""
    if not len(present):
        why_not = "has no value"
    elif distinct == 1:
        why_not = "is the same in every row"
    elif unique and not is_free_text(column) and (column.is_text or _words(name) & _ID_WORDS):
        why_not = "differs in every row, as an id does"
    elif column.is_text and distinct > max(MAX_CLASSES, _OFTEN_NEW * len(present)):
        sample = present[:: max(1, len(present) // 200)]
        if np.mean([bool(_DATE.search(value)) for value in sample]) > 0.9:
            why_not = "seems to be a date that is written in no usual way; write it as YYYY-MM-DD"
        elif is_free_text(column):
            advice = "is free text, read as hashed words"
        else:
            why_not = f"is text with {distinct:,} different values in {len(present):,} rows"
    elif len(present) < 0.05 * num_rows:
        advice = f"is empty in {num_rows - len(present):,} of {num_rows:,} rows"
    elif whole and _words(name) & _CODE_WORDS and distinct > 2:
        advice = "looks like a code; name it in categorical if its size means nothing"
    missing = int(column.missing.sum())
    return Surveyed(name, column.is_text, missing, distinct, unique, why_not, advice, rows_of_value)


def _words(name: str) -> set[str]:
    split = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return {word for word in re.split(r"[^a-z]+", split.lower()) if word}


def propose_id(columns: Sequence[Surveyed], per: str | None = None) -> str | None:
    """The column that names each row, if any does: one called so, else whose events rows are
    (``per``), else the first."""
    able = [column for column in columns if column.unique]
    called = [column for column in able if _words(column.name) & _ID_WORDS]
    named = [column.name for column in called] + [per] * (per is not None)
    return next(iter([*named, *(column.name for column in able)]), None)


def propose_per(columns: Sequence[Surveyed], table: Table) -> str | None:
    """The column that says whose event a row is, of a table of events: one called so."""
    if not any(table.column(name).is_date for name in table.names):
        return None
    able = [
        column
        for column in columns
        if not column.missing and table.num_rows >= EVENTS_FROM * column.distinct > 1
    ]
    return next((column.name for column in able if _words(column.name) & _ID_WORDS), None)


def propose_time(days: Sequence[str]) -> str:
    """The column of days that says when an event was: one called so, else the first."""
    return next((name for name in days if _words(name) & _TIME_WORDS), days[0])


def propose_label(columns: Sequence[Surveyed], *, besides: Collection[str] = ()) -> str | None:
    """The column to predict: the last that is called so (bank customers who *default* may also have
    a *y*), else the emptiest where it is the last (labels are what is lacked), else the last that
    could be a class."""
    able = [
        column
        for column in columns
        if column.name not in besides and column.distinct > 1 and not column.unique
    ]
    called = [column for column in able if _words(column.name) & _LABEL_WORDS]
    emptiest = max((column.missing for column in able[:-1]), default=0)
    lacked = [column for column in able[-1:] if column.missing > emptiest]
    classes = [column for column in able if column.distinct <= MAX_CLASSES]
    return next((column.name for column in [*reversed(called), *lacked, *reversed(classes)]), None)


def propose_task(label: Surveyed) -> str:
    """Whether a label is a class or a number."""
    number = not label.is_text and label.distinct > MAX_CLASSES
    return "regression" if number else "classification"
