"""The files that a user writes, as tables: TOML, and grids of run files.

Imports nothing that takes time, so that what is wrong with a file is reported at once. A grid file
has the run files of a paper's table in one; each cell is a run file.

    [[grid]]                          # cells are called DATA-METHOD: mnist-alone, mnist-apfed-c
    data = ["mnist"]
    method = ["alone", "apfed-c"]

    [cells."*-alone"]                 # what these cells say; later tables are laid over earlier
    method = "alone"

All other keys are every cell's. ``FILE:CELL`` names a cell wherever a run file is asked for.
"""

from __future__ import annotations

import difflib
import errno
import hashlib
import os
import tomllib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError

#: How the names of tables end.
TABLES = (".csv", ".tsv", ".parquet", ".gz", ".xlsx", ".npz")


def not_written(error: OSError, path: Path) -> str:
    """Why the file is not written; of a full disk, which one and what to do."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error.strerror or str(error)
    disk = next(each for each in (path.resolve(), *path.resolve().parents) if each.is_mount())
    return f"no space left on the disk at {disk}; free some of it and run the command again"


def closed(path: Path, folders: Sequence[Path], *, written: bool = True) -> str:
    """Why what a run file or party file names is not opened; "" where it is opened.

    The rule is that what is opened can be read in the file: what lies in its folder or in one that
    it names, and what it names in full, wherever that lies. A link's end is not written there.

    Args:
        path: as it is opened from here.
        folders: that of the file, and those that it names.
        written: whether the file has this very path, rather than what a pattern or function made.
    """
    real, roots = Path(os.path.realpath(path)), [os.path.realpath(each) for each in folders]
    within = [real.relative_to(each) for each in roots if real.is_relative_to(each)]
    if any(not any(part.endswith(".site") for part in each.parts) for each in within):
        return ""
    shown = ", ".join(map(str, folders))
    if within:
        return f"{path} is in a party's site folder, which has keys and states; move it out of it"
    for each in (path, *path.parents):
        parent = Path(os.path.realpath(each.parent))
        if each.is_symlink() and any(parent.is_relative_to(root) for root in roots):
            return (
                f"{path} is a link to {real}, which is not in {shown}; name that file itself, or "
                "its folder in folders = [...], if you mean it to be read"
            )
    if written:
        return ""
    return (
        f"{path} is not in {shown}, and elsewhere a file opens only what it names in full: write "
        "the whole path, or its folder in folders = [...], if you mean it to be read"
    )


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        ConfigError: no such file, or no TOML.
    """
    if path.suffix.lower() in TABLES and path.is_file():
        raise ConfigError(
            f"{path} is a table, and a run file or party file is expected; "
            f"dovetail init --table {path} writes both"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}") from None
    except IsADirectoryError:
        inside = path / "run.toml"
        hint = f"did you mean {inside}?" if inside.is_file() else "name a file in it"
        raise ConfigError(
            f"{path} is a folder, and a run file or party file is expected; {hint}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error})") from None
    return toml_tables(text, where=str(path))


def toml_tables(text: str, *, where: str) -> dict[str, Any]:
    """The tables of a TOML text.

    Raises:
        ConfigError: no TOML.
    """
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        hint = "; text needs quotes" if "Invalid value" in str(error) else ""
        raise ConfigError(f"{where} is not valid TOML: {error}{hint}") from None


def unknown_key(path: str, known: Sequence[str]) -> str:
    """Text about a key that does not exist.

    >>> unknown_key("apfed.heda", ["encoder", "head"])
    "unknown key 'apfed.heda'; did you mean 'head'?"
    """
    near = _nearest(path.rpartition(".")[2], known, cutoff=0.5)
    hint = f"did you mean {near!r}?" if near else f"known keys: {', '.join(known)}"
    return f"unknown key {path!r}; {hint}"


def did_you_mean(word: object, known: Collection[str]) -> str:
    """The end of a sentence that refuses a word: the known one closest to it, if any is close.

    >>> did_you_mean("alnoe", ["alone", "tvfl"]), did_you_mean("mse", ["alone"])
    ("; did you mean 'alone'?", '')
    """
    near = _nearest(str(word).lower(), known, cutoff=0.6)
    return f"; did you mean {near!r}?" if near and near != word else ""


def _nearest(word: str, known: Collection[str], *, cutoff: float) -> str | None:
    """The known word closest to it, of close ones that with the same letters in another order."""
    near = difflib.get_close_matches(word, known, n=3, cutoff=cutoff)
    return min(near, key=lambda each: sorted(each) != sorted(word), default=None)


def override(text: str) -> dict[str, Any]:
    """``a.b=value`` as nested tables; the value is TOML, or else a string.

    >>> override("apfed.epochs=5")
    {'apfed': {'epochs': 5}}

    Raises:
        ConfigError: it has no key.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set takes key=value, for example apfed.epochs=5; got {text!r}")
    try:
        nested: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        nested = value.strip()
    for part in reversed(key.strip().split(".")):
        nested = {part: nested}
    return dict(nested)


# --- Grids ----------------------------------------------------------------------------------------


def split_cell(path: Path) -> tuple[Path, str]:
    """The file and the cell that a path names; "" for a file as a whole.

    >>> split_cell(Path("runs/apfed/table2.toml:mnist-2-1-alone"))
    (PosixPath('runs/apfed/table2.toml'), 'mnist-2-1-alone')
    """
    name, colon, cell = path.name.rpartition(":")
    if not colon or not name or path.exists():
        return path, ""
    return path.with_name(name), cell


def run_name(path: Path) -> str:
    """Name of a run: its cell, or its file without the ending."""
    file, cell = split_cell(path)
    return cell or file.stem


def run_folder(path: Path, recipe: str | None = None) -> Path:
    """Where a run goes, if nobody says where."""
    return Path("out") / (run_name(path) + (f"-{recipe}" if recipe else ""))


def taught(model: Path, data: Path) -> bool:
    """Whether the run of a model's folder says that this file taught it."""
    with data.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    for run in (parent / "run.toml" for parent in [model, *model.parents][:4]):
        with suppress(ConfigError):  # no run's own file, which has no mistake
            if run.exists() and digest in read_run(run).get("sha256", {}).values():
                return True
    return False


def read_run(path: Path) -> dict[str, Any]:
    """The tables of a run file, or of one cell of a grid file.

    Raises:
        ConfigError: no such file or cell, no TOML, or a grid without a cell named.
    """
    file, cell = split_cell(path)
    values = read_toml(file)
    grid, patterns = values.pop("grid", None), values.pop("cells", {})
    if grid is None:
        if cell:
            raise ConfigError(f"{file} is no grid: it has no cell {cell!r}; name the file alone")
        if patterns:
            raise ConfigError(f"{file} has [cells] without the [[grid]] that says which there are")
        return values
    names = cells(grid, where=str(file))
    _check_patterns(patterns, names, where=str(file))
    if not cell:
        raise ConfigError(
            f"{file} is a grid of {len(names)} cells; name one, as in {file}:{names[0]}. "
            + _cells_text(grid)
        )
    if cell not in names:
        raise ConfigError(
            f"{file} has no cell {cell!r}{did_you_mean(cell, names)} {_cells_text(grid)}"
        )
    for pattern, change in patterns.items():
        if fnmatchcase(cell, pattern):
            values = merge(values, change)
    return values


def check_is_run(values: Mapping[str, Any], path: Path) -> None:
    """Refuse a party file where a run file is expected.

    Raises:
        ConfigError: saying what a run file needs.
    """
    if "party" in values and "method" not in values:
        raise ConfigError(
            f"{path} is a party file, and a run file is expected: one that has method = ... and "
            f'parties = ["{path.name}", ...]'
        )


def grid_cells(file: Path) -> list[str]:
    """The names of a grid file's cells; none where the file is a run file.

    Raises:
        ConfigError: no such file, no TOML, or no grid.
    """
    grid = read_toml(file).get("grid")
    return [] if grid is None else cells(grid, where=str(file))


def cells(grid: Any, *, where: str) -> list[str]:
    """The names of a grid's cells: every combination of its axes' values.

    >>> cells([{"data": ["mnist"], "views": [2, 3]}, {"data": ["adult"]}], where="")
    ['mnist-2', 'mnist-3', 'adult']

    Raises:
        ConfigError: it is not made of axes, or has a name twice.
    """
    axes = isinstance(grid, list) and all(isinstance(part, dict) and part for part in grid)
    if not axes or not grid or not all(_is_axis(axis) for part in grid for axis in part.values()):
        raise ConfigError(
            f"{where}: each [[grid]] takes axes with names of cells, such as "
            'data = ["mnist", "adult"]'
        )
    names = ["-".join(map(str, each)) for part in grid for each in product(*part.values())]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{where}: [[grid]] has the cell {twice[0]!r} twice")
    return names


def _is_axis(values: Any) -> bool:
    return (
        isinstance(values, list) and bool(values) and all(isinstance(v, str | int) for v in values)
    )


def _check_patterns(patterns: Any, names: Sequence[str], *, where: str) -> None:
    if not isinstance(patterns, dict):
        raise ConfigError(f'{where}: cells is to have tables, such as [cells."mnist-*"]')
    for pattern, change in patterns.items():
        if not isinstance(change, dict):
            raise ConfigError(f"{where}: cells.{pattern!r} is to be a table of keys")
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"{where}: [cells.{pattern!r}] matches no cell, such as {names[0]!r}")


def _cells_text(grid: Sequence[Mapping[str, Sequence[object]]]) -> str:
    """The cells in words: their axes, not all of their names."""
    parts = []
    for part in grid:
        axes = "; ".join(f"{name} {', '.join(map(str, axis))}" for name, axis in part.items())
        parts.append(f"{'-'.join(name.upper() for name in part)} with {axes}")
    return f"Its cells: {'. Or '.join(parts)}"


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the tables of ``change`` laid over it."""
    merged = dict(base)
    for key, value in change.items():
        inner = merged.get(key)
        if isinstance(value, Mapping) and isinstance(inner, Mapping):
            value = merge(inner, value)
        merged[key] = value
    return merged
