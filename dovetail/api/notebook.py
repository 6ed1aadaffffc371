"""Progress in a notebook: one line that changes in its place, whatever a run does."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from typing import Any

from dovetail.api.shown import scores_of, unit_of, waiting_text
from dovetail.methods.base import Epochs, Points, Progress, Waiting
from dovetail.methods.outcome import number
from dovetail.network.printable import printable

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
