"""Queries that are in a file, and which files they may open.

A run file or party file may come from somebody else. Its ``SELECT`` may open tables in the file's
own folder and in the folders that it names, and nothing else: DuckDB refuses every file that is not
listed and says which; each is judged here by where it really is, links followed, and listed or not.
So what is judged is what is opened, by whatever function, pattern or link it was named.
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
from dovetail.settings.sources import literal

T = TypeVar("T")

#: What a table's name ends in, where a query names it.
_TABLE = re.compile(r"\.(csv|tsv|txt|parquet|json|jsonl|ndjson)(\.(gz|zst))?", re.I)
_REFUSED = re.compile(r'Cannot access (?:file|directory) "(.*)" - file system', re.S)
_WILD = re.compile(r"[*?\[]")
#: A pattern of more folders than this is refused.
_MOST_ASKED = 1000


def run_judged(run: Callable[[duckdb.DuckDBPyConnection], T], folders: Sequence[Path]) -> T:
    """Result of ``run`` on a new database that opens tables in these folders alone.

    Args:
        run: reads with the connection; is called again for each folder that it opens files in.
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
            return run(connection)
        except duckdb.PermissionException as error:
            connection.close()
            refused = _REFUSED.search(str(error))
            if refused is None or refused[1] in listed:
                raise
            listed.update(_judged(refused[1], real))
    raise DataError(f"a query opens files of more than {_MOST_ASKED} folders; name fewer")


def _judged(name: str, folders: Sequence[Path]) -> Iterator[str]:
    """The name, and those of the tables beside it, as a query may open them.

    Raises:
        DataError: it may not.
    """
    fixed = _WILD.split(name)[0]
    if fixed != name:  # a pattern: the files that match are asked for by their names
        if not _TABLE.search(name[len(fixed) :]) or ".." in name[len(fixed) :]:
            raise DataError(
                f"a query may look for tables only, such as '*.csv', and names {name!r}"
            )
        if not _is_within(_folder_of(os.path.dirname(fixed), folders), folders):
            raise _elsewhere(name, folders)
        yield name
        return
    path = _folder_of(name, folders)
    if "://" in name or not _is_within(path, folders):
        raise _elsewhere(name, folders)
    if not _is_table(path):
        raise DataError(
            f"a query may open tables (.csv, .tsv, .txt, .parquet, .json), and names {name!r}"
        )
    yield name
    if not path.exists():
        return  # DuckDB says so
    parent = os.path.dirname(name)
    with os.scandir(path.parent) as beside:
        for entry in beside:
            if entry.is_file(follow_symlinks=False) and _is_table(Path(entry.path)):
                yield os.path.join(parent, entry.name)


def _folder_of(name: str, folders: Sequence[Path]) -> Path:
    """Where DuckDB finds a name: in the working directory, else in the first of the folders."""
    path = Path(name)
    if not path.is_absolute() and not path.exists():
        path = next((each / name for each in folders if (each / name).exists()), folders[0] / name)
    return Path(os.path.realpath(path))


def _is_within(path: Path, folders: Sequence[Path]) -> bool:
    """Whether it is in one of them, and no party's site folder: that has keys and states."""
    inner = [path.relative_to(folder) for folder in folders if path.is_relative_to(folder)]
    return any(not any(part.endswith(".site") for part in each.parts) for each in inner)


def _is_table(path: Path) -> bool:
    suffix = _TABLE.search(path.name)
    return suffix is not None and suffix.end() == len(path.name)


def _elsewhere(name: str, folders: Sequence[Path]) -> DataError:
    shown = ", ".join(map(str, folders))
    return DataError(
        f"the query opens {name!r}, which is not in {shown}; name its folder in folders = [...] "
        "beside the query, if you mean it to be read"
    )
