"""The cells of a table, their run files, and what there is of each below the folder of runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from filelock import FileLock, Timeout

from benchmarks.tables.cells import Cell, Run, Table, differing, local_settings, read_run
from benchmarks.tables.child import tail_lines
from benchmarks.tables.registry import TABLES
from benchmarks.tables.schedule import Times
from dovetail import methods
from dovetail.errors import ConfigError, DovetailError
from dovetail.files import read_toml, split_cell
from dovetail.runs.runfile import RunFile, check_run, load_run, resolved


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says of how to run cells."""

    out: Path
    runs: Path | None = None
    recipe: str | None = None
    overrides: tuple[str, ...] = ()
    num_seeds: int | None = None
    device: str | None = None
    jobs: int | None = None
    threads: int | None = None
    budget_minutes: float | None = None
    ray: str | None = None


@dataclass
class CellFolder:
    """A cell, its run file, and what there is of it.

    Attributes:
        wanted: the seeds to run; empty where the cell is not among those chosen.
        settings: of every seed that is wanted or there.
        done: seed -> its run.
        part: seed -> seconds of training that a checkpoint has which it can go on from.
        other: seed -> keys in which what is there is of other settings.
    """

    cell: Cell
    path: Path
    folder: Path
    run: RunFile
    extra: tuple[str, ...]
    wanted: tuple[int, ...]
    done: dict[int, Run] = field(default_factory=dict)
    part: dict[int, float] = field(default_factory=dict)
    other: dict[int, list[str]] = field(default_factory=dict)

    def seed_folder(self, seed: int) -> Path:
        return self.folder / f"seed-{seed}"


def table_of(name: str) -> Table:
    try:
        return TABLES[name]
    except KeyError:
        raise ConfigError(f"there is no table {name!r}; there are {', '.join(TABLES)}") from None


def chosen_cells(table: Table, only: Sequence[str]) -> list[Cell]:
    """The cells whose name matches one of the patterns; all where there is none."""
    patterns = [part for text in only for part in text.split(",") if part]
    for pattern in patterns:
        if not any(fnmatchcase(cell.name, pattern) for cell in table.cells):
            raise ConfigError(
                f"--only {pattern!r} matches no cell of {table.name}; its cells are "
                f"{table.cells[0].name!r} and so on: dovetail bench {table.name} --status"
            )
    return [
        cell
        for cell in table.cells
        if not patterns or any(fnmatchcase(cell.name, pattern) for pattern in patterns)
    ]


def runs_folder(given: Path | None, cells: Sequence[Cell]) -> Path:
    """Where the run files of these cells are: the folder given, or ./runs, or what Dovetail brings.

    Raises:
        ConfigError: in none of the places.
    """
    shipped = Path(__file__).parents[2] / "runs"
    folders = [given] if given is not None else [Path("runs"), shipped]
    for folder in folders:
        if all(_is_there(folder / cell.run) for cell in cells):
            return folder
    lacking = next(cell.run for cell in cells if not _is_there(folders[-1] / cell.run))
    raise ConfigError(
        f"there is no run file {lacking} in {', '.join(str(folder) for folder in folders)}; name "
        "the "
        "runs folder of Dovetail's repository with --runs"
    )


def _is_there(path: Path) -> bool:
    """Whether there is the run file, or the grid file of this cell."""
    return split_cell(path)[0].is_file()


def cell_folders_of(
    table: Table, chosen: Sequence[Cell], runs: Path, options: Options
) -> dict[str, CellFolder]:
    """Cell -> what there is of it; of all cells, so that the table has all that was run before."""
    names = {cell.name for cell in chosen}
    cell_folders = {}
    for cell in table.cells:
        if cell.unavailable or not _is_there(runs / cell.run):
            continue
        try:
            cell_folders[cell.name] = _cell_folder(
                cell, runs / cell.run, options, wanted=cell.name in names
            )
        except ConfigError:
            if cell.name in names:
                raise
    return cell_folders


def _cell_folder(cell: Cell, path: Path, options: Options, *, wanted: bool) -> CellFolder:
    extra = (*cell.overrides, *options.overrides)
    if options.device is not None:
        extra = (*extra, f'device="{options.device}"')
    run = load_run(path, recipe=options.recipe, overrides=extra)
    asked = any(text.replace(" ", "").startswith("checkpoint_every=") for text in extra)
    if run.checkpoint_every == 0 and cell.checkpoint_every is not None and not asked:
        extra = (*extra, f"checkpoint_every={cell.checkpoint_every}")
        run = run.model_copy(update={"checkpoint_every": cell.checkpoint_every})
    folder = cell.folder(options.out, options.recipe)
    cell_folder = CellFolder(cell, path, folder, run, extra, _seeds(run, options) if wanted else ())
    there = {int(each.name[5:]) for each in folder.glob("seed-*") if each.name[5:].isdecimal()}
    for seed in sorted(there | {*cell_folder.wanted}):
        _look(cell_folder, seed)
    return cell_folder


def _seeds(run: RunFile, options: Options) -> tuple[int, ...]:
    """The first so many seeds of the run file, and others after them where it has fewer."""
    seeds = run.all_seeds()
    number = len(seeds) if options.num_seeds is None else options.num_seeds
    more = range(max(seeds) + 1, max(seeds) + 1 + max(0, number - len(seeds)))
    return (*seeds, *more)[:number]


def _look(cell_folder: CellFolder, seed: int) -> None:
    """Note whether this seed is done, in part, or of other settings."""
    folder = cell_folder.seed_folder(seed)
    if not (folder / "run.toml").exists():
        return
    section = next(
        name
        for name, method in methods.every().items()
        if method is methods.method_of(cell_folder.run.method)
    )
    wanted = resolved(cell_folder.run, seed)
    written = kept = read_toml(folder / "run.toml")
    try:  # through today's defaults: keys may have been added since
        settings = local_settings(written, section)
        kept = resolved(check_run(settings, where=str(folder / "run.toml")), seed)
    except DovetailError:  # keys that are gone, or that a run file may not have
        pass
    unlike = differing(kept, wanted, section)
    if unlike:
        cell_folder.other[seed] = unlike
    elif (folder / "result.json").exists():
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        cell_folder.done[seed] = read_run(cell_folder.cell, seed, folder, result)
    elif (folder / "checkpoint").exists() and written == wanted:
        cell_folder.part[seed] = sum(line.get("seconds", 0.0) for line in tail_lines(folder))


def refuse_other_settings(cell_folders: Mapping[str, CellFolder]) -> None:
    for cell_folder in cell_folders.values():
        for seed in cell_folder.wanted:
            if seed in cell_folder.other:
                raise ConfigError(
                    f"{cell_folder.seed_folder(seed)} holds a run of other settings (differs in "
                    f"{', '.join(cell_folder.other[seed])}); name another folder with --out, or "
                    "remove it"
                )


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """One bench at a time in a folder: two would write the same runs."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write the folder {out}: {error.strerror}") from None
    lock = FileLock(out / ".lock")
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(
            f"another dovetail bench works in {out}; wait for it, or name another folder with "
            "--out (several runs at once: --jobs)"
        ) from None
    with held:
        yield


def times_of(cell_folders: Mapping[str, CellFolder]) -> Times:
    """How long the runs that are there took."""
    times = Times()
    for cell_folder in cell_folders.values():
        for run in cell_folder.done.values():
            times.add(cell_folder.cell, run.seconds)
    return times
