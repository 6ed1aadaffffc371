"""A user's mistakes that can be told before libraries are read: no such file, an unknown key.

What a file may say in full only the methods' settings know, whose libraries take seconds to read.
The names of their keys, and of the methods, stand in keys.json too (a test holds it to them, and
writes it), so that a wrong one is told at once; so are files and folders that are not there, and a
column that the first line of a .csv file does not have. Whatever is not certain here is left to
them.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

from dovetail.errors import ConfigError, DataError, ModelError, NetworkError
from dovetail.files import override, read_run, read_toml, unknown_key

#: Key -> the keys below it; None where that is not for this file to say.
Keys = Mapping[str, "Keys | None"]

#: Who has a method of one's own has keys of one's own; see ``methods/own.py``.
_GROUP = "dovetail.methods"


def check_run(path: Path, overrides: Sequence[str] | None = ()) -> None:
    """Refuse a run file, or FILE:CELL, that is not there or has an unknown key.

    Raises:
        ConfigError: in the words that the settings have for it.
    """
    if _is_late():
        return
    values = read_run(path)
    _check(values, "run", where=str(path))
    for text in overrides or ():
        _check(override(text), "run", where=str(path))
    if overrides:  # they may say another method, or other parties
        return
    _check_method(values.get("method"), where=str(path))
    parties = values.get("parties")
    for file in parties if isinstance(parties, list) else ():
        check_party((path.parent / str(file)).resolve())


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
            f"{known[-1]!r}, got {name!r}"
        )


def _check_table(party: Any, file: Path) -> None:
    """Refuse a table that is not there or empty, or a .csv without a column that is named."""
    if not isinstance(party, Mapping):
        return
    name, table = party.get("name"), party.get("table")
    if not isinstance(name, str) or not isinstance(table, str) or not table.endswith(".csv"):
        return
    if len(table.split()) > 1 or "://" in table:  # a SELECT, or a database's URL
        return
    path = file.parent / table
    if not path.is_file():
        raise DataError(f"party {name!r}: there is no file {path}; check the path")
    if not path.stat().st_size:
        raise DataError(
            f"party {name!r}: {path} is empty; give a table with column names and at least one row"
        )
    with path.open("rb") as rows:
        line = rows.readline(_MAX_LINE_BYTES)
    try:
        header = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        return
    columns = header.split(",")
    if not line.endswith(b"\n") or len(columns) < 2 or not all(map(_is_plain, columns)):
        return  # quoted, or of another delimiter
    given = party.get("id")
    ids = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    for column in (*ids, party.get("label")):
        if isinstance(column, str) and column.lower() not in header.lower():
            close = difflib.get_close_matches(column, columns, n=1)
            there = f"{columns[:20]}{' and more' if len(columns) > 20 else ''}"
            hint = f"did you mean {close[0]!r}?" if close else f"there are {there}"
            raise DataError(f"party {name!r}: no column {column!r} in {path}; {hint}")


#: The longest first line of a .csv file that is looked at here.
_MAX_LINE_BYTES = 2**16


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
