"""The DuckDB databases in memory that files and queries are read in, and what each may do.

shared    files whose path the user gave
bounded   files that strangers sent: little memory, one folder, no disk to spill to
judged    queries of a file: what they open is judged one by one (``judged.py``)
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import shutil
import tempfile
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Literal

import duckdb

from dovetail.settings.sources import literal

#: The databases in memory that files of this process are read into and written from: one, and
#: after a fork one of its own. To make one takes longer than to read a small file.
_SHARED: dict[int, duckdb.DuckDBPyConnection] = {}
_SHARED_LOCK = threading.Lock()
_NUMBERS = itertools.count()


def shared_cursor() -> duckdb.DuckDBPyConnection:
    """A connection of its own to what all files of this process share."""
    with _SHARED_LOCK:
        if os.getpid() not in _SHARED:
            # DuckDB looks at so many rows of an object column for its type; by default, a text
            # that comes later would not fit.
            _SHARED[os.getpid()] = duckdb.connect(config={"pandas_analyze_sample": 2**62})
        return _SHARED[os.getpid()].cursor()


#: What strangers' files may take in memory, all together.
_BOUNDED_MEMORY = "512MiB"
_BOUNDED: dict[int, tuple[duckdb.DuckDBPyConnection, Path]] = {}


@atexit.register
def _clear() -> None:
    """DuckDB complains of what outlives Python; a fork's parent still needs its folder."""
    _SHARED.clear()
    kept = _BOUNDED.pop(os.getpid(), None)
    _BOUNDED.clear()
    if kept is not None:
        shutil.rmtree(kept[1], ignore_errors=True)


def bounded_cursor() -> tuple[duckdb.DuckDBPyConnection, Path]:
    """A connection that reads strangers' files within ``_BOUNDED_MEMORY``, and their only folder.

    A page of a Parquet file says itself how long it is unpacked. DuckDB counts that before it
    unpacks it, whatever the file's metadata say.
    """
    with _SHARED_LOCK:
        if os.getpid() not in _BOUNDED:
            folder = Path(tempfile.mkdtemp(prefix="dovetail-")).resolve()
            connection = duckdb.connect(
                config={"memory_limit": _BOUNDED_MEMORY, "threads": 1, "temp_directory": ""}
            )
            connection.execute(f"SET allowed_directories = [{literal(str(folder))}]")
            lock(connection)
            _BOUNDED[os.getpid()] = connection, folder
        connection, folder = _BOUNDED[os.getpid()]
        return connection.cursor(), folder


def _drop(pid: int, connection: duckdb.DuckDBPyConnection, what: str) -> None:
    """Free what a file was read into; what a fork has of it is its parent's."""
    if pid == os.getpid():
        with suppress(duckdb.Error):
            connection.execute(f"DROP {what}")
        connection.close()


class Data:
    """A table or view of a database.

    Attributes:
        name: what it is called there.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, name: str) -> None:
        self.connection = connection
        self.name = name

    @classmethod
    def beside(cls, cursor: duckdb.DuckDBPyConnection | None = None) -> Data:
        """Data to be made beside those of other files, in a database of the caller's if given."""
        return cls(cursor or shared_cursor(), f"data_{next(_NUMBERS)}")

    def make(self, kind: Literal["TABLE", "VIEW"], query: str) -> list[str]:
        """Make it, to be dropped with the last who reads it; its columns."""
        self.connection.execute(f"CREATE {kind} {self.name} AS {query}")
        what = f"{kind} {self.name}"
        weakref.finalize(self, _drop, os.getpid(), self.connection, what)
        return [row[0] for row in self.connection.execute(f"DESCRIBE {self.name}").fetchall()]


def lock(connection: duckdb.DuckDBPyConnection, *, files: bool = False) -> None:
    """From here on a query can change no setting, and fetch or load no extension.

    Args:
        files: whether it can open any file; else only those of ``allowed_directories`` and
            ``allowed_paths``.
    """
    connection.execute("SET autoinstall_known_extensions = false")
    connection.execute("SET autoload_known_extensions = false")
    if not files:
        connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def first_line(error: Exception) -> str:
    """First line of DuckDB's error; some errors are JSON.

    >>> first_line(duckdb.Error('{"exception_type": "IO", "exception_message": "disk full"}'))
    'disk full'
    """
    text = str(error).strip()
    if text.startswith("{"):
        with suppress(ValueError, AttributeError):
            text = str(json.loads(text).get("exception_message", text))
    return text.split("\n")[0].rstrip(".:;")
