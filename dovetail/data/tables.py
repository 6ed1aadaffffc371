"""Raw tables, read one column at a time: CSV, Parquet or a query, all through DuckDB."""

from __future__ import annotations

import errno
import itertools
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import duckdb
import numpy as np

from dovetail.data import kinds
from dovetail.data.csv_files import UNREADABLE, csv_blocks, load_csv, read_header
from dovetail.data.duck import Data, first_line, lock, shared_cursor
from dovetail.data.judged import run_judged
from dovetail.data.kinds import Column, Reading
from dovetail.data.labels import read_label
from dovetail.data.loaded import Loaded
from dovetail.data.other_kinds import refuse_other_kind, refuse_workbook
from dovetail.errors import DataError, MissingColumnError, WriteError
from dovetail.files import not_written
from dovetail.settings.labels import composed, label_columns
from dovetail.settings.sources import TABLE_SUFFIXES, is_csv, is_query, is_table_path, literal

if TYPE_CHECKING:
    from dovetail.settings.encode import Asked


#: What pandas calls an index without a name in a file.
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


class Source(Protocol):
    """Where a table's columns are read from."""

    @property
    def delimiter(self) -> str:
        """Of a CSV file, whose values have no types of their own; else ""."""
        ...

    def stored(self, name: str) -> Column:
        """A column with the types of the source; text is not looked at."""
        ...

    def decided(self, name: str, missing: Sequence[str]) -> Reading:
        """How the column is read by the rules, where nobody says so."""
        ...

    def by(self, name: str, reading: Reading) -> Column:
        """The column by a reading."""
        ...


@dataclass(frozen=True, eq=False)
class InMemory:
    """Columns that are had, or made by a call.

    Attributes:
        read: column name -> the column as it is stored.
        delimiter: of a CSV file that they come from; else "".
        readings: what was decided of more rows than these.
    """

    read: Callable[[str], Column]
    delimiter: str = ""
    readings: Mapping[str, Reading] = field(default_factory=dict)

    def stored(self, name: str) -> Column:
        return self.read(name)

    def decided(self, name: str, missing: Sequence[str]) -> Reading:
        if name in self.readings:
            return self.readings[name]
        return kinds.decide(self.read(name), missing=missing)

    def by(self, name: str, reading: Reading) -> Column:
        return kinds.convert(kinds.marked(self.read(name), reading, self.delimiter), reading)


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of one length, each read when it is asked for, by its kind (``kinds.py``).

    Made by ``read_table`` and ``table_from_arrays``.

    Attributes:
        description: what the table is called in errors; mostly its path.
        names: column names, in order.
        num_read: rows that the source gives.
        source: gives whole columns.
        rows: (N,) int64, the rows of it that this table has; None for all.
        index: columns that are pandas' numbers of rows: no features, but read where they are asked
            for by name.
        asked: how a party asks columns to be read.
        named_index: names of a DataFrame's index, of which no column is read.
    """

    description: str
    names: Sequence[str]
    num_read: int
    source: Source
    rows: np.ndarray | None = None
    index: Sequence[str] = ()
    asked: Asked | None = None
    named_index: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))

    @property
    def num_rows(self) -> int:
        return self.num_read if self.rows is None else len(self.rows)

    def reading(self, name: str, *, categorical: bool = False) -> Reading:
        """How a column is read: as the party's file says, else by the rules.

        Args:
            categorical: whether its numbers are names, such as postcodes.
        """
        asked = None if self.asked is None else self.asked.columns.get(name)
        decided = self.source.decided(name, asked.missing if asked else ())
        if asked is not None:
            decided = kinds.declared(asked, decided)
        if categorical and decided.kind == "number":
            return replace(decided, kind="category", rule="named in categorical")
        return decided

    def column(self, name: str, reading: Reading | None = None) -> Column:
        """Column of this name; nothing else is read.

        Args:
            reading: how; None: as ``reading`` says.

        Raises:
            MissingColumnError: no such column.
            DataError: values that cannot be read, or do not fit.
        """
        several = composed(name)
        if several is not None and name not in self.names:
            return Column(*read_label(several, [self.column(each) for each in several.columns]))
        column = self.cells(name, reading)
        if column.unfit:
            raise DataError(f"column {name!r} of {self.description}: {kinds.unfit_text(column)}")
        return column

    def cells(self, name: str, reading: Reading | None = None) -> Column:
        """Column in which values that do not fit are missing and reported.

        Raises:
            MissingColumnError: no such column.
            DataError: a column that cannot be read.
        """
        self._check_has(name)
        column = self.source.by(name, self.reading(name) if reading is None else reading)
        return column if self.rows is None else column.take(self.rows)

    def stored(self, name: str) -> Column:
        """Column with the types of its source, before it is read as anything."""
        self._check_has(name)
        column = self.source.stored(name)
        return column if self.rows is None else column.take(self.rows)

    def label(self, name: str) -> Column:
        """A column of labels: text that the source calls text stays as it is written, or as a
        party asks.

        Raises:
            MissingColumnError: no such column.
        """
        if (composed(name) is not None and name not in self.names) or self.source.delimiter:
            return self.column(name)
        stored, reading = self.stored(name), self.reading(name)
        if reading.kind == "boolean":
            return kinds.convert(stored, reading)
        if reading.as_written:
            return stored
        return kinds.convert(stored, replace(reading, kind="text") if stored.is_text else reading)

    def has(self, label: str | None) -> bool:
        """Whether the columns of a label are here."""
        return isinstance(label, str) and {*self.parts_of(label)} <= {*self.names}

    def parts_of(self, label: str) -> tuple[str, ...]:
        """The columns here that a label is made of: one of its name, or those that it names."""
        return (label,) if label in self.names else label_columns(label)

    def __getstate__(self) -> dict[str, Any]:
        """With its columns: another process cannot read from this one's connection."""
        names = [*self.names, *self.index]
        asked = {} if self.asked is None else self.asked.columns
        missing = {name: asked[name].missing if name in asked else () for name in names}
        decided = {name: self.source.decided(name, missing[name]) for name in names}
        return vars(self.in_memory(names, decided))

    def in_memory(
        self, names: Iterable[str], decided: Mapping[str, Reading] | None = None
    ) -> Table:
        """A table that has these columns as they are stored; its source may go.

        Args:
            decided: how columns are read by the rules, of all rows.
        """
        columns = {}
        for name in names:
            columns[name] = self.stored(name)
        source = InMemory(columns.__getitem__, self.source.delimiter, decided or {})
        return replace(self, num_read=self.num_rows, source=source, rows=None)

    def take(self, rows: np.ndarray) -> Table:
        """A table of these rows, in this order; no value is read or copied."""
        if self.rows is not None:
            rows = self.rows[rows]
        elif rows.dtype.kind == "b":
            rows = np.flatnonzero(rows)
        return replace(self, rows=rows)

    def select(self, patterns: Sequence[str]) -> list[str]:
        """Names that match any of these globs, in table order.

        A pattern with "-" before it removes names instead; if all patterns do, they remove from
        the whole table. Upper and lower case differ. A column's exact name always matches.

        Raises:
            DataError: a pattern that matches no column.

        >>> table = table_from_arrays("t", {"a 1": np.ones(1), "a 2": np.ones(1), "b": np.ones(1)})
        >>> table.select(["b", "a *", "-a 2"])
        ['a 1', 'b']
        """
        kept: set[str] = set()
        removed: set[str] = set()
        for pattern in patterns:
            removes = pattern.startswith("-") and pattern not in self.names
            glob = pattern[1:] if removes else pattern
            matched = {name for name in self.names if name == glob or fnmatchcase(name, glob)}
            if not matched:
                raise DataError(
                    f"no column of {self.description} matches {glob!r}{nearest(glob, self.names)}"
                )
            (removed if removes else kept).update(matched)
        if removed and not kept:
            kept = set(self.names)
        return [name for name in self.names if name in kept - removed]

    def without(self, names: Iterable[str]) -> Table:
        """The table without these columns.

        Raises:
            DataError: no such column.
        """
        names = tuple(column for name in names for column in self.parts_of(name))
        for name in names:
            self._check_has(name)
        left = [name for name in self.names if name not in names]
        return replace(self, names=left)

    def only(self, names: Iterable[str]) -> Table:
        """A table of these columns, in this order.

        Raises:
            DataError: no such column.
        """
        names = tuple(names)
        for name in names:
            self._check_has(name)
        return replace(self, names=names, index=())

    def asking(self, asked: Asked) -> Table:
        """The table with how a party asks its columns to be read."""
        return replace(self, asked=asked)

    def _check_has(self, name: str) -> None:
        if name in self.names or name in self.index:
            return
        if name in self.named_index:
            raise MissingColumnError(
                f"no column {name!r} in {self.description}, whose index it is; give "
                "df.reset_index()"
            )
        raise MissingColumnError(
            f"no column {name!r} in {self.description}{nearest(name, self.names)}"
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message that offers the known name closest to ``name``.

    >>> nearest("incom", ["age", "income"])
    "; did you mean 'income'?"
    >>> nearest("meen *", ["mean area", "mean radius", "worst area"])
    "; did you mean 'mean *'?"
    """
    known = list(known)
    close = closest(name, known)
    if close is not None:
        return f"; did you mean {close!r}?"
    return f"; there are {known[:20]}{' and more' if len(known) > 20 else ''}"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name or pattern that was probably meant, if any.

    >>> closest("Incom", ["age", "income"]), closest("zzz", ["age", "income"])
    ('income', None)
    >>> closest("Y", ["mean concavity", "y"])
    'y'
    """
    known = list(known)
    for other in known:
        if other.casefold() == name.casefold() and other != name:
            return other
    close = _nearest_glob(name, known) or get_close_matches(name, known, n=1)
    if not close:  # also "INCOME" for "income", and "duration" for "dur"
        folded = name.casefold().strip("*")
        close = [other for other in known if folded and folded in other.casefold()]
    return close[0] if close else None


def _nearest_glob(glob: str, known: Sequence[str]) -> list[str]:
    """For "meen *" or "* eror", the same with the beginning or end of a known name; at most one."""
    fixed = glob.strip("*")
    if not fixed or "*" in fixed or glob.startswith("*") == glob.endswith("*"):
        return []
    sizes = range(max(1, len(fixed) - 1), len(fixed) + 2)
    is_end = glob.startswith("*")
    parts = {other[-size:] if is_end else other[:size] for other in known for size in sizes}
    close = get_close_matches(fixed, sorted(parts), n=1)
    return [f"*{part}" if is_end else f"{part}*" for part in close]


def read_table(
    source: str | Path,
    *,
    folders: Sequence[Path] = (),
    cursor: duckdb.DuckDBPyConnection | None = None,
    columns: Collection[str] | None = None,
) -> Table:
    """A table from a .csv, .tsv, .csv.gz or .parquet file, or a ``SELECT``; rows in its order.

    A CSV file's first line names its columns and says what stands between them; its values are
    text, which ``kinds.py`` reads. NULL, NaN, empty text and "?" are missing.

    Parquet columns are read from the file when asked for. CSV files and queries are run once,
    into DuckDB's memory: a second run of a query need not give the same order of rows. A query
    reads, and can do nothing else: it writes no file and fetches no extension. Of a query that
    is in a file, ``folders`` bound what it opens (``judged.py``); the caller's own opens any.

    Args:
        source: the path or query, one ``SELECT``.
        folders: of a query that is in a file: the file's own and those it names; it looks in the
            first after the working directory. Paths are taken as they are.
        cursor: of the database that a file is read in; None for the one all files share.
        columns: the only ones whose values are read; all are named. None for all.

    Raises:
        DataError: a file that does not exist, cannot be read, is empty, or names a column twice;
            a query that is not one ``SELECT``.
    """
    try:
        if is_query(source):
            description = _shortened(str(source))
            if folders:
                data, names = run_judged(_of_query, str(source), folders)
            else:
                # A database of its own: what a query may do is bounded for all of a database.
                connection = duckdb.connect()
                lock(connection, files=True)
                data, names = _of_query(connection, str(source))
        else:
            data = Data.beside(cursor)
            path = Path(source)
            description = str(path)
            if is_csv(path):
                names, delimiter = load_csv(data, path, _pattern(path))
                return _loaded(data, description, names, columns, delimiter=delimiter)
            names = _load_file(data, path)
        return _loaded(data, description, names, columns)
    except (duckdb.Error, *UNREADABLE) as error:
        if not is_query(source):
            refuse_other_kind(Path(source))
        raise DataError(
            f"cannot read {_shortened(str(source))}: {first_line(error)}; "
            "check that it is a whole CSV or Parquet file or a query that DuckDB can run"
        ) from None


def csv_names(path: Path) -> list[str]:
    """The names in a CSV file's first line; none of a file that is no text."""
    try:
        return read_header(path)[2]
    except UNREADABLE:
        return []


def table_parts(path: Path, size: int) -> Iterator[Table]:
    """The rows of a CSV file, so many bytes of it at a time, each part as a table of its own.

    The parts are read from memory: no row is written to a disk.

    Raises:
        DataError: rows that cannot be read; ``read_table`` says where.
    """
    try:
        for block in csv_blocks(path, size):
            data = Data.beside()
            place = os.memfd_create("rows")
            try:
                with os.fdopen(place, "wb", closefd=False) as file:
                    file.write(block)
                where = f"/proc/self/fd/{place}"
                names, delimiter = load_csv(data, Path(where), literal(where))
            finally:
                os.close(place)
            yield _loaded(data, str(path), names, delimiter=delimiter)
    except (duckdb.Error, *UNREADABLE) as error:
        raise DataError(f"cannot read {path}: {first_line(error)}") from None


def read_attached(connection: duckdb.DuckDBPyConnection, description: str, query: str) -> Table:
    """Result of a query in the database attached as ``db``; run once.

    Raises:
        DataError: no rows, or a query that is not one ``SELECT``.
        duckdb.Error: a query that cannot be run, or gives a column twice.
    """
    lock(connection)
    connection.execute("USE db")
    checked = _only_reading(connection, query)
    connection.execute(f"CREATE TABLE memory.main.data AS {checked}")
    connection.execute("USE memory")
    names = [row[0] for row in connection.execute("DESCRIBE data").fetchall()]
    return read_made(connection, description, names)


def read_made(
    connection: duckdb.DuckDBPyConnection, description: str, names: Sequence[str]
) -> Table:
    """The table ``data`` of a database, whose source calls its columns ``names``.

    Raises:
        DataError: no rows, or a name that comes twice.
    """
    return _loaded(Data(connection, "data"), description, names)


def _loaded(
    data: Data,
    description: str,
    names: Sequence[str],
    columns: Collection[str] | None = None,
    *,
    delimiter: str = "",
) -> Table:
    """Table of data whose columns the source calls ``names``; ``delimiter``: of a CSV file."""
    described = data.connection.execute(f"DESCRIBE {data.name}").fetchall()
    types = {name: kind for name, kind, *_ in described}
    index = tuple(name for name in types if _PANDAS_INDEX.fullmatch(name))
    counted = data.connection.execute(f"SELECT count(*) FROM {data.name}").fetchone()
    num_rows = int(counted[0]) if counted else 0
    check_rows(description, names, num_rows)
    source = Loaded(data, description, types, num_rows, columns, delimiter)
    kept = [name for name in types if name not in index] or list(types)
    left = index if len(kept) < len(types) else ()
    return Table(description, kept, num_rows, source, index=left)


def check_rows(description: str, names: Sequence[str], num_rows: int) -> None:
    """Refuse a table without rows, and one that names a column twice.

    Raises:
        DataError: naming the table.
    """
    repeated = repeated_name(names)
    if repeated:
        raise DataError(
            f"{description} has more than one column {repeated!r} (upper and lower case are taken "
            "as the same here); rename one"
        )
    if not num_rows:
        raise DataError(f"{description} has no rows; give a table with at least one")


def table_from_arrays(name: str, arrays: Mapping[str, np.ndarray]) -> Table:
    """A table in memory.

    Args:
        name: what it is called in errors.
        arrays: column name -> (N,) numbers, booleans, datetime64, strings or objects, where None
            is missing.

    Raises:
        DataError: no columns, or lengths that differ.
    """
    lengths = {column: len(values) for column, values in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise DataError(f"{name} needs columns of one length, got {lengths}")
    kept = {column: np.asarray(values) for column, values in arrays.items()}
    source = InMemory(lambda key: kinds.stored(kept[key]))
    return Table(name, list(kept), next(iter(lengths.values())), source)


def stacked(name: str, tables: Sequence[Table]) -> Table:
    """Rows of several tables with the same columns, one below the other.

    Raises:
        DataError: a column is text in one and numbers in another.
    """

    def stored(column: str) -> Column:
        parts = [table.column(column) for table in tables]
        if len({part.is_text for part in parts}) > 1:
            raise DataError(f"the column {column!r} of {name} is text in some rows only")
        values = np.concatenate([part.values for part in parts])
        missing = np.concatenate([part.missing for part in parts])
        return Column(values, missing, parts[0].reading)

    num_rows = sum(table.num_rows for table in tables)
    return Table(name, tables[0].names, num_rows, InMemory(stored), asked=tables[0].asked)


def write_table(
    path: str | Path, columns: Mapping[str, np.ndarray], *more: Iterable[Mapping[str, np.ndarray]]
) -> None:
    """Write a .csv or .parquet file that ``read_table`` reads back; all of it or nothing.

    Args:
        path: where to; a file that is there is replaced.
        columns: column name -> (N,) values; objects may be ``str`` or None.
        more: of a .csv file, the same columns of rows to come.

    Raises:
        WriteError: another ending, no columns, lengths that differ, a name that comes twice, or a
            folder that is not there.
    """
    path = Path(path)
    formats = {".csv": "FORMAT csv, HEADER", ".parquet": "FORMAT parquet, COMPRESSION zstd"}
    suffix = path.suffix.lower()
    if suffix not in formats:
        raise WriteError(f"cannot write {path}: its name must end in .csv or .parquet")
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) != 1:
        raise WriteError(f"cannot write {path}: columns must have one length, got {lengths}")
    if not path.parent.is_dir():
        raise WriteError(f"cannot write {path}: there is no folder {path.parent}; make it first")
    repeated = repeated_name(columns)
    if repeated is not None:
        raise WriteError(
            f"cannot write {path}: more than one column {repeated!r} (upper and lower case are "
            "taken as the same here); rename one"
        )
    # In the same folder, so that os.replace does not cross a file system.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    further = partial.with_name(f"{partial.name}.rows")
    connection = shared_cursor()

    to, how = partial, formats[suffix]
    try:
        for rows in itertools.chain([columns], *more):
            connection.register("data", {name: _writable(v) for name, v in rows.items()})
            connection.execute(f"COPY (SELECT * FROM data) TO {literal(str(to))} ({how})")
            connection.unregister("data")
            if to is further:
                with partial.open("ab") as file, further.open("rb") as added:
                    shutil.copyfileobj(added, file)
            to, how = further, "FORMAT csv, HEADER false"
        os.replace(partial, path)
    except (duckdb.Error, OSError) as error:
        why = first_line(error)
        if os.strerror(errno.ENOSPC) in why:  # DuckDB says it in JSON
            why = not_written(OSError(errno.ENOSPC, why), path)
        raise WriteError(f"cannot write {path}: {why}") from None
    finally:
        connection.close()
        partial.unlink(missing_ok=True)
        further.unlink(missing_ok=True)


def _only_reading(connection: duckdb.DuckDBPyConnection, query: str) -> str:
    """The query if it is one ``SELECT``, as DuckDB parses it; it is not run.

    Raises:
        DataError: any other statement, or several.
        duckdb.Error: what DuckDB cannot parse, names it does not know, a ``SELECT`` that writes.
    """
    statements = duckdb.extract_statements(query)
    kinds = [statement.type.name for statement in statements]
    if kinds != ["SELECT"]:
        raise DataError(
            f"a query must be one SELECT statement, got {' and '.join(kinds) or 'none'}: "
            f"{_shortened(query)}"
        )
    selected: str = statements[0].query
    # WITH x AS (COPY ... TO file) SELECT is a SELECT; as a view DuckDB refuses it.
    connection.execute(f"CREATE TEMP VIEW checked AS {selected}")
    connection.execute("DROP VIEW temp.checked")
    return selected


def _of_query(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[Data, list[str]]:
    """Data of one SELECT, and the names it gives."""
    query = _only_reading(connection, query)
    names = list(connection.sql(query).columns)  # lazy: not run
    if repeated_name(names) is None:
        connection.execute(f"CREATE TABLE data AS {query}")
    else:  # refused by the caller; DuckDB itself would rename a column
        connection.execute("CREATE TABLE data (unused INTEGER)")
    return Data(connection, "data"), names


def _load_file(data: Data, path: Path) -> list[str]:
    """Make a Parquet file a view; the names in the file, as written.

    Raises:
        DataError: no such file, another ending, or nothing in it.
    """
    pattern = _pattern(path)
    read = data.make("VIEW", f"SELECT * FROM read_parquet({pattern})")
    written = data.connection.execute(f"SELECT name FROM parquet_schema({pattern})").fetchall()
    # What DuckDB renamed is not in the file: a_1 for a second a.
    known = {name for (name,) in written}
    return [name if name in known else re.sub(r"_\d+$", "", name) for name in read]


def _pattern(path: Path) -> str:
    """A file as DuckDB names it.

    Raises:
        DataError: no such file, another ending, or nothing in it.
    """
    if not is_table_path(path):
        refuse_workbook(path)
        raise DataError(
            f"cannot read {path}: a table's name ends in {', '.join(TABLE_SUFFIXES)} "
            "(or give a SELECT ... query)"
        )
    if not path.is_file():
        raise DataError(f"there is no file {path}; check the path")
    if not path.stat().st_size:
        raise DataError(f"{path} is empty; give a table with column names and at least one row")
    # A name with these in it would be taken for a pattern of several files.
    return literal(re.sub(r"([*?\[])", r"[\1]", str(path)))


def distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different values in order, and the (N,) place of each among them; as ``np.unique``.

    Texts are not sorted but looked up, which takes ten million rows seconds instead of minutes.
    """
    if values.dtype.kind != "O":
        found, indices = np.unique(values, return_inverse=True)
        return found, indices.reshape(-1)
    texts = sorted(set(values))
    index = {text: number for number, text in enumerate(texts)}
    found = np.empty(len(texts), dtype=object)
    found[:] = texts
    return found, np.fromiter(map(index.__getitem__, values), np.int64, len(values))


def _writable(values: np.ndarray) -> np.ndarray:
    """An array that DuckDB takes: contiguous, text as objects, times in microseconds."""
    if values.dtype.kind in "UM":
        return values.astype(object if values.dtype.kind == "U" else "datetime64[us]")
    return np.ascontiguousarray(values)


def repeated_name(names: Iterable[str]) -> str | None:
    """A name that comes twice, in DuckDB's eyes: case does not count."""
    seen: set[str] = set()
    for name in names:
        if name.casefold() in seen:
            return name
        seen.add(name.casefold())
    return None


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 100 else text[:99] + "…"
