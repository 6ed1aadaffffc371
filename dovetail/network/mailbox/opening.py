"""A place by what a user calls it: a folder, or https://HOST:PORT of a relay."""

from __future__ import annotations

from pathlib import Path

from dovetail.errors import ConfigError
from dovetail.network.mailbox.folder import Folder
from dovetail.network.mailbox.places import Place
from dovetail.network.mailbox.relay import Relay
from dovetail.network.renewal import Renewed


def open_place(where: str, shown: Renewed) -> Place:
    """The place of this name.

    Args:
        where: a folder, or a relay's address.
        shown: what this party shows, and whom it believes.

    Raises:
        ConfigError: no place is called so.
        PlaceError: it is not there.
    """
    if where.startswith("https://"):
        return Relay(where, shown)
    if "://" in where:
        raise ConfigError(
            f"a mailbox is a folder that both sides reach, or https://HOST:PORT of a relay; got "
            f"{where!r}"
        )
    return Folder(Path(where))
