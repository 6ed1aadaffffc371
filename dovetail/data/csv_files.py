"""CSV files as tables of texts: the first line says the columns, and nothing is guessed."""

from __future__ import annotations

import csv
import gzip
import itertools
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb

from dovetail.data.duck import Data
from dovetail.errors import DataError
from dovetail.settings.sources import literal, quoted

#: The line by which a spreadsheet is told of the delimiter.
_SEPARATOR = re.compile(r"sep=([,;|\t])\s*", re.I)

#: What reading the first line can raise of a file that is no text, or no gzip file.
UNREADABLE = (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error)


def delimiter_of(header: str) -> str:
    """Delimiter between the names of a first line; a comma if there is one.

    >>> delimiter_of('a;"b,c";d'), delimiter_of("a")
    (';', ',')
    """
    outside = re.sub(r'"[^"]*"', "", header)
    return max(",;\t|", key=outside.count)


def read_header(path: Path) -> tuple[int, str, list[str]]:
    """Lines before the names, what stands between these, and the names."""
    with _opener(path)(path, "rt", encoding="utf-8-sig", newline="") as file:
        line, skipped, said = file.readline(), 0, None
        while line and (not line.strip() or _SEPARATOR.fullmatch(line)):
            said = said or _SEPARATOR.fullmatch(line)
            line, skipped = file.readline(), skipped + 1
        delimiter = said[1] if said else delimiter_of(line)
        header = next(csv.reader(itertools.chain([line], file), delimiter=delimiter), [])
    while len(header) > 1 and not header[-1].strip():
        header.pop()  # the line ends with a delimiter, as all may
    return skipped, delimiter, header


def load_csv(data: Data, path: Path, pattern: str) -> tuple[list[str], str]:
    """Make a table of a file's texts; the columns' names, and what stands between values.

    Args:
        pattern: the file as DuckDB names it.

    Raises:
        DataError: a line that is wider or narrower than the first.
        duckdb.Error: what DuckDB cannot read.
    """
    skipped, delimiter, header = read_header(path)
    if not header:
        raise DataError(
            f"{path} has no column names in its first line; give a table with column names and at "
            "least one row"
        )
    names = [name or f"column{number}" for number, name in enumerate(header)]
    if len({name.casefold() for name in names}) < len(names):  # refused by who asks
        data.make("TABLE", "SELECT 1 AS unused")
        return names, delimiter
    columns = ", ".join(f"'c{number}': 'VARCHAR'" for number in range(len(names)))
    chosen = ", ".join(f"c{number} AS {quoted(name)}" for number, name in enumerate(names))
    query = (
        f"SELECT {chosen} FROM read_csv({pattern}, auto_detect = false, header = true, "
        f"skip = {skipped}, delim = {literal(delimiter)}, quote = '\"', escape = '\"', "
        f"columns = {{{columns}}}%s)"
    )
    try:
        data.make("TABLE", query % "")
    except duckdb.Error as error:
        _refuse_ragged(path, skipped, delimiter)
        if "invalid state" not in str(error):
            raise
        data.make("TABLE", query % ", strict_mode = false")  # lines that end in two ways
    return names, delimiter


def csv_blocks(path: Path, size: int) -> Iterator[bytes]:
    """A file as CSV files of about so many bytes, each with the lines up to the names.

    Ends of lines within quotes cut nothing.

    Raises:
        csv.Error: quotes that do not pair.
    """
    skipped, _, _ = read_header(path)
    with _opener(path)(path, "rb") as file:
        head = b"".join(file.readline() for _ in range(skipped + 1))
        if head.count(b'"') % 2:
            raise csv.Error("the names are of several lines")
        left = b""
        while block := file.read(size):
            left += block
            cut = left.rfind(b"\n") + 1
            is_within = left.count(b'"', 0, cut) % 2
            while cut and is_within:
                quote = left.rfind(b'"', 0, cut)
                cut = left.rfind(b"\n", 0, quote) + 1
                is_within ^= left.count(b'"', cut, quote + 1) % 2
            if cut:
                yield head + left[:cut]
                left = left[cut:]
            if len(left) > 8 * size:
                raise csv.Error("a quote is not closed")
        if left.strip():
            yield head + left


def _opener(path: Path) -> Callable[..., Any]:
    return gzip.open if path.suffix.lower() == ".gz" else open


def _refuse_ragged(path: Path, skipped: int, delimiter: str) -> None:
    """Refuse a file whose lines have not all as many fields as the first.

    Raises:
        DataError: naming the first line that differs.
    """
    with _opener(path)(path, "rt", encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(itertools.islice(file, skipped, None), delimiter=delimiter)
        num_fields = len(next(rows, []))
        with suppress(csv.Error, UnicodeDecodeError):
            for row in rows:
                if row and len(row) != num_fields and (len(row) != num_fields + 1 or row[-1]):
                    raise DataError(
                        f"line {rows.line_num + skipped} of {path} has {len(row)} fields where the "
                        f"first line has {num_fields}; mend it, or quote text with {delimiter!r} "
                        "in it"
                    )
