"""The bars over the runs of a bench."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from benchmarks import tables as bench
from benchmarks.tables.child import tail_lines
from dovetail.methods.outcome import number


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
                step_text = f"{'round' if 'round' in lines[-1] else 'epoch'} {number(lines[-1])}"
                estimate = times.estimate(job.cell)
                about = "" if estimate is None else f", about {estimate / 60:.0f} min in all"
                self._bars.update(task, said=f"{lines[-1]['variant']}, {step_text}{about}")
        failed = f"{num_failed} failed" if num_failed else ""
        self._bars.update(self._all, said=failed)

    def end(self, job: bench.Job, text: str) -> None:
        """A job ended."""
        task, _ = self._tasks.pop(job)
        self._bars.remove_task(task)
        self._bars.advance(self._all)
        if self._shown:
            self._console.print(text)
