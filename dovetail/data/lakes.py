"""Tables where they lie: Parquet in buckets, Delta and Iceberg tables; through Polars.

Only a party's own file names such a place; credentials are the environment's, the machine's or the
catalog's.

    s3://BUCKET/PATH, gs://..., az://...  Parquet: a file, a folder (year=2026/ makes a column), or
                                          a pattern
    delta:PATH, delta:s3://BUCKET/PATH    a Delta table, as it is now
    iceberg:CATALOG/NAMESPACE.TABLE       a table of a catalog that pyiceberg knows, as it is now
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from dovetail.data.addresses import explained
from dovetail.data.frames import column_of_series, table_from_frame
from dovetail.data.kinds import Column
from dovetail.data.tables import InMemory, Table, check_rows
from dovetail.errors import DataError
from dovetail.settings.sources import is_query

if TYPE_CHECKING:
    import polars as pl

#: How often a request to a bucket is tried again, and how long one may take.
_OPTIONS = {"max_retries": 2, "connect_timeout": "10s", "timeout": "60s"}

#: Variable of the environment -> option of a Google bucket.
_GOOGLE = {
    "GOOGLE_SERVICE_ACCOUNT": "google_service_account",
    "GOOGLE_BASE_URL": "google_base_url",
    "GOOGLE_ALLOW_HTTP": "allow_http",
}


#: Functions of Polars' SQL that open files, of any folder.
_OPENS = re.compile(r"\bread_(csv|ipc|json|ndjson|parquet)\b", re.I)


def read_lake(url: str, query: str | None) -> Table:
    """A table of a bucket or a lake.

    Without a query, a column is read when it is asked for, of the table as it was at first.
    With one, the columns and parts of the table that it needs are read at once.

    Args:
        url: see above.
        query: one ``SELECT ... FROM data``, in Polars' SQL.

    Raises:
        DataError: packages that are not installed, what cannot be reached or read, a query that
            does not fit.
    """
    with explained(url) as address:
        frame = _scan(address)
        return _lazy(url, frame) if query is None else _selected(url, frame, query)


def _scan(address: str) -> pl.LazyFrame:
    """Lazy frame that reads the address; a Delta or Iceberg table as it is now."""
    import polars as pl

    scheme, _, rest = address.partition(":")
    if scheme.lower() == "delta":
        from deltalake import DeltaTable

        return pl.scan_delta(DeltaTable(rest))
    if scheme.lower() == "iceberg":
        from pyiceberg.catalog import load_catalog

        os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")
        catalog, _, name = rest.partition("/")
        table = load_catalog(catalog).load_table(name)
        snapshot = table.current_snapshot()
        return pl.scan_iceberg(
            table, snapshot_id=None if snapshot is None else snapshot.snapshot_id
        )
    # Where google-auth is installed, Polars asks it, and reads none of these by itself.
    google = {name: os.environ[key] for key, name in _GOOGLE.items() if key in os.environ}
    options = {**_OPTIONS, **(google if scheme.lower() == "gs" else {})}
    return pl.scan_parquet(address, storage_options=options)


def _lazy(url: str, frame: pl.LazyFrame) -> Table:
    """A table each of whose columns is read when it is asked for."""
    import polars as pl

    names = frame.collect_schema().names()
    num_rows = frame.select(pl.len()).collect().item()
    check_rows(url, names, num_rows)

    def read(name: str) -> Column:
        with explained(url):
            series = frame.select(name).collect(engine="streaming").to_series()
            if len(series) != num_rows:
                raise DataError(
                    f"{url} had {num_rows} rows and has {len(series)} now; begin anew when nobody "
                    "writes to it"
                )
            return column_of_series(url, name, series)

    return Table(url, names, num_rows, InMemory(read))


def _selected(url: str, frame: pl.LazyFrame, query: str) -> Table:
    """Result of a query; only what it needs is read.

    Raises:
        DataError: it is not one ``SELECT``.
    """
    import polars as pl

    if not is_query(query):
        raise DataError(
            f"{url} is one table, which a query calls data (SELECT ... FROM data), got {query!r}"
        )
    if _OPENS.search(query):
        raise DataError(f"{url}: a query of a lake opens no file; read data alone, got {query!r}")
    with pl.SQLContext(data=frame) as context:
        return table_from_frame(context.execute(query).collect(engine="streaming"), name=url)
