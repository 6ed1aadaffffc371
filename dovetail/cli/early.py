"""A user's mistakes that can be told before libraries are read: no such file, an unknown key.

What a file may say in full only the methods' settings know, whose libraries take seconds to read.
The names of their keys stand in keys.json too (a test holds it to them, and writes it), so that a
wrong one is told at once. Whatever is not certain here is left to them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

from dovetail.errors import ConfigError
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
    _check(read_run(path), "run", where=str(path))
    for text in overrides or ():
        _check(override(text), "run", where=str(path))


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


def _is_late() -> bool:
    """Whether the libraries are here already, maybe with methods that keys.json does not know."""
    return "dovetail.methods" in sys.modules


def _check(values: Mapping[str, Any], kind: Literal["run", "party"], *, where: str) -> None:
    text = resources.files("dovetail.cli").joinpath("keys.json").read_text(encoding="utf-8")
    unknown = list(_unknown(values, json.loads(text)[kind], ()))
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
