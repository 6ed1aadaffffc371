"""Match keys: what stands in for an id where there is none in common, such as name and birth date.

A key is a list of components, a component a column or a function of columns:

    component                what is compared
    national_id              letters and digits, without accents, case, blanks and punctuation
    text(COLUMN)             the same, whatever the column is called
    name(COLUMN)             as text, without titles (Dr, Mrs, Herr); words in order
    names(COLUMN, COLUMN)    the words of both, sorted: who swaps given name and surname is found
    initial(COLUMN)          the first letter of name(COLUMN)
    sounds(COLUMN)           Soundex of name(COLUMN)'s first word, by jellyfish
    date(COLUMN)             YYYY-MM-DD of a date column or text; see ``as_date``
    year(COLUMN)             its year
    digits(COLUMN)           digits only, without leading zeros
    phone(COLUMN)            E.164 by phonenumbers, where that is installed; else an error

A column alone is ``date`` if it is called *date* or *birth*..., ``phone`` if *phone* or *mobile*,
``name`` if *name*, *surname* or *given*, else ``text``. Both sides resolve a key alike, since they
call columns alike, and what it resolves to is compared before anything else is.

Text is normalised so, in this order: NFKC; case folded; accents and other marks removed (NFKD), and
the letters ø đ ł ħ æ œ þ ð ı replaced by the Latin letters that stand in for them; all but letters
and digits removed (of names: split into words). Nothing is guessed: a value that does not fit (a
date of two digits a year, a telephone number that cannot be) is missing. A row without one of its
components has no such key, and rows that share a key at one party are ambiguous: neither enters the
pass.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import lru_cache
from importlib import import_module
from typing import Any
from unicodedata import combining, normalize

import numpy as np

from dovetail.data import Column
from dovetail.errors import AlignmentError, ConfigError

#: Words that are no part of a name.
TITLES = frozenset(
    {
        "dr",
        "prof",
        "professor",
        "mr",
        "mrs",
        "ms",
        "miss",
        "sir",
        "dame",
        "lady",
        "lord",
        "herr",
        "frau",
        "mme",
        "mlle",
        "dipl",
        "ing",
        "med",
        "phd",
        "md",
        "jr",
        "esq",
        "rev",
        "hon",
        "dott",
    }
)

_LETTERS = str.maketrans(
    {"ø": "o", "đ": "d", "ł": "l", "ħ": "h", "æ": "ae", "œ": "oe", "þ": "th", "ð": "d", "ı": "i"}
)
_COMPONENT = re.compile(r"\s*(?:(\w+)\s*\(\s*(.*?)\s*\)|([^()]+?))\s*")


@lru_cache(maxsize=1 << 17)
def words(text: str) -> tuple[str, ...]:
    """Words of letters and digits, normalised.

    >>> words(" Ｄr. Zoë  Müller-Łoś ")
    ('dr', 'zoe', 'muller', 'los')
    """
    folded = normalize("NFKD", normalize("NFKC", text).casefold())
    plain = "".join(c for c in folded if not combining(c)).translate(_LETTERS)
    return tuple(re.findall(r"[^\W_]+", plain.replace("'", "").replace("’", "")))


def name_words(text: str) -> tuple[str, ...]:
    """As ``words``, without titles (unless there is nothing else)."""
    every = words(text)
    return tuple(word for word in every if word not in TITLES) or every


#: How a date may be written; two digits for the year may not.
_FORMATS = {
    "day-first": (
        "%Y-%m-%d",
        "%d.%m.%Y",
        "%d/%m/%Y",
        "%d-%m-%Y",
        "%Y/%m/%d",
        "%d %B %Y",
        "%d %b %Y",
    ),
    "month-first": ("%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%m-%d-%Y", "%Y/%m/%d", "%B %d, %Y"),
}


@lru_cache(maxsize=1 << 17)
def as_date(value: str, order: str = "day-first") -> str:
    """YYYY-MM-DD, or "" for what is none.

    >>> as_date("3.7.1980"), as_date("03/07/1980", "month-first"), as_date("19800703")
    ('1980-07-03', '1980-03-07', '1980-07-03')
    >>> as_date("3.7.80")
    ''
    """
    text = value.strip()
    if re.fullmatch(r"\d{8}", text):
        text = f"{text[:4]}-{text[4:6]}-{text[6:]}"
    text = re.sub(r"[T ]\d\d:\d\d.*$", "", text)
    for form in _FORMATS[order]:
        try:
            return datetime.strptime(text, form).date().isoformat()
        except ValueError:
            continue
    return ""


def _number(value: Any) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _date_of(value: Any, order: str) -> str:
    if isinstance(value, str):
        return as_date(value, order)
    number = float(value)
    if number.is_integer() and 1_000_01_01 <= number <= 9999_12_31 and number > 3_000_000:
        return as_date(str(int(number)), order)
    try:  # what a table's date column is read as: days since 1970
        return (date(1970, 1, 1) + timedelta(days=int(number // 1))).isoformat()
    except OverflowError:
        return ""


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else _number(value)


def _sounds(text: str) -> str:
    words = name_words(text)
    return str(_library("jellyfish", "sounds()").soundex(words[0])) if words else ""


def _phone(text: str, region: str | None) -> str:
    library = _library("phonenumbers", "phone()")
    try:
        parsed = library.parse(text, region)
    except library.NumberParseException:
        return ""
    if not library.is_possible_number(parsed):
        return ""
    return str(library.format_number(parsed, library.PhoneNumberFormat.E164))


def _library(name: str, what: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(
            f"match keys with {what} need {name}: pip install 'dovetail-fl[match]'"
        ) from None


@dataclass(frozen=True)
class MatchFormats:
    """How a party writes what it compares.

    Attributes:
        dates: whether 03/07/1980 is the third of July ("day-first") or the seventh of March.
        region: where its telephone numbers are that have no country code, such as "GB".
    """

    dates: str = "day-first"
    region: str | None = None


#: Function -> what becomes of one value.
_OF_ONE: Mapping[str, Callable[[Any, MatchFormats], str]] = {
    "text": lambda value, reading: "".join(words(_text_of(value))),
    "name": lambda value, reading: " ".join(name_words(_text_of(value))),
    "initial": lambda value, reading: "".join(name_words(_text_of(value)))[:1],
    "sounds": lambda value, reading: _sounds(_text_of(value)),
    "date": lambda value, reading: _date_of(value, reading.dates),
    "year": lambda value, reading: _date_of(value, reading.dates)[:4],
    "digits": lambda value, reading: re.sub(r"\D", "", _text_of(value)).lstrip("0"),
    "phone": lambda value, reading: _phone(_text_of(value), reading.region),
}

FUNCTIONS = (*_OF_ONE, "names")


@dataclass(frozen=True)
class Component:
    """A function of columns, as in ``sounds(surname)``."""

    function: str
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(self.columns)})"


def component(text: str) -> Component:
    """Component of a key, parsed from its text.

    Raises:
        ConfigError: no column, or a function that there is not.

    >>> str(component("sounds(surname)")), str(component("birth_date")), str(component("postcode"))
    ('sounds(surname)', 'date(birth_date)', 'text(postcode)')
    """
    parts = _COMPONENT.fullmatch(text)
    if parts is None:
        raise ConfigError(
            f"a match key is made of columns and FUNCTION(column), got {text!r}; write it so"
        )
    function, inside, alone = parts.groups()
    if alone is not None:
        return Component(_function_of(alone), (alone,))
    columns = tuple(each.strip() for each in inside.split(","))
    if function not in FUNCTIONS:
        raise ConfigError(
            f"match key {text!r}: there is no function {function!r}; there are "
            f"{', '.join(FUNCTIONS)}"
        )
    if not all(columns) or (len(columns) != 1) != (function == "names"):
        several = "two columns or more" if function == "names" else "one column"
        raise ConfigError(f"match key {text!r}: name {several} for {function}")
    return Component(function, columns)


def _function_of(column: str) -> str:
    split = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column).lower()
    for function, called in {
        "date": ("date", "birth", "dob"),
        "phone": ("phone", "mobile"),
        "name": ("name", "surname", "given"),
    }.items():
        if any(word in split for word in called):
            return function
    return "text"


@dataclass(frozen=True)
class MatchKey:
    """Components that must all be the same."""

    components: tuple[Component, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.components))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for each in self.components for name in each.columns))


def match_key(parts: Sequence[str]) -> MatchKey:
    """Match key, parsed from an entry of ``[party] match``.

    Raises:
        ConfigError: it has no components, or one that cannot be.
    """
    if not parts:
        raise ConfigError("a match key needs one component or more: name a column")
    return MatchKey(tuple(map(component, parts)))


@dataclass(frozen=True, eq=False)
class KeyValues:
    """Values of one key for every row.

    Attributes:
        key: which.
        values: (N,) bytes; b"" where the row has none.
        parts: component -> how many values somebody would have to try who guesses it.
    """

    key: MatchKey
    values: np.ndarray
    parts: Mapping[str, int]

    @property
    def missing(self) -> int:
        return int((self.values == b"").sum())

    def usable(self, left_N: np.ndarray) -> tuple[np.ndarray, int]:
        """(K,) rows, of those that are left, whose key is theirs alone; and how many share one."""
        rows = np.flatnonzero(left_N & (self.values != b""))
        # Python's hashes are compared first: counting a million texts takes 200 MB, these 16.
        hashes = np.fromiter(map(hash, self.values[rows]), dtype=np.int64, count=len(rows))
        order = np.argsort(hashes, kind="stable")
        alike = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
        several = order[np.union1d(alike, alike + 1)]
        counts = Counter(self.values[rows[several]].tolist())
        alone = np.ones(len(rows), dtype=bool)
        alone[several] = [counts[value] == 1 for value in self.values[rows[several]]]
        return rows[alone], int(len(rows) - alone.sum())


class Keys(tuple[KeyValues, ...]):
    """A party's match keys, in the order in which they are tried."""

    __slots__ = ()

    @property
    def num_rows(self) -> int:
        return len(self[0].values) if self else 0

    def of(self, rows: np.ndarray) -> Keys:
        """Those of these rows alone; a key that another row has too is nobody's."""
        return Keys(replace(key, values=_alone(key.values, rows)) for key in self)


def _alone(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """(K,) those of these rows; b"" where a row that is not among them has the same."""
    within = values[rows]
    others = set(values[np.setdiff1d(np.arange(len(values)), rows)].tolist())
    taken = np.array([value in others for value in within.tolist()], dtype=bool)
    alone: np.ndarray = np.where(taken, b"", within) if len(within) else within
    return alone


def key_values(key: MatchKey, columns: Mapping[str, Column], reading: MatchFormats) -> KeyValues:
    """The key of every row.

    The key's own text is part of the value: values of two keys never meet, whatever they are.

    Args:
        key: which.
        columns: what the key calls it -> the column.
        reading: how the party writes dates and telephone numbers.

    Raises:
        ConfigError: a column that is not there, or a library that is missing.
    """
    parts = [_component_values(each, columns, reading) for each in key.components]
    there = np.logical_and.reduce([part != "" for part in parts])
    prefix = f"k{key}\x1e".encode()
    values = np.empty(len(there), dtype=object)
    values[:] = b""
    for row in np.flatnonzero(there):
        values[row] = prefix + "\x1f".join(part[row] for part in parts).encode()
    distinct = {
        str(each): _choices(set(part[part != ""].tolist()), len(part))
        for each, part in zip(key.components, parts, strict=True)
    }
    return KeyValues(key, values, distinct)


def _choices(distinct: set[str], num_rows: int) -> int:
    """How many values a component may have: those there are, or all of that length."""
    if len(distinct) < 0.3 * num_rows:
        return len(distinct)
    letters = 10 if all(text.isdigit() for text in distinct) else 36
    return int(letters ** min(30, max(map(len, distinct), default=0)))


def _component_values(
    each: Component, columns: Mapping[str, Column], reading: MatchFormats
) -> np.ndarray:
    """(N,) objects that are text; "" where missing."""
    for name in each.columns:
        if name not in columns:
            raise ConfigError(f"match key {each}: there is no column {name!r}; name another")
    if each.function == "names":
        texts = [
            _values_of(columns[name], lambda v: " ".join(name_words(_text_of(v))))
            for name in each.columns
        ]
        joined = np.empty(len(texts[0]), dtype=object)
        for row, of_row in enumerate(zip(*texts, strict=True)):
            joined[row] = " ".join(sorted(" ".join(of_row).split())) if all(of_row) else ""
        return joined
    one = _OF_ONE[each.function]
    return _values_of(columns[each.columns[0]], lambda value: one(value, reading))


def _values_of(column: Column, one: Callable[[Any], str]) -> np.ndarray:
    """Each different value is turned once."""
    known: dict[Any, str] = {}
    values = np.empty(len(column.values), dtype=object)
    items = column.values.tolist()
    for row, (value, missing) in enumerate(zip(items, column.missing.tolist(), strict=True)):
        if missing:
            values[row] = ""
            continue
        if value not in known:
            known[value] = one(value)
        values[row] = known[value]
    return values


@dataclass(frozen=True)
class Rated:
    """Quality of a key at one party, before anything is sent.

    Attributes:
        key: which, resolved.
        rows: the party's.
        missing: rows without one.
        unique: rows whose key nobody else there has.
        ambiguous: rows that share theirs.
        guesses: how many keys try all that it may be: of each component the different values that
            this party has, or where hardly two rows have the same, all texts of that length.
    """

    key: str
    rows: int
    missing: int
    unique: int
    ambiguous: int
    guesses: int


def rate(keys: Sequence[KeyValues]) -> list[Rated]:
    """Each key by itself, over all rows."""
    rated = []
    for each in keys:
        rows, ambiguous = each.usable(np.ones(len(each.values), dtype=bool))
        guesses = 1
        for distinct in each.parts.values():
            guesses *= max(1, distinct)
        rated.append(
            Rated(str(each.key), len(each.values), each.missing, len(rows), ambiguous, guesses)
        )
    return rated


def check_agreed(mine_keys: Sequence[str], theirs: str, index: int, who: str) -> None:
    """Refuse a pass whose key is not this party's.

    Raises:
        AlignmentError: naming both.
    """
    mine = mine_keys[index] if index < len(mine_keys) else "none"
    if mine != theirs:
        raise AlignmentError(
            f"{who} asks for key {index + 1}, {theirs[:300]!r}; this party's is {mine!r}: both "
            "files must list the same keys in party.match, in the same order"
        )
