"""What a run tells whoever watches it, on standard error: of commands, and of ``dovetail.fit``."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import (
    Progress as RichProgress,
)
from rich.status import Status
from rich.text import Text

from dovetail.api.logged import Logged
from dovetail.api.shown import SCORES, waiting_text
from dovetail.methods.base import Progress
from dovetail.methods.outcome import number
from dovetail.network.printable import printable
from dovetail.settings.section import ADDRESS

#: Columns of a bar's title, and of a bar in a narrow terminal.
_TITLE, _LEAST_BAR = 16, 10


def print_line(text: str) -> None:
    """One line on standard error."""
    print(f"dovetail: {printable(text)}", file=sys.stderr, flush=True)


class Quiet(Progress):
    """Tells only what must not be missed: who is lost, and who was left out."""

    def warn(self, text: str) -> None:
        print_line(text)


class Terminal(Quiet):
    """Bars that move, and lines."""

    def print(self, text: str) -> None:
        print_line(text)

    def points(self, title: str) -> _PointBar:
        return _PointBar(title)

    def epochs(self, title: str) -> _EpochBars:
        return _EpochBars(title)

    def waiting(self, address: str) -> _Waiting:
        return _Waiting(address)


def talk_of(*, shown: bool) -> Progress:
    """A terminal, a notebook's one line, or one that is quiet; all of them also log."""
    if not shown:
        return Logged(Quiet())
    if Console().is_jupyter:
        from IPython.display import display

        from dovetail.api.notebook import Notebook

        return Logged(Notebook(display))
    return Logged(Terminal())


class _Bars:
    """Bars on standard error while the context is open."""

    def __init__(self, *columns: ProgressColumn) -> None:
        console = Console(stderr=True)
        # Text that does not fit beside a bar of full length is cut, numbers first.
        bar_width = max(_LEAST_BAR, min(40, console.width - 70))
        self._progress = RichProgress(
            TextColumn(f"{{task.description:<{_TITLE}}}"),
            BarColumn(bar_width),
            *columns,
            console=console,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._done()
        self._progress.stop()

    def _done(self) -> None:
        """All went well: bars as they stay."""


class _PointBar(_Bars):
    """One bar for an alignment."""

    def __init__(self, title: str) -> None:
        percentage = TextColumn("{task.percentage:>3.0f} %")
        super().__init__(percentage, TimeRemainingColumn())
        self._task = self._progress.add_task(title, total=None)

    def points(self, done: int, total: int) -> None:
        """So many points of so many are done."""
        self._progress.update(self._task, completed=done, total=total)


class _EpochBars(_Bars):
    """One bar a variant."""

    def __init__(self, title: str) -> None:
        scores = TextColumn("{task.fields[scores]}")
        unit = TextColumn("{task.fields[unit]}")
        count = TextColumn("{task.fields[count]}")
        super().__init__(count, unit, TimeRemainingColumn(), scores)
        self._title = title
        self._tasks: dict[str, TaskID] = {}

    def epoch(self, variant: str, total: int, line: Mapping[str, Any]) -> None:
        """One epoch or round of a variant is done."""
        parts = [f"{name} {line[name]:.3f}" for name in SCORES if name in line]
        beside = max(_TITLE, len(self._title + variant)) + _LEAST_BAR + len(f"{total}/{total}") + 18
        while len(parts) > 1 and beside + len("  ".join(parts)) > self._progress.console.width:
            parts.pop()
        scores = "  ".join(parts)
        if variant not in self._tasks:
            self._done()
            self._tasks[variant] = self._progress.add_task(
                f"{self._title}{variant}", total=total, unit="", scores="", count=""
            )
        # A variant that judges as it goes stops when it is good: its total says nothing of the end.
        stops_early = "held_out_loss" in line and number(line) < total
        self._progress.update(
            self._tasks[variant],
            completed=number(line),
            total=None if stops_early else total,
            count=f"{number(line)}" if stops_early else f"{number(line)}/{total}",
            unit="rounds" if "round" in line else "epochs",
            scores=scores,
        )

    def _done(self) -> None:
        """A variant that stopped early is done, too: no bar is left standing half way."""
        for task in self._progress.tasks:
            num = f"{task.completed:.0f}"
            self._progress.update(task.id, total=task.completed, count=f"{num}/{num}")


class _Waiting:
    """Says who is here and who is missing: on a terminal in one place, else a line per change."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._console = Console(stderr=True)
        self._status: Status | None = None
        self._asked = False

    def __enter__(self) -> _Waiting:
        if self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def changed(self, here: Iterable[str], missing: Iterable[str]) -> None:
        """Called at once, and whenever somebody comes or goes."""
        missing = tuple(missing)
        if missing and not self._asked:
            self._asked = True
            for name in missing:
                print_line(f"at {name}: dovetail join {name}.toml {_way(self._address)}")
        text = waiting_text(self._address, here, missing)
        if self._status is not None:
            self._status.update(Text(f"{text} (Ctrl-C stops)"))
        else:
            print_line(text)


def _way(where: str) -> str:
    """How a partner joins a driver that waits at this address, or looks for letters there."""
    if not ADDRESS.fullmatch(where):
        return f"--mailbox {where}"
    host, _, port = where.rpartition(":")
    return f"--driver {socket.gethostname() if host in ('0.0.0.0', '[::]') else host}:{port}"
