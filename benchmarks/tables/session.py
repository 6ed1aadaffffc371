"""One call of a bench: runs what is missing and fits, and writes the table as runs end."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from benchmarks.tables.cells import Cell, Line, Run, Table, lines, read_run
from benchmarks.tables.child import Child
from benchmarks.tables.folders import CellFolder, Options, times_of
from benchmarks.tables.plot import draw
from benchmarks.tables.schedule import Job, Process, Times, work
from benchmarks.tables.text import body, json_line, machine, page, put_into, time_text
from dovetail.cluster import LOCAL, RayTasks, Started, Tasks
from dovetail.errors import DovetailError
from dovetail.files import read_toml
from dovetail.models.threads import asked_threads, cores
from dovetail.runs import summarise, write_text
from dovetail.runs.away import Files, unpack
from dovetail.runs.train import train_away


class Watch(Protocol):
    """Whoever is shown the runs as they go on."""

    def begin(self, job: Job, folder: Path) -> None:
        """A job runs."""

    def look(self, times: Times, num_failed: int) -> None:
        """Time has passed."""

    def end(self, job: Job, scores: str) -> None:
        """A job ended."""


class Away:
    """A run on a machine of a cluster, whose folder comes back when it has ended.

    Args:
        started: its task.
        folder: where its files go.
    """

    def __init__(self, started: Started[tuple[dict[str, Any], Files]], folder: Path) -> None:
        self._started = started
        self._folder = folder
        self.seconds = 0.0

    def done(self) -> bool:
        """Whether it has ended."""
        return self._started.done()

    def stop(self) -> None:
        """Have it end; what it has is lost."""
        self._started.stop()

    def failure(self) -> str | None:
        """Why it failed, in a sentence; None where it did not."""
        try:
            result, files = self._started.result()
        except DovetailError as error:
            return str(error)
        unpack(files, self._folder)
        self.seconds = float(result["seconds"])
        return None


class Session:
    """One call: runs, and writes as they end.

    Args:
        table: the grid.
        chosen: its cells that are asked for.
        cell_folders: what there is of all of its cells.
        options: how to run them.
        command: what the page says it was made by.
        watch: opens what shows so many runs as they go on.
    """

    def __init__(
        self,
        table: Table,
        chosen: Sequence[Cell],
        cell_folders: Mapping[str, CellFolder],
        options: Options,
        *,
        command: str,
        watch: Callable[[int], AbstractContextManager[Watch]],
    ) -> None:
        self.table = table
        self.cell_folders = cell_folders
        self.failed: dict[Job, str] = {}
        self.left: list[Job] = []
        self.stem = table.name + (f"-{options.recipe}" if options.recipe else "")
        self._chosen = chosen
        self._tasks = LOCAL
        self._options = options
        self._command = command
        self._watch = watch
        self._times = times_of(cell_folders)
        self.picture = ""

    @property
    def _lines_path(self) -> Path:
        return self._options.out / f"{self.stem}.jsonl"

    def work(self, tasks: Tasks = LOCAL) -> None:
        """Run what is not done, as far as the budget goes."""
        self._tasks, jobs = tasks, self._jobs()
        self.left = list(jobs)
        write_text(self._lines_path, "".join(self._json_line(run) for run in self._runs()))
        budget = self._options.budget_minutes
        with self._watch(len(jobs)) as self._bars:
            self.left = work(
                jobs,
                self._start,
                ended=self._ended,
                times=self._times,
                clock=time.monotonic,
                wait=self._wait,
                at_once=self._at_once,
                budget_s=None if budget is None else 60 * budget,
                spent=lambda job: self.cell_folders[job.cell.name].part.get(job.seed, 0.0),
            )

    def _jobs(self) -> list[Job]:
        """A seed of every cell before the next; in each, what was begun first."""
        jobs = [
            (turn, seed not in cell_folder.part, at, Job(cell_folder.cell, seed))
            for at, cell_folder in enumerate(self.cell_folders.values())
            for turn, seed in enumerate(cell_folder.wanted)
            if seed not in cell_folder.done
        ]
        return [job for *_, job in sorted(jobs, key=lambda each: each[:3])]

    @property
    def _at_once(self) -> int:
        """Runs at a time."""
        return self._options.jobs or self._tasks.slots

    def _start(self, job: Job) -> Child | Away:
        cell_folder = self.cell_folders[job.cell.name]
        if isinstance(self._tasks, RayTasks):
            folder = cell_folder.seed_folder(job.seed)
            self._bars.begin(job, folder)
            asked = (cell_folder.run, job.seed)
            return Away(self._tasks.start(train_away, asked, num_threads=self._threads()), folder)
        child = Child(self._arguments(cell_folder, job.seed), threads=self._threads())
        self._bars.begin(job, cell_folder.seed_folder(job.seed))
        return child

    def _arguments(self, cell_folder: CellFolder, seed: int) -> list[str]:
        """Arguments of ``dovetail train``."""
        recipe = [] if self._options.recipe is None else ["--recipe", self._options.recipe]
        sets = [word for text in cell_folder.extra for word in ("--set", text)]
        out = ["--out", str(cell_folder.seed_folder(seed)), "--seed", str(seed)]
        resume = ["--resume"] if seed in cell_folder.part else []
        return ["train", str(cell_folder.path), *out, *recipe, *sets, *resume, "--quiet"]

    def _threads(self) -> int:
        """Threads of each run: what was asked for, or an even share of the cores."""
        if self._options.threads is not None:
            return self._options.threads
        return asked_threads() or max(1, cores() // self._at_once)

    def _wait(self) -> None:
        time.sleep(0.1)
        self._bars.look(self._times, len(self.failed))

    def _ended(self, job: Job, process: Process) -> None:
        assert isinstance(process, Child | Away)
        cell_folder = self.cell_folders[job.cell.name]
        cell_folder.part.pop(job.seed, None)
        failure = process.failure()
        if failure is not None:
            self.failed[job] = failure
            self._bars.end(job, f"{job}: failed: {failure}")
            return
        folder = cell_folder.seed_folder(job.seed)
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        run = read_run(job.cell, job.seed, folder, result)
        cell_folder.done[job.seed] = run
        self._times.add(job.cell, max(process.seconds, run.seconds))
        with self._lines_path.open("a", encoding="utf-8") as file:
            file.write(self._json_line(run))
        scores_text = ", ".join(
            f"{title} {100 * run.scores[name]:.2f}"
            for name, title in job.cell.scores.items()
            if name in run.scores
        )
        self._bars.end(job, f"{job}: {scores_text} % in {process.seconds:.0f} s")

    def _json_line(self, run: Run) -> str:
        about = {
            "recipe": self._options.recipe or "",
            "set": " ".join(self.cell_folders[run.cell.name].extra),
            "device": self._device(run),
            **{
                f"{name} {other}": value
                for other in self.table.more
                for name, value in run.more(other).items()
            },
        }
        return json_line(self.table.name, run, **about)

    def _device(self, run: Run) -> str:
        return str(read_toml(run.folder / "run.toml").get("device", "cpu"))

    def _runs(self) -> list[Run]:
        return [
            run for cell_folder in self.cell_folders.values() for run in cell_folder.done.values()
        ]

    def lines(self) -> list[Line]:
        """The table's lines, of all that is done."""
        planned = {
            name: len({*cell_folder.wanted, *cell_folder.done})
            for name, cell_folder in self.cell_folders.items()
            if cell_folder.wanted or cell_folder.done
        }
        return lines(self.table, self._runs(), planned)

    def write(self) -> None:
        """The page, the picture, and a summary beside the seeds of each cell."""
        out, lines = self._options.out, self.lines()
        for cell_folder in self.cell_folders.values():
            _write_summary(cell_folder)
        picture = out / f"{self.stem}.svg"
        self.picture = picture.name if draw(self.table, lines, self._runs(), picture) else ""
        text = page(
            self.table,
            lines,
            command=self._command,
            about=machine() | {"threads of a run": str(self._threads())},
            left_out=self.left_out(),
            picture=self.picture,
        )
        write_text(out / f"{self.stem}.md", text)

    def put_into(self, page: Path) -> None:
        """The table into a page, and the picture into the folder ``images`` beside it.

        Raises:
            ConfigError: the page is not there, or lacks the marks.
        """
        text = body(self.table, self.lines())
        if self.picture:
            images = page.parent / "images"
            text += f"\n![{self.table.title}]({images.name}/{self.picture})\n"
        put_into(page, self.stem, text)
        if self.picture:
            images.mkdir(exist_ok=True)
            shutil.copyfile(self._options.out / self.picture, images / self.picture)

    def left_out(self) -> dict[str, list[str]]:
        """Reason -> cells without figures for it."""
        reasons: dict[str, list[str]] = {}
        for cell in self._chosen:
            if cell.unavailable:
                reasons.setdefault(cell.unavailable, []).append(cell.name)
        for job, reason in self.failed.items():
            reasons.setdefault(reason, []).append(str(job))
        for cell_folder in self.cell_folders.values():
            for keys in {tuple(keys) for keys in cell_folder.other.values()}:
                reason = f"run with other settings ({', '.join(keys)})"
                reasons.setdefault(reason, []).append(cell_folder.cell.name)
        return reasons

    def left_text(self) -> str:
        """What is left to run, and how long it takes."""
        seconds, unknown = self._times.total([job.cell for job in self.left])
        seconds -= sum(
            self.cell_folders[job.cell.name].part.get(job.seed, 0.0) for job in self.left
        )
        known = len(self.left) - unknown
        left = f"about {time_text(max(0.0, seconds) / self._at_once)}" if known else ""
        guess = f"{unknown} of unknown length" if unknown else ""
        return ", ".join(part for part in (left, guess) if part)

    def report(self) -> dict[str, object]:
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


def _write_summary(cell_folder: CellFolder) -> None:
    """``result.json`` over the seeds, as `dovetail train` writes it, where there are several."""
    if len(cell_folder.done) < 2:
        return
    results = [
        json.loads((run.folder / "result.json").read_text(encoding="utf-8"))
        for run in cell_folder.done.values()
    ]
    write_text(cell_folder.folder / "result.json", json.dumps(summarise(results), indent=2) + "\n")
