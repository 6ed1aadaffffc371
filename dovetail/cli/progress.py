"""Bars that move while a command works."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from dovetail.evaluation.experiment import number

#: The scores that are shown.
SCORES = ("accuracy", "auc", "rmse", "mae", "r2", "validation")


class _Bars:
    """Bars on standard error while the context is open."""

    def __init__(self, *columns: ProgressColumn, shown: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(),
            *columns,
            console=Console(stderr=True),
            disable=not shown,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()


class PointProgress(_Bars):
    """One bar for an alignment."""

    def __init__(self, title: str, *, shown: bool) -> None:
        percentage = TextColumn("{task.percentage:>3.0f} %")
        super().__init__(percentage, TimeRemainingColumn(), shown=shown)
        self._task = self._progress.add_task(title, total=None)

    def points(self, done: int, total: int) -> None:
        """So many points of so many are done."""
        self._progress.update(self._task, completed=done, total=total)


class EpochProgress(_Bars):
    """One bar a stage."""

    def __init__(self, title: str, *, shown: bool) -> None:
        scores = TextColumn("{task.fields[scores]}")
        unit = TextColumn("{task.fields[unit]}")
        super().__init__(MofNCompleteColumn(), unit, TimeRemainingColumn(), scores, shown=shown)
        self._title = title
        self._tasks: dict[str, TaskID] = {}

    def epoch(self, stage: str, total: int, line: Mapping[str, Any]) -> None:
        """One epoch or round of a stage is done."""
        scores = "  ".join(f"{name} {line[name]:.3f}" for name in ("loss", *SCORES) if name in line)
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(
                f"{self._title}{stage}", total=total, unit="", scores=""
            )
        self._progress.update(
            self._tasks[stage],
            completed=number(line),
            unit="rounds" if "round" in line else "epochs",
            scores=scores,
        )
