"""Warnings of modules while something runs, shown to its user."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import ModuleType


class Warned(logging.Handler):
    """While open, reports what these modules warn of.

    Args:
        modules: whose loggers are listened to.
        warn: called with each.
        once: report what has the same words, and the same cause in the end, once.
    """

    def __init__(
        self, modules: Sequence[ModuleType], warn: Callable[[str], None], *, once: bool = True
    ) -> None:
        super().__init__(logging.WARNING)
        self._loggers = [logging.getLogger(module.__name__) for module in modules]
        self._warn = warn
        self._once = once
        self._warned: set[tuple[str, str]] = set()

    def __enter__(self) -> Warned:
        for logger in self._loggers:
            logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for logger in self._loggers:
            logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        why = record.args[-1] if isinstance(record.args, tuple) and record.args else ""
        about = record.msg, str(why)  # one that dials again has another port
        if self._once:
            if about in self._warned:
                return
            self._warned.add(about)
        self._warn(record.getMessage())
