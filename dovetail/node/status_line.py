"""Status of a party that is online, for whoever watches it."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from prometheus_client.core import Metric
from rich.console import Console
from rich.status import Status
from rich.text import Text

from dovetail.network.client import Event
from dovetail.network.host import MAX_RUNS
from dovetail.network.printable import printable
from dovetail.node.partyfile import algorithms
from dovetail.node.probes import counter, gauge

#: Seconds from one report of runs to the next.
REPORT_S = 30.0

#: Seconds after its last message that a run counts as idle.
IDLE_S = 5.0

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Activity:
    """Cost of a run so far; bytes are those of tensors."""

    driver: str = ""
    num_messages: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    reported: int = 0
    last: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        return (
            f"{self.num_messages:,} messages, {_size(self.received_bytes)} in, "
            f"{_size(self.sent_bytes)} out"
        )


class StatusLine:
    """Reports to whoever watches: lines, and on a terminal a status line below them.

    Args:
        drivers: their names.
        quiet: say nothing.
    """

    def __init__(self, *drivers: str, quiet: bool) -> None:
        self._drivers = drivers
        self._console = Console(quiet=quiet)
        self._lock = threading.Lock()
        self._runs: dict[tuple[str, str], Activity] = {}
        self._connected: set[str] = set()
        self._last: dict[str, Event] = {}
        self._num_runs: Counter[str] = Counter()
        # Driver -> messages, bytes in, bytes out, of runs that made room for others.
        self._before: dict[str, tuple[int, int, int]] = {}
        self._reported = time.monotonic()
        self._status: Status | None = None
        if self._console.is_terminal and not quiet:
            self._status = Status("", console=self._console)

    def __enter__(self) -> StatusLine:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def line(self, text: str) -> None:
        """Print a line as it is: names and causes come from others, and are no markup."""
        self._console.print(Text(printable(text)), highlight=False, soft_wrap=True)
        if not self._console.is_terminal:
            self._console.file.flush()

    def print(self, text: str) -> None:
        """Print a line with the time."""
        _log.info("%s", text)
        self.line(f"{datetime.now():%H:%M:%S}  {text}")

    def event(self, event: Event, driver: str) -> None:
        """Print what happened to the connection to a driver."""
        if event.kind == "connected":
            self._connected.add(driver)
        elif event.kind != "warned":
            self._connected.discard(driver)
        self.print(event.text)

    def changed(self, event: Event, driver: str) -> None:
        """Print an event of somebody who is looked for repeatedly, unless it is as before."""
        if self._last.get(driver) != event:
            self.event(event, driver)
        self._last[driver] = event

    def run(self, run: str, algorithm: str, driver: str) -> Activity:
        """A run starts, or is taken up again."""
        activity = Activity(driver)
        with self._lock:
            self._num_runs[driver] += 1
            replaced = self._runs.pop((run, algorithm), None)
            self._runs[run, algorithm] = activity
            oldest = len(self._runs) - MAX_RUNS * len(self._drivers)
            ended = [self._runs.pop(next(iter(self._runs))) for _ in range(max(0, oldest))]
            for each in (*ended, *([] if replaced is None else [replaced])):
                self._before[each.driver] = _added(self._before.get(each.driver), each)
        whose = f", of {driver!r}" if len(self._drivers) > 1 else ""
        self.print(f"run {run} ({algorithms()[algorithm].policy}) begins{whose}")
        return activity

    def why_not_ready(self) -> str:
        """ "" while every driver is connected, else whom the party waits for."""
        missing = [name for name in self._drivers if name not in self._connected]
        return f"waiting for {', '.join(missing)}" if missing else ""

    def metrics(self) -> Iterator[Metric]:
        """Connections, runs, messages and bytes of tensors by driver, for Prometheus."""
        with self._lock:
            counts = {name: self._before.get(name, (0, 0, 0)) for name in self._drivers}
            for each in self._runs.values():
                counts[each.driver] = _added(counts.get(each.driver), each)
            num_runs = dict(self._num_runs)
        here = {name: float(name in self._connected) for name in self._drivers}
        about = "1 while the driver is connected."
        yield gauge("dovetail_driver_connected", about, "driver", here)
        runs = {name: num_runs.get(name, 0) for name in self._drivers}
        yield counter("dovetail_party_runs", "Runs that a driver began here.", "driver", runs)
        messages = {name: each for name, (each, *_) in counts.items()}
        about = "Messages that were answered."
        yield counter("dovetail_party_messages", about, "driver", messages)
        moved = {
            (name, direction): num_bytes
            for name, (_, *both) in counts.items()
            for direction, num_bytes in zip(("in", "out"), both, strict=True)
        }
        yield counter("dovetail_party_bytes", "Bytes of tensors.", "driver direction", moved)

    def tick(self) -> None:
        """Keeps the status line fresh; reports runs every now and then, and when they fall idle."""
        now = time.monotonic()
        with self._lock:
            runs = dict(self._runs)
        if self._status is not None:
            waiting = [name for name in self._drivers if name not in self._connected]
            here = [name for name in self._drivers if name in self._connected]
            states = (("connected to", here), ("waiting for", waiting))
            state = ", ".join(f"{how} {' and '.join(names)}" for how, names in states if names)
            busiest = max(runs.items(), key=lambda item: item[1].last, default=None)
            doing = "" if busiest is None else f"; run {busiest[0][0]}: {busiest[1]}"
            self._status.update(Text(f"{state}{doing}; Ctrl-C stops"))
        is_due = now - self._reported >= REPORT_S
        if is_due:
            self._reported = now
        for (run, _), activity in runs.items():
            is_idle = now - activity.last >= IDLE_S
            if (is_due or is_idle) and activity.num_messages != activity.reported:
                activity.reported = activity.num_messages
                self.print(f"run {run}: {activity}{', idle' if is_idle else ''}")

    def stopped(self, last_hash: str) -> None:
        """The end; whoever notes the hash can check later whether the ledger lost its last
        lines."""
        with self._lock:
            runs = dict(self._runs)
        for (run, _), activity in runs.items():
            if activity.num_messages != activity.reported:
                self.print(f"run {run}: {activity}")
        self.print(f"stopped; the ledger's last hash is {last_hash}")


def _added(counts: tuple[int, int, int] | None, activity: Activity) -> tuple[int, int, int]:
    messages, received, sent = counts or (0, 0, 0)
    return (
        messages + activity.num_messages,
        received + activity.received_bytes,
        sent + activity.sent_bytes,
    )


def _size(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.1f} GB"
