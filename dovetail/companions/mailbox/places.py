"""A place where letters lie: what driver and party need of it, and names in it."""

from __future__ import annotations

from typing import Protocol

from dovetail.errors import NetworkError

#: The most names that a place is listed for: who fills it with more does not fill this process.
MAX_NAMES = 10_000

#: Where public keys lie, and letters by their receiver.
CARDS, MAIL = "cards/", "mail/"

#: Of the time that a letter is waited for, the share from one look to the next.
LOOK_SHARE, LEAST_LOOK_S = 0.25, 0.1


def next_look_s(waited_s: float, poll_s: float) -> float:
    """Seconds to the next look, at most ``poll_s``: letters that follow each other are seen soon.

    A letter is seen late by a quarter of what it took, and a night's wait costs 20 looks more.

    >>> next_look_s(0.0, 10.0), next_look_s(8.0, 10.0), next_look_s(3600.0, 10.0)
    (0.1, 2.0, 10.0)
    """
    return min(poll_s, max(LEAST_LOOK_S, LOOK_SHARE * waited_s))


class PlaceError(NetworkError):
    """A place cannot be reached, or does not do as it was asked."""


class UnfitError(PlaceError):
    """File under a letter's name that is longer than any letter, or not a file."""


class Place(Protocol):
    """Files by name, which is ``FOLDER/NAME`` or ``FOLDER/FOLDER/NAME``; each is there whole.

    Every method raises ``PlaceError`` where the place cannot be reached.

    Attributes:
        where: what people call it.
    """

    where: str

    def put(self, name: str, data: bytes) -> None:
        """Leave a file; one of that name is replaced."""

    def get(self, name: str, most: int) -> bytes | None:
        """A file; None if it is not there.

        Raises:
            UnfitError: it is longer than ``most`` bytes, or no file; nothing was read then.
        """

    def names(self, folder: str) -> list[str]:
        """Names of the files in a folder, ``mail/shop/``, at most ``MAX_NAMES``; none is no error.

        A relay shows a receiver all that is there, and anybody else what that one left.
        """

    def remove(self, name: str) -> None:
        """Take a file away; one that is not there is no error."""

    def close(self) -> None:
        """Let go of what is open."""
