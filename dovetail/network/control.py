"""Messages between driver and host beside a method: there is no answer; it did not count."""

from __future__ import annotations

from dovetail.network.messages import Message


class Failed(Message):
    """Party -> driver: there is no answer, and why; never the party's data."""

    cause: str


class Notice(Message):
    """Driver -> party: the run goes on without what it answered, or ends of it; where, and why."""

    why: str


class Noticed(Message):
    """Party -> driver: whoever watches it has been told."""
