"""Sources of a table: a file, a query, the URL of a database or of a lake."""

from __future__ import annotations

import re
from pathlib import Path

CSV_SUFFIXES = (".csv", ".tsv", ".csv.gz")
TABLE_SUFFIXES = (*CSV_SUFFIXES, ".parquet")

#: How a query begins: SELECT, WITH or FROM, after any comments and brackets. A quote or star may
#: follow at once; "from.csv" and "select-me/" are paths.
_QUERY = re.compile(
    r"(?:\s|\(|--[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)*(?:select|with|from)[\s\"'*]", re.I
)

_URL = re.compile(r"[a-z][\w+.-]*://|odbc:", re.I)
ADBC = re.compile(r"adbc:([\w.-]+):(.*)", re.I | re.S)
_LAKE = re.compile(r"(?:(?:s3|gs|az)://|(?:delta|iceberg):)", re.I)


def is_query(source: str | Path) -> bool:
    """Whether a source is a query rather than a path or name.

    >>> is_query("SELECT 1"), is_query("-- all\\n(FROM 'a.csv')"), is_query("from.csv")
    (True, True, False)
    """
    return isinstance(source, str) and _QUERY.match(source) is not None


def is_csv(source: str | Path) -> bool:
    """Whether a path's ending says that it is text with delimiters."""
    return not is_query(source) and str(source).lower().endswith(CSV_SUFFIXES)


def is_table_path(path: Path) -> bool:
    """Whether a path's ending says that it is a table."""
    return path.name.lower().endswith(TABLE_SUFFIXES)


def is_database_url(source: str) -> bool:
    """Whether a source is the URL of a database, a bucket or a lake (``lakes.py``)."""
    return any((_URL.match(source), ADBC.match(source), is_lake_url(source)))


def is_lake_url(source: str) -> bool:
    """Whether a source is read here."""
    return _LAKE.match(source) is not None


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"
