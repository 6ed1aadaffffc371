"""``dovetail join``: a party goes online, and answers drivers until it is told to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from dovetail.cli import precheck
from dovetail.cli.options import Certificates, Device, Health, Log, LogKind, Quiet


def join(
    party: Annotated[Path, typer.Argument(help="A party file (TOML).")],
    driver: Annotated[
        list[str],
        typer.Option(
            metavar="HOST:PORT",
            help="Where the driver listens; of several, repeat it as NAME=HOST:PORT.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(help="The driver's name. [the one in the party file's policy.drivers]"),
    ] = None,
    tls_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="The host in a driver's certificate, if a company's CA made it; or NAME=HOST.",
        ),
    ] = None,
    proxy: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="An HTTP proxy to CONNECT through, or none. [https_proxy of the environment]",
        ),
    ] = None,
    certificates: Certificates = None,
    home: Annotated[
        Path | None, typer.Option(help="What it keeps. [STEM.site beside the party file]")
    ] = None,
    device: Device = None,
    health: Health = None,
    log: Log = LogKind.TEXT,
    quiet: Quiet = False,
) -> None:
    """Go online as a party, and answer drivers until told to stop (Ctrl-C).

    Dials the driver and stays, through failures of either side. Only what the party file's
    [policy] allows is answered; refusals are shown and kept. No table leaves this machine: what
    does is counted in STEM.site/ledger.jsonl.

    One process serves several drivers at once, and what the policy counts is counted in one place:

    dovetail join shop.toml --driver bank=bank.example.org:7443 --driver clinic=192.0.2.7:7443
    """
    from dovetail.network.addresses import check_address, check_proxy, drivers_of, tls_names

    for each in driver:
        check_address(each.rpartition("=")[2])
    through = check_proxy(proxy)
    if health is not None:
        check_address(health)
    precheck.check_join(party, driver, name, tls_name=tls_name or (), certificates=certificates)
    from dovetail.models.devices import device as device_of
    from dovetail.network.client import Way
    from dovetail.network.logs import json_lines
    from dovetail.node.join import serve_site
    from dovetail.node.partyfile import open_site

    place = device_of(device or "cpu")
    site = open_site(party)
    drivers = drivers_of(site.where, site.policy.section.drivers, driver, name)
    hosts = tls_names(drivers, tls_name or ())
    ways = {each: Way(through, hosts.get(each)) for each in drivers}
    # A handler only notes it: an Event may not be set by a signal that interrupts it.
    json_log = log is LogKind.JSON
    with _signals() as signalled, json_lines(site.name) if json_log else nullcontext():
        serve_site(
            site,
            drivers,
            ways=ways,
            stopped=lambda: bool(signalled),
            certificates=certificates,
            home=home,
            device=place,
            quiet=quiet or json_log,
            health=health,
        )


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Holds the first Ctrl-C or SIGTERM; a second one ends the process as ever."""
    caught: list[int] = []

    def catch(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        for each, old in before.items():
            signal.signal(each, old)

    before = {each: signal.signal(each, catch) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for each, old in before.items():
            signal.signal(each, old)
