"""Counting of repeated events, reported at 1, 10, 100, ... times."""

from __future__ import annotations

import re

#: Kinds that are told apart; whoever invents more cannot fill the memory.
MOST = 10_000

#: Numbers and ids, which differ between two of one kind.
_NUMBER = re.compile(r"[0-9a-f]*[0-9][0-9a-f]*")


def kind_of(text: str) -> str:
    """Text that two events of one kind have in common.

    >>> kind_of("number 7 after number 12 of run 3fa9")
    'number # after number # of run #'
    """
    return _NUMBER.sub("#", text)


class Tally:
    """How often each kind of thing has happened."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], int] = {}

    def once_more(self, *kind: str) -> int:
        """How often this kind has happened by now if that is to be told, else 0.

        >>> counted = Tally()
        >>> [counted.once_more("shop", f"late by {number} s") for number in range(12)]
        [1, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0]
        """
        kind = tuple(map(kind_of, kind))
        if kind not in self._counts and len(self._counts) >= MOST:
            kind = ("",)  # of all others
        self._counts[kind] = count = self._counts.get(kind, 0) + 1
        return count if re.fullmatch("10*", str(count)) else 0


def times(count: int) -> str:
    """Text to add to a line that stands for several.

    >>> times(1), times(100)
    ('', ' (100 times)')
    """
    return f" ({count} times)" if count > 1 else ""
