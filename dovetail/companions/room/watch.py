"""Notifies every open page that something has changed; looks once for all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

#: Seconds from one look to the next.
LOOK_S = 1.0

#: Seconds after which an open page is sent a word, so that a line that broke is noticed.
_PULSE_S = 15.0


class Watch:
    """Looks at files, and wakes whoever waits.

    Args:
        files: what to look at, asked again each time; folders are not gone through.
        state: changes with whatever is in no file.

    Attributes:
        number: how often something has changed.
        open: how many wait.
    """

    def __init__(self, files: Callable[[], Iterable[Path]], state: Callable[[], object]) -> None:
        self._files = files
        self._state = state
        self._seen: object = None
        self._changed = asyncio.Condition()
        self.number = 0
        self.open = 0

    async def run(self) -> None:
        """Look until it is cancelled."""
        while True:
            seen = await asyncio.to_thread(self._look)
            if seen != self._seen:
                self._seen = seen
                async with self._changed:
                    self.number += 1
                    self._changed.notify_all()
            await asyncio.sleep(LOOK_S)

    def _look(self) -> object:
        found = []
        for path in self._files():
            with contextlib.suppress(OSError):
                about = path.stat()
                found.append((str(path), about.st_mtime_ns, about.st_size))
        return found, self._state()

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events: one whenever something has changed."""
        self.open += 1
        try:
            async for event in self._events():
                yield event
        finally:
            self.open -= 1

    async def _events(self) -> AsyncIterator[str]:
        number = self.number
        yield ": here\n\n"
        while True:
            try:
                async with asyncio.timeout(_PULSE_S):
                    async with self._changed:
                        await self._changed.wait_for(lambda: self.number != number)  # noqa: B023
            except TimeoutError:
                yield ": still here\n\n"
                continue
            number = self.number
            yield f"event: changed\ndata: {number}\n\n"
