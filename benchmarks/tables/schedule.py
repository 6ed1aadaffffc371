"""Which runs to make next: so many at once, within a budget, by what similar ones took."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.tables.cells import Cell


@dataclass(frozen=True)
class Job:
    """One seed of a cell that has not finished."""

    cell: Cell
    seed: int

    def __str__(self) -> str:
        return f"{self.cell.name}, seed {self.seed}"


class Process(Protocol):
    """A job that runs."""

    def done(self) -> bool:
        """Whether it has ended, in whatever way."""

    def stop(self) -> None:
        """Ask it to keep what it has and end; waits until it did."""


@dataclass
class Times:
    """How long jobs took, in seconds of wall time."""

    by_cell: dict[str, list[float]] = field(default_factory=dict)
    by_kind: dict[str, list[float]] = field(default_factory=dict)

    def add(self, cell: Cell, seconds: float) -> None:
        """A job of this cell took so long."""
        self.by_cell.setdefault(cell.name, []).append(seconds)
        self.by_kind.setdefault(cell.kind, []).append(seconds)

    def estimate(self, cell: Cell) -> float | None:
        """What a job of this cell will take, by its other seeds or cells of its kind; or None."""
        known = self.by_cell.get(cell.name) or (cell.kind and self.by_kind.get(cell.kind))
        return statistics.fmean(known) if known else None

    def total(self, cells: Sequence[Cell]) -> tuple[float, int]:
        """Seconds of those that can be estimated, and how many cannot."""
        each = [self.estimate(cell) for cell in cells]
        return sum(seconds for seconds in each if seconds is not None), each.count(None)


def work(
    jobs: Sequence[Job],
    start: Callable[[Job], Process],
    *,
    ended: Callable[[Job, Process], None],
    times: Times,
    clock: Callable[[], float],
    wait: Callable[[], None],
    at_once: int = 1,
    budget_s: float | None = None,
    spent: Callable[[Job], float] = lambda job: 0.0,
) -> list[Job]:
    """Make as many of the jobs as fit; gives those that are left.

    A job is begun when its estimate fits what remains of the budget. One without an estimate is
    begun as long as anything remains. What still runs when the budget ends is stopped, and goes on
    from its checkpoint another time.

    Args:
        jobs: in their order.
        start: begins one.
        ended: told of each that ended without being stopped.
        times: of others; ``ended`` may add to it.
        clock: seconds.
        wait: returns after a while.
        at_once: how many run at a time.
        budget_s: wall time; None: no limit.
        spent: what a job has behind it from earlier.

    Raises:
        KeyboardInterrupt: after what runs was stopped.
    """
    left = list(jobs)
    running: dict[Job, Process] = {}
    end = None if budget_s is None else clock() + budget_s

    def fits(job: Job) -> bool:
        if end is None:
            return True
        estimate = times.estimate(job.cell)
        needed = 0.0 if estimate is None else max(0.0, estimate - spent(job))
        remaining = end - clock()
        return remaining > 0 and needed <= remaining

    try:
        while True:
            while len(running) < at_once:
                job = next((job for job in left if job not in running and fits(job)), None)
                if job is None:
                    break
                running[job] = start(job)
            if not running:
                return left
            wait()
            for job in [job for job, process in running.items() if process.done()]:
                left.remove(job)
                ended(job, running.pop(job))
            if end is not None and clock() >= end:
                _stop(running, left, ended)
                return left
    except BaseException:
        _stop(running, left, ended)
        raise


def _stop(
    running: dict[Job, Process], left: list[Job], ended: Callable[[Job, Process], None]
) -> None:
    """Stop what runs; one that had just ended counts."""
    for job, process in running.items():
        if process.done():
            left.remove(job)
            ended(job, process)
        else:
            process.stop()
    running.clear()
