"""How a value is read: the kind of a column, decided once, and each value by it.

A column's kind is what the party file says, else what the training table's values say; it is saved
with the model, and every later value is read by it alone, whatever rows are beside it.

    kind       values that it has                                         becomes
    number     digits, sign, point or declared comma; exponent            float64
    date       ISO 8601, an offset is taken off: UTC; or a declared format  days since 1970
    boolean    true and false in any case, 1 and 0                        "true", "false"
    text       anything; NFC, without blanks around it                    the text
    category   as text, of numbers that are names: 3.0 is 3               the text
    id         as text; of whole numbers the digits                       the text

Text is a date, a boolean or a number where all of the training table's values are. An exponent
without sign and point (1E50) may be a code, and is a number only beside numbers with a point.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal
from unicodedata import is_normalized, normalize

import numpy as np
from pydantic import ConfigDict, Field

if TYPE_CHECKING:
    from dovetail.settings.encode import Encode

Kind = Literal["number", "date", "boolean", "text", "category", "id"]

#: Text that stands for "no value", besides what a party declares.
MISSING_TEXTS = ("", "?")

#: How a yes or no is written, wherever it comes from: as the values of two categories.
BOOLEANS = ("false", "true")

#: What ``str.strip`` takes away, for SQL.
BLANKS = "".join(map(chr, (*range(9, 14), *range(28, 33), 0x85, 0xA0, 0x1680))) + "".join(
    map(chr, (*range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000))
)

#: Microseconds of a day: dates are days since 1970.
DAY_US = 86_400_000_000.0

#: Patterns that Python's and DuckDB's regular expressions take alike. A text fits in one way: where
#: digits could be split anywhere, Python tried each split of a long text.
NUMBER = r"[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+)?"
COMMA = r"[+-]?([0-9]+(,[0-9]+)?|,[0-9]+)([eE][+-]?[0-9]+)?"
NO_NUMBER = r"[+-]?([nN][aA][nN]|[iI][nN][fF]([iI][nN][iI][tT][yY])?)"
ISO = (
    r"([0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01]))"
    r"([T ](([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9]([.][0-9]{1,9})?)?)"
    r" ?(Z|[+-]([01][0-9]|2[0-3])(:?[0-5][0-9])?)?)?"
)
#: An exponent that a code may have: without sign, of digits without a point.
BARE_EXPONENT = r"[+-]?[0-9]+[eE][0-9]+"
LEADING_ZERO = r"0[0-9]+"

#: What stands between thousands.
MARKS = (",", ".", " ", "\xa0", "\u202f", "'", "’")

#: Whole numbers of int64, written as it writes them.
DIGITS = r"0|-?[1-9][0-9]{0,17}"

_NUMBER, _COMMA, _NO_NUMBER, _ISO = map(re.compile, (NUMBER, COMMA, NO_NUMBER, ISO))
_BARE_EXPONENT, _LEADING_ZERO = re.compile(BARE_EXPONENT), re.compile(LEADING_ZERO)
#: Texts that are looked at together; and as lines.
_AT_ONCE = 1000
_NUMBERS = re.compile(f"^{NUMBER.replace('(', '(?:')}$", re.MULTILINE)
_BARE_EXPONENTS = re.compile(f"^{BARE_EXPONENT}$", re.MULTILINE)
_LEADING_ZEROS = re.compile(f"^{LEADING_ZERO}$", re.MULTILINE)
_WHOLE = re.compile(r"([+-]?[0-9]+)[.]0+")
_DIGITS = re.compile(DIGITS)
_1970 = date(1970, 1, 1)


@dataclass(frozen=True)
class Reading:
    """How the values of a column are read.

    Attributes:
        kind: see above.
        format: of dates, as ``strptime`` has it; None: ISO 8601.
        decimal: what stands before a number's fraction.
        missing: texts that stand for no value, besides "" and "?".
        without: what is taken out of a number's text: marks between thousands, units.
        lowercase: whether texts that differ in capitals alone are one.
        rule: why the kind is what it is, in words.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: Kind
    format: Annotated[str, Field(max_length=100)] | None = None
    decimal: Literal[".", ","] = "."
    missing: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    lowercase: bool = False
    rule: str = field(default="", compare=False)

    @property
    def as_written(self) -> bool:
        """Whether each text is read as it stands."""
        return not (self.missing or self.without or self.lowercase)

    @property
    def expects(self) -> str:
        """Description of the expected value, for errors."""
        if self.kind == "number":
            words = "a number" + (" with a decimal comma" if self.decimal == "," else "")
            mark = next((each for each in self.without if each in MARKS), "")
            return words + (f" such as 1{mark}234{self.decimal}5" if mark else "")
        if self.format is None:
            return "a date (ISO 8601, such as 2026-01-31)"
        return f"a date such as {date(2026, 1, 31).strftime(self.format)} ({self.format})"


NUMBERS, DATES, WORDS = Reading("number"), Reading("date"), Reading("boolean")
TEXT, CATEGORY, ID = Reading("text"), Reading("category"), Reading("id")


@dataclass(frozen=True, eq=False)
class Column:
    """Values of one column.

    Attributes:
        values: (N,) float64, int64, or objects that are all ``str``. Where a value is missing:
            NaN, 0 or "". Of several labels, or of a rate, (N, L) float64.
        missing: (N,) bool.
        reading: how they were read; dates are days since 1970.
        unfit: row -> the text there that does not fit the reading; its value is missing.
    """

    values: np.ndarray
    missing: np.ndarray
    reading: Reading = NUMBERS
    unfit: dict[int, str] = field(default_factory=dict)

    @property
    def is_text(self) -> bool:
        return self.values.dtype.kind == "O"

    @property
    def is_date(self) -> bool:
        return self.reading.kind == "date"

    def take(self, rows: np.ndarray) -> Column:
        """A column of these rows, in this order."""
        unfit = self.unfit
        if unfit:
            taken = enumerate(rows.tolist())
            unfit = {at: unfit[row] for at, row in taken if row in unfit}
        return Column(self.values[rows], self.missing[rows], self.reading, unfit)


# --- One value --------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Text in Unicode's composed form (NFC), without the blanks around it."""
    text = text.strip()
    return text if is_normalized("NFC", text) else normalize("NFC", text)


def number(text: str, decimal: str = ".") -> float | None:
    """A plain text as a number; None where it is none.

    >>> number("1e+05"), number("-.5"), number("1_000"), number("2,5", ",")
    (100000.0, -0.5, None, 2.5)
    """
    if (_COMMA if decimal == "," else _NUMBER).fullmatch(text):
        return float(text.replace(",", "."))
    if _NO_NUMBER.fullmatch(text):
        return float(text)
    return {"true": 1.0, "false": 0.0}.get(text.lower())


def days(text: str) -> float | None:
    """A plain text in ISO 8601 as days since 1970 in UTC; None where it is no date.

    >>> days("1970-01-02"), days("1970-01-02T01:00+01:00"), days("02.01.1970")
    (1.0, 1.0, None)
    """
    parts = _ISO.fullmatch(text)
    if parts is None:
        return None
    try:
        micros = (date.fromisoformat(parts[1]) - _1970).days * int(DAY_US)
    except ValueError:  # the 30th of February, the year 0
        return None
    if parts[5]:
        hours, minutes, *seconds = parts[5].split(":")
        micros += (int(hours) * 60 + int(minutes)) * 60_000_000
        whole, _, fraction = (seconds or ["0"])[0].partition(".")
        micros += int(whole) * 1_000_000 + int(f"{fraction:0<6}"[:6])
        offset = (parts[9] or "").replace(":", "").replace("Z", "")
        if offset:
            away = int(offset[1:3]) * 60 + int(offset[3:] or 0)
            micros -= (-away if offset[0] == "-" else away) * 60_000_000
    return float(micros) / DAY_US


def dated(texts: Sequence[str], form: str) -> list[float | None]:
    """Plain texts in a declared format as days since 1970."""
    known: list[float | None] = []
    for text in texts:
        try:
            moment = datetime.strptime(text, form)
        except ValueError:
            known.append(None)
            continue
        offset = moment.utcoffset() or timedelta(0)
        micros = (moment.replace(tzinfo=None) - offset - datetime(1970, 1, 1)) // timedelta(
            microseconds=1
        )
        known.append(float(micros) / DAY_US)
    return known


def date_text(at: float) -> str:
    """Days since 1970 in ISO 8601; of a whole day, its date alone."""
    moment = datetime(1970, 1, 1) + timedelta(microseconds=round(at * DAY_US))
    return moment.date().isoformat() if at == int(at) else moment.isoformat()


def day_text(at: float) -> str:
    """The day of days since 1970 in ISO 8601."""
    return date.fromordinal(_1970.toordinal() + math.floor(at)).isoformat()


def number_text(value: float | int) -> str:
    """A number as text; 3 and 3.0 are one."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def as_text(values: np.ndarray) -> list[str]:
    """Numbers as text, or texts as they are."""
    return [number_text(value) for value in values.tolist()]


def one_text(text: str, reading: Reading) -> str:
    """A cell's text by a reading that has texts; "" where it is missing."""
    text = plain(text)
    if text in MISSING_TEXTS or text in reading.missing:
        return ""
    if reading.kind == "boolean":
        return _word(text)
    text = text.lower() if reading.lowercase else text
    return _whole(text) if reading.kind == "category" else text


def one_number(text: str, reading: Reading) -> float | None:
    """A cell's text as a number or date, NaN where it is missing; None where it does not fit."""
    text = plain(text)
    if text in MISSING_TEXTS or text in reading.missing:
        return math.nan
    if reading.kind == "number":
        return bare(text, reading)
    return days(text) if reading.format is None else dated([text], reading.format)[0]


def bare(text: str, reading: Reading) -> float | None:
    """A plain text as a number, without its marks of thousands and its unit.

    >>> german = Reading("number", decimal=",", without=(".", "%"))
    >>> [bare(text, german) for text in ("1.865,16", "2 %", "1865.16", ".5")]
    [1865.16, 2.0, None, None]
    """
    if reading.without:
        out = "|".join(map(re.escape, reading.without))
        # Before digits and behind them; but .5 is not 5.
        ends = rf"^([+-]?)(?:(?![.,][0-9])(?:{out}))+|(?:{out})++(?![0-9])"
        text = re.sub(ends, r"\1", text).strip()
        whole = re.match(
            rf"[+-]?[1-9][0-9]{{0,2}}({out})[0-9]{{3}}(?:\1[0-9]{{3}})*(?![0-9])", text
        )
        if whole:
            text = whole[0].replace(whole[1], "") + text[whole.end() :]
        if re.search(out, text):  # within a number: 1865.16 is not 186516
            return None
    return number(text, reading.decimal)


# --- A column of a training table -------------------------------------------------------------


@dataclass(frozen=True)
class Looks:
    """Summary of what a column's texts look like.

    Attributes:
        present: rows with a value.
        number, comma, date, boolean: how many of these are such.
        points: numbers with a point; ``commas``: with a comma.
        bare: numbers that are whole but for an exponent without a sign, as codes may be.
        zeros: numbers with a zero before other digits.
    """

    present: int = 0
    number: int = 0
    comma: int = 0
    date: int = 0
    boolean: int = 0
    points: int = 0
    commas: int = 0
    bare: int = 0
    zeros: int = 0

    def reading(self, *, decimal: Literal[".", ","] = ".", missing: Sequence[str] = ()) -> Reading:
        """The kind that all of them have, by the rules."""
        declared = tuple(missing)
        if not self.present:
            return Reading("text", missing=declared, rule="no value")
        if self.date == self.present:
            return Reading("date", missing=declared, rule="all are dates in ISO 8601")
        if self.boolean == self.present:
            return Reading("boolean", missing=declared, rule="all are true or false")
        if decimal == ",":
            if self.comma == self.present:
                rule = "all are numbers with a decimal comma"
                return Reading("number", decimal=",", missing=declared, rule=rule)
        elif self.number == self.present:
            if not self.bare or self.points:
                return Reading("number", missing=declared, rule="all are numbers")
            rule = "exponents without sign or point (1E50) beside no number with a point: codes"
            return Reading("text", missing=declared, rule=rule)
        return Reading(
            "text", missing=declared, rule="not all are numbers, dates or true and false"
        )


def looks(texts: Iterable[str]) -> Looks:
    """Summary of what these plain texts look like; missing ones must not be among them."""
    texts = iter(texts)
    counts = dict.fromkeys(Looks.__dataclass_fields__, 0)
    while part := tuple(islice(texts, _AT_ONCE)):
        for name, num in (_all_numbers(part) or _counted(part)).items():
            counts[name] += num
    return Looks(**counts)


def _all_numbers(texts: Sequence[str]) -> Counter[str] | None:
    """Counts as ``_counted`` has them, in a quarter of the time; None unless all are numbers."""
    lines = "\n".join(texts)
    if lines.count("\n") >= len(texts) or len(_NUMBERS.findall(lines)) < len(texts):
        return None
    num, points = len(texts), lines.count(".")
    has_exponents = "e" in lines or "E" in lines
    return Counter(
        present=num,
        number=num,
        comma=num - points,
        points=points,
        bare=len(_BARE_EXPONENTS.findall(lines)) if has_exponents else 0,
        zeros=len(_LEADING_ZEROS.findall(lines)),
    )


def _counted(texts: Sequence[str]) -> Counter[str]:
    """How many have each of the looks."""
    counts = Counter[str]()
    for text in texts:
        counts["present"] += 1
        if _NUMBER.fullmatch(text):
            counts["number"] += 1
            counts["points"] += "." in text
            counts["bare"] += _BARE_EXPONENT.fullmatch(text) is not None
            counts["zeros"] += _LEADING_ZERO.fullmatch(text) is not None
            counts["comma"] += "." not in text
        elif _COMMA.fullmatch(text):
            counts["comma"] += 1
            counts["commas"] += 1
        elif _NO_NUMBER.fullmatch(text):
            counts["number"] += 1
            counts["comma"] += 1
        elif text.lower() in BOOLEANS:
            counts["boolean"] += 1
        elif days(text) is not None:
            counts["date"] += 1
    return counts


def decide(
    column: Column, *, missing: Sequence[str] = (), decimal: Literal[".", ","] = "."
) -> Reading:
    """The kind of a stored column: its type's, or of text what all its values are."""
    if not column.is_text or column.reading.kind in ("category", "boolean"):
        return of_type(column.reading.kind, missing)
    present = [text for text in column.values[~column.missing].tolist() if text not in missing]
    few = looks(present[:1000]).reading(decimal=decimal, missing=missing)
    if present and few.kind == "text":
        return few  # what differs in one row differs in all
    return looks(present).reading(decimal=decimal, missing=missing)


def of_type(kind: Kind, missing: Sequence[str] = ()) -> Reading:
    """The reading of a column whose type decides it."""
    return Reading(kind, missing=tuple(missing), rule=f"the type of the source is {kind}")


# --- A column by its kind ---------------------------------------------------------------------


def convert(column: Column, reading: Reading) -> Column:
    """A stored column as a reading has it; what does not fit is in ``unfit``."""
    if column.reading == reading or column.values.ndim > 1:
        return column
    column = _less(column, reading.missing)
    if reading.kind == "number":
        return _numbers(column, reading)
    if reading.kind == "date":
        return _dates(column, reading)
    if reading.kind == "id" and (column.is_date or not column.is_text):
        whole = column.values.dtype.kind == "i"
        return Column(column.values, column.missing, reading) if whole else column
    read = Column(texts_of(column), column.missing, reading)
    if reading.lowercase:
        read = mapped(read, str.lower)
    if reading.kind == "boolean":
        return mapped(read, _word)
    if reading.kind == "category" and column.is_text:
        return mapped(read, _whole)
    if reading.kind == "id" and not column.missing.any():
        return _digits(read)
    return read


def _word(text: str) -> str:
    text = {"1": "true", "0": "false"}.get(text, text)
    return text.lower() if text.lower() in BOOLEANS else text


def _whole(text: str) -> str:
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


def _digits(column: Column) -> Column:
    """Ids of int64 as numbers where each is written as these are: they take less memory."""
    if not all(map(_DIGITS.fullmatch, column.values.tolist())):
        return column
    return Column(column.values.astype(np.int64), column.missing, column.reading)


def _less(column: Column, declared: Sequence[str]) -> Column:
    """The column without values that a party declares to be none."""
    if not declared:
        return column
    if column.is_text:
        none = np.isin(column.values, np.array(declared, dtype=object))
    else:
        numbers = [float(text) for text in declared if _NUMBER.fullmatch(text)]
        none = np.isin(column.values, numbers)
    missing = column.missing | none
    fill = {"f": np.nan, "i": 0}.get(column.values.dtype.kind, "")
    return Column(np.where(missing, fill, column.values), missing, column.reading, column.unfit)


def _numbers(column: Column, reading: Reading) -> Column:
    if not column.is_text and not column.is_date:
        return Column(column.values, column.missing, reading)
    if column.is_date:
        return _all_unfit(column, reading)
    return _parsed(column, reading, [bare(text, reading) for text in _unique(column)])


def _dates(column: Column, reading: Reading) -> Column:
    if column.is_date:
        return Column(column.values, column.missing, reading)
    if not column.is_text:
        return _all_unfit(column, reading)
    texts = _unique(column)
    form = reading.format
    return _parsed(column, reading, [*map(days, texts)] if form is None else dated(texts, form))


def _all_unfit(column: Column, reading: Reading) -> Column:
    """Days where numbers are due, or numbers where dates are: no value fits."""
    nothing = np.full(len(column.values), np.nan)
    rows = np.flatnonzero(~column.missing)
    return Column(
        nothing,
        np.ones(len(nothing), dtype=bool),
        reading,
        dict(zip(rows.tolist(), texts_of(column)[rows].tolist(), strict=True)),
    )


def _unique(column: Column) -> list[str]:
    return [*dict.fromkeys(column.values[~column.missing].tolist())]


def _parsed(column: Column, reading: Reading, known: Sequence[float | None]) -> Column:
    """Texts as the numbers that are known of each different one."""
    number_of = dict(zip(_unique(column), known, strict=True))
    unread = {text for text, each in number_of.items() if each is None}
    found = [np.nan if (each := number_of.get(text)) is None else each for text in column.values]
    values = np.array(found, dtype=np.float64)
    unfit = {}
    if unread:
        unfit = {row: text for row, text in enumerate(column.values.tolist()) if text in unread}
    return Column(values, np.isnan(values), reading, unfit)


def texts_of(column: Column) -> np.ndarray:
    """(N,) objects that are all ``str``; "" where a value is missing."""
    if column.is_text:
        return column.values
    values, inverse = np.unique(column.values[~column.missing], return_inverse=True)
    known = [date_text(each) if column.is_date else number_text(each) for each in values.tolist()]
    texts = np.full(len(column.values), "", dtype=object)
    texts[~column.missing] = np.array(known, dtype=object)[inverse]
    return texts


def declared(asked: Encode, decided: Reading) -> Reading:
    """How a column is read of which a party's file says something."""
    kind: Kind
    match asked.kind:
        case None:
            kind = decided.kind
        case "text" | "picture":
            kind = "text"
        case "hash" | "frequency" | "category":
            kind = "category"
        case "date" | "number":
            kind = asked.kind
    if kind == "number" and asked.decimal is None and decided.kind == "date":
        kind = "date"  # of a date its days alone
    form = asked.format if kind == "date" else None
    decimal = asked.decimal or decided.decimal
    without = asked.without if kind == "number" else ()
    rule = "the party's file says so"
    return Reading(kind, form, decimal, asked.missing, without, asked.lowercase, rule)


def marked(column: Column, reading: Reading, delimiter: str) -> Column:
    """Text of numbers with the fraction's mark of its CSV file as the reading has it.

    A file with another delimiter than the comma may have decimal commas, one with commas has
    points.
    """
    if not delimiter or reading.kind != "number" or reading.without or not column.is_text:
        return column
    here, due = (",", ".") if delimiter != "," else (".", ",")
    if reading.decimal != due:
        return column

    def swapped(text: str) -> str:
        is_one = text.count(here) == 1 and number(text, here) is not None
        return text.replace(here, due) if is_one else text

    return mapped(column, swapped)


def mapped(column: Column, change: Callable[[str], str]) -> Column:
    """A column of texts, each changed."""
    texts = column.values
    known = {text: change(text) for text in dict.fromkeys(texts.tolist()) if text}
    if all(text == new for text, new in known.items()):
        return column
    changed = np.empty(len(texts), dtype=object)
    changed[:] = [known.get(text, "") for text in texts.tolist()]
    return Column(changed, column.missing, column.reading, column.unfit)


# --- Values of Python and numpy as they are stored ----------------------------------------------


def stored(values: np.ndarray, missing: np.ndarray | None = None) -> Column:
    """An array in memory as a column with the types that it has.

    Args:
        values: (N,) numbers, booleans, datetime64, strings or objects.
        missing: rows without a value, besides None and NaN.
    """
    missing = np.zeros(len(values), dtype=bool) if missing is None else missing
    kind = values.dtype.kind
    if kind == "b":
        words = np.array(BOOLEANS, dtype=object)[values.astype(np.int64)]
        return filled(words, missing, WORDS)
    if kind == "i" or (kind == "u" and not (values > np.iinfo(np.int64).max).any()):
        return filled(values.astype(np.int64), missing, NUMBERS)
    if kind == "f":
        return filled(values.astype(np.float64), missing, NUMBERS)
    if kind == "M":
        micros = values.astype("datetime64[us]").astype(np.int64)
        return filled(micros.astype(np.float64) / DAY_US, missing | np.isnat(values), DATES)
    objects = values.astype(object)
    # NaN differs from itself; pandas' NA is neither equal to itself nor not, and has no truth.
    none = [each is None or type(each).__name__ == "NAType" or each != each for each in objects]
    missing = missing | np.array(none, dtype=bool)
    return _objects(objects, missing)


def _objects(values: np.ndarray, missing: np.ndarray) -> Column:
    """Python's values: of one type by it, else as text."""
    present = values[~missing].tolist()
    types = {*map(type, present)}
    if types == {str}:
        return _texts(values, missing, [*map(plain, present)])
    if types and all(issubclass(each, bool | np.bool_) for each in types):
        return _texts(values, missing, ["true" if each else "false" for each in present], WORDS)
    if types and all(issubclass(each, date) for each in types):
        found = np.full(len(values), np.nan)
        found[~missing] = [_days_of(each) for each in present]
        return filled(found, missing, DATES)
    is_number = types and not any(issubclass(each, bool | np.bool_) for each in types)
    if is_number and all(issubclass(each, int | float | np.number | Decimal) for each in types):
        exact = [_exact(each) for each in present]
        if all(isinstance(each, float) or abs(each) <= 2**53 for each in exact) or all(
            isinstance(each, int) and -(2**63) <= each < 2**63 for each in exact
        ):
            whole = all(isinstance(each, int) for each in exact)
            numbers = np.zeros(len(values), dtype=np.int64 if whole else np.float64)
            numbers[~missing] = exact
            return filled(numbers, missing, NUMBERS)
    return _texts(values, missing, [*map(cell_text, present)])


def _texts(
    values: np.ndarray, missing: np.ndarray, present: list[str], reading: Reading = TEXT
) -> Column:
    texts = np.full(len(values), "", dtype=object)
    texts[~missing] = present
    return filled(texts, missing | (texts == "") | (texts == "?"), reading)


def _exact(value: Any) -> int | float:
    """A number; a decimal without a fraction is whole."""
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        return int(value) if isinstance(exponent, int) and exponent >= 0 else float(value)
    return int(value) if isinstance(value, int | np.integer) else float(value)


def _days_of(value: date) -> float:
    """A day or time as days since 1970, in UTC where it has a zone."""
    if not isinstance(value, datetime):
        return float((value - _1970).days)
    away = value.utcoffset() or timedelta(0)
    since = value.replace(tzinfo=None) - away - datetime(1970, 1, 1)
    return float(since // timedelta(microseconds=1)) / DAY_US


def cell_text(value: Any) -> str:
    """Text of a cell's value; 3 and 3.0 have the same."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, bool | np.bool_):
        return BOOLEANS[bool(value)]
    if isinstance(value, date):
        return date_text(_days_of(value))
    if isinstance(value, int | float | np.number | Decimal):
        return number_text(_exact(value))
    return plain(str(value))


def filled(values: np.ndarray, missing: np.ndarray, reading: Reading) -> Column:
    """A column whose missing values all read the same."""
    if values.dtype.kind == "f":
        missing = missing | np.isnan(values)
    fill = {"f": np.nan, "i": 0}.get(values.dtype.kind, "")
    return Column(np.where(missing, fill, values) if missing.any() else values, missing, reading)


def unfit_text(column: Column) -> str:
    """Description of values that do not fit in a column, for errors: the first row, and how many
    there are."""
    row, text = min(column.unfit.items())
    more = "" if len(column.unfit) == 1 else f" ({len(column.unfit)} such rows)"
    shown = text if len(text) <= 60 else text[:59] + "…"
    return f"row {row} has {shown!r}, expected {column.reading.expects}{more}"
