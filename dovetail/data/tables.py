"""Raw tables, read one column at a time: CSV, Parquet or a query, all through DuckDB."""

from __future__ import annotations

import codecs
import csv
import gzip
import itertools
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import duckdb
import numpy as np

from dovetail.data.duck import Data, first_line, literal, lock, quoted, shared_cursor
from dovetail.data.judged import run_judged
from dovetail.data.labels import read_label
from dovetail.errors import DataError, MissingColumnError
from dovetail.settings.labels import composed, label_columns
from dovetail.settings.sources import is_query

if TYPE_CHECKING:
    from dovetail.settings.encode import Asked

_CSV_SUFFIXES = (".csv", ".tsv", ".csv.gz")
_SUFFIXES = (*_CSV_SUFFIXES, ".parquet")

#: Seconds in a day: dates are read as days since 1970.
_DAY_S = 86400.0

#: Text that stands for "no value" besides the empty string.
_MISSING_TEXT = "?"

_INTEGERS = {
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT"),
    *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
}
_FLOATS = {"FLOAT", "DOUBLE", "DECIMAL", "HUGEINT", "UHUGEINT"}
_TEXTS = {"BOOLEAN", "VARCHAR", "ENUM", "UUID", '"NULL"'}

#: How a yes or no is written, wherever it comes from: as the values of two categories.
_BOOLEANS = ("false", "true")

#: A table of more columns, and of at most so many values, is read whole by the first that is asked.
MANY_COLUMNS, MAX_WHOLE_VALUES = 50, 10_000_000

#: Of a longer table a text column of so few different texts is read as their numbers: a text of
#: its own for each row would take eight times the memory.
_LONG, _FEW_TEXTS = 100_000, 1000

#: What pandas calls an index without a name in a file.
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


What = Literal["number", "date"]


@dataclass(frozen=True, eq=False)
class Column:
    """One column's raw values.

    Attributes:
        values: (N,) float64, int64, or objects that are all ``str``. Where a value is missing:
            NaN, 0 or "". Of several labels, or of a rate, (N, L) float64.
        missing: (N,) bool.
        what: of numbers, what they stand for: a "date" is in days since 1970.
    """

    values: np.ndarray
    missing: np.ndarray
    what: What = "number"

    @property
    def is_text(self) -> bool:
        return self.values.dtype.kind == "O"

    def take(self, rows: np.ndarray) -> Column:
        """A column of these rows, in this order."""
        return Column(self.values[rows], self.missing[rows], self.what)


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of one length, each read when it is asked for.

    Made by ``read_table`` and ``table_from_arrays``.

    Attributes:
        description: what the table is called in errors; mostly its path.
        names: column names, in order.
        num_read: rows that ``read`` gives.
        read: column name -> the whole column.
        rows: (N,) int64, the rows of it that this table has; None for all.
        index: columns that are pandas' numbers of rows: no features, but read where they are asked
            for by name.
        asked: how a party asks columns to be read.
        named_index: names of a DataFrame's index, of which no column is read.
    """

    description: str
    names: Sequence[str]
    num_read: int
    read: Callable[[str], Column]
    rows: np.ndarray | None = None
    index: Sequence[str] = ()
    asked: Asked | None = None
    named_index: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))

    @property
    def num_rows(self) -> int:
        return self.num_read if self.rows is None else len(self.rows)

    def column(self, name: str) -> Column:
        """One column; nothing else is read.

        Raises:
            MissingColumnError: no such column.
            DataError: values that cannot be read.
        """
        several = composed(name)
        if several is not None and name not in self.names:
            return Column(*read_label(several, [self.column(each) for each in several.columns]))
        self._check_has(name)
        column = self.read(name)
        return column if self.rows is None else column.take(self.rows)

    def has(self, label: str | None) -> bool:
        """Whether the columns of a label are here."""
        return isinstance(label, str) and {*self.parts_of(label)} <= {*self.names}

    def parts_of(self, label: str) -> tuple[str, ...]:
        """The columns here that a label is made of: one of its name, or those that it names."""
        return (label,) if label in self.names else label_columns(label)

    def __getstate__(self) -> dict[str, Any]:
        """With its columns: another process cannot read from this one's connection."""
        columns = {name: self.column(name) for name in (*self.names, *self.index)}
        return vars(replace(self, num_read=self.num_rows, read=columns.__getitem__, rows=None))

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


def is_table_path(path: Path) -> bool:
    """Whether a path's ending says that it is a table."""
    return path.name.lower().endswith(_SUFFIXES)


def read_table(
    source: str | Path,
    *,
    folders: Sequence[Path] = (),
    cursor: duckdb.DuckDBPyConnection | None = None,
    columns: Collection[str] | None = None,
) -> Table:
    """A table from a .csv, .tsv, .csv.gz or .parquet file, or a ``SELECT``; rows in its order.

    Numbers are float64 or int64, dates and times float64 days since 1970, all else text without
    the blanks around it. Stored booleans are the texts "false" and "true", as is text of nothing
    but these words in any case: a table is the same as Parquet and as CSV. NULL, NaN, empty text
    and "?" are missing. A CSV file's first line names its columns; its types come from all of its
    rows.

    Parquet columns are read from the file when asked for. CSV files and queries are run once,
    into DuckDB's memory: a second run of a query need not give the same order of rows. A query
    reads, and can do nothing else: it writes no file and fetches no extension. Of a query that
    stands in a file, ``folders`` bound what it opens (``judged.py``); the caller's own opens any.

    Args:
        source: the path or query, one ``SELECT``.
        folders: of a query that stands in a file: the file's own and those it names, whose tables
            alone it may open; it looks in the first after the working directory. Paths are taken
            as they are.
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
                data, names = run_judged(lambda made: _of_query(made, str(source)), folders)
            else:
                # A database of its own: what a query may do is bounded for all of a database.
                connection = duckdb.connect()
                lock(connection, files=True)
                data, names = _of_query(connection, str(source))
        else:
            data = Data.beside(cursor)
            path = Path(source)
            description = str(path)
            names = _load_file(data, path)
        return _loaded(data, description, names, columns)
    except (duckdb.Error, UnicodeDecodeError) as error:
        if not is_query(source):
            _refuse_other_kind(Path(source))
        raise DataError(
            f"cannot read {_shortened(str(source))}: {first_line(error)}; "
            "check that it is a whole CSV or Parquet file or a query that DuckDB can run"
        ) from None


def read_attached(connection: duckdb.DuckDBPyConnection, description: str, query: str) -> Table:
    """What a query gives in the database attached as ``db``; run once.

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
) -> Table:
    """What was read, whose columns the source calls ``names``."""
    described = data.connection.execute(f"DESCRIBE {data.name}").fetchall()
    types = {name: kind for name, kind, *_ in described}
    index = tuple(name for name in types if _PANDAS_INDEX.fullmatch(name))
    counted = data.connection.execute(f"SELECT count(*) FROM {data.name}").fetchone()
    num_rows = int(counted[0]) if counted else 0
    check_rows(description, names, num_rows)

    whole: dict[str, Column] = {}
    is_small = num_rows * len(types) <= MAX_WHOLE_VALUES
    is_wide = is_small and len(types) > MANY_COLUMNS

    def read(name: str) -> Column:
        if is_wide and not whole:
            chosen = {each: types[each] for each in types if columns is None or each in columns}
            whole.update(_read_whole(data, chosen))
        if name in whole:
            return whole[name]
        column = _read_column(data, description, name, types[name], num_rows)
        if is_small:  # many parties may have rows of it, and each asks for its own
            whole[name] = column
        return column

    kept = [name for name in types if name not in index] or list(types)
    return Table(description, kept, num_rows, read, index=index if len(kept) < len(types) else ())


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
    return Table(name, list(kept), next(iter(lengths.values())), lambda key: _column(kept[key]))


def stacked(name: str, tables: Sequence[Table]) -> Table:
    """Rows of several tables with the same columns, one below the other.

    Raises:
        DataError: a column is text in one and numbers in another.
    """

    def read(column: str) -> Column:
        parts = [table.column(column) for table in tables]
        if len({part.is_text for part in parts}) > 1:
            raise DataError(f"the column {column!r} of {name} is text in some rows only")
        values = np.concatenate([part.values for part in parts])
        missing = np.concatenate([part.missing for part in parts])
        return Column(values, missing, parts[0].what)

    num_rows = sum(table.num_rows for table in tables)
    return Table(name, tables[0].names, num_rows, read, asked=tables[0].asked)


def write_table(path: str | Path, columns: Mapping[str, np.ndarray]) -> None:
    """Write a .csv or .parquet file that ``read_table`` reads back; all of it or nothing.

    Args:
        path: where to; a file that is there is replaced.
        columns: column name -> (N,) values; objects may be ``str`` or None.

    Raises:
        DataError: another ending, no columns, lengths that differ, a name that comes twice, or a
            folder that is not there.
    """
    path = Path(path)
    formats = {".csv": "FORMAT csv, HEADER", ".parquet": "FORMAT parquet, COMPRESSION zstd"}
    suffix = path.suffix.lower()
    if suffix not in formats:
        raise DataError(f"cannot write {path}: its name must end in .csv or .parquet")
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) != 1:
        raise DataError(f"cannot write {path}: columns must have one length, got {lengths}")
    if not path.parent.is_dir():
        raise DataError(f"cannot write {path}: there is no folder {path.parent}; make it first")
    repeated = repeated_name(columns)
    if repeated is not None:
        raise DataError(
            f"cannot write {path}: more than one column {repeated!r} (upper and lower case are "
            "taken as the same here); rename one"
        )
    # In the same folder, so that os.replace does not cross a file system.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    connection = shared_cursor()
    try:
        connection.register("data", {name: _writable(v) for name, v in columns.items()})
        connection.execute(
            f"COPY (SELECT * FROM data) TO {literal(str(partial))} ({formats[suffix]})"
        )
        os.replace(partial, path)
    except (duckdb.Error, OSError) as error:
        raise DataError(f"cannot write {path}: {first_line(error)}") from None
    finally:
        connection.close()
        partial.unlink(missing_ok=True)


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
    """What one SELECT gives, and the names it gives."""
    query = _only_reading(connection, query)
    names = list(connection.sql(query).columns)  # lazy: not run
    if repeated_name(names) is None:
        connection.execute(f"CREATE TABLE data AS {query}")
    else:  # refused by the caller; DuckDB itself would rename a column
        connection.execute("CREATE TABLE data (unused INTEGER)")
    return Data(connection, "data"), names


def _load_file(data: Data, path: Path) -> list[str]:
    """Make a file a table or view; the names in the file, as written.

    Raises:
        DataError: no such file, another ending, or nothing in it.
    """
    if not is_table_path(path):
        raise DataError(
            f"cannot read {path}: a table's name ends in {', '.join(_SUFFIXES)} "
            "(or give a SELECT ... query)"
        )
    if not path.is_file():
        raise DataError(f"there is no file {path}; check the path")
    if not path.stat().st_size:
        raise DataError(f"{path} is empty; give a table with column names and at least one row")
    # A name with these in it would be taken for a pattern of several files.
    pattern = literal(re.sub(r"([*?\[])", r"[\1]", str(path)))
    connection = data.connection
    if path.suffix.lower() == ".parquet":
        read = data.make("VIEW", f"SELECT * FROM read_parquet({pattern})")
        written = connection.execute(f"SELECT name FROM parquet_schema({pattern})").fetchall()
        # What DuckDB renamed is not in the file: a_1 for a second a.
        known = {name for (name,) in written}
        return [name if name in known else re.sub(r"_\d+$", "", name) for name in read]
    # No BOOLEAN among the types: a label of "yes" and "no" is to stay as it is written.
    query = (
        f"SELECT * FROM read_csv({pattern}, header = true, "
        "sample_size = -1, nullstr = ['', '?', ' ?'], "
        "auto_type_candidates = ['BIGINT', 'DOUBLE', 'DATE', 'TIMESTAMP', 'VARCHAR']{})"
    )
    read = data.make("TABLE", query.format(""))
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        line = file.readline()
    if next(csv.reader([line])) == read:
        return read  # nothing was renamed
    sniffed = connection.execute(f"SELECT Delimiter FROM sniff_csv({pattern})").fetchone()
    delimiter = sniffed[0] if sniffed else ","
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        if len(read) == 1:
            _refuse_ragged(path, file)
        file.seek(0)
        header = next(csv.reader(file, delimiter=delimiter))
    if delimiter != "," and _has_decimal_commas(data):
        connection.execute(f"DROP TABLE {data.name}")
        separated = query.format(", decimal_separator = ','")
        connection.execute(f"CREATE TABLE {data.name} AS {separated}")
    return [name for name in header if name]  # DuckDB names the nameless


def _refuse_other_kind(path: Path) -> None:
    """Say what a file that could not be read is, by how it begins, if that is known.

    Raises:
        DataError: naming the file, what it is and what to do.
    """
    if path.name.lower().endswith(".gz") or not path.is_file():
        return
    with path.open("rb") as file:
        begins = file.read(1 << 16)
    if begins.startswith(b"PK\x03\x04"):
        what = "is an Excel workbook or another zip archive; save the sheet as CSV (UTF-8)"
    elif begins.startswith((b"\xff\xfe", b"\xfe\xff")):
        what = "is text in UTF-16; save it as UTF-8"
    elif begins.startswith(b"PAR1") != (path.suffix.lower() == ".parquet"):
        kind = "a" if begins.startswith(b"PAR1") else "no"
        what = f"is {kind} Parquet file; give it the ending of what it is"
    elif path.suffix.lower() != ".parquet" and not _is_utf8(begins):
        what = (
            "is not UTF-8 text; save it as UTF-8, or, if it is Latin-1, name the query "
            f"SELECT * FROM read_csv({literal(str(path))}, encoding = 'latin-1')"
        )
    else:
        return
    raise DataError(f"cannot read {path}: it {what}")


def _is_utf8(text: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(text)  # whose last character may be cut
    except UnicodeDecodeError:
        return False
    return True


def _refuse_ragged(path: Path, file: Iterable[str]) -> None:
    """Refuse a file that was taken for one column because its lines have not all as many fields.

    Raises:
        DataError: naming the first line that differs.
    """
    lines = iter(file)
    first = next(lines, "")
    delimiter = max(",;\t|", key=first.count)
    if delimiter not in first:
        return
    rows = csv.reader(itertools.chain([first], lines), delimiter=delimiter)
    num_fields = len(next(rows))
    with suppress(csv.Error):
        for row in rows:
            if row and len(row) != num_fields:
                raise DataError(
                    f"line {rows.line_num} of {path} has {len(row)} fields where the first line "
                    f"has {num_fields}; mend it, or quote text with {delimiter!r} in it"
                )


def _has_decimal_commas(data: Data) -> bool:
    """Whether numbers are written 2,5: a text of nothing else, and no number written 2.5."""
    described = data.connection.execute(f"DESCRIBE {data.name}").fetchall()
    if any(kind == "DOUBLE" for _, kind, *_ in described):
        return False
    for name in (name for name, kind, *_ in described if kind == "VARCHAR"):
        text = f"trim({quoted(name)})"
        counts = data.connection.execute(
            f"SELECT count(*) FILTER (regexp_full_match({text}, '[+-]?[0-9]+,[0-9]+')), "
            f"bool_and(regexp_full_match({text}, '[+-]?[0-9]+(,[0-9]+)?')) FROM {data.name}"
        ).fetchone()
        if counts is not None and counts[0] and counts[1]:
            return True
    return False


def _read_column(data: Data, description: str, name: str, type_name: str, num_rows: int) -> Column:
    """One column of what was read.

    Raises:
        DataError: a type that is neither number, date nor text, or a file that changed.
    """
    expression, what = _expression(name, type_name)
    if not expression:
        raise DataError(
            f"column {name!r} of {description} has the type {type_name}, which is neither number, "
            "date nor text; leave it out, or cast it in a SELECT"
        )
    try:
        # A cursor of its own: a connection must not run two queries at once.
        cursor = data.connection.cursor()
        if num_rows > _LONG and type_name.split("(")[0].upper() in _TEXTS:
            shared = _read_shared(cursor, f"SELECT {expression} AS v FROM {data.name}")
            if shared is not None:
                return shared
        return _fetched(cursor, data.name, {name: (expression, what)})[name]
    except duckdb.Error as error:
        raise DataError(
            f"cannot read column {name!r} of {description}: {first_line(error)}"
        ) from None


def _read_shared(cursor: duckdb.DuckDBPyConnection, query: str) -> Column | None:
    """A column ``v`` of texts whose equal values are one object; None of many different ones."""
    counted = cursor.execute(f"SELECT approx_count_distinct(v) FROM ({query})").fetchone()
    if counted is None or counted[0] > _FEW_TEXTS:
        return None
    distinct_rows = cursor.execute(
        f"SELECT DISTINCT v FROM ({query}) WHERE v IS NOT NULL"
    ).fetchall()
    texts = [text for (text,) in distinct_rows]
    if not texts:
        return None
    listed = ", ".join(literal(text) for text in texts)
    codes = cursor.execute(
        f"SELECT coalesce(enum_code(v::ENUM({listed}))::INTEGER, -1) AS v FROM ({query})"
    ).fetchnumpy()["v"]
    missing = codes < 0  # the last of the texts, until it is filled
    return _filled(np.array([*texts, ""], dtype=object)[np.ma.getdata(codes)], np.asarray(missing))


def _read_whole(data: Data, types: Mapping[str, str]) -> dict[str, Column]:
    """All columns that can be read, by one query; none where it cannot be run.

    A query looks at all columns of the table, so that one for each of a thousand takes minutes.
    """
    expressions = {name: _expression(name, kind) for name, kind in types.items()}
    chosen = {name: each for name, each in expressions.items() if each[0]}
    try:
        return _fetched(data.connection.cursor(), data.name, chosen) if chosen else {}
    except duckdb.Error:  # told of where its column is asked for
        return {}


def _fetched(
    cursor: duckdb.DuckDBPyConnection, table: str, chosen: Mapping[str, tuple[str, What]]
) -> dict[str, Column]:
    """Columns by what reads each, and what its numbers stand for."""
    asked = ", ".join(f"{each} AS v{index}" for index, (each, _) in enumerate(chosen.values()))
    fetched = cursor.execute(f"SELECT {asked} FROM {table}").fetchnumpy()
    return {
        name: _filled(np.ma.getdata(values), np.ma.getmaskarray(values), what)
        for (name, (_, what)), values in zip(chosen.items(), fetched.values(), strict=True)
    }


def _expression(name: str, type_name: str) -> tuple[str, What]:
    """What reads a column, "" of a type that cannot be, and what its numbers stand for."""
    cell = quoted(name)
    kind = type_name.split("(")[0].upper()
    what: What = "number"
    if kind in _INTEGERS:
        expression = f"{cell}::BIGINT"
    elif kind in _FLOATS:
        expression = f"{cell}::DOUBLE"
    elif kind == "DATE" or kind.startswith("TIMESTAMP"):
        what = "date"
        expression = f"epoch({cell}) / {_DAY_S}"
    elif kind in _TEXTS:
        trimmed = f"trim({cell}::VARCHAR, E' \\t\\r\\n')"
        expression = f"nullif(nullif({trimmed}, ''), '{_MISSING_TEXT}')"
    else:
        return "", what
    return expression, what


def _filled(values: np.ndarray, missing: np.ndarray, what: What = "number") -> Column:
    """A column whose missing values all read the same."""
    if values.dtype.kind == "f":
        missing = missing | np.isnan(values)
    fill = {"f": np.nan, "i": 0}.get(values.dtype.kind, "")
    if values.dtype.kind == "O":
        values = _lower_booleans(values, missing)
    return Column(np.where(missing, fill, values) if missing.any() else values, missing, what)


def _lower_booleans(texts: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """These texts; in lower case where they are nothing but true and false."""
    present = texts[~missing]
    if not len(present) or str(present[0]).lower() not in _BOOLEANS:
        return texts
    written = {str(text) for text in set(present.tolist())}
    if written <= {*_BOOLEANS} or not all(text.lower() in _BOOLEANS for text in written):
        return texts
    lowered = texts.copy()
    lowered[~missing] = [str(text).lower() for text in present]
    return lowered


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


def column_of(values: np.ndarray, missing: np.ndarray) -> Column:
    """A column from an array in memory, of which these values are missing besides."""
    column = _column(values)
    return _filled(column.values, column.missing | missing, column.what)


def _column(values: np.ndarray) -> Column:
    """A column from an array in memory, by the rules of ``read_table``."""
    if values.dtype.kind == "b":
        return _filled(_as_words(values), np.zeros(len(values), dtype=bool))
    if values.dtype.kind in "iu":
        return _filled(values.astype(np.int64), np.zeros(len(values), dtype=bool))
    if values.dtype.kind == "f":
        return _filled(values.astype(np.float64), np.isnan(values))
    if values.dtype.kind == "M":
        days = values.astype("datetime64[us]").astype(np.int64) / (_DAY_S * 1e6)
        return _filled(days, np.isnat(values), "date")
    objects = values.astype(object)
    # Only NaN differs from itself.
    missing = np.array([value is None or value != value for value in objects], dtype=bool)
    present = [value for value in objects if value is not None and value == value]
    if present and all(isinstance(value, (bool, np.bool_)) for value in present):
        words = np.full(len(objects), "", dtype=object)
        words[~missing] = _as_words(np.array(present, dtype=bool))
        return _filled(words, missing)
    if present and all(isinstance(value, (bool, int, float, np.number)) for value in present):
        numbers = np.zeros(len(objects), dtype=np.array(present).dtype)
        numbers[~missing] = present
        return _filled(_column(numbers).values, missing)
    text = np.full(len(objects), "", dtype=object)
    text[~missing] = [str(value).strip() for value in present]
    return _filled(text, missing | (text == "") | (text == _MISSING_TEXT))


def _as_words(values: np.ndarray) -> np.ndarray:
    """(N,) booleans as text."""
    words: np.ndarray = np.array(_BOOLEANS, dtype=object)[values.astype(np.int64)]
    return words


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
