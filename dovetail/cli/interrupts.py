"""Ctrl-C ends a command whatever it is doing: a line that does not hang up cannot keep it."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: Seconds that a command has, after Ctrl-C, to hang up and to leave its folder in order.
LIMIT_S = 20.0


@contextmanager
def ends_by_ctrl_c() -> Iterator[None]:
    """While open, Ctrl-C raises ``KeyboardInterrupt`` once, as ever; a second one ends at once.

    What has not ended ``LIMIT_S`` after the first is ended with exit code 1, and where it hung is
    printed. That is C code that waits for no lock. Files are written whole or not at all, so
    nothing is lost by it.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # of a process that handles it, or was told to ignore it
        return

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
        faulthandler.dump_traceback_later(LIMIT_S, exit=True, file=sys.__stderr__ or 2)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        # After Ctrl-C it stays armed: the interpreter's own end can hang too.
        if signal.getsignal(signal.SIGINT) is first:
            signal.signal(signal.SIGINT, signal.default_int_handler)
