"""A room's socket: on this machine alone, unless certificates or a proxy guard it."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from dovetail.companions.room.application import Room
from dovetail.companions.room.driver import DriverRoom
from dovetail.companions.room.guard import Entry
from dovetail.companions.room.owner import OwnerRoom
from dovetail.companions.service.serving import Address, is_loopback, listen
from dovetail.errors import ConfigError
from dovetail.network.credentials import revoked_by
from dovetail.node.probes import Probes

#: Requests at a time; an open page holds one.
MAX_REQUESTS = 512


def run(
    room: OwnerRoom | DriverRoom,
    *,
    host: str,
    port: int,
    certificates: Path | None = None,
    identity_header: str = "",
    health: str | None = None,
    quiet: bool = False,
) -> None:
    """Show a room until told to stop (Ctrl-C).

    Args:
        room: what is shown and done.
        host, port: where it listens; port 0 takes a free one.
        certificates: folder of ca.pem, NAME.pem and NAME.key; who has no certificate of that
            authority is not let in.
        identity_header: in which a reverse proxy says who asks.
        health: "HOST:PORT" where it answers probes and Prometheus; None: nowhere.
        quiet: print the address alone.

    Raises:
        ConfigError: an address that others reach and nobody guards, or that is taken.
    """
    if not is_loopback(host) and certificates is None and not identity_header:
        raise ConfigError(
            f"--host {host} is not this machine alone, and whoever reaches it could try tokens; "
            "give --tls FOLDER (mutual TLS) or --identity-header NAME (a proxy that asks who it "
            "is), or leave --host out"
        )
    address = Address(host, port, None, certificates)
    entry = Entry("", identity_header) if identity_header else Entry()
    made = Room(room, entry, hosts=None if identity_header else address.hosts())

    def print_line(url: str) -> None:
        token = f"?token={entry.token}" if entry.token else ""
        print(f"{'' if quiet else f'the room of {room.title}: '}{url}/{token}", flush=True)
        if not quiet:
            print("whoever has this address may do what it shows; Ctrl-C ends it", file=sys.stderr)

    with (
        nullcontext()
        if health is None
        else Probes(health, why_not_ready=lambda: "", metrics=made.metrics)
    ):
        listen(
            made.application(),
            address,
            max_requests=MAX_REQUESTS,
            print_line=print_line,
            revoked=None if certificates is None else partial(revoked_by, certificates),
        )
