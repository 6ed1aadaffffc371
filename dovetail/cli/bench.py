"""``dovetail bench``: a paper's table, cell by cell, beside the paper's figures."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.table import Table as Grid

from dovetail import bench, methods
from dovetail.cli.benchrun import BenchProgress, Child, tail_lines
from dovetail.cli.output import console
from dovetail.errors import ConfigError, DovetailError
from dovetail.experiment import summarise, write_text
from dovetail.experiment.grid import split_cell
from dovetail.experiment.runfile import RunFile, check_run, load_run, resolved
from dovetail.methods.validation import read_toml


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says of how to run cells."""

    out: Path
    runs: Path | None = None
    recipe: str | None = None
    overrides: tuple[str, ...] = ()
    num_seeds: int | None = None
    device: str | None = None
    jobs: int = 1
    threads: int | None = None
    budget_minutes: float | None = None


@dataclass
class Place:
    """A cell, its run file, and what there is of it.

    Attributes:
        wanted: the seeds to run; empty where the cell is not among those chosen.
        settings: of every seed that is wanted or there.
        done: seed -> its run.
        part: seed -> seconds of training that a checkpoint has which it can go on from.
        other: seed -> keys in which what is there is of other settings.
    """

    cell: bench.Cell
    path: Path
    folder: Path
    run: RunFile
    extra: tuple[str, ...]
    wanted: tuple[int, ...]
    done: dict[int, bench.Run] = field(default_factory=dict)
    part: dict[int, float] = field(default_factory=dict)
    other: dict[int, list[str]] = field(default_factory=dict)

    def seed_folder(self, seed: int) -> Path:
        return self.folder / f"seed-{seed}"


def run_bench(
    name: str | None,
    options: Options,
    *,
    only: Sequence[str],
    show: bool,
    into: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run what is missing and fits, write the table; or list tables, or a table's cells."""
    if name is None:
        _overview(options, as_json=as_json)
        return
    table = _table(name)
    chosen = _chosen(table, only)
    runs = runs_folder(options.runs, [cell for cell in chosen if cell.run])
    if show:
        _list(table, _places(table, chosen, runs, options), chosen, as_json=as_json)
        return
    with _locked(options.out):
        places = _places(table, chosen, runs, options)
        _refuse_other_settings(places)
        session = _Session(table, chosen, places, options, quiet=quiet or as_json)
        stopped = False
        try:
            session.work()
        except KeyboardInterrupt:
            stopped = True
        session.write()
        if into is not None:
            session.put_into(into)
    if as_json:
        print(json.dumps(session.told(), indent=2, ensure_ascii=False))
    elif not quiet:
        session.show()
    if stopped:
        raise KeyboardInterrupt
    if session.failed:
        sys.exit(1)


def _table(name: str) -> bench.Table:
    try:
        return bench.TABLES[name]
    except KeyError:
        raise ConfigError(
            f"there is no table {name!r}; there are {', '.join(bench.TABLES)}"
        ) from None


def _chosen(table: bench.Table, only: Sequence[str]) -> list[bench.Cell]:
    """The cells whose name matches one of the patterns; all where there is none."""
    patterns = [part for text in only for part in text.split(",") if part]
    for pattern in patterns:
        if not any(fnmatchcase(cell.name, pattern) for cell in table.cells):
            raise ConfigError(
                f"--only {pattern!r} matches no cell of {table.name}; its cells are "
                f"{table.cells[0].name!r} and so on: dovetail bench {table.name} --list"
            )
    return [
        cell
        for cell in table.cells
        if not patterns or any(fnmatchcase(cell.name, pattern) for pattern in patterns)
    ]


def runs_folder(given: Path | None, cells: Sequence[bench.Cell]) -> Path:
    """Where the run files of these cells are: the folder given, or ./runs, or what Dovetail brings.

    Raises:
        ConfigError: in none of the places.
    """
    package = Path(__file__).parents[1]
    places = (
        [given] if given is not None else [Path("runs"), package / "runs", package.parent / "runs"]
    )
    for place in places:
        if all(is_there(place / cell.run) for cell in cells):
            return place
    lacking = next(cell.run for cell in cells if not is_there(places[-1] / cell.run))
    raise ConfigError(
        f"there is no run file {lacking} in {', '.join(str(place) for place in places)}; name the "
        "runs folder of Dovetail's repository with --runs"
    )


def is_there(path: Path) -> bool:
    """Whether there is the run file, or the grid file of this cell."""
    return split_cell(path)[0].is_file()


def _places(
    table: bench.Table, chosen: Sequence[bench.Cell], runs: Path, options: Options
) -> dict[str, Place]:
    """Cell -> what there is of it; of all cells, so that the table has all that was run before."""
    names = {cell.name for cell in chosen}
    places = {}
    for cell in table.cells:
        if cell.unavailable or not is_there(runs / cell.run):
            continue
        try:
            places[cell.name] = _place(cell, runs / cell.run, options, wanted=cell.name in names)
        except ConfigError:
            if cell.name in names:
                raise
    return places


def _place(cell: bench.Cell, path: Path, options: Options, *, wanted: bool) -> Place:
    extra = (*cell.overrides, *options.overrides)
    if options.device is not None:
        extra = (*extra, f'device="{options.device}"')
    run = load_run(path, recipe=options.recipe, overrides=extra)
    asked = any(text.replace(" ", "").startswith("checkpoint_every=") for text in extra)
    if run.checkpoint_every == 0 and cell.checkpoint_every is not None and not asked:
        extra = (*extra, f"checkpoint_every={cell.checkpoint_every}")
        run = run.model_copy(update={"checkpoint_every": cell.checkpoint_every})
    folder = cell.folder(options.out, options.recipe)
    place = Place(cell, path, folder, run, extra, _seeds(run, options) if wanted else ())
    there = {int(each.name[5:]) for each in folder.glob("seed-*") if each.name[5:].isdecimal()}
    for seed in sorted(there | {*place.wanted}):
        _look(place, seed)
    return place


def _seeds(run: RunFile, options: Options) -> tuple[int, ...]:
    """The first so many seeds of the run file, and others after them where it has fewer."""
    seeds = run.all_seeds()
    number = len(seeds) if options.num_seeds is None else options.num_seeds
    more = range(max(seeds) + 1, max(seeds) + 1 + max(0, number - len(seeds)))
    return (*seeds, *more)[:number]


def _look(place: Place, seed: int) -> None:
    """Note whether this seed is done, in part, or of other settings."""
    folder = place.seed_folder(seed)
    if not (folder / "run.toml").exists():
        return
    section = next(
        name
        for name, method in methods.every().items()
        if method is methods.method_of(place.run.method)
    )
    wanted = resolved(place.run, seed)
    written = kept = read_toml(folder / "run.toml")
    try:  # through today's defaults: keys may have been added since
        own = bench.own_settings(written, section)
        kept = resolved(check_run(own, where=str(folder / "run.toml")), seed)
    except DovetailError:  # keys that are gone, or that a run file may not have
        pass
    unlike = bench.differing(kept, wanted, section)
    if unlike:
        place.other[seed] = unlike
    elif (folder / "result.json").exists():
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        place.done[seed] = bench.read_run(place.cell, seed, folder, result)
    elif (folder / "checkpoint").exists() and written == wanted:
        place.part[seed] = sum(line.get("seconds", 0.0) for line in tail_lines(folder))


def _refuse_other_settings(places: Mapping[str, Place]) -> None:
    for place in places.values():
        for seed in place.wanted:
            if seed in place.other:
                raise ConfigError(
                    f"{place.seed_folder(seed)} holds a run of other settings (differs in "
                    f"{', '.join(place.other[seed])}); name another folder with --out, or remove it"
                )


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """One bench at a time in a folder: two would write the same runs."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write the folder {out}: {error.strerror}") from None
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"another dovetail bench works in {out}; wait for it, or name another folder with "
                "--out (several runs at once: --jobs)"
            ) from None
        yield


class _Session:
    """One call of the command: runs, and writes as they end."""

    def __init__(
        self,
        table: bench.Table,
        chosen: Sequence[bench.Cell],
        places: Mapping[str, Place],
        options: Options,
        *,
        quiet: bool,
    ) -> None:
        self.table = table
        self.places = places
        self.failed: dict[bench.Job, str] = {}
        self.left: list[bench.Job] = []
        self.stem = table.name + (f"-{options.recipe}" if options.recipe else "")
        self._chosen = chosen
        self._options = options
        self._quiet = quiet
        self._times = times_of(places)
        self._picture = ""

    @property
    def _lines_path(self) -> Path:
        return self._options.out / f"{self.stem}.jsonl"

    def work(self) -> None:
        """Run what is not done, as far as the budget goes."""
        jobs = self._jobs()
        self.left = list(jobs)
        write_text(self._lines_path, "".join(self._json_line(run) for run in self._runs()))
        budget = self._options.budget_minutes
        with BenchProgress(len(jobs), shown=not self._quiet) as self._bars:
            self.left = bench.work(
                jobs,
                self._start,
                ended=self._ended,
                times=self._times,
                clock=time.monotonic,
                wait=self._wait,
                at_once=self._options.jobs,
                budget_s=None if budget is None else 60 * budget,
                spent=lambda job: self.places[job.cell.name].part.get(job.seed, 0.0),
            )

    def _jobs(self) -> list[bench.Job]:
        """A seed of every cell before the next; in each, what was begun first."""
        found = [
            (turn, seed not in place.part, at, bench.Job(place.cell, seed))
            for at, place in enumerate(self.places.values())
            for turn, seed in enumerate(place.wanted)
            if seed not in place.done
        ]
        return [job for *_, job in sorted(found, key=lambda each: each[:3])]

    def _start(self, job: bench.Job) -> Child:
        place = self.places[job.cell.name]
        child = Child(self._arguments(place, job.seed), threads=self._threads())
        self._bars.begin(job, place.seed_folder(job.seed))
        return child

    def _arguments(self, place: Place, seed: int) -> list[str]:
        """Of ``dovetail train``."""
        recipe = [] if self._options.recipe is None else ["--recipe", self._options.recipe]
        sets = [word for text in place.extra for word in ("--set", text)]
        out = ["--out", str(place.seed_folder(seed)), "--seed", str(seed)]
        resume = ["--resume"] if seed in place.part else []
        return ["train", str(place.path), *out, *recipe, *sets, *resume, "--quiet"]

    def _threads(self) -> int:
        """Of each run: what was asked for, or an even share of the cores."""
        if self._options.threads is not None:
            return self._options.threads
        asked = os.environ.get("OMP_NUM_THREADS", "")
        if asked.isdecimal() and int(asked):
            return int(asked)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return max(1, (cores or 1) // self._options.jobs)

    def _wait(self) -> None:
        time.sleep(0.1)
        self._bars.look(self._times, len(self.failed))

    def _ended(self, job: bench.Job, process: bench.Process) -> None:
        assert isinstance(process, Child)
        place = self.places[job.cell.name]
        place.part.pop(job.seed, None)
        failure = process.failure()
        if failure is not None:
            self.failed[job] = failure
            self._bars.end(job, f"{job}: failed: {failure}")
            return
        folder = place.seed_folder(job.seed)
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        run = bench.read_run(job.cell, job.seed, folder, result)
        place.done[job.seed] = run
        self._times.add(job.cell, max(process.seconds, run.seconds))
        with self._lines_path.open("a", encoding="utf-8") as file:
            file.write(self._json_line(run))
        said = ", ".join(
            f"{title} {100 * run.scores[name]:.2f}"
            for name, title in job.cell.scores.items()
            if name in run.scores
        )
        self._bars.end(job, f"{job}: {said} % in {process.seconds:.0f} s")

    def _json_line(self, run: bench.Run) -> str:
        about = {
            "recipe": self._options.recipe or "",
            "set": " ".join(self.places[run.cell.name].extra),
            "device": self._device(run),
        }
        return bench.json_line(self.table.name, run, **about)

    def _device(self, run: bench.Run) -> str:
        return str(read_toml(run.folder / "run.toml").get("device", "cpu"))

    def _runs(self) -> list[bench.Run]:
        return [run for place in self.places.values() for run in place.done.values()]

    def lines(self) -> list[bench.Line]:
        """The table's lines, of all that is done."""
        planned = {
            name: len({*place.wanted, *place.done})
            for name, place in self.places.items()
            if place.wanted or place.done
        }
        return bench.lines(self.table, self._runs(), planned)

    def write(self) -> None:
        """The page, the picture, and a summary beside the seeds of each cell."""
        out, lines = self._options.out, self.lines()
        for place in self.places.values():
            _write_summary(place)
        picture = out / f"{self.stem}.svg"
        self._picture = picture.name if bench.draw(self.table, lines, self._runs(), picture) else ""
        text = bench.page(
            self.table,
            lines,
            command=shlex.join(["dovetail", *sys.argv[1:]]),
            about=bench.machine() | {"threads of a run": str(self._threads())},
            left_out=self._left_out(),
            picture=self._picture,
        )
        write_text(out / f"{self.stem}.md", text)

    def put_into(self, page: Path) -> None:
        """The table into a page, and the picture into the folder ``images`` beside it.

        Raises:
            ConfigError: the page is not there, or lacks the marks.
        """
        text = bench.body(self.table, self.lines())
        if self._picture:
            images = page.parent / "images"
            text += f"\n![{self.table.title}]({images.name}/{self._picture})\n"
        bench.put_into(page, self.stem, text)
        if self._picture:
            images.mkdir(exist_ok=True)
            shutil.copyfile(self._options.out / self._picture, images / self._picture)

    def _left_out(self) -> dict[str, list[str]]:
        """Reason -> cells without figures for it."""
        found: dict[str, list[str]] = {}
        for cell in self._chosen:
            if cell.unavailable:
                found.setdefault(cell.unavailable, []).append(cell.name)
        for job, reason in self.failed.items():
            found.setdefault(reason, []).append(str(job))
        for place in self.places.values():
            for keys in {tuple(keys) for keys in place.other.values()}:
                reason = f"run with other settings ({', '.join(keys)})"
                found.setdefault(reason, []).append(place.cell.name)
        return found

    def _left(self) -> str:
        """What is left to run, and how long it takes."""
        seconds, unknown = self._times.total([job.cell for job in self.left])
        seconds -= sum(self.places[job.cell.name].part.get(job.seed, 0.0) for job in self.left)
        known = len(self.left) - unknown
        said = f"about {told_time(max(0.0, seconds) / self._options.jobs)}" if known else ""
        guess = f"{unknown} of unknown length" if unknown else ""
        return ", ".join(part for part in (said, guess) if part)

    def told(self) -> dict[str, object]:
        """The result as JSON."""
        return {
            "bench": self.table.name,
            "lines": [
                {
                    **line.labels,
                    "method": line.method,
                    "paper": None if line.paper is None else line.paper.mean,
                    "here": line.mean if line.values else None,
                    "spread": line.spread,
                    "difference": line.difference,
                    "runs": len(line.values),
                    "planned": line.planned,
                }
                for line in self.lines()
            ],
            "left": [str(job) for job in self.left],
            "failed": {str(job): reason for job, reason in self.failed.items()},
        }

    def show(self) -> None:
        """The table on standard output, and what is not in it."""
        screen, lines = console(), [line for line in self.lines() if line.values]
        if lines:
            names, rows = bench.grid(self.table, lines)
            before: list[str] = []
            for line, row in zip(lines, rows, strict=True):  # a group's labels once
                labels, many = row[: len(line.labels)], len(line.labels)
                row[:many] = [""] * many if labels == before else labels
                before = labels
            screen.print(_grid(self.table.title, names, rows))
        for reason, cells in self._left_out().items():
            _say(f"Not here: {_some(cells)}: {reason}")
        if self.left:
            _say(f"Left: {len(self.left)} runs, {self._left()}; the same command goes on.")
        names = [f"{self.stem}.md", f"{self.stem}.jsonl", self._picture]
        _say(f"In {self._options.out}: {', '.join(name for name in names if name)}")


def _write_summary(place: Place) -> None:
    """``result.json`` over the seeds, as `dovetail train` writes it, where there are several."""
    if len(place.done) < 2:
        return
    results = [
        json.loads((run.folder / "result.json").read_text(encoding="utf-8"))
        for run in place.done.values()
    ]
    write_text(place.folder / "result.json", json.dumps(summarise(results), indent=2) + "\n")


def times_of(places: Mapping[str, Place]) -> bench.Times:
    """How long the runs that are there took."""
    times = bench.Times()
    for place in places.values():
        for run in place.done.values():
            times.add(place.cell, run.seconds)
    return times


def told_time(seconds: float) -> str:
    """In words.

    >>> told_time(50), told_time(3000), told_time(30000)
    ('50 s', '50 min', '8.3 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _some(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _say(text: str) -> None:
    console().print(text, highlight=False, markup=False, soft_wrap=True)


def _grid(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Grid:
    grid = Grid(title=title, title_justify="left")
    for name in names:
        number = name.startswith(("here", "paper", "less"))
        grid.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


def _list(
    table: bench.Table,
    places: Mapping[str, Place],
    chosen: Sequence[bench.Cell],
    *,
    as_json: bool,
) -> None:
    """The cells of a table, and what there is of each."""
    times = times_of(places)
    rows = []
    for cell in chosen:
        place = places.get(cell.name)
        if place is None:
            rows.append(
                [cell.name, cell.run, "", cell.unavailable or "its run file is not there", ""]
            )
            continue
        done = len([seed for seed in place.wanted if seed in place.done])
        part = f", {len(place.part)} begun" if place.part else ""
        estimate = times.estimate(cell)
        rows.append(
            [
                cell.name,
                " ".join([cell.run, *cell.overrides]),
                str(len(place.wanted)),
                f"{done} done{part}",
                "" if estimate is None else told_time(estimate),
            ]
        )
    names = ["cell", "run file", "seeds", "state", "a seed takes"]
    if as_json:
        print(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=2))
    else:
        console().print(_grid(f"{table.name}: {table.title}", names, rows))


def _overview(options: Options, *, as_json: bool) -> None:
    """The tables there are, and what is done of each."""
    rows: list[dict[str, Any]] = []
    for table in bench.TABLES.values():
        cells = [cell for cell in table.cells if not cell.unavailable]
        try:
            runs = runs_folder(options.runs, cells)
            places = _places(table, cells, runs, options)
        except ConfigError as error:
            rows.append(
                {
                    "table": table.name,
                    "title": table.title,
                    "cells": len(table.cells),
                    "left": str(error),
                }
            )
            continue
        total = sum(len(place.wanted) for place in places.values())
        left = [
            place.cell
            for place in places.values()
            for seed in place.wanted
            if seed not in place.done
        ]
        seconds, unknown = times_of(places).total(left)
        known = told_time(seconds) if len(left) > unknown else ""
        guess = f"{unknown} runs of unknown length" if unknown else ""
        takes = ", ".join(part for part in (known, guess) if part) or "nothing"
        rows.append(
            {
                "table": table.name,
                "title": table.title,
                "cells": len(table.cells),
                "runs": total,
                "done": total - len(left),
                "left": takes,
            }
        )
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    _say(f"Tables, and what is done of them in {options.out} (dovetail bench TABLE):")
    for row in rows:
        _say(f"\n{row['table']}: {row['title']}")
        _say(
            f"    {row['cells']} cells, {row['runs']} runs, {row['done']} done; left: {row['left']}"
            if "runs" in row
            else f"    {row['cells']} cells; {row['left']}"
        )
