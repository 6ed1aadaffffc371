"""Tables in databases: SQLite by URL; others through DuckDB's extensions, which stand-ins play."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from dovetail.data import addresses, databases, read_database
from dovetail.errors import DataError
from dovetail.settings.sources import is_database_url

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a SQLite file of so many tables, each of three people."""

    def write(*tables: str, name: str = "shop.db") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        connection = sqlite3.connect(path)
        for table in tables:
            connection.execute(f'CREATE TABLE "{table}" (person TEXT, age INTEGER, income REAL)')
            rows = [("anna", 30, 1.5), (" bert ", None, 2.0), ("", 50, None)]
            connection.executemany(f'INSERT INTO "{table}" VALUES (?, ?, ?)', rows)
        connection.commit()
        connection.close()
        return path

    return write


def column(table: Any, name: str) -> list[Any]:
    read = table.column(name)
    return [
        None if without_partner else value
        for value, without_partner in zip(read.values, read.missing, strict=True)
    ]


def test_the_only_table_needs_no_query(write: Write) -> None:
    table = read_database(f"sqlite:///{write('people')}", None)  # path begins with the fourth slash
    assert (table.names, table.num_rows) == (("person", "age", "income"), 3)
    assert column(table, "person") == ["anna", "bert", None]
    assert column(table, "age") == [30, None, 50]
    assert column(table, "income") == [1.5, 2.0, None]
    assert table.column("age").values.dtype == np.int64
    assert table.column("person").is_text


@pytest.mark.parametrize("scheme", ["sqlite:///", "SQLite:///"])
def test_three_slashes_begin_a_relative_path_and_four_an_absolute_one(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheme: str
) -> None:
    write("people", name="data/shop.db")
    monkeypatch.chdir(tmp_path)
    assert is_database_url(f"{scheme}data/shop.db")
    assert read_database(f"{scheme}data/shop.db", None).num_rows == 3
    assert read_database(f"{scheme}{tmp_path}/data/shop.db", None).num_rows == 3


@pytest.mark.parametrize("name", ["100%/a#b?.db", "müller & co.db"])
def test_a_path_may_have_signs_that_mean_something_in_a_url(write: Write, name: str) -> None:
    assert read_database(f"sqlite:///{write('people', name=name)}", None).num_rows == 3


def test_a_query_or_a_tables_name_says_what_is_read(write: Write) -> None:
    url = f"sqlite:///{write('people', 'old people')}"
    query = "SELECT person, age * 2 AS twice FROM people WHERE age > 30"
    table = read_database(url, query)
    assert (table.names, column(table, "twice")) == (("person", "twice"), [100])
    assert read_database(url, "old people").num_rows == 3
    assert (
        read_database(url, "WITH some AS (SELECT * FROM people) SELECT * FROM some").num_rows == 3
    )


def test_rows_are_read_in_parts(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "_ROWS_AT_ONCE", 2)
    assert column(read_database(f"sqlite:///{write('people')}", None), "age") == [30, None, 50]


def refuse(url: str, query: str | None, words: str) -> str:
    with pytest.raises(DataError, match=words) as raised:
        read_database(url, query)
    message = str(raised.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (None, r"has 2 tables \(orders, people\); say which with query = "),
        ("peeple", "no such table: peeple; check the query"),
        ("SELECT nme FROM people", "no such column: nme; check the query"),
        ("SELECT * FROM people WHERE age > 99", "has no rows; give a table with at least one"),
        ("SELECT age, income AS age FROM people", "more than one column 'age' .*; rename one"),
        ("SELECT 1; DELETE FROM people", "one statement at a time"),
        ("DELETE FROM people", "no such table: DELETE FROM people"),
    ],
)
def test_a_query_that_does_not_fit_is_told(write: Write, query: str | None, words: str) -> None:
    url = f"sqlite:///{write('people', 'orders')}"
    refuse(url, query, words)
    assert read_database(url, "people").num_rows == 3


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("WITH old AS (SELECT 40) DELETE FROM people", "readonly database"),
        ("-- all\nWITH a AS (SELECT 1) INSERT INTO people VALUES ('x', 1, 1)", "readonly database"),
        ("SELECT 1; ATTACH 'new.db' AS new", "one statement at a time"),
        ("ATTACH 'new.db' AS new", "no such table: ATTACH"),
        ("SELECT load_extension('new.db')", "not authorized"),
    ],
)
def test_a_query_changes_no_sqlite_file_and_makes_none(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, query: str, words: str
) -> None:
    url = f"sqlite:///{write('people')}"
    monkeypatch.chdir(tmp_path)
    before = (tmp_path / "shop.db").read_bytes()
    refuse(url, query, words)
    assert [path.name for path in tmp_path.iterdir()] == ["shop.db"]
    assert (tmp_path / "shop.db").read_bytes() == before


def test_a_database_without_a_table_says_so(write: Write) -> None:
    refuse(f"sqlite:///{write()}", None, "has 0 tables")


def test_a_file_that_is_missing_or_no_database_is_named(tmp_path: Path) -> None:
    refuse("sqlite:///nowhere.db", None, "there is no SQLite file nowhere.db; write sqlite:///path")
    assert not Path("nowhere.db").exists()
    (tmp_path / "text.db").write_text("person,age\nanna,30\n" * 99)
    refuse(f"sqlite:///{tmp_path}/text.db", None, r"cannot read .*text\.db: file is not a database")


# --- Through DuckDB's extensions ------------------------------------------------------------------

URL = "postgresql://reader:s3cr3t@host:5432/clinic"


class StandIn:
    """A DuckDB connection whose extensions and remote database are played by a file."""

    def __init__(self, real: Any, file: Path | None, fails_to: str) -> None:
        self.real, self.file, self.fails_to = real, file, fails_to
        self.attached: list[str] = []

    def load_extension(self, name: str) -> None:
        if self.fails_to == "load":
            raise duckdb.IOException(f'Extension "{name}" not found')

    def install_extension(self, name: str) -> None:
        raise duckdb.HTTPException(f"Failed to download extension {name!r}\nmore lines")

    def execute(self, query: str) -> Any:
        if query.startswith("ATTACH"):
            self.attached.append(query)
            if self.fails_to == "attach":
                raise duckdb.IOException(f'Unable to connect to Postgres at "{URL}": refused\nmore')
            query = f"ATTACH '{self.file}' AS db (READ_ONLY)"
        return self.real.execute(query)

    def cursor(self) -> Any:
        return self.real.cursor()


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., StandIn]:
    """Puts a stand-in in the place of the next connection."""

    def remote(*tables: str, fails_to: str = "") -> StandIn:
        file = tmp_path / f"remote-{len(list(tmp_path.iterdir()))}.duckdb"
        with duckdb.connect(str(file)) as made:
            for table in tables:
                made.execute(f"CREATE TABLE {table} AS SELECT 'anna' AS person, 30 AS age")
        stand_in = StandIn(duckdb.connect(), file, fails_to)
        monkeypatch.setattr(databases.duckdb, "connect", lambda: stand_in)
        monkeypatch.setattr(databases, "_has_driver", lambda name: False)
        return stand_in

    return remote


@pytest.mark.parametrize(
    ("url", "extension"), [(URL, "postgres"), ("mysql://reader:s3cr3t@host/clinic", "mysql")]
)
def test_a_database_without_its_extension_is_told_in_one_sentence(
    remote: Any, url: str, extension: str
) -> None:
    remote(fails_to="load")
    error = refuse(
        url, None, f"DuckDB's {extension} extension is not installed and cannot be fetch"
    )
    assert "reader:***@host" in error
    assert "s3cr3t" not in error
    assert "export the table to Parquet" in error


def test_a_database_that_does_not_answer_is_named_without_its_password(remote: Any) -> None:
    remote(fails_to="attach")
    error = refuse(URL, None, "cannot read postgresql://.*: .*Unable to connect to Postgres")
    assert "s3cr3t" not in error


@pytest.mark.parametrize("query", [None, "people", "SELECT * FROM people"])
def test_a_database_is_attached_read_only_and_read(remote: Any, query: str | None) -> None:
    stand_in = remote("people")
    table = read_database(URL, query)
    assert (table.names, table.num_rows) == (("person", "age"), 1)
    assert column(table, "person") == ["anna"]
    assert stand_in.attached == [f"ATTACH '{URL}' AS db (TYPE postgres, READ_ONLY)"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT 1; {copy}", "must be one SELECT statement, got SELECT and COPY: SELECT 1; COPY"),
        ("WITH a AS ({copy}) SELECT 1 AS b", "cannot read postgresql"),
        ("WITH a AS (SELECT 1) DELETE FROM people", "one SELECT statement, got DELETE"),
        ("SELECT 1; DELETE FROM people", "one SELECT statement, got SELECT and DELETE"),
    ],
)
def test_a_remote_query_reads_and_does_nothing_else(
    remote: Any, tmp_path: Path, query: str, words: str
) -> None:
    written = tmp_path / "written.csv"
    stand_in = remote("people")
    error = refuse(URL, query.format(copy=f"COPY (SELECT 1) TO '{written}'"), words)
    assert "s3cr3t" not in error
    assert not written.exists()
    assert stand_in.real.execute("SELECT count(*) FROM db.people").fetchone() == (1,)


def test_several_remote_tables_are_asked_which(remote: Any) -> None:
    remote("people", "orders")
    error = refuse(URL, None, r"has 2 tables \(orders, people\); say which with query = ")
    assert "s3cr3t" not in error


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:pass@host/db",
        "postgresql://me:p@ss@host/db",
        "postgresql://me:pa/ss@host/db",
        "postgresql://host/db?user=me&password=pass",
        "host=h user=me password=pass dbname=db",
    ],
)
def test_no_part_of_a_password_is_shown(url: str) -> None:
    shown = databases.without_password(url)
    assert "ss" not in shown.replace("password", "")
    assert "***" in shown
    assert "me" in shown
    assert shown.endswith("db") or "/db" in shown


@pytest.mark.parametrize(
    "words",
    [
        "Pwd={s3}}cr3t}",
        "PWD=two s3cr3t",
        "Pwd=a&s3cr3t",
        "Pwd = {s3;cr3t}",
        "PRIV_KEY_FILE_PWD=s3cr3t",
        "Auth_AccessToken=s3cr3t",
        "Auth_Client_Secret=s3cr3t",
    ],
)
def test_no_part_of_a_secret_of_odbc_is_shown_by_an_error_either(words: str) -> None:
    url = f"odbc:Driver={{SQL Server}};Uid=me;{words};Server=db"
    shown = databases.without_password(url)
    assert "cr3t" not in shown
    assert "s3" not in shown
    assert "two" not in shown
    assert shown.startswith("odbc:Driver={SQL Server};Uid=me;")
    assert shown.endswith("***;Server=db")
    with pytest.raises(DataError) as told, addresses.explained(url) as address:
        raise OSError(f"[01000] no line to {address.partition(':')[2]}")
    assert "cr3t" not in str(told.value)
    assert "two" not in str(told.value)
    assert "no line to Driver={SQL Server}" in str(told.value)


def test_a_url_without_a_password_is_shown_as_it_is() -> None:
    for url in ("postgresql://me@host/db", "sqlite:///shop.db", "mysql://host:3306/db"):
        assert databases.without_password(url) == url
