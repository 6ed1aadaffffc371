"""Tables in databases, by URL: SQLite from the standard library, others through DuckDB."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import duckdb
import numpy as np

from dovetail.data.tables import Table, is_query, read_attached, table_from_arrays
from dovetail.errors import DataError

_URL = re.compile(r"(sqlite|postgres|postgresql|mysql)://", re.I)
_ROWS_AT_ONCE = 100_000


def is_database_url(source: str) -> bool:
    """Whether a source is a database's URL."""
    return _URL.match(source) is not None


def read_database(url: str, query: str | None) -> Table:
    """What a query gives, or the database's only table.

    Args:
        url: ``sqlite:///path/to/file.db``, ``postgresql://user@host/name`` or ``mysql://...``.
        query: one ``SELECT``, or a table's name. SQLite runs it in its own SQL; for PostgreSQL and
            MySQL DuckDB runs it, in DuckDB's SQL. It can write nothing.

    Raises:
        DataError: a database that cannot be reached or read, a query that is not one ``SELECT``,
            or a missing DuckDB extension.
    """
    if is_sqlite_url(url):
        return _read_sqlite(url, query)
    is_mysql = url[:5].lower() == "mysql"
    return _read_through_duckdb(url, "mysql" if is_mysql else "postgres", query)


def without_password(url: str) -> str:
    """The URL as errors may show it.

    >>> without_password("postgresql://me:p@ss/w@host/db?sslpassword=x")
    'postgresql://me:***@host/db?sslpassword=***'
    """
    shown = re.sub(r"(://[^/@:]*):.*@", r"\1:***@", url)  # a password may have an @ itself
    return re.sub(r"(password\s*=\s*)[^&\s]*", r"\1***", shown, flags=re.I)


def is_sqlite_url(url: str) -> bool:
    """Whether the database is a SQLite file."""
    return url[:9].lower() == "sqlite://"


def sqlite_url(path: Path) -> str:
    """The URL of a SQLite file."""
    return f"sqlite:///{path}"


def sqlite_path(url: str) -> Path:
    """The file of a ``sqlite:///`` URL; four slashes begin an absolute path."""
    return Path(re.sub(r"^sqlite:///?", "", url, flags=re.I))


def _read_sqlite(url: str, query: str | None) -> Table:
    path = sqlite_path(url)
    if not path.is_file():
        raise DataError(f"there is no SQLite file {path}; write sqlite:///path/to/file.db")
    try:
        # Read-only, so that a mistyped path or query can change nothing: WITH may begin a DELETE.
        # ATTACH would make other files, but stands in no SELECT, and execute runs one statement.
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            chosen = query or _only_table(
                [
                    name
                    for (name,) in connection.execute(
                        "SELECT name FROM sqlite_master WHERE type = 'table' AND "
                        "name NOT LIKE 'sqlite_%'"
                    )
                ],
                url,
            )
            cursor = connection.execute(_select(chosen))
            names = [column[0] for column in cursor.description]
            parts: list[np.ndarray] = []
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                part = np.empty((len(rows), len(names)), dtype=object)
                part[:] = rows
                parts.append(part)
        finally:
            connection.close()
    except (sqlite3.Error, sqlite3.Warning) as error:  # a second statement is a warning
        raise DataError(f"cannot read {url}: {error}; check the query") from None
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise DataError(f"{url} has more than one column {repeated[0]!r}; rename one in the query")
    if not parts:
        raise DataError(f"{url}: the query gives no rows; give a table with at least one")
    cells = np.concatenate(parts)
    return table_from_arrays(url, {name: cells[:, i] for i, name in enumerate(names)})


def _read_through_duckdb(url: str, extension: str, query: str | None) -> Table:
    shown = without_password(url)
    connection = duckdb.connect()
    try:
        connection.load_extension(extension)
    except duckdb.Error:
        try:
            connection.install_extension(extension)
            connection.load_extension(extension)
        except duckdb.Error:
            raise DataError(
                f"cannot read {shown}: DuckDB's {extension} extension is not installed and cannot "
                f"be fetched from here; install it (INSTALL {extension} in DuckDB) or export the "
                "table to Parquet"
            ) from None
    try:
        quoted = url.replace("'", "''")
        connection.execute(f"ATTACH '{quoted}' AS db (TYPE {extension}, READ_ONLY)")
        if query is None:
            query = _only_table(
                [
                    name
                    for (name,) in connection.execute(
                        "SELECT table_name FROM duckdb_tables() WHERE database_name = 'db'"
                    ).fetchall()
                ],
                shown,
            )
        return read_attached(connection, shown, _select(query))
    except duckdb.Error as error:
        first = str(error).splitlines()[0]
        raise DataError(f"cannot read {shown}: {without_password(first)}") from None


def _only_table(names: list[str], url: str) -> str:
    if len(names) != 1:
        raise DataError(
            f"{url} has {len(names)} tables ({', '.join(sorted(names)[:10])}); say which with "
            'query = "SELECT ... FROM ..."'
        )
    return names[0]


def _select(query: str) -> str:
    """A query as it is, a table's name as the query for all of it."""
    if is_query(query):
        return query
    quoted = query.replace('"', '""')
    return f'SELECT * FROM "{quoted}"'
