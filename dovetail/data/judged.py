"""Queries that are in a file, and which files they may open.

A run file or party file may come from somebody else. Its ``SELECT`` may open what a plain path in
the file may (``files.closed``), and besides other texts and patterns in the file's folders: DuckDB
refuses every file that is not listed and says which; each is judged here by where it really is,
links followed, and listed or not. So what is judged is what is opened, by whatever function,
pattern or link it was named.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import duckdb

from dovetail.data.duck import lock
from dovetail.errors import DataError
from dovetail.files import closed
from dovetail.settings.sources import is_table_path, literal, quoted

T = TypeVar("T")

#: What a table's name ends in, where a query names it.
_TABLE = re.compile(r"\.(csv|tsv|txt|parquet|json|jsonl|ndjson)(\.(gz|zst))?", re.I)
_REFUSED = re.compile(r'Cannot access (?:file|directory) "(.*)" - file system', re.S)
_WILD = re.compile(r"[*?\[]")
#: Beginnings that DuckDB replaces: ~ is the user's home, file:/x is /x.
_REPLACED = re.compile(r"~|[a-z][\w+.-]+:", re.I)
#: A pattern of more folders than this is refused.
_MOST_ASKED = 1000


def run_judged(
    run: Callable[[duckdb.DuckDBPyConnection, str], T], query: str, folders: Sequence[Path]
) -> T:
    """Result of ``run`` on a new database that opens what this query of a file may.

    Args:
        run: reads a query with the connection; is called again for each folder that this opens
            files in.
        query: the query.
        folders: where relative names are looked for, in this order, after the working directory.

    Raises:
        DataError: a file elsewhere, or one that is not a table.
        duckdb.Error: what ``run`` raises otherwise.
    """
    real = [Path(os.path.realpath(folder)) for folder in folders]
    listed: set[str] = set()
    for _ in range(_MOST_ASKED):
        connection = duckdb.connect()
        searched = ",".join(each for each in map(str, real) if "," not in each)
        connection.execute(f"SET file_search_path = {literal(searched)}")
        names = ", ".join(map(literal, sorted(listed)))
        connection.execute(f"SET allowed_paths = [{names}]")
        lock(connection)
        try:
            return run(connection, query)
        except duckdb.PermissionException as error:
            connection.close()
            refused = _REFUSED.search(str(error))
            if refused is None or refused[1] in listed:
                raise
            listed.update(_judged(refused[1], query, real))
    raise DataError(f"a query opens files of more than {_MOST_ASKED} folders; name fewer")


def _judged(name: str, query: str, folders: Sequence[Path]) -> Iterator[str]:
    """The name, and those of the tables beside it in these folders, as the query may open them.

    Raises:
        DataError: it may not.
    """
    if "://" in name:
        raise DataError(
            f"a query in a file opens files of this machine, and names {name!r}; name an address "
            "in party.table, and what is read there in party.query"
        )
    if _REPLACED.match(name):
        raise DataError(
            f"a query in a file opens paths as they stand, and names {name!r}; write the whole "
            "path, without ~ or file:"
        )
    fixed = _WILD.split(name)[0]
    if fixed != name:  # a pattern: the files that match are asked for by their names
        if not _TABLE.search(name[len(fixed) :]) or ".." in name[len(fixed) :]:
            raise DataError(
                f"a query may look for tables only, such as '*.csv', and names {name!r}"
            )
        folder = os.path.dirname(fixed)
        path = _place_of(folder, folders) / name[len(folder) :].lstrip("/")
        if why := closed(path, folders, written=False):
            raise DataError(why)
        yield name
        return
    path = _place_of(name, folders)
    if closed(path, folders, written=False):
        if why := closed(path, folders, written=_is_written(name, query, path, folders)):
            raise DataError(why)
        yield name
        return
    if not _is_table(Path(os.path.realpath(path))):
        raise DataError(
            f"a query may open tables (.csv, .tsv, .txt, .parquet, .json), and names {name!r}"
        )
    yield name
    if path.is_symlink() or not path.exists():
        return  # DuckDB says so
    parent = os.path.dirname(name)
    with os.scandir(path.parent) as beside:
        for entry in beside:
            if entry.is_file(follow_symlinks=False) and _is_table(Path(entry.path)):
                yield os.path.join(parent, entry.name)


def _place_of(name: str, folders: Sequence[Path]) -> Path:
    """Where DuckDB finds a name: in the working directory, else in the first of the folders."""
    path = Path(name)
    if not path.is_absolute() and not path.exists():
        path = next((each / name for each in folders if (each / name).exists()), folders[0] / name)
    return path.absolute()


def _is_written(name: str, query: str, path: Path, folders: Sequence[Path]) -> bool:
    """Whether the query has the path of this table between quotes, as from one of the folders."""
    real = os.path.realpath(path)
    texts = re.split(r"['\"\0]+", query)
    if literal(name) in query or quoted(name) in query:
        texts.append(name)  # one that has quotes
    paths = [each / text for text in texts if is_table_path(Path(text)) for each in folders]
    return is_table_path(Path(real)) and any(
        os.path.realpath(each) == real and not closed(each, folders) for each in paths
    )


def _is_table(path: Path) -> bool:
    suffix = _TABLE.search(path.name)
    return suffix is not None and suffix.end() == len(path.name)
