"""Doubts about columns that could be read in another way, and what reads them so."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from dovetail.data.kinds import (
    MARKS,
    NUMBERS,
    Column,
    Reading,
    bare,
    dated,
    days,
    looks,
    texts_of,
)
from dovetail.data.wording import share_text, toml_key, toml_text

#: So many rows say how a column is read.
LOOKED_AT = 20_000

#: Texts that commonly mean no value, in small letters.
_NO_VALUE = frozenset({"na", "n/a", "n.a.", "nan", "null", "none", "-", "--", "."})
#: What ``encode`` may say of a label.
OF_LABEL = {"missing", "lowercase", "positive"}

_SLASHED = re.compile(
    r"([0-9]{1,2}|[0-9]{4})([./-])[0-9]{1,2}\2([0-9]{1,4})( [0-9]{1,2}:[0-9]{2}(:[0-9]{2})?)?"
)
#: Values that are no numbers or dates, of so few rows and so few kinds, may stand for no value.
_FEW_ROWS, _FEW_TEXTS = 0.2, 5
#: Numbers that often stand for no value.
_NINES = re.compile(r"(-9|[^0-9-]*99)9*([.,]0*)?[^0-9]*")
#: So many different numbers may be codes, of which a letter is one more.
_CODES = 10
#: Ways to write numbers: the fraction's mark, and what stands between thousands.
_WRITTEN: tuple[tuple[Literal[".", ","], str], ...] = (
    *((".", ""), (".", ","), (",", ""), (",", ".")),
    *((decimal, mark) for mark in MARKS[2:] for decimal in (".", ",")),
)
_UNITS = "%€$£¥"


@dataclass(frozen=True)
class Doubt:
    """Doubt about a column that could be read in another way.

    Attributes:
        says: what was seen.
        encode: what reads it that way: keys of the column in ``[party.encode]``; {}: none does.
        loses: whether numbers or dates become categories as it is.
    """

    says: str
    encode: Mapping[str, Any]
    loses: bool = False

    def line(self, name: str) -> str:
        """The line of ``[party.encode]``.

        >>> Doubt("", {"missing": ["NA", "\\\\N"]}).line("net income")
        '"net income" = { missing = ["NA", "\\\\\\\\N"] }'
        """
        keys = ", ".join(f"{each} = {toml_text(value)}" for each, value in self.encode.items())
        return f"{toml_key(name)} = {{ {keys} }}"

    def sentence(self, name: str, *, python: bool = False) -> str:
        """Sentence on what was seen, and what to write to have it read the other way."""
        if not self.encode:
            return self.says
        if python:
            return f"{self.says}: dovetail.Party(..., encode={ {name: dict(self.encode)} })"
        return f"{self.says}: write below [party.encode]: {self.line(name)}"


def doubts(reading: Reading, rows_of: Mapping[str, int]) -> list[Doubt]:
    """Doubts about a column that could be read in another way, from its different texts and the
    rows of each."""
    texts = [text for text in rows_of if text not in reading.missing]
    found = looks(texts)
    codes = _encode(reading, kind="category")
    if reading.kind == "number":
        if found.zeros:
            return [Doubt("zeros before digits, as codes have; if it is one", codes)]
        if found.points and found.bare:
            return [Doubt("exponents without sign (1E50), as codes have; if it is one", codes)]
        return _thousands_doubt(reading, texts) or _nines_doubt(reading, rows_of)
    if reading.kind == "text" and texts:
        if found.bare == found.number == found.present:
            return [Doubt("if these are numbers", _encode(reading, kind="number"), loses=True)]
        rows_of = {text: rows_of[text] for text in texts}
        as_others = _date_doubt(reading, rows_of) or _number_doubt(reading, rows_of)
        if as_others is not None:
            return [as_others]
    return _capitals_doubt(reading, texts)


def _encode(reading: Reading, *missing: str, **keys: Any) -> dict[str, Any]:
    """Keys of ``[party.encode]``, with these texts, too, for no value."""
    keys["missing"] = [*reading.missing, *missing]
    return {key: value for key, value in keys.items() if value}


def _are_few(odd: Sequence[str], rows_of: Mapping[str, int]) -> bool:
    """Whether these texts may stand for no value beside all others."""
    num_odd = sum(rows_of[text] for text in odd)
    few = num_odd <= max(1, _FEW_ROWS * sum(rows_of.values()))
    return few and len(odd) <= min(_FEW_TEXTS, len(rows_of) - 2)


def _thousands_doubt(reading: Reading, texts: Sequence[str]) -> list[Doubt]:
    """Numbers whose fractions may be thousands."""
    mark = reading.decimal
    shape = re.compile(rf"[+-]?[1-9][0-9]{{0,2}}([{mark}][0-9]{{3}})?|0")
    marked = [text for text in texts if mark in text]
    # Beside 777, 3.760 is a thousand: fractions with zeros at the end have a point in each row, and
    # of those without, one in ten is shorter.
    is_beside = mark == "," or len(marked) < len({*texts} - {"0"})
    if reading.without or len(marked) < 2 or not is_beside or not all(map(shape.fullmatch, texts)):
        return []
    name, other = ("comma", ".") if mark == "," else ("point", ",")
    says = f"three digits follow each {name}; if {marked[0]} is a thousand or more"
    return [Doubt(says, _encode(reading, kind="number", decimal=other, without=[mark]))]


def _nines_doubt(reading: Reading, rows_of: Mapping[str, int]) -> list[Doubt]:
    """Nines alone, such as -999, in several rows and farther from the others than these reach."""
    nines = [text for text, num in rows_of.items() if num > 1 and _NINES.fullmatch(text)]
    if not nines:
        return []
    read = {text: bare(text, reading) for text in rows_of if text not in reading.missing}
    number_of = {text: each for text, each in read.items() if each is not None}
    others = [each for text, each in number_of.items() if text not in nines and math.isfinite(each)]
    low, high = min(others, default=0.0), max(others, default=0.0)
    reach = 1.5 * (high - low)
    far = [t for t in nines if t in number_of and abs(number_of[t] - (low + high) / 2) > reach > 0]
    if not far:
        return []
    num_rows = sum(rows_of[text] for text in far)
    says = f"{num_rows:,} rows have {' and '.join(far)}, far from all others; if it is no value"
    keys: dict[str, Any] = {}
    if replace(reading, missing=()) != NUMBERS:
        keys = {"kind": "number", "decimal": reading.decimal, "without": [*reading.without]}
    return [Doubt(says, _encode(reading, *far, **keys))]


def _forms(text: str) -> list[str]:
    """Formats that a text is a date in, day first; "" is ISO 8601."""
    if days(text) is not None:
        return [""]
    written = _SLASHED.fullmatch(text)
    if written is None:
        return []
    first, mark, last, time, seconds = written.groups()
    year = "%Y" if len(last) == 4 else "%y"
    orders = ["%Y/%m/%d"] if len(first) == 4 else [f"%d/%m/{year}", f"%m/%d/{year}"]
    clock = " %H:%M" * (time is not None) + ":%S" * (seconds is not None)
    forms = [order.replace("/", mark) + clock for order in orders]
    return [form for form in forms if dated([text], form)[0] is not None]


def _date_doubt(reading: Reading, rows_of: Mapping[str, int]) -> Doubt | None:
    """Dates in another format than ISO 8601, in several, or beside few other texts."""
    forms = {text: _forms(text) for text in rows_of}
    num_texts = Counter(form for each in forms.values() for form in each)
    odd = [text for text in rows_of if not forms[text]]
    if not num_texts or not _are_few(odd, rows_of):
        return None
    ((best, most),) = num_texts.most_common(1)
    # What has digits, but for 00.00.0000, is another way to write a date.
    apart = [text for text in rows_of if best not in forms[text] and re.search("[1-9]", text)]
    if apart:
        ways = {*forms[apart[0]]}
        one = next(text for text in rows_of if best in forms[text] and ways.isdisjoint(forms[text]))
        says = (
            f"has dates written in several ways, such as {toml_text(one)} and {toml_text(apart[0])}"
        )
        return Doubt(f"{says}; write all as YYYY-MM-DD", {}, loses=True)
    either = " (or month first: all fit both)" if [*num_texts.values()].count(most) > 1 else ""
    encode = _encode(reading, *odd, kind="date", format=best)
    return Doubt(f"{_seems(odd, rows_of)} dates{either}", encode, loses=True)


def _seems(odd: Sequence[str], rows_of: Mapping[str, int]) -> str:
    """Beginning of a sentence on what a column is, and the texts beside it."""
    share = share_text(sum(rows_of[text] for text in odd), sum(rows_of.values()))
    listed = ", ".join(map(toml_text, odd))
    return f"{share} of it is text: {listed}; the others are" if odd else "seems to be"


def _number_doubt(reading: Reading, rows_of: Mapping[str, int]) -> Doubt | None:
    """Numbers beside few other texts, or written with units or marks between thousands."""
    units = [unit for unit in _UNITS if any(unit in text for text in rows_of)]
    best: tuple[list[str], Literal[".", ","], list[str]] | None = None
    for decimal, mark in _WRITTEN:
        marks = [mark] if mark and any(mark in text for text in rows_of) else []
        if mark and not marks:
            continue
        how = Reading("number", decimal=decimal, without=(*marks, *units))
        odd = [text for text in rows_of if bare(text, how) is None]
        if best is None or len(odd) < len(best[0]):
            best = odd, decimal, [*marks, *units]
    assert best is not None
    odd, decimal, without = best
    if not _are_few(odd, rows_of):
        return None
    keys: dict[str, Any] = {"without": without}
    if without or decimal != reading.decimal:
        keys = {"kind": "number", "decimal": "," if decimal == "," else None, "without": without}
    says = f"{_seems(odd, rows_of)} numbers"
    says += f" with {', '.join(map(toml_text, without))}" if without else ""
    says += " with a decimal comma" if decimal == "," and decimal != reading.decimal else ""
    loses = not odd or len(rows_of) - len(odd) > _CODES
    return Doubt(says, _encode(reading, *odd, **keys), loses)


def _capitals_doubt(reading: Reading, texts: Sequence[str]) -> list[Doubt]:
    """Categories that differ in capitals alone."""
    if reading.kind not in ("text", "category") or reading.lowercase:
        return []
    alike: dict[str, list[str]] = {}
    for text in texts:
        alike.setdefault(text.lower(), []).append(text)
    most = max(alike.values(), key=len, default=[])
    if len(most) < 2:
        return []
    listed = ", ".join(map(toml_text, most[:3]))
    kind = "category" if reading.kind == "category" else None
    says = f"{listed} differ in capitals alone and are {len(most)} categories; to have them as one"
    return [Doubt(says, _encode(reading, kind=kind, lowercase=True))]


def label_doubts(labels: Column) -> list[Doubt]:
    """Doubts about a label: texts that commonly mean no value, and capitals; none of several.

    >>> labels = np.array(["ja", "Ja", "NA", "nein"], dtype=object)
    >>> label_doubts(Column(labels, np.zeros(4, dtype=bool), Reading("text")))[0].line("y")
    'y = { missing = ["NA"], lowercase = true }'
    """
    if labels.values.ndim > 1:
        return []
    labels = labels.take(np.arange(min(len(labels.values), LOOKED_AT)))
    rows_of = Counter(texts_of(labels)[~labels.missing].tolist())
    none = [text for text in rows_of if text.lower() in _NO_VALUE]
    missing = (*labels.reading.missing, *none)
    found = [
        each
        for each in doubts(replace(labels.reading, missing=missing), rows_of)
        if each.encode.keys() <= OF_LABEL and each.encode != {"missing": [*missing]}
    ]
    if not none:
        return found
    share = share_text(sum(rows_of[text] for text in none), sum(rows_of.values()))
    says = f"{share} of it is {', '.join(map(repr, none))}; if that means no value"
    encode: dict[str, Any] = {"missing": missing}
    encode |= {"lowercase": True} if labels.reading.lowercase else {}
    for each in found:
        says, encode = f"{says}; {each.says}", {**encode, **each.encode}
    return [Doubt(says, encode)]
