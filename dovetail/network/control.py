"""What a host says for a party that does not answer."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.network.messages import Message


@dataclass(frozen=True, eq=False)
class Failed(Message):
    """Party -> driver: there is no answer, and why; never the party's data."""

    cause: str
