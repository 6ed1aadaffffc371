"""Columns of a table of DuckDB, read by their kinds (``kinds.py``).

A column of text whose values all fit as they stand is read by DuckDB; another is read value by
value. The results are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import duckdb
import numpy as np

from dovetail.data import kinds
from dovetail.data.duck import Data, first_line
from dovetail.data.kinds import Column, Looks, Reading, filled
from dovetail.errors import DataError
from dovetail.settings.sources import literal, quoted

_INTEGERS = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"}
_WIDE_INTEGERS = {"UBIGINT", "HUGEINT", "UHUGEINT", "BIGNUM"}
_FLOATS = {"FLOAT", "DOUBLE", "DECIMAL"}
_TEXTS = {"VARCHAR", "ENUM", "UUID", '"NULL"'}

#: A table of more columns, and of at most so many values, is read many at a time.
MANY_COLUMNS, MAX_WHOLE_VALUES = 50, 10_000_000
#: So many columns are read in one query.
_TOGETHER = 64

#: Of a longer table a text column of so few different texts is read as their numbers: a text of
#: its own for each row would take eight times the memory.
_LONG, _FEW_TEXTS = 100_000, 1000

#: ASCII without blanks around it.
_PLAIN = "[!-~]([ -~]*[!-~])?"

_MISSING = (None, *kinds.MISSING_TEXTS)

#: Rows that are looked at before all are.
_SAMPLE = 1000

Pattern = Literal["number", "comma", "date", "boolean"]
_PATTERNS: Mapping[Pattern, str] = {
    "number": f"{kinds.NUMBER}|{kinds.NO_NUMBER}",
    "comma": f"{kinds.COMMA}|{kinds.NO_NUMBER}",
    "date": kinds.ISO,
    "boolean": "(?i:true|false)",
}


@dataclass(eq=False)
class Loaded:
    """A table or view.

    Attributes:
        data: where it is.
        description: what it is called in errors.
        types: column -> DuckDB's type.
        num_rows: of it.
        columns: the only ones whose values are read; None: all.
        delimiter: of a CSV file, whose values have no types; else "".
    """

    data: Data
    description: str
    types: Mapping[str, str]
    num_rows: int
    columns: Collection[str] | None = None
    delimiter: str = ""
    _read: dict[tuple[str, Reading | None], Column] = field(default_factory=dict)
    _few: dict[str, Looks] = field(default_factory=dict)
    _fitting: dict[tuple[str, Pattern], Looks | None] = field(default_factory=dict)
    _decided: dict[tuple[str, tuple[str, ...]], Reading] = field(default_factory=dict)
    _last: Mapping[str, Column] = field(default_factory=dict)

    def stored(self, name: str) -> Column:
        if (name, None) in self._read:
            return self._read[name, None]
        if self._is_text(name) or self._type(name) in _WIDE_INTEGERS:
            if self.num_rows > _LONG and (shared := self._shared(name)) is not None:
                return self._keep({(name, None): shared})[name, None]
            if (last := self._last.get(name)) is not None:
                return last
            chosen = {each: (_plain(each), kinds.TEXT) for each in self._texts_beside(name)}
        else:
            typed = {each: _typed(each, self._type(each)) for each in self._beside(name)}
            chosen = {each: known for each, known in typed.items() if known is not None}
        if name not in chosen:
            raise DataError(
                f"column {name!r} of {self.description} has the type {self.types[name]}, which is "
                "neither number, date nor text; leave it out, or cast it in a SELECT"
            )
        fetched = self._fetched(chosen)
        if self._is_text(name) and not self._has_words(name):
            # Numbers as texts: too large to keep all, or one of a large table; asked but once.
            self._last = fetched if self._is_small else {}
            return fetched[name]
        return self._keep({(each, None): fetched[each] for each in fetched})[name, None]

    def decided(self, name: str, missing: Sequence[str]) -> Reading:
        key = name, tuple(missing)
        if key not in self._decided:
            self._decided[key] = self._decide(name, missing)
        return self._decided[key]

    def _decide(self, name: str, missing: Sequence[str]) -> Reading:
        if not self._is_text(name):
            if self._type(name) in _WIDE_INTEGERS:
                return kinds.of_type("number", missing)
            typed = _typed(name, self._type(name))
            if typed is not None:
                return kinds.of_type(typed[1].kind, missing)
            return self.stored(name).reading  # which refuses it
        if missing:
            return kinds.decide(self.stored(name), missing=missing, decimal=self.decimal)
        few = self._first(name)
        likely = few.reading(decimal=self.decimal)
        if few.present and likely.kind == "text":
            return likely  # what differs in one row differs in all
        whole = self._fits(name, _pattern_of(likely))
        if whole is None:
            return kinds.decide(self.stored(name), decimal=self.decimal)
        return whole.reading(decimal=self.decimal)

    def by(self, name: str, reading: Reading) -> Column:
        key = name, reading
        if key in self._read:
            return self._read[key]
        if reading.kind == "number" and self._type(name) in _WIDE_INTEGERS and not reading.missing:
            chosen = {name: (f"{quoted(name)}::DOUBLE", reading)}
        elif reading.kind == "id" and self._is_text(name) and self._has_digits(name):
            chosen = {name: (f"{quoted(name)}::BIGINT", reading)}
        elif (
            reading.kind in ("number", "date")
            and not reading.format
            and reading.as_written
            and self._is_text(name)
            and self._fits(name, _pattern_of(reading)) is not None
        ):
            pattern = _pattern_of(reading)
            alike = [each for each in self._beside(name) if self._fitting.get((each, pattern))]
            chosen = {each: (_of_text(each, pattern), reading) for each in {*alike, name}}
        else:
            stored = kinds.marked(self.stored(name), reading, self.delimiter)
            return self._keep({key: kinds.convert(stored, reading)})[key]
        fetched = self._fetched(chosen)
        return self._keep({(each, reading): fetched[each] for each in fetched})[key]

    @cached_property
    def decimal(self) -> Literal[".", ","]:
        """Mark before fractions: a comma if the first rows have no other.

        In a file whose delimiter is the comma it is a point.
        """
        if self.delimiter in ("", ","):
            return "."
        first = [self._first(name) for name in self.types if self._is_text(name)]
        if any(each.number == each.present and each.points for each in first):
            return "."
        return "," if any(each.commas and each.comma == each.present for each in first) else "."

    # --- What a column looks like ------------------------------------------------------------

    def _type(self, name: str) -> str:
        kind = self.types[name].upper()
        # A DECIMAL without a fraction is a whole number of any width.
        return "HUGEINT" if kind.endswith(",0)") else kind.split("(")[0]

    def _is_text(self, name: str) -> bool:
        return self._type(name) in _TEXTS

    def _beside(self, name: str) -> list[str]:
        """The columns that are read together with one.

        A query looks at all columns of a table, so that one for each of a thousand takes minutes;
        one of a thousand takes as long, since DuckDB compares each expression with all others.
        """
        if not self._is_small or len(self.types) <= MANY_COLUMNS:
            return [name]
        chosen = [each for each in self.types if self.columns is None or each in self.columns]
        if name not in chosen:
            return [name]
        start = chosen.index(name) // _TOGETHER * _TOGETHER
        return chosen[start : start + _TOGETHER]

    @property
    def _is_small(self) -> bool:
        return self.num_rows * len(self.types) <= MAX_WHOLE_VALUES

    def _texts_beside(self, name: str) -> list[str]:
        """The columns that are read as text together with one: it has words, and so have they."""
        if not self._is_text(name):
            return [name]
        beside = [each for each in self._beside(name) if self._is_text(each)]
        return [each for each in beside if self._has_words(each) == self._has_words(name)]

    def _has_words(self, name: str) -> bool:
        """Whether the first rows of a column of text are no numbers or dates."""
        return self._first(name).reading(decimal=self.decimal).kind in ("text", "boolean")

    def _first(self, name: str) -> Looks:
        """Summary of what the first rows of a column of text look like."""
        if name not in self._few:
            names = [each for each in self._beside(name) if self._is_text(each)]
            asked = ", ".join(f"{quoted(each)}::VARCHAR AS v{at}" for at, each in enumerate(names))
            rows = self._run(f"SELECT {asked} FROM {self.data.name} LIMIT {_SAMPLE}").fetchall()
            for each, cells in zip(names, zip(*rows, strict=True), strict=True):
                written = [text for text in cells if text not in _MISSING]
                texts = list(map(kinds.plain, written))
                looks = self._few[each] = kinds.looks(t for t in texts if t not in _MISSING)
                # Of a few rows DuckDB would take longer to plan a query than to answer it.
                if self.num_rows <= _SAMPLE and looks.number == len(texts) and texts == written:
                    self._fitting[each, "number"] = looks if texts else None
        return self._few[name]

    def _fits(self, name: str, pattern: Pattern) -> Looks | None:
        """Summary of a column whose values all fit a pattern as they are; else None."""
        if (name, pattern) not in self._fitting:
            alike = [name]
            for each in self._beside(name):
                if each != name and self._is_text(each):
                    first = self._first(each)
                    if _pattern_of(first.reading(decimal=self.decimal)) == pattern:
                        alike.append(each)
            row = self._run(
                f"SELECT {', '.join(_counts(each, pattern) for each in alike)} "
                f"FROM {self.data.name}"
            ).fetchone()
            assert row is not None
            for at, each in enumerate(alike):
                present, fits, points, bare, zeros = row[5 * at : 5 * at + 5]
                found: dict[str, int] = {"present": present, pattern: fits, "points": points}
                looks = Looks(**found, bare=bare, zeros=zeros)
                self._fitting[each, pattern] = looks if present and fits == present else None
        return self._fitting[name, pattern]

    def _has_digits(self, name: str) -> bool:
        """Whether a column of text has nothing but whole numbers as int64 writes them."""
        fits = f"bool_and(regexp_full_match({quoted(name)}, {literal(kinds.DIGITS)}))"
        row = self._run(
            f"SELECT {fits}, count(*) = count({quoted(name)}) FROM {self.data.name}"
        ).fetchone()
        return row == (True, True)

    # --- Reading -----------------------------------------------------------------------------

    def _run(self, query: str) -> duckdb.DuckDBPyConnection:
        try:
            # A cursor of its own: a connection must not run two queries at once.
            return self.data.connection.cursor().execute(query)
        except duckdb.Error as error:
            raise DataError(f"cannot read {self.description}: {first_line(error)}") from None

    def _keep(
        self, columns: dict[tuple[str, Reading | None], Column]
    ) -> dict[tuple[str, Reading | None], Column]:
        if self._is_small:  # many parties may have rows of it, and each asks for its own
            self._read |= columns
        return columns

    def _fetched(self, chosen: Mapping[str, tuple[str, Reading]]) -> dict[str, Column]:
        """Columns by what reads each."""
        asked = ", ".join(f"{each} AS v{at}" for at, (each, _) in enumerate(chosen.values()))
        fetched = self._run(f"SELECT {asked} FROM {self.data.name}").fetchnumpy()
        return {
            name: filled(np.ma.getdata(values), np.ma.getmaskarray(values), reading)
            for (name, (_, reading)), values in zip(chosen.items(), fetched.values(), strict=True)
        }

    def _shared(self, name: str) -> Column | None:
        """A column of texts whose equal values are one object; None of many different ones."""
        query = f"SELECT {quoted(name)}::VARCHAR AS v FROM {self.data.name}"
        counted = self._run(f"SELECT approx_count_distinct(v) FROM ({query})").fetchone()
        if counted is None or counted[0] > _FEW_TEXTS:
            return None
        rows = self._run(f"SELECT DISTINCT v FROM ({query}) WHERE v IS NOT NULL").fetchall()
        if not rows:
            return None
        written = [text for (text,) in rows]
        plain = {text: kinds.plain(text) for text in written}  # once, not in every row
        same = {text: text for text in plain.values()}
        codes: Any = self._run(
            f"SELECT coalesce(enum_code(v::ENUM({', '.join(map(literal, written))}))::INTEGER, -1) "
            f"AS v FROM ({query})"
        ).fetchnumpy()["v"]
        texts = np.array([*(same[plain[text]] for text in written), ""], dtype=object)
        values = texts[np.ma.getdata(codes)]  # without a value the last
        absent = np.array([text in kinds.MISSING_TEXTS for text in texts.tolist()])
        return filled(values, absent[np.ma.getdata(codes)], kinds.TEXT)


def _plain(name: str) -> str:
    """SQL that reads a text as ``kinds.plain`` does, NULL where it is missing."""
    cell = f"{quoted(name)}::VARCHAR"
    trimmed = f"nfc_normalize(trim({cell}, {literal(kinds.BLANKS)}))"
    # Most texts are as they are to be: to look takes a tenth of the time that to do so takes.
    trimmed = f"CASE WHEN regexp_full_match({cell}, '{_PLAIN}') THEN {cell} ELSE {trimmed} END"
    return f"nullif(nullif({trimmed}, ''), '?')"


def _typed(name: str, kind: str) -> tuple[str, Reading] | None:
    """SQL that reads a column that is no text, and its kind; None of a type that cannot be read."""
    cell = quoted(name)
    if kind == "BOOLEAN":
        return f"{cell}::VARCHAR", kinds.WORDS
    if kind in _INTEGERS:
        return f"{cell}::BIGINT", kinds.NUMBERS
    if kind in _FLOATS:
        return f"{cell}::DOUBLE", kinds.NUMBERS
    if kind == "DATE" or kind.startswith("TIMESTAMP"):
        return f"epoch_us({cell})::DOUBLE / {kinds.DAY_US}::DOUBLE", kinds.DATES
    return None


def _pattern_of(reading: Reading) -> Pattern:
    if reading.kind == "number":
        return "comma" if reading.decimal == "," else "number"
    return reading.kind if reading.kind in ("date", "boolean") else "number"


def _counts(name: str, pattern: Pattern) -> str:
    """SQL of the rows with a value, that fit, with a point, a bare exponent, a leading zero."""
    cell = quoted(name)
    there = f"{cell} IS NOT NULL AND {cell} NOT IN ('', '?')"
    fits = f"regexp_full_match({cell}, {literal(_PATTERNS[pattern])})"
    if pattern == "date":  # not each day of each month is one
        fits += (
            f" AND try_cast({cell} AS TIMESTAMP) IS NOT NULL AND NOT starts_with({cell}, '0000')"
        )
    looks = ["0", "0", "0"]
    if pattern == "number":
        exponent = f"regexp_full_match({cell}, {literal(kinds.BARE_EXPONENT)})"
        zero = f"regexp_full_match({cell}, {literal(kinds.LEADING_ZERO)})"
        looks = [
            f"count_if(contains({cell}, '.'))",
            f"count_if(contains(lower({cell}), 'e') AND {exponent})",
            f"count_if(starts_with({cell}, '0') AND {zero})",
        ]
    return ", ".join([f"count_if({there})", f"count_if({there} AND {fits})", *looks])


def _of_text(name: str, pattern: Pattern) -> str:
    """SQL that reads a text that fits its pattern."""
    cell = quoted(name)
    if pattern == "date":
        has_offset = f"length({cell}) > 16 AND regexp_matches({cell}, '(Z|[+-][0-9:]+)$')"
        micros = (
            f"CASE WHEN {has_offset} THEN epoch_us(try_cast({cell} AS TIMESTAMPTZ)) "
            f"ELSE epoch_us(try_cast({cell} AS TIMESTAMP)) END"
        )
        return f"{micros}::DOUBLE / {kinds.DAY_US}::DOUBLE"
    if pattern == "comma":
        cell = f"replace({cell}, ',', '.')"
    return f"try_cast({cell} AS DOUBLE)"
