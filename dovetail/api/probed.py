"""A driver's progress as probes and metrics, beside the terminal or the log."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from prometheus_client.core import Metric

from dovetail.methods.base import Epochs, Passing, Progress, Waiting
from dovetail.node.metrics import gauge


class Probed(Passing):
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
