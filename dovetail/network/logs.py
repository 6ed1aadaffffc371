"""The package's log as JSON lines, with party and run in each, for collectors of logs."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import IO

#: The run of the message in hand; "" between messages.
_run: ContextVar[str] = ContextVar("run", default="")


@contextmanager
def of_run(run: str) -> Iterator[None]:
    """Lines of this context name the run."""
    token = _run.set(run)
    try:
        yield
    finally:
        _run.reset(token)


class JsonLines(logging.Formatter):
    """Formatter of a JSON object a record: time (UTC), level, logger, party, run, message, and an
    exception.

    Args:
        party: whose process it is.
    """

    def __init__(self, party: str) -> None:
        super().__init__()
        self._party = party

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "party": self._party,
            "run": _run.get(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


@contextmanager
def json_lines(party: str, to: IO[str] | None = None) -> Iterator[None]:
    """Everything that the package logs, from level INFO on, goes to standard error as JSON lines.

    Args:
        party: whose process it is.
        to: where they go; None: standard error.
    """
    handler = logging.StreamHandler(to or sys.stderr)
    handler.setFormatter(JsonLines(party))
    with handled_by(handler):
        yield


@contextmanager
def handled_by(handler: logging.Handler) -> Iterator[None]:
    """Everything that the package logs, from level INFO on, goes to this handler, too."""
    log = logging.getLogger("dovetail")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
