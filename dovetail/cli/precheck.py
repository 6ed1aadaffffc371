"""A user's mistakes that can be told before libraries are read: no such file, an unknown key.

What a file may say in full only the methods' settings know, whose libraries take seconds to read.
The names of their keys, and of the methods, stand in keys.json too (a test holds it to them, and
writes it), so that a wrong one is told at once; so are files and folders that are not there, a
column that a table does not have, ids that come twice in one of moderate size, and addresses and
certificates that will not do. Whatever is not certain here is left to them.
"""

from __future__ import annotations

import csv
import difflib
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

from dovetail.errors import ConfigError, DataError, ModelError, NetworkError
from dovetail.files import check_is_run, did_you_mean, override, read_run, read_toml, unknown_key

#: Key -> the keys below it; None where that is not for this file to say.
Keys = Mapping[str, "Keys | None"]

#: Who has a method of one's own has keys of one's own; see ``methods/plugins.py``.
_GROUP = "dovetail.methods"


def check_run(path: Path, overrides: Sequence[str] | None = ()) -> None:
    """Refuse a run file, or FILE:CELL, that is not there or has an unknown key.

    Raises:
        ConfigError: in the words that the settings have for it.
    """
    if _is_late():
        return
    values = read_run(path)
    check_is_run(values, path)
    if not overrides:  # a section of an unknown method is no mistyped key
        _check_method(values.get("method"), where=str(path))
    _check(values, "run", where=str(path))
    for text in overrides or ():
        _check(override(text), "run", where=str(path))
    if overrides:  # they may say another method, or other parties
        return
    parties = values.get("parties")
    for file in parties if isinstance(parties, list) else ():
        check_party((path.parent / str(file)).resolve())


def check_run_or_folder(run: Path, overrides: Sequence[str] | None) -> None:
    """Refuse a run file as ``check_run`` does; a run's folder holds what was checked.

    Raises:
        ConfigError: in the words that the settings have for it.
    """
    if not run.is_dir():
        check_run(run, overrides)


def check_party(path: Path) -> None:
    """Refuse a party file that is not there, is none or has an unknown key.

    Raises:
        ConfigError: in the words that the settings have for it.
    """
    if _is_late():
        return
    values = read_toml(path)
    if "party" not in values:
        raise ConfigError(f"{path} is no party file: it has no [party] table")
    _check(values, "party", where=str(path))
    _check_table(values["party"], path)


def check_join(
    party: Path,
    driver: Sequence[str],
    name: str | None,
    *,
    tls_name: Sequence[str],
    certificates: Path | None,
    by_letter: bool = False,
) -> None:
    """Refuse a party file, and drivers and certificates that will not do.

    Raises:
        ConfigError: in the words of who goes online.
    """
    if _is_late():
        return
    from dovetail.network import addresses, credentials

    check_party(party)
    values = read_toml(party)
    driver_name, revoked = (values["party"].get(key) for key in ("name", "revoked"))
    policy = values.get("policy", {})
    allowed = policy.get("drivers") if isinstance(policy, Mapping) else ()
    if isinstance(allowed, list) and not all(isinstance(each, str) for each in allowed):
        return
    if not isinstance(allowed, list | None) or not isinstance(driver_name, str):
        return
    if by_letter:
        addresses.drivers_by_letter(str(party), allowed, name)
    else:
        drivers = addresses.drivers_of(str(party), allowed, driver, name)
        addresses.tls_names(drivers, tls_name)
    folder = certificates or credentials.certificates_beside(party, driver_name)
    listed = party.parent / revoked if isinstance(revoked, str) else None
    log, silent = logging.getLogger(credentials.__name__), logging.NullHandler()
    log.addHandler(silent)  # what it warns of is told by who reads them next
    try:
        credentials.Credentials.load(folder, driver_name, revoked=listed)
    finally:
        log.removeHandler(silent)


def check_files(paths: Sequence[Path], overrides: Sequence[str] | None = ()) -> None:
    """Refuse one run file, or several party files, as the two above do.

    Raises:
        ConfigError: in the words that the settings have for it.
    """
    if _is_late():
        return
    if len(paths) == 1 and "party" not in read_run(paths[0]):
        check_run(paths[0], overrides)
    else:
        for path in paths:
            check_party(path)


def check_models(texts: Sequence[str]) -> None:
    """Refuse PATH, or NAME=PATH, of a model where there is nothing.

    Raises:
        ModelError: in the words of who reads one.
    """
    for text in texts:
        path = Path(text.partition("=")[2] or text)
        if not path.exists():
            raise ModelError(
                f"{path} is no model folder: model.json is missing; a run keeps its models in "
                "RUN/models/PARTY"
            )


def check_runs(paths: Sequence[Path]) -> None:
    """Refuse a run's folder that is not there.

    Raises:
        ConfigError: in the words that the report has for it.
    """
    for path in paths:
        if not path.is_dir():
            raise ConfigError(
                f"there is no folder {path.resolve()}; name a run folder, such as out/demo"
            )


def check_record(path: Path) -> None:
    """Refuse a run's record that is not there, or is no JSON.

    Raises:
        ConfigError: in the words of who reads one.
    """
    try:
        json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ConfigError(
            f"{path} is no record of a run; a run's is record.json in its folder"
        ) from None


def check_ledger(path: Path) -> None:
    """Refuse a ledger that is not there, or whose first line is none of one.

    Raises:
        NetworkError: in the words of who verifies one.
    """
    try:
        with path.open("rb") as file:
            beginning = file.read(2)
    except OSError as error:
        raise NetworkError(f"{path}: cannot be read ({error.strerror})") from None
    if beginning[:1] not in (b"{", b""):
        raise NetworkError(f"{path}: this is no ledger of a party: its first line is none of one")


def _check_method(name: Any, *, where: str) -> None:
    if not isinstance(name, str) or entry_points(group=_GROUP):
        return
    known = _known()["methods"]
    if name not in known:
        raise ConfigError(
            f"{where}: method: input should be {', '.join(map(repr, known[:-1]))} or "
            f"{known[-1]!r}, got {name!r}{did_you_mean(name, known)}"
        )


def check_table(table: str | None, folder: Path) -> None:
    """Refuse a table's file that is not there, neither here nor in the folder of the files.

    Raises:
        DataError: naming it.
    """
    if table is None or not _is_file_name(table):
        return
    if not Path(table).is_file() and not (folder / table).is_file():
        raise DataError(f"there is no file {table}; check the path")


def _is_file_name(table: str) -> bool:
    """Whether it is surely that of a file, and no SELECT and no database's URL."""
    is_file = table.endswith((".csv", ".parquet")) and "://" not in table
    return is_file and len(table.split()) == 1


def _check_table(party: Any, file: Path) -> None:
    """Refuse a table that is not there, is empty, lacks a column that is named or repeats ids."""
    if not isinstance(party, Mapping):
        return
    name, table = party.get("name"), party.get("table")
    if not isinstance(name, str) or not isinstance(table, str) or not _is_file_name(table):
        return
    path = file.parent / table
    if not path.is_file():
        raise DataError(f"party {name!r}: there is no file {path}; check the path")
    if not path.stat().st_size:
        raise DataError(
            f"party {name!r}: {path} is empty; give a table with column names and at least one row"
        )
    given = party.get("id")
    ids = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    named = [each for each in (*ids, party.get("label")) if isinstance(each, str)]
    columns, one = (_of_csv if table.endswith(".csv") else _of_parquet)(path)
    header = [each.lower() for each in columns]
    for column in named if columns else ():
        if column.lower() not in header:
            close = difflib.get_close_matches(column, columns, n=1)
            there = f"{columns[:20]}{' and more' if len(columns) > 20 else ''}"
            hint = f"did you mean {close[0]!r}?" if close else f"there are {there}"
            raise DataError(f"party {name!r}: no column {column!r} in {path}; {hint}")
    if columns and len(ids) == 1 and ids == named[:1]:
        num_ids, num_different = one(header.index(ids[0].lower()))
        if num_different < num_ids:
            raise DataError(
                f"party {name!r}: column {ids[0]!r} of {path}: {num_ids - num_different} of "
                f"{num_ids} ids are repeated; each row must be one sample"
            )


#: Of a table: its columns, and a column's place -> how many values it has, and how many different
#: ones; no columns, and no values, where that is not certain here.
_Looked = tuple[list[str], Callable[[int], tuple[int, int]]]


def _of_csv(path: Path) -> _Looked:
    with path.open("rb") as rows:
        line = rows.readline(_MAX_LINE_BYTES)
    try:
        columns = line.decode("utf-8").rstrip("\r\n").split(",")
    except UnicodeDecodeError:
        columns = []
    if not line.endswith(b"\n") or len(columns) < 2 or not all(map(_is_plain, columns)):
        return [], lambda _: (0, 0)  # quoted, or of another delimiter

    def count(column: int) -> tuple[int, int]:
        if path.stat().st_size > _MAX_BYTES:
            return 0, 0
        with path.open(encoding="utf-8", newline="") as rows:
            try:
                lines = [line for line in csv.reader(rows, strict=True) if line][1:]
            except (csv.Error, UnicodeDecodeError):
                return 0, 0
        if any(len(line) != len(columns) for line in lines):
            return 0, 0
        ids = [line[column] for line in lines]
        if not (all(map(_NUMBER.fullmatch, ids)) or all(map(_CODE.fullmatch, ids))):
            return 0, 0  # the same in other digits, or what stands for nothing
        return len(ids), len(set(ids))

    return columns, count


def _of_parquet(path: Path) -> _Looked:
    import duckdb

    database = duckdb.connect(config={"threads": 1})
    try:
        query = "DESCRIBE SELECT * FROM read_parquet($1)"
        described = database.execute(query, [str(path)]).fetchall()
    except duckdb.Error:
        return [], lambda _: (0, 0)
    columns, types, *_ = map(list, zip(*described, strict=True))

    def count(column_index: int) -> tuple[int, int]:
        column = columns[column_index].replace('"', '""')
        query = f'SELECT "{column}" FROM read_parquet($1) LIMIT {_MAX_ROWS + 1}'
        ids = [each for (each,) in database.execute(query, [str(path)]).fetchall()]
        text = types[column_index] == "VARCHAR"
        if None in ids or len(ids) > _MAX_ROWS or not (text or types[column_index] in _WHOLE):
            return 0, 0
        if text and not all(map(_CODE.fullmatch, ids)):
            return 0, 0
        return len(ids), len(set(ids))

    return columns, count


#: The longest first line of a .csv file that is looked at here, and the largest tables.
_MAX_LINE_BYTES = 2**16
_MAX_BYTES, _MAX_ROWS = 2**22, 200_000

#: Ids that are the same only where their texts are: numbers, and words with a digit in them.
_NUMBER = re.compile(r"[1-9][0-9]{0,14}|0")
_CODE = re.compile(r"[A-Za-z][A-Za-z_.-]*[0-9][\w.-]*", re.ASCII)
_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")


def _is_plain(column: str) -> bool:
    return bool(column) and column == column.strip() and not set(column) & set(";|\t\"'")


def _known() -> dict[str, Any]:
    text = resources.files("dovetail.cli").joinpath("keys.json").read_text(encoding="utf-8")
    known: dict[str, Any] = json.loads(text)
    return known


def _is_late() -> bool:
    """Whether the libraries are here already, maybe with methods that keys.json does not know."""
    return "dovetail.methods" in sys.modules


def _check(values: Mapping[str, Any], kind: Literal["run", "party"], *, where: str) -> None:
    unknown = list(_unknown(values, _known()[kind], ()))
    if not unknown:
        return
    path, known = max(unknown, key=lambda each: len(each[0]))  # the deepest was meant most
    if len(path) == 1 and entry_points(group=_GROUP):
        return
    raise ConfigError(f"{where}: {unknown_key('.'.join(path), known)}")


def _unknown(
    values: Mapping[str, Any], known: Keys, above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Sequence[str]]]:
    """The keys that are not known, each with those that are there."""
    for key, value in values.items():
        below = known.get(key)
        if key not in known:
            yield (*above, key), list(known)
        elif below is not None and isinstance(value, Mapping):
            yield from _unknown(value, below, (*above, key))
