"""A room's socket: on this machine alone, unless certificates or a proxy guard it."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from dovetail.errors import ConfigError
from dovetail.room.application import Room
from dovetail.room.driver import DriverRoom
from dovetail.room.guard import Entry
from dovetail.room.owner import OwnerRoom
from dovetail.service.serving import Address, is_loopback


def run(
    room: OwnerRoom | DriverRoom,
    *,
    host: str,
    port: int,
    certificates: Path | None = None,
    identity_header: str = "",
    quiet: bool = False,
) -> None:
    """Show a room until told to stop (Ctrl-C).

    Args:
        room: what is shown and done.
        host, port: where it listens; port 0 takes a free one.
        certificates: folder of ca.pem, NAME.pem and NAME.key; who has no certificate of that
            authority is not let in.
        identity_header: in which a reverse proxy says who asks.
        quiet: print the address alone.

    Raises:
        ConfigError: an address that others reach and nobody guards, or that is taken.
    """
    import uvicorn

    if not is_loopback(host) and certificates is None and not identity_header:
        raise ConfigError(
            f"--host {host} is not this machine alone, and whoever reaches it could try tokens; "
            "give --tls FOLDER (mutual TLS) or --identity-header NAME (a proxy that asks who it "
            "is), or leave --host out"
        )
    address = Address(host, port, None, certificates)
    tls = address.tls()
    entry = Entry(identity_header=identity_header) if identity_header else Entry()
    made = Room(room, entry, hosts=None if identity_header else address.hosts())
    config = uvicorn.Config(
        made.application(),
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=512,
        timeout_graceful_shutdown=2,
        **tls,
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error.strerror}); --port 0 takes a free one"
        ) from None
    shown = f"{'https' if tls else 'http'}://{host}:{listening.getsockname()[1]}/"
    token = "" if identity_header else f"?token={entry.token}"
    print(f"{'' if quiet else f'the room of {room.title}: '}{shown}{token}", flush=True)
    if not quiet:
        print("whoever has this address may do what it shows; Ctrl-C ends it", file=sys.stderr)
    try:
        with listening:
            uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
