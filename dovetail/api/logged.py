"""Progress as records of Python's ``logging``, beside what is shown.

The logger is ``dovetail.train``: INFO for each epoch, round and step, WARNING for what must not be
missed. Nothing is printed by it until the application adds a handler.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dovetail.methods.base import Epochs, Passing

_log = logging.getLogger("dovetail.train")
_log.addHandler(logging.NullHandler())  # else Python prints warnings that nobody handles


class Logged(Passing):
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
