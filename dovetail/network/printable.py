"""Words of others, fit to be shown."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text of a peer, fit for a terminal or a log: one line, no control characters, not long."""
    return visible(text[:1000])


def visible(text: str) -> str:
    """A line without control characters, which a terminal would obey."""
    return "".join(char if char.isprintable() else " " for char in text)
