"""Progress of a run on standard error, for commands and ``dovetail.fit``; or in a notebook.

Beside what is shown, it becomes a driver's probes and metrics, and records of Python's ``logging``.
The logger is ``dovetail.train``: INFO for each epoch, round and step, WARNING for what must not be
missed. Nothing is printed by it until the application adds a handler.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from html import escape
from typing import TYPE_CHECKING, Any

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
from rich.text import Text

from dovetail.api.shown import scores_of, unit_of, waiting_text
from dovetail.methods.base import Epochs, ForwardedProgress, Points, Progress, Waiting
from dovetail.methods.outcome import number
from dovetail.network.printable import printable
from dovetail.settings.section import ADDRESS

if TYPE_CHECKING:
    from prometheus_client.core import Metric

#: Columns of a bar's title, and of a bar in a narrow terminal.
_TITLE, _LEAST_BAR = 16, 10


def print_line(text: str) -> None:
    """Print a line on standard error."""
    print(f"dovetail: {printable(text)}", file=sys.stderr, flush=True)


class Quiet(Progress):
    """Prints only what must not be missed: who is lost, and who was left out."""

    def warn(self, text: str) -> None:
        print_line(text)


class Terminal(Quiet):
    """Bars that move, and lines."""

    def print(self, text: str) -> None:
        print_line(text)

    @contextmanager
    def points(self, title: str) -> Iterator[Points]:
        percentage = TextColumn("{task.percentage:>3.0f} %")
        with _bars(percentage, TimeRemainingColumn()) as bars:
            task = bars.add_task(title, total=None)
            yield lambda done, total: bars.update(task, completed=done, total=total)

    @contextmanager
    def epochs(self, title: str) -> Iterator[Epochs]:
        scores = TextColumn("{task.fields[scores]}")
        unit = TextColumn("{task.fields[unit]}")
        count = TextColumn("{task.fields[count]}")
        with _bars(count, unit, TimeRemainingColumn(), scores) as bars:
            shown = _EpochBars(bars, title)
            yield shown.epoch
            shown.done()

    @contextmanager
    def waiting(self, address: str) -> Iterator[Waiting]:
        """Context that shows which parties are here and missing: in one place on a terminal, else a
        line per change."""
        console, asked = Console(stderr=True), False
        with console.status("") if console.is_terminal else nullcontext() as status:

            def changed(here: Iterable[str], missing: Iterable[str]) -> None:
                nonlocal asked
                missing = tuple(missing)
                for name in missing if not asked else ():
                    print_line(f"at {name}: dovetail join {name}.toml {_way(address)}")
                asked = asked or bool(missing)
                text = waiting_text(address, here, missing)
                if status is not None:
                    status.update(Text(f"{text} (Ctrl-C stops)"))
                else:
                    print_line(text)

            yield changed


def talk_of(*, shown: bool) -> Progress:
    """A terminal, a notebook's one line, or one that is quiet; all of them also log."""
    if not shown:
        return Logged(Quiet())
    if Console().is_jupyter:
        from IPython.display import display

        from dovetail.api.progress import Notebook

        return Logged(Notebook(display))
    return Logged(Terminal())


def _bars(*columns: ProgressColumn) -> RichProgress:
    """Bars on standard error, while they are open."""
    console = Console(stderr=True)
    # Text that does not fit beside a bar of full length is cut, numbers first.
    bar_width = max(_LEAST_BAR, min(40, console.width - 70))
    return RichProgress(
        TextColumn(f"{{task.description:<{_TITLE}}}"),
        BarColumn(bar_width),
        *columns,
        console=console,
    )


class _EpochBars:
    """Progress bars, one for each variant."""

    def __init__(self, bars: RichProgress, title: str) -> None:
        self._progress, self._title = bars, title
        self._tasks: dict[str, TaskID] = {}

    def epoch(self, variant: str, total: int, line: Mapping[str, Any]) -> None:
        """Note that one epoch or round of a variant is done."""
        parts = scores_of(line)
        beside = max(_TITLE, len(self._title + variant)) + _LEAST_BAR + len(f"{total}/{total}") + 18
        while len(parts) > 1 and beside + len("  ".join(parts)) > self._progress.console.width:
            parts.pop()
        scores = "  ".join(parts)
        if variant not in self._tasks:
            self.done()
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
            unit=unit_of(line),
            scores=scores,
        )

    def done(self) -> None:
        """A variant that stopped early is done, too: no bar is left standing half way."""
        for task in self._progress.tasks:
            num = f"{task.completed:.0f}"
            self._progress.update(task.id, total=task.completed, count=f"{num}/{num}")


def _way(where: str) -> str:
    """How a partner joins a driver that waits at this address, or looks for letters there."""
    if not ADDRESS.fullmatch(where):
        return f"--mailbox {where}"
    host, _, port = where.rpartition(":")
    return f"--driver {socket.gethostname() if host in ('0.0.0.0', '[::]') else host}:{port}"


#: Seconds between two changes of the line.
_EVERY_S = 0.2


class Notebook(Progress):
    """Shows what a run does in one line of a cell's output.

    Args:
        display: ``IPython.display.display``.
    """

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None
        self._shown_at = 0.0

    def print(self, text: str) -> None:
        self.show(text)

    def warn(self, text: str) -> None:
        print(f"dovetail: {printable(text)}", file=sys.stderr, flush=True)

    @contextmanager
    def points(self, title: str) -> Iterator[Points]:
        def points(done: int, total: int) -> None:
            if done >= total or self.is_due:
                self.show(f"{title} {done:,} of {total:,}", done, total)

        yield points

    @contextmanager
    def epochs(self, title: str) -> Iterator[Epochs]:
        last = ""

        def epoch(variant: str, total: int, line: Mapping[str, Any]) -> None:
            nonlocal last
            scores = "".join(f"  {each}" for each in scores_of(line))
            last = f"{title}{variant}: {number(line)} {unit_of(line)}{scores}"
            if self.is_due:
                stops_early = "held_out_loss" in line  # how many there will be is not known
                self.show(last, number(line), None if stops_early else total)

        yield epoch
        if last:
            self.show(last)

    @contextmanager
    def waiting(self, address: str) -> Iterator[Waiting]:
        port = address.rpartition(":")[2]

        def changed(here: Iterable[str], missing: Iterable[str]) -> None:
            missing = tuple(missing)
            ways = (f"; at {name}: dovetail.join(party, 'THIS-HOST:{port}')" for name in missing)
            self.show(waiting_text(address, here, missing) + "".join(ways))

        yield changed

    def show(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """Change the line: the text, behind a bar where it is known how much there is."""
        bar = "" if not total else f'<progress value="{done}" max="{total}"></progress> '
        shown = {"text/html": f"{bar}<code>{escape(text)}</code>", "text/plain": text}
        self._shown_at = time.monotonic()
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    @property
    def is_due(self) -> bool:
        """Whether the line has stood long enough to be changed."""
        return time.monotonic() - self._shown_at >= _EVERY_S


_log = logging.getLogger("dovetail.train")
_log.addHandler(logging.NullHandler())  # else Python prints warnings that nobody handles


class Logged(ForwardedProgress):
    """Logs, and passes on."""

    def print(self, text: str) -> None:
        _log.info("%s", text)
        super().print(text)

    def warn(self, text: str) -> None:
        _log.warning("%s", text)
        super().warn(text)

    @contextmanager
    def epochs(self, title: str) -> Iterator[Epochs]:
        with self._shown.epochs(title) as shown:

            def ended(variant: str, total: int, line: Mapping[str, Any]) -> None:
                if _log.isEnabledFor(logging.INFO):
                    numbers = (
                        f"{key} {value:g}"
                        for key, value in line.items()
                        if isinstance(value, int | float)
                    )
                    _log.info("%s%s: %s", title, variant, ", ".join(numbers))
                shown(variant, total, line)

            yield ended


class Probed(ForwardedProgress):
    """Passes progress on, and keeps what probes and Prometheus ask for.

    Args:
        shown: who else watches.
    """

    def __init__(self, shown: Progress) -> None:
        super().__init__(shown)
        self._lock = threading.Lock()
        self._missing: tuple[str, ...] = ()
        self._here: tuple[str, ...] = ()
        self._done: dict[str, tuple[int, int]] = {}
        self._losses: dict[str, float] = {}

    def why_not_ready(self) -> str:
        """ "" once all partners are here, else whom the driver waits for."""
        return f"waiting for {', '.join(self._missing)}" if self._missing else ""

    def metrics(self) -> Iterator[Metric]:
        """Partners that are here, and rounds and the last loss of each variant and baseline."""
        from dovetail.node.probes import gauge  # and its library: for who is probed alone

        with self._lock:
            here, missing = self._here, self._missing
            done, losses = dict(self._done), dict(self._losses)
        connected = {name: float(name in here) for name in (*here, *missing)}
        about = "1 while the partner is connected."
        yield gauge("dovetail_partner_connected", about, "partner", connected)
        ended = {name: each for name, (each, _) in done.items()}
        planned = {name: each for name, (_, each) in done.items()}
        yield gauge("dovetail_rounds_done", "Epochs or rounds that ended.", "variant", ended)
        yield gauge("dovetail_rounds_planned", "Epochs or rounds at most.", "variant", planned)
        yield gauge("dovetail_loss", "The last reported loss.", "variant", losses)

    @contextmanager
    def epochs(self, title: str) -> Iterator[Epochs]:
        with self._shown.epochs(title) as shown:

            def ended(variant: str, total: int, line: Mapping[str, Any]) -> None:
                with self._lock:
                    self._done[variant] = (self._done.get(variant, (0, 0))[0] + 1, total)
                    loss = line.get("loss")
                    if isinstance(loss, int | float):
                        self._losses[variant] = float(loss)
                shown(variant, total, line)

            yield ended

    @contextmanager
    def waiting(self, address: str) -> Iterator[Waiting]:
        with self._shown.waiting(address) as shown:

            def found(here: Iterable[str], missing: Iterable[str]) -> None:
                with self._lock:
                    self._here, self._missing = tuple(here), tuple(missing)
                shown(self._here, self._missing)

            yield found
