"""``dovetail relay``: keeps letters for parties that reach it and not each other."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.options import LogKind


def relay(
    certificates: Annotated[Path, typer.Option()],
    site_folder: Annotated[Path, typer.Option("--site")] = Path("relay.site"),
    host: str = "0.0.0.0",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 443,
    mutual_tls: bool = True,
    max_mb: Annotated[float, typer.Option(min=1)] = 1024,
    max_letters: Annotated[int, typer.Option(min=1)] = 1000,
    max_days: Annotated[float, typer.Option(min=0.01)] = 30,
    max_letter_mb: Annotated[float, typer.Option(min=1)] = 256,
    rate: Annotated[float, typer.Option(min=0.1)] = 50,
    health: str | None = None,
    log: LogKind = LogKind.TEXT,
    quiet: bool = False,
) -> None:
    """Keep letters for parties that cannot hold a connection, until they are taken.

    Both sides name it, engine.place and --mailbox https://relay.example.org:443, and connect
    outward. It answers requests that are signed with a certificate of its authority, and sees
    names, times and sizes: letters are encrypted by their senders. --no-mutual-tls allows proxies
    that open TLS. Needs pip install 'dovetail-fl[relay]'.

    Args:
        certificates: folder of ca.pem, NAME.pem and NAME.key of the relay itself.
        site_folder: where letters lie.
        host: where it listens.
        port: 0 takes a free one.
        mutual_tls: ask for a certificate at the door, too; without, proxies that open TLS can be
            passed: requests are signed in any case.
        max_mb: miB that a party may leave before they are taken.
        max_letters: letters that a party may leave before they are taken.
        max_days: days after which a letter is removed, taken or not.
        max_letter_mb: miB of one letter.
        rate: requests of a party a second, in the long run.
    """
    from contextlib import ExitStack
    from functools import partial

    from dovetail.lazy import needed
    from dovetail.network.addresses import check_address

    if health is not None:
        check_address(health)
    with needed("a relay", "'dovetail-fl[relay]'"):
        import uvicorn  # noqa: F401

        from dovetail.companions.mailbox.relay_server import (
            MAX_CONNECTIONS,
            MAX_REQUESTS,
            Rate,
            Relay,
        )
    from dovetail.cli.output import print_line
    from dovetail.companions.mailbox.relay_store import Bounds, Store
    from dovetail.companions.mailbox.signed import Signatures
    from dovetail.companions.service.serving import Address, certified_name, listen
    from dovetail.network.credentials import revoked_by
    from dovetail.network.logs import json_lines
    from dovetail.network.renewal import Certified
    from dovetail.node.probes import Probes
    from dovetail.node.site_folder import SiteFolder, logged

    json_log = log is LogKind.JSON
    bounds = Bounds(
        round(max_mb * 2**20), max_letters, max_days * 86400, round(max_letter_mb * 2**20)
    )
    address = Address(host, port, certificates=certificates, mutual=mutual_tls)
    signatures = Signatures(Certified.load(certificates, certified_name(certificates)))
    with ExitStack() as stack:
        stack.enter_context(SiteFolder(site_folder))
        stack.enter_context(logged(site_folder / "relay.log"))
        if json_log:
            stack.enter_context(json_lines("relay"))
        store = Store(site_folder / "letters", bounds)
        if health is not None:
            stack.enter_context(Probes(health, why_not_ready=lambda: "", metrics=store.metrics))
        listen(
            Relay(store, Rate(rate, round(10 * rate)), signatures).application(),
            address,
            max_requests=MAX_REQUESTS,
            max_of_peer=MAX_CONNECTIONS if mutual_tls else None,
            print_line=(lambda url: None)
            if quiet or json_log
            else lambda url: print_line(f"relay at {_typed(url)}"),
            revoked=partial(revoked_by, certificates) if mutual_tls else None,
        )


def _typed(url: str) -> str:
    """The address as others can type it: where it listens everywhere, by this machine's name.

    >>> _typed("https://127.0.0.1:7443")
    'https://127.0.0.1:7443'
    """
    for everywhere in ("//0.0.0.0:", "//[::]:"):
        url = url.replace(everywhere, f"//{socket.getfqdn()}:")
    return url
