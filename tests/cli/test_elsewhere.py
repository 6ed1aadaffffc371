"""Tables where they lie, read by ``dovetail inspect``: real servers, wrong words, broken lines.

moto's server and DuckDB's extension need environments of their own: ``make build/moto/.installed``
and ``make build/duckdb/.installed``; Azurite needs Node: ``make build/azurite/.installed``.
Google's buckets, Snowflake, Flight SQL, Oracle and ODBC: ``make build/emulators/.installed``.
PostgreSQL with its ODBC driver and MariaDB are the system's.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from flight_sql import flight_sql
from stores import (
    AZURITE,
    BUILD,
    EMULATORS,
    MARIADB,
    MOTO,
    ODBC,
    POSTGRES,
    Line,
    blob_store,
    bucket_store,
    google_put,
    google_store,
    line_to,
    mariadb,
    postgres,
    revoked_account,
    snowflake,
)

from dovetail.data import read_database, write_table

pl = pytest.importorskip("polars")
obstore = pytest.importorskip("obstore")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("adbc_driver_postgresql")

pytestmark = pytest.mark.network

REGIONS, ROWS = 4, 20_000
SECRET = "s3cr3t"

NEEDS_MOTO = pytest.mark.skipif(not MOTO.exists(), reason="make build/moto/.installed makes it")
NEEDS_POSTGRES = pytest.mark.skipif(POSTGRES is None, reason="apt-get install postgresql")
NEEDS_MARIADB = pytest.mark.skipif(
    not MARIADB.exists() or not (BUILD / "duckdb" / ".installed").exists(),
    reason="apt-get install mariadb-server; make build/duckdb/.installed",
)

NEEDS_EMULATORS = pytest.mark.skipif(
    not (EMULATORS / ".installed").exists(), reason="make build/emulators/.installed"
)
NEEDS_ODBC = pytest.mark.skipif(
    POSTGRES is None or not ODBC or not (EMULATORS / ".installed").exists(),
    reason="apt-get install postgresql odbc-postgresql; make build/emulators/.installed",
)


def people(region: int | None = None, num: int = ROWS) -> dict[str, np.ndarray]:
    """So many people, or those of a region: an id, noise, and a label that age tells."""
    rng = np.random.default_rng(3)
    person = np.arange(num)
    table = {"person": person, "age": rng.normal(size=num), "pay": rng.normal(size=num)}
    table["bought"] = np.where(table["age"] > 0, "yes", "no")
    table["region"] = person % REGIONS
    kept = slice(None) if region is None else person % REGIONS == region
    return {name: values[kept] for name, values in table.items()}


Inspect = Callable[..., Any]


@pytest.fixture
def inspect(dovetail: Callable[..., Any], tmp_path: Path) -> Inspect:
    """Inspects a party whose table lies there: its column's names, or the sentence of its error."""

    def inspect(table: str, *lines: str) -> Any:
        head = f'[party]\nname = "bank"\nid = "person"\nlabel = "bought"\ntable = "{table}"\n'
        (tmp_path / "bank.toml").write_text(head + "\n".join(lines))
        done = dovetail("inspect", "bank.toml", "--json")
        assert "Traceback" not in done.err
        assert SECRET not in done.out + done.err
        if done.code:
            assert done.err.strip().count("\n") == 0, done.err
            return done.err
        return json.loads(done.out)

    return inspect


def num_rows(inspected: Any) -> int:
    (party,) = inspected["parties"]
    rows: int = party["rows"]
    return rows


# --- Buckets -------------------------------------------------------------------------------------


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    """A bucket of people by region, and the line to it."""
    with bucket_store(tmp_path, "lake") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        store = obstore.store.S3Store("lake", client_options={"allow_http": True})
        for name, num in (("people", ROWS), ("tall", 20 * ROWS)):
            for region in range(REGIONS):
                path = tmp_path / "part.parquet"
                part = {k: v for k, v in people(region, num).items() if k != "region"}
                write_table(path, part)
                obstore.put(store, f"{name}/region={region}/part.parquet", path.read_bytes())
        with line_to(int(environment["AWS_ENDPOINT_URL"].rpartition(":")[2])) as line:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{line.port}")
            yield line


@NEEDS_MOTO
def test_a_bucket_of_parquet_is_inspected(bucket: Line, inspect: Inspect) -> None:
    assert num_rows(inspect("s3://lake/people/")) == ROWS
    table = read_database("s3://lake/people/", None)
    assert table.names == ("person", "age", "pay", "bought", "region")
    read = {name: table.column(name).values for name in table.names}
    order = np.argsort(read["person"])
    for name, values in people().items():
        assert (read[name][order] == values).all(), name


@NEEDS_MOTO
def test_only_the_columns_and_parts_that_are_asked_for_come_over_the_line(bucket: Line) -> None:
    url = "s3://lake/tall/"  # of each file 64 KiB or so are read for what is in it
    whole = bucket.costs(lambda: read_database(url, "SELECT * FROM data"))
    column = bucket.costs(lambda: read_database(url, "SELECT age FROM data"))
    part = bucket.costs(lambda: read_database(url, "SELECT * FROM data WHERE region = 2"))
    both = bucket.costs(lambda: read_database(url, "SELECT age FROM data WHERE region = 2"))
    assert column < 0.6 * whole
    assert part < 0.4 * whole
    assert both < 0.8 * part
    table = read_database(url, None)
    assert bucket.costs(lambda: table.column("bought")) < 0.3 * whole


@NEEDS_MOTO
def test_a_bucket_that_is_not_there_or_breaks_is_told_in_a_sentence(
    bucket: Line, inspect: Inspect, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert re.search(
        r"party 'bank': cannot read s3://lake/gone/: .*; check the names",
        inspect("s3://lake/gone/"),
    )
    assert "cannot read s3://nowhere/x.parquet" in inspect("s3://nowhere/x.parquet")
    query = 'query = "SELECT nme FROM data"'
    assert "nme" in inspect("s3://lake/people/", query)
    bucket.breaks_after = bucket.num_bytes + 20_000
    said = inspect("s3://lake/people/")
    assert "cannot read s3://lake/people/" in said
    assert "check the address, and that it can be reached from here" in said


@NEEDS_MOTO
def test_a_key_that_a_bucket_does_not_know_is_told_in_a_sentence(
    tmp_path: Path, inspect: Inspect, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bucket_store(tmp_path, "lake", INITIAL_NO_AUTH_ACTION_COUNT="1") as environment:
        for name, value in {**environment, "AWS_SECRET_ACCESS_KEY": SECRET}.items():
            monkeypatch.setenv(name, value)
        said = inspect("s3://lake/people.parquet")
    assert said.rstrip().endswith("check the credentials in the environment")


@pytest.mark.skipif(not AZURITE.exists(), reason="make build/azurite/.installed makes it")
def test_a_container_of_parquet_at_azure_is_inspected(
    tmp_path: Path, inspect: Inspect, monkeypatch: pytest.MonkeyPatch
) -> None:
    with blob_store(tmp_path, "lake") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        store = obstore.store.AzureStore("lake", client_options={"allow_http": True})
        for region in range(REGIONS):
            path = tmp_path / "part.parquet"
            write_table(path, people(region))
            obstore.put(store, f"people/region={region}/part.parquet", path.read_bytes())
        assert num_rows(inspect("az://lake/people/")) == ROWS
        query = 'query = "SELECT person, bought, age FROM data WHERE region = 1"'
        assert num_rows(inspect("az://lake/people/", query)) == ROWS // REGIONS
        said = inspect("az://lake/gone/")
        assert re.search("cannot read az://lake/gone/: .*; check the names", said)


@NEEDS_EMULATORS
def test_a_bucket_of_parquet_at_google_is_inspected(
    tmp_path: Path, inspect: Inspect, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = tmp_path / "account.json"
    keys = ("client_email", "private_key", "private_key_id")
    with google_store(tmp_path, "lake") as line:
        path = tmp_path / "part.parquet"
        for region in range(REGIONS):
            part = {k: v for k, v in people(region, 20 * ROWS).items() if k != "region"}
            write_table(path, part)
            place = f"lake/o?uploadType=media&name=people/region={region}/part.parquet"
            google_put(line.port, f"/upload/storage/v1/b/{place}", path.read_bytes())
        monkeypatch.setenv("GOOGLE_BASE_URL", f"http://127.0.0.1:{line.port}")
        monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
        account.write_text(json.dumps({"disable_oauth": True, **dict.fromkeys(keys, "")}))
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(account))
        url = "gs://lake/people/"
        whole, column, part = (
            line.costs(lambda query=query: read_database(url, query))
            for query in (
                "SELECT * FROM data",
                "SELECT age FROM data",
                "SELECT * FROM data WHERE region = 2",
            )
        )
        assert column < 0.6 * whole
        assert part < 0.4 * whole
        query = 'query = "SELECT person, bought, age FROM data WHERE region = 1"'
        assert num_rows(inspect(url, query)) == 20 * ROWS // REGIONS
        said = inspect("gs://lake/gone/")
        assert re.search("party 'bank': cannot read gs://lake/gone/: .*; check the names", said)
        line.breaks_after = line.num_bytes + 20_000
        said = inspect(url)
        assert "party 'bank': cannot read gs://lake/people/" in said
        assert said.rstrip().endswith("that it can be reached from here")


@NEEDS_EMULATORS
def test_an_account_that_google_does_not_know_is_told_in_a_sentence(
    tmp_path: Path, inspect: Inspect, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("google.auth")
    with revoked_account(tmp_path) as account:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))
        said = inspect("gs://lake/people/")
    assert "party 'bank': cannot read gs://lake/people/" in said
    assert said.rstrip().endswith("check the credentials in the environment")


# --- Delta and Iceberg ---------------------------------------------------------------------------


@NEEDS_MOTO
def test_a_delta_table_in_a_bucket_and_in_a_folder_is_inspected(
    bucket: Line, inspect: Inspect, tmp_path: Path
) -> None:
    import deltalake

    for place in ("s3://lake/delta", str(tmp_path / "tables" / "delta")):
        deltalake.write_deltalake(place, pl.DataFrame(people()), partition_by=["region"])
        shown = place if "://" in place else "tables/delta"  # beside the party file
        assert num_rows(inspect(f"delta:{shown}")) == ROWS
        deltalake.DeltaTable(place).delete("region = 3")
        assert num_rows(inspect(f"delta:{shown}")) == ROWS * 3 // 4
        assert "check the names" in inspect(f"delta:{shown}s")
        files = "query = \"SELECT * FROM read_csv('/etc/passwd')\""
        assert "a query of a lake opens no file" in inspect(f"delta:{shown}", files)
    whole, part = (
        bucket.costs(lambda query=query: read_database("delta:s3://lake/delta", query))
        for query in ("SELECT * FROM data", "SELECT age FROM data WHERE region = 1")
    )
    assert part < 0.4 * whole  # the ends of files are read by blocks


def test_an_iceberg_table_is_inspected(
    inspect: Inspect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyiceberg.catalog
    from pyiceberg.utils.config import Config

    for key, value in (
        ("TYPE", "sql"),
        ("URI", f"sqlite:///{tmp_path}/catalog.db"),
        ("WAREHOUSE", f"file://{tmp_path}/warehouse"),
    ):
        monkeypatch.setenv(f"PYICEBERG_CATALOG__CLINIC__{key}", value)
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())  # read when it is imported
    catalog = pyiceberg.catalog.load_catalog("clinic")
    catalog.create_namespace("ward")
    rows = pl.DataFrame(people()).to_arrow()
    table = catalog.create_table("ward.people", schema=rows.schema)
    with table.update_spec() as update:
        update.add_identity("region")
    table.append(rows)
    assert num_rows(inspect("iceberg:clinic/ward.people")) == ROWS
    query = 'query = "SELECT person, bought, age FROM data WHERE region = 1"'
    assert num_rows(inspect("iceberg:clinic/ward.people", query)) == ROWS // REGIONS
    held = read_database("iceberg:clinic/ward.people", None)
    catalog.load_table("ward.people").delete("region = 0")
    assert held.column("age").values.shape == (ROWS,)  # as it was when it was opened
    assert num_rows(inspect("iceberg:clinic/ward.people")) == ROWS * 3 // 4
    # A part's files are gone: only who asks for that part is told.
    for file in (tmp_path / "warehouse").rglob("region=2/*.parquet"):
        file.unlink()
    assert num_rows(inspect("iceberg:clinic/ward.people", query)) == ROWS // REGIONS
    assert "cannot read iceberg:clinic/ward.people" in inspect("iceberg:clinic/ward.people")
    assert "check the names" in inspect("iceberg:clinic/ward.nobody")
    assert "check the names" in inspect("iceberg:nowhere/ward.people")


# --- Databases -----------------------------------------------------------------------------------


@NEEDS_POSTGRES
def test_postgresql_is_inspected(
    inspect: Inspect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import adbc_driver_postgresql.dbapi as driver

    monkeypatch.setenv("CLINIC_PASSWORD", SECRET)
    with postgres(tmp_path, SECRET) as port, line_to(port) as line:
        end = f"@127.0.0.1:{line.port}/postgres"
        url = "postgresql://reader:${CLINIC_PASSWORD}" + end
        with driver.connect(url.replace("${CLINIC_PASSWORD}", SECRET)) as connection:
            with connection.cursor() as cursor:
                cursor.adbc_ingest("people", pl.DataFrame(people()).to_arrow(), mode="create")
                cursor.execute("ALTER TABLE people ALTER pay TYPE numeric USING pay::numeric")
                cursor.execute("ALTER TABLE people ADD since date DEFAULT '2020-02-01'")
            connection.commit()
        assert num_rows(inspect(url)) == ROWS
        table = read_database(url, "people")
        assert table.column("pay").values == pytest.approx(people()["pay"])
        assert set(table.column("since").values) == {18293.0}
        query = "SELECT person, age FROM people WHERE region = 1"
        part = line.costs(lambda: read_database(url, query))
        assert part < 0.25 * line.costs(lambda: read_database(url, "people"))

        assert 'column "nme" does not exist' in inspect(url, 'query = "SELECT nme FROM people"')
        assert "check the names" in inspect(url, 'query = "peeple"')
        for query in (
            "SELECT 1; DELETE FROM people",
            "WITH a AS (DELETE FROM people RETURNING 1) SELECT * FROM a",
        ):
            assert "cannot read postgresql" in inspect(url, f'query = "{query}"')
        assert num_rows(inspect(url)) == ROWS
        line.breaks_after = line.num_bytes + 100_000
        assert "cannot read postgresql://reader:***@" in inspect(url)
        line.breaks_after = 1 << 62
        monkeypatch.setenv("CLINIC_PASSWORD", "wrong-word")
        said = inspect(url)
        assert said.rstrip().endswith("check the credentials in the environment")
        assert "wrong-word" not in said
        monkeypatch.delenv("CLINIC_PASSWORD")
        assert "CLINIC_PASSWORD is not set in the environment; set it" in inspect(url)
    monkeypatch.setenv("CLINIC_PASSWORD", SECRET)
    assert "that it can be reached from here" in inspect(url)


@NEEDS_ODBC
@pytest.mark.usefixtures("drivers")
def test_a_database_is_inspected_through_its_odbc_driver(
    inspect: Inspect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL's driver, which stands for those of SQL Server and Oracle."""
    import adbc_driver_postgresql.dbapi as driver

    with postgres(tmp_path, SECRET) as port, line_to(port) as line:
        address = f"postgresql://reader:{SECRET}@127.0.0.1:{port}/postgres"
        with driver.connect(address) as connection, connection.cursor() as cursor:
            cursor.adbc_ingest("people", pl.DataFrame(people()).to_arrow(), mode="create")
            cursor.execute("ALTER TABLE people ALTER pay TYPE numeric(20, 10) USING pay::numeric")
            cursor.execute("ALTER TABLE people ADD since date DEFAULT '2020-02-01'")
            cursor.execute("UPDATE people SET pay = NULL WHERE person < 10")
            connection.commit()
        server = f"Server=127.0.0.1;Port={line.port};Database=postgres;Uid=reader;Pwd=${{WORD}}"
        url = f"odbc:Driver={{PostgreSQL Unicode}};{server}"
        assert num_rows(inspect(url, 'query = "people"')) == ROWS
        table = read_database(url, "SELECT * FROM people ORDER BY person")
        pay = table.column("pay")
        assert pay.values[10:] == pytest.approx(people()["pay"][10:], abs=1e-9)
        assert pay.missing.sum() == pay.missing[:10].sum() == 10
        assert (table.column("bought").values == people()["bought"]).all()
        assert set(table.column("since").values) == {18293.0}
        part = "SELECT person, bought, age FROM people WHERE region = 1"
        assert num_rows(inspect(url, f'query = "{part}"')) == ROWS // REGIONS
        costs = line.costs(lambda: read_database(url, part))
        assert costs < 0.25 * line.costs(lambda: read_database(url, "people"))

        assert 'needs query = "SELECT ... FROM ..."' in inspect(url)
        said = inspect(url, 'query = "peeple"')
        assert "party 'bank': cannot read odbc:Driver={PostgreSQL Unicode};" in said
        assert said.rstrip().endswith("check the names")
        line.breaks_after = line.num_bytes + 100_000
        said = inspect(url, 'query = "people"')
        assert said.rstrip().endswith("that it can be reached from here")
        line.breaks_after = 1 << 62
        monkeypatch.setenv("WORD", "wrong-word")
        said = inspect(url, 'query = "people"')
        assert said.rstrip().endswith("check the credentials in the environment")
        assert "wrong-word" not in said
    said = inspect(url, 'query = "people"')
    assert said.rstrip().endswith("that it can be reached from here")
    said = inspect("odbc:Driver={ODBC Driver 18 for SQL Server};Server=db", 'query = "people"')
    assert "install that ODBC driver, or name one that odbcinst -q -d lists" in said
    monkeypatch.setitem(sys.modules, "arrow_odbc", None)
    said = inspect(url, 'query = "people"')
    assert said.rstrip().endswith("is not installed here; pip install arrow-odbc")


@NEEDS_EMULATORS
@pytest.mark.usefixtures("drivers")
def test_an_oracle_that_does_not_answer_is_told_in_a_sentence(inspect: Inspect) -> None:
    said = inspect("adbc:oracle:oracle://reader:${WORD}@127.0.0.1:1/CLINIC", 'query = "people"')
    assert "cannot read adbc:oracle:oracle://reader:***@127.0.0.1:1/CLINIC" in said
    assert said.rstrip().endswith("that it can be reached from here")


@pytest.mark.parametrize("scheme", ["mssql", "sqlserver", "oracle", "mongodb"])
def test_an_address_of_another_kind_says_what_reads_it(scheme: str, inspect: Inspect) -> None:
    said = inspect(f"{scheme}://reader:{SECRET}@db/clinic")
    assert f"cannot read {scheme}://reader:***@db/clinic: no table is read from {scheme}://" in said
    assert "write odbc:Driver=...;Server=...;Uid=...;Pwd=${WORD} or adbc:DRIVER:ADDRESS" in said


def test_sqlite_is_inspected_through_its_adbc_driver(inspect: Inspect, tmp_path: Path) -> None:
    import adbc_driver_sqlite.dbapi as driver

    with driver.connect(str(tmp_path / "shop.db")) as connection:
        with connection.cursor() as cursor:
            cursor.adbc_ingest("people", pl.DataFrame(people()).to_arrow(), mode="create")
        connection.commit()
    url = f"adbc:sqlite:{tmp_path}/shop.db"
    assert num_rows(inspect(url)) == ROWS
    assert "no such table: peeple" in inspect(url, 'query = "peeple"')
    assert "cannot read adbc:sqlite:" in inspect(
        url, 'query = "WITH a AS (SELECT 1) DELETE FROM people"'
    )
    assert num_rows(inspect(url)) == ROWS
    assert "install that ADBC driver" in inspect("adbc:nothing:x")


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADBC drivers that are not installed beside Dovetail."""
    monkeypatch.syspath_prepend(str(EMULATORS / "drivers"))
    monkeypatch.setenv("WORD", SECRET)


@NEEDS_EMULATORS
def test_a_flight_sql_server_is_inspected(
    drivers: None, inspect: Inspect, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = duckdb.connect()
    database.register("given", pl.DataFrame(people(num=20 * ROWS)).to_arrow())
    database.execute("CREATE TABLE people AS SELECT * FROM given")
    with flight_sql(database, "reader", SECRET) as port, line_to(port) as line:
        url = f"adbc:flightsql:grpc://reader:${{WORD}}@127.0.0.1:{line.port}"
        query = 'query = "SELECT person, bought, age FROM people WHERE region = 1"'
        assert num_rows(inspect(url, query)) == 20 * ROWS // REGIONS
        assert num_rows(inspect(url)) == 20 * ROWS  # the only table
        whole, part = (
            line.costs(lambda query=query: read_database(url, query))
            for query in ("people", "SELECT age FROM people WHERE region = 1")
        )
        assert part < 0.1 * whole
        said = inspect(url, 'query = "peeple"')
        assert "party 'bank': cannot read adbc:flightsql:grpc://reader:***@" in said
        assert said.rstrip().endswith("check the names")
        line.breaks_after = line.num_bytes + 100_000
        assert inspect(url).rstrip().endswith("that it can be reached from here")
        line.breaks_after = 1 << 62
        monkeypatch.setenv("WORD", "wrong-word")
        said = inspect(url)
        assert said.rstrip().endswith("check the credentials in the environment")
        assert "wrong-word" not in said


@NEEDS_EMULATORS
def test_snowflake_is_inspected(drivers: None, inspect: Inspect, tmp_path: Path) -> None:
    import adbc_driver_snowflake.dbapi as driver

    with snowflake(tmp_path) as port, line_to(port) as line:
        end = f"@127.0.0.1:{line.port}/clinic/ward?account=clinic&protocol=http&loginTimeout=60"
        url = "adbc:snowflake:reader:${WORD}" + end
        make = (
            "CREATE TABLE people AS SELECT range AS person, (range * 7919) % 1000 / 7.0 AS age, "
            "CASE WHEN (range * 7919) % 1000 > 500 THEN 'yes' ELSE 'no' END AS bought, "
            f"range % {REGIONS} AS region FROM range({ROWS})"
        )
        with (
            driver.connect(f"reader:{SECRET}{end}", autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(make)
        names = ", ".join(f'{name} AS \\"{name}\\"' for name in ("person", "age", "bought"))
        assert num_rows(inspect(url, f'query = "SELECT {names} FROM people"')) == ROWS
        part = line.costs(lambda: read_database(url, "SELECT age FROM people WHERE region = 1"))
        assert part < 0.5 * line.costs(lambda: read_database(url, "SELECT * FROM people"))
        said = inspect(url, 'query = "PEEPLE"')
        assert "party 'bank': cannot read adbc:snowflake:reader:***@" in said
        assert said.rstrip().endswith("check the names")
        line.breaks_after = line.num_bytes
        said = inspect(url.replace("=60", "=2"), 'query = "PEOPLE"')
        assert said.rstrip().endswith("that it can be reached from here")


@NEEDS_EMULATORS
def test_bigquery_without_an_account_is_told_in_a_sentence(
    drivers: None, inspect: Inspect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nobody.json"))
    said = inspect("adbc:bigquery:clinic/ward", 'query = "people"')
    assert "party 'bank': cannot read adbc:bigquery:clinic/ward" in said
    assert said.rstrip().endswith("check the credentials in the environment")


def test_a_run_file_opens_no_table_elsewhere(dovetail: Callable[..., Any], tmp_path: Path) -> None:
    run = 'method = "apfed-c"\n[data]\nsource = "{}"\nlabel = "y"\n[data.partition]\n'
    deal = 'kind = "columns"\nactive = "a"\nparties = { a = ["x"], b = ["z"] }\n'
    for source in ("s3://lake/x.parquet", f"postgresql://me:{SECRET}@host/db", "delta:x"):
        (tmp_path / "run.toml").write_text(run.format(source) + deal)
        done = dovetail("inspect", "run.toml")
        assert "a run file opens no table elsewhere; name it in the party's own file" in done.err
        assert SECRET not in done.err


@NEEDS_MARIADB
def test_mysql_is_inspected_through_duckdbs_extension(tmp_path: Path) -> None:
    rows = ", ".join(f"({i}, {i}.5, '{'yes' if i % 2 else 'no'}')" for i in range(100))
    statements = [
        "CREATE DATABASE clinic",
        "CREATE TABLE clinic.people (person INT PRIMARY KEY, pay DECIMAL(8, 2), bought TEXT)",
        f"INSERT INTO clinic.people VALUES {rows}",
        f"CREATE USER reader@'127.0.0.1' IDENTIFIED BY '{SECRET}'",
        "GRANT SELECT ON clinic.* TO reader@'127.0.0.1'",
    ]
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(BUILD / "duckdb")}
    install = "import duckdb_extensions; duckdb_extensions.import_extension('mysql_scanner')"
    subprocess.run([sys.executable, "-c", install], env=environment, check=True)

    def inspect(port: int, word: str, *lines: str) -> Any:
        url = f"mysql://reader:${{WORD}}@127.0.0.1:{port}/clinic"
        head = f'[party]\nname = "bank"\nid = "person"\nlabel = "bought"\ntable = "{url}"\n'
        (tmp_path / "bank.toml").write_text(head + "\n".join(lines))
        command = [sys.executable, "-m", "dovetail.cli.main", "inspect", "bank.toml", "--json"]
        given = {**environment, "WORD": word, "COLUMNS": "400"}
        done = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True)
        assert word not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return json.loads(done.stdout) if not done.returncode else done.stderr

    with mariadb(tmp_path, statements) as port:
        assert num_rows(inspect(port, SECRET)) == 100
        query = 'query = "SELECT person, bought, pay FROM people WHERE person < 50"'
        assert num_rows(inspect(port, SECRET, query)) == 50
        assert "check the names" in inspect(port, SECRET, 'query = "peeple"')
        assert "check the credentials" in inspect(port, "wrong-word")
    assert "that it can be reached from here" in inspect(port, SECRET)
