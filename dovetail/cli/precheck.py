"""A user's mistakes that are reported before libraries are read: settings, files that are not
there.

What files say is read by the settings themselves, which import no torch. Reported are files and
folders that are not there, a column that a .csv table does not have, ids that come twice in one of
moderate size, and addresses and certificates that do not fit. Whatever is not certain here is left
to who reads it next.
"""

from __future__ import annotations

import csv
import difflib
import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.errors import ConfigError, DataError, ModelError, NetworkError
from dovetail.files import read_run
from dovetail.settings.mending import repeated_text

if TYPE_CHECKING:
    from dovetail.node.partysections import PartyFile


def check_run(path: Path, overrides: Sequence[str] | None = ()) -> None:
    """Refuse a run file, or FILE:CELL, whose settings do not fit, and party files that it names.

    Raises:
        ConfigError: naming the file and the key.
        DataError: a party's table that is not there, or will not do.
    """
    from dovetail.runs.runfile import read_settings

    run = read_settings(path, overrides=tuple(overrides or ()))
    if not run.engine.job:  # in a job, each party's file stays at its site
        for file in run.parties or ():
            check_party(Path(file))


def check_run_or_folder(run: Path, overrides: Sequence[str] | None) -> None:
    """Refuse a run file as ``check_run`` does; a run's folder holds what was checked."""
    if not run.is_dir():
        check_run(run, overrides)


def check_party(path: Path, *, table: bool = True) -> PartyFile:
    """A party file; refuses one whose settings do not fit, or whose table will not do.

    Raises:
        ConfigError: naming the file and the key.
        DataError: naming the party and the table.
    """
    from dovetail.node.partysections import read_party_file
    from dovetail.settings.labels import label_columns

    file = read_party_file(path)
    party = file.party
    if table and _is_file_name(party.table):
        ids = (party.id,) if isinstance(party.id, str) else party.id
        label = () if party.label is None else label_columns(party.label)
        _check_table(f"party {party.name!r}", path.parent / party.table, ids, label)
    return file


def check_certificates(party: Path, file: PartyFile, certificates: Path | None) -> None:
    """Refuse a party's certificates that do not fit.

    Raises:
        ConfigError, NetworkError: in the words of who goes online.
    """
    from dovetail.network import credentials

    folder = certificates or credentials.certificates_beside(party, file.party.name)
    listed = None if file.party.revoked is None else party.parent / file.party.revoked
    log, silent = logging.getLogger(credentials.__name__), logging.NullHandler()
    log.addHandler(silent)  # what it warns of is told by who reads them next
    try:
        credentials.Credentials.load(folder, file.party.name, revoked=listed)
    finally:
        log.removeHandler(silent)


def check_files(
    paths: Sequence[Path], overrides: Sequence[str] | None = (), *, tables: bool = True
) -> None:
    """Refuse one run file, or several party files, as the two above do; or their files alone."""
    if len(paths) == 1 and "party" not in read_run(paths[0]):
        check_run(paths[0], overrides)
    else:
        for path in paths:
            check_party(path, table=tables)


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
    """Refuse a run's record that is not there, or is not JSON.

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


def _check_table(party: str, path: Path, ids: Sequence[str], others: Sequence[str]) -> None:
    """Refuse a table that is not there, is empty, lacks a column that is named or repeats ids."""
    if path.is_dir():
        raise DataError(
            f"{party}: {path} is a folder, and a {path.suffix} file is expected; name a file in "
            f"it, or all by table = \"SELECT * FROM '{path.name}/*{path.suffix}'\""
        )
    if not path.is_file():
        raise DataError(f"{party}: there is no file {path}; check the path")
    if not path.stat().st_size:
        raise DataError(
            f"{party}: {path} is empty; give a table with column names and at least one row"
        )
    columns = _plain_header(path) if path.suffix == ".csv" else []
    header = [each.lower() for each in columns]
    for column in (*ids, *others) if columns else ():
        if column.lower() not in header:
            close = difflib.get_close_matches(column, columns, n=1)
            there = f"{columns[:20]}{' and more' if len(columns) > 20 else ''}"
            hint = f"did you mean {close[0]!r}?" if close else f"there are {there}"
            raise DataError(f"{party}: no column {column!r} in {path}; {hint}")
    if not columns or len(ids) != 1 or path.stat().st_size > _MAX_BYTES:
        return
    values = _plain_values(path, header.index(ids[0].lower()), len(columns))
    if repeated := repeated_text(values, str(path), ids):
        raise DataError(f"{party}: column {ids[0]!r} of {path}: {repeated}")


#: The longest first line of a .csv file that is looked at here, and the largest file.
_MAX_LINE_BYTES, _MAX_BYTES = 2**16, 2**22

#: Ids that are the same only where their texts are: numbers, and words with a digit in them.
_NUMBER = re.compile(r"[1-9][0-9]{0,14}|0")
_CODE = re.compile(r"[A-Za-z][A-Za-z_.-]*[0-9][\w.-]*", re.ASCII)


def _plain_header(path: Path) -> list[str]:
    """The columns of a .csv file; [] where they are quoted, or of another delimiter."""
    with path.open("rb") as rows:
        line = rows.readline(_MAX_LINE_BYTES).decode("utf-8", "replace")
    columns = line.rstrip("\r\n").split(",")
    plain = all(
        each and each == each.strip() and not set(each) & set(";|\t\"'") for each in columns
    )
    return columns if plain and len(columns) > 1 and line.endswith("\n") else []


def _plain_values(path: Path, column: int, num_columns: int) -> list[str]:
    """A column of a .csv file; [] where two of its values may be one in other digits or words."""
    with path.open(encoding="utf-8", newline="") as rows:
        try:
            lines = [line for line in csv.reader(rows, strict=True) if line][1:]
        except (csv.Error, UnicodeDecodeError):
            return []
    if any(len(line) != num_columns for line in lines):
        return []
    values = [line[column] for line in lines]
    plain = all(map(_NUMBER.fullmatch, values)) or all(map(_CODE.fullmatch, values))
    return values if plain else []
