"""Progress in a notebook: one line that changes in its place, whatever a run does."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from typing import Any

from dovetail.api.shown import SCORES, waiting_text
from dovetail.methods.base import Progress
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
    def points(self, title: str) -> Iterator[_Points]:
        yield _Points(self, title)

    @contextmanager
    def epochs(self, title: str) -> Iterator[_Epochs]:
        epochs = _Epochs(self, title)
        yield epochs
        epochs.end()

    @contextmanager
    def waiting(self, address: str) -> Iterator[_Waiting]:
        yield _Waiting(self, address)

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


class _Points:
    def __init__(self, shown: Notebook, title: str) -> None:
        self._shown, self._title = shown, title

    def points(self, done: int, total: int) -> None:
        if done >= total or self._shown.is_due:
            self._shown.show(f"{self._title} {done:,} of {total:,}", done, total)


class _Epochs:
    def __init__(self, shown: Notebook, title: str) -> None:
        self._shown, self._title = shown, title
        self._last = ""

    def epoch(self, variant: str, total: int, line: Mapping[str, Any]) -> None:
        unit = "rounds" if "round" in line else "epochs"
        scores = "".join(f"  {name} {line[name]:.3f}" for name in SCORES if name in line)
        self._last = f"{self._title}{variant}: {number(line)} {unit}{scores}"
        if self._shown.is_due:
            stops_early = "held_out_loss" in line  # how many there will be is not known
            self._shown.show(self._last, number(line), None if stops_early else total)

    def end(self) -> None:
        if self._last:
            self._shown.show(self._last)


class _Waiting:
    def __init__(self, shown: Notebook, address: str) -> None:
        self._shown, self._place = shown, address

    def changed(self, here: Iterable[str], missing: Iterable[str]) -> None:
        missing = tuple(missing)
        text = waiting_text(self._place, here, missing)
        port = self._place.rpartition(":")[2]
        text += "".join(
            f"; at {name}: dovetail.join(party, 'THIS-HOST:{port}')" for name in missing
        )
        self._shown.show(text)
