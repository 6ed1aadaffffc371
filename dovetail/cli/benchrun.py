"""A run of a bench as a process of its own, and the bars over those that run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from dovetail import bench
from dovetail.methods.outcome import number

#: Seconds that a run has to keep what it has once it was asked to stop.
PATIENCE_S = 60.0


class Child:
    """A ``dovetail`` command in a process of its own.

    A run that eats all memory or crashes takes nothing else with it, and has its threads to itself.

    Args:
        arguments: after ``dovetail``.
        threads: what it computes with.
    """

    def __init__(self, arguments: Sequence[str], *, threads: int) -> None:
        # Open as long as the process.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._began = time.monotonic()
        self.seconds = 0.0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dovetail.cli.worker", *arguments],
            stdin=subprocess.PIPE,  # closed, it stops: when we end in whatever way
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
            start_new_session=True,  # Ctrl-C is ours to pass on
        )

    def done(self) -> bool:
        """Whether it has ended."""
        ended = self._process.poll() is not None
        if ended and not self.seconds:
            self.seconds = time.monotonic() - self._began
        return ended

    def stop(self) -> None:
        """Have it keep what it has and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def failure(self) -> str | None:
        """Why it failed, in a sentence; None where it did not."""
        code = self._process.returncode
        with self._errors as file:
            file.seek(0)
            said = file.read().decode("utf-8", errors="replace").strip().splitlines()
        assert self._process.stdin is not None
        self._process.stdin.close()
        if code == 0:
            return None
        if code < 0:
            return f"killed by signal {-code}" + (", as when memory runs out" if code == -9 else "")
        return said[-1].removeprefix("dovetail: ") if said else f"ended with exit code {code}"


def tail_lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl``; none where there is none yet."""
    try:
        text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:  # being written
            break
    return found


class BenchProgress:
    """On standard error: a bar over all runs, a line for each that runs, and what ended."""

    def __init__(self, total: int, *, shown: bool) -> None:
        self._console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
        self._shown = shown
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[said]}", markup=False),
            console=self._console,
            disable=not shown or not self._console.is_terminal,
        )
        self._all = self._bars.add_task("runs", total=total, said="")
        self._tasks: dict[bench.Job, tuple[TaskID, Path]] = {}
        self._looked = 0.0

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()
        if kind is KeyboardInterrupt and self._shown:
            self._console.print("Stopped; the same command goes on from here.")

    def begin(self, job: bench.Job, folder: Path) -> None:
        """A job runs."""
        self._tasks[job] = (self._bars.add_task(f"  {job}", total=None, said="starting"), folder)

    def look(self, times: bench.Times, num_failed: int) -> None:
        """Show how far the running ones are, about once a second."""
        if time.monotonic() - self._looked < 1 or self._bars.disable:
            return
        self._looked = time.monotonic()
        for job, (task, folder) in self._tasks.items():
            lines = tail_lines(folder)
            if lines:
                place = f"{'round' if 'round' in lines[-1] else 'epoch'} {number(lines[-1])}"
                estimate = times.estimate(job.cell)
                about = "" if estimate is None else f", about {estimate / 60:.0f} min in all"
                self._bars.update(task, said=f"{lines[-1]['stage']}, {place}{about}")
        failed = f"{num_failed} failed" if num_failed else ""
        self._bars.update(self._all, said=failed)

    def end(self, job: bench.Job, said: str) -> None:
        """A job ended."""
        task, _ = self._tasks.pop(job)
        self._bars.remove_task(task)
        self._bars.advance(self._all)
        if self._shown:
            self._console.print(said)
