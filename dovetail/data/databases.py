"""Tables in databases, by URL: SQLite from the standard library, others through their drivers."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import numpy as np

from dovetail.data.addresses import explained, without_password
from dovetail.data.lakes import read_lake
from dovetail.data.tables import Table, check_rows, read_attached, read_made, table_from_arrays
from dovetail.errors import DataError
from dovetail.settings.sources import ADBC, is_lake_url, is_query, literal, quoted

_ROWS_AT_ONCE = 100_000

#: Of ODBC: of a batch, and of the longest text, where a column does not say so (VARCHAR(MAX)).
_BATCH_BYTES, _TEXT_BYTES = 64 * 2**20, 32 * 2**10


def absolute_url(url: str, folder: Path) -> str:
    """The URL, whose path, if it is one of this machine, starts at a folder."""
    path = url_path(url)
    if path is None:
        return url
    return sqlite_url(folder / path) if is_sqlite_url(url) else f"delta:{folder / path}"


def url_path(url: str) -> Path | None:
    """The path of this machine that a URL has; None of one that has none."""
    if is_sqlite_url(url):
        return sqlite_path(url)
    return Path(url[6:]) if url[:6].lower() == "delta:" and "://" not in url else None


def read_database(url: str, query: str | None) -> Table:
    """Result of a query, or the database's only table.

    Args:
        url: ``sqlite:///path/to/file.db``, ``postgresql://user@host/name``, ``mysql://...``,
            ``adbc:DRIVER:ADDRESS`` of any ADBC driver, ``odbc:KEY=VALUE;...`` of any ODBC driver,
            or what ``lakes.py`` reads.
        query: one ``SELECT``, or a table's name. MySQL's, and PostgreSQL's where its ADBC driver
            is not installed, runs in DuckDB, all others in the database's own SQL. It can write
            nothing; of other ADBC drivers, and of ODBC's, what their account may.

    Raises:
        DataError: a database that cannot be reached or read, a query that is not one ``SELECT``,
            or a package or DuckDB extension that is not installed.
    """
    if is_sqlite_url(url):
        return _read_sqlite(url, query)
    if is_lake_url(url):
        return read_lake(url, query)
    named = ADBC.match(url)
    if named is not None:
        return _read_adbc(url, named[1].lower(), query)
    scheme = url.partition(":")[0].lower()
    if scheme == "odbc":
        return _read_odbc(url, query)
    if scheme == "mysql":
        return _read_through_duckdb(url, "mysql", query)
    if scheme not in ("postgres", "postgresql"):
        raise DataError(
            f"cannot read {without_password(url)}: no table is read from {scheme}://; SQL Server, "
            "Oracle and others are read by their ODBC or ADBC driver: write "
            "odbc:Driver=...;Server=...;Uid=...;Pwd=${WORD} or adbc:DRIVER:ADDRESS "
            "(docs/parties.md)"
        )
    if _has_driver("postgresql"):
        return _read_adbc(url, "postgresql", query)
    return _read_through_duckdb(url, "postgres", query)


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
    check_rows(url, names, len(parts))
    cells = np.concatenate(parts)
    return table_from_arrays(url, {name: cells[:, i] for i, name in enumerate(names)})


def _has_driver(name: str) -> bool:
    """Whether an ADBC driver is installed as a package."""
    return importlib.util.find_spec(f"adbc_driver_{name}") is not None


#: Schemas that are no user's.
_SYSTEM = ("pg_catalog", "information_schema", "mysql", "performance_schema", "sys")

#: Driver -> what keeps a query from writing.
_ONLY_READS = {"postgresql": "SET TRANSACTION READ ONLY", "sqlite": "PRAGMA query_only = true"}


def _read_adbc(url: str, driver: str, query: str | None) -> Table:
    """Result of a query, as a stream of Arrow batches read into DuckDB's memory.

    Args:
        url: as ``read_database``'s.
        driver: a package's (postgresql, sqlite, flightsql, snowflake, bigquery) or, where there is
            none, one that the driver manager finds by its manifest.
        query: as ``read_database``'s.
    """
    with explained(url) as address:
        named = ADBC.match(address)
        given = address if named is None else named[2]
        with _connected(driver, given) as connection, _closing(connection.cursor()) as cursor:
            if driver in _ONLY_READS:
                cursor.execute(_ONLY_READS[driver])
            chosen = query or _only_table(_tables(connection), without_password(url))
            cursor.execute(_select(chosen))
            return _streamed(without_password(url), cursor.fetch_record_batch())


def _read_odbc(url: str, query: str | None) -> Table:
    """Result of a query through an ODBC driver; ODBC lists tables differently, so the query is
    required."""
    shown = without_password(url)
    if query is None:
        raise DataError(f'{shown} needs query = "SELECT ... FROM ...", or the name of a table')
    with explained(url) as address:
        from arrow_odbc import read_arrow_batches_from_odbc

        batches = read_arrow_batches_from_odbc(
            _select(query),
            address.partition(":")[2],
            max_bytes_per_batch=_BATCH_BYTES,
            max_text_size=_TEXT_BYTES,
            login_timeout_sec=30,
        )
        return _streamed(shown, batches.into_pyarrow_record_batch_reader())


def _connected(driver: str, address: str) -> Any:
    read = _OPTIONS.get(driver)
    options: dict[str, Any] = {"uri": address} if read is None else read(address)
    if driver not in _ONLY_READS:
        options["autocommit"] = True
    name = driver if _has_driver(driver) else "manager"
    if name == "manager":
        options["driver"] = driver
    module: Any = importlib.import_module(f"adbc_driver_{name}.dbapi")
    return module.connect(**options)


@contextmanager
def _closing(cursor: Any) -> Iterator[Any]:
    """A cursor whose end raises nothing: what broke the line has been reported."""
    try:
        yield cursor
    finally:
        try:
            cursor.close()
        except Exception:
            cursor._closed = True  # or it would be closed, and tell, once more


def _flightsql(address: str) -> dict[str, Any]:
    """Arguments for the Flight SQL driver, which reads no name and password in an address."""
    user = _USER.match(address)
    if user is None:
        return {"uri": address}
    names = {"username": unquote(user[2]), "password": unquote(user[3])}
    return {"uri": user[1] + user[4], "db_kwargs": names}


def _bigquery(address: str) -> dict[str, Any]:
    """Arguments for the BigQuery driver, which knows no addresses: ours is PROJECT/DATASET."""
    project, _, dataset = address.partition("/")
    named = {"project_id": project, "dataset_id": dataset}
    return {"db_kwargs": {f"adbc.bigquery.sql.{name}": each for name, each in named.items()}}


def _snowflake(address: str) -> dict[str, Any]:
    """Arguments for the Snowflake driver, which would otherwise try for five minutes to log in."""
    if "logintimeout=" in address.lower():
        return {"uri": address}
    return {"uri": f"{address}{'&' if '?' in address else '?'}loginTimeout=30"}


_USER = re.compile(r"(.*?://)([^/@:]*):(.*)@(.*)", re.S)
#: Driver -> what its ``connect`` takes of an address; others take it as it is.
_OPTIONS: dict[str, Callable[[str], dict[str, Any]]] = {
    "flightsql": _flightsql,
    "bigquery": _bigquery,
    "snowflake": _snowflake,
}


def _tables(connection: Any) -> list[str]:
    """The tables that are no system's."""
    catalogs = connection.adbc_get_objects(depth="tables").read_all().to_pylist()
    return [
        table["table_name"]
        for catalog in catalogs
        for schema in catalog["catalog_db_schemas"] or ()
        if schema["db_schema_name"] not in _SYSTEM
        for table in schema["db_schema_tables"] or ()
        if table["table_type"].lower() == "table"
    ]


def _streamed(description: str, reader: Any) -> Table:
    connection = duckdb.connect()
    connection.register("given", reader)
    # PostgreSQL's numeric has more digits than a number here: its driver gives texts.
    numbers = [
        f"{quoted(field.name)}::DOUBLE AS {quoted(field.name)}"
        for field in reader.schema
        if getattr(field.type, "type_name", None) == "numeric"
    ]
    replaced = f" REPLACE ({', '.join(numbers)})" if numbers else ""
    connection.execute(f"CREATE TABLE data AS SELECT *{replaced} FROM given")
    connection.unregister("given")
    return read_made(connection, description, reader.schema.names)


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
    with explained(url) as address:
        connection.execute(f"ATTACH {literal(address)} AS db (TYPE {extension}, READ_ONLY)")
        if query is None:
            listed = (
                "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = 'db'"
            )
            found = connection.execute(listed).fetchall()
            query = _only_table([name for schema, name in found if schema not in _SYSTEM], shown)
        return read_attached(connection, shown, _select(query))


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
    return f"SELECT * FROM {quoted(query)}"
