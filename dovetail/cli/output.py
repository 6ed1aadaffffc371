"""What commands print: progress, and the table of a result."""

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
from rich.table import Table

#: What a table calls each stage and ruler.
TITLES: Mapping[str, str] = {
    "apfed": "APFed, predicts alone",
    "apfed-r": "APFed-R, predicts alone",
    "apfed-c": "APFed-C, predicts alone",
    "alone": "learned alone",
    "pooled": "pooled (all columns in one place)",
    "tvfl": "classic vertical, partners present",
    "tvfl-0": "classic vertical, partners gone: zeros",
    "tvfl-a": "classic vertical, partners gone: average",
    "tvfl-r": "classic vertical, partners gone: random",
}

_SCORES = ("accuracy", "auc", "rmse", "mae", "r2")


def console() -> Console:
    """Standard output."""
    return Console()


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
        super().__init__(MofNCompleteColumn(), TimeRemainingColumn(), scores, shown=shown)
        self._title = title
        self._tasks: dict[str, TaskID] = {}

    def epoch(self, stage: str, num_epochs: int, line: Mapping[str, Any]) -> None:
        """One epoch of a stage is done."""
        scores = "  ".join(
            f"{name} {line[name]:.3f}" for name in ("loss", *_SCORES) if name in line
        )
        if stage not in self._tasks:
            description = f"{self._title}{stage}"
            self._tasks[stage] = self._progress.add_task(description, total=num_epochs, scores="")
        self._progress.update(self._tasks[stage], advance=1, scores=scores)


def result_table(result: Mapping[str, Any], *, title: str | None = None) -> Table:
    """The scores of a run and its rulers; mean and spread where there are several seeds."""
    (own,) = result["parties"].values()
    by_stage = {result["method"]: own, **result["rulers"]}
    rows = {_title(name, scores): scores for name, scores in by_stage.items()}
    return score_table(rows, title=title, num_seeds=len(result.get("seeds", [0])))


def _title(name: str, scores: Mapping[str, Any]) -> str:
    """What a row is called; scores on other rows than the table's say on which."""
    if "rows" not in scores:
        return TITLES[name]
    rows = scores["rows"]
    num_rows = rows["mean"] if isinstance(rows, Mapping) else rows
    return f"{TITLES[name]} (on {num_rows:.0f} rows that all have)"


def score_table(
    rows: Mapping[str, Mapping[str, Any]], *, title: str | None, num_seeds: int
) -> Table:
    """One row per name, one column per score."""
    spread = f"mean ± std of {num_seeds} seeds" if num_seeds > 1 else None
    table = Table(title=title, caption=spread, title_justify="left", caption_justify="left")
    table.add_column("on the test rows")
    names = [name for name in _SCORES if any(name in scores for scores in rows.values())]
    for name in names:
        table.add_column(name, justify="right")
    for title_, scores in rows.items():
        table.add_row(title_, *(_cell(scores.get(name)) for name in names))
    return table


def _cell(value: float | Mapping[str, float] | None) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return f"{value['mean']:.3f} ± {value['std']:.3f}"
    return f"{value:.3f}"
