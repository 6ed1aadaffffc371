"""``dovetail join``: a party goes online, and answers drivers until it is stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from dovetail.cli import precheck
from dovetail.cli.options import LogKind
from dovetail.errors import ConfigError


def join(
    party: Path,
    driver: Annotated[list[str] | None, typer.Option(metavar="HOST:PORT")] = None,
    mailbox: Annotated[str | None, typer.Option(metavar="PLACE")] = None,
    once: bool = False,
    linger: Annotated[float, typer.Option(min=0)] = 0,
    poll: Annotated[float, typer.Option(min=0.1)] = 10,
    proxy_ca: Path | None = None,
    name: str | None = None,
    tls_name: Annotated[list[str] | None, typer.Option(metavar="HOST")] = None,
    proxy: Annotated[str | None, typer.Option(metavar="URL")] = None,
    certificates: Path | None = None,
    site_folder: Path | None = None,
    device: str | None = None,
    health: str | None = None,
    log: LogKind = LogKind.TEXT,
    quiet: bool = False,
) -> None:
    """Serve a party: answer drivers until Ctrl-C.

    Connects to the driver, and again after failures of either side. Only what the party file's
    [policy] allows is answered; refusals are printed and logged. The table stays on this machine;
    every message that leaves is a line of STEM.site/ledger.jsonl.

    One process serves several drivers at once:

    dovetail join shop.toml --driver bank=bank.example.org:7443 --driver clinic=192.0.2.7:7443

    If no connection can stay open, use letters in a place that both sides reach; a job each night
    is enough:

    dovetail join shop.toml --mailbox /mnt/shared/dovetail --once

    Args:
        party: a party file (TOML).
        driver: where the driver listens; of several, repeat it as NAME=HOST:PORT.
        mailbox: instead of a driver's address: where letters lie, as in its engine.place.
        once: with --mailbox: answer what lies there, and end.
        linger: with --once: seconds to wait for more after each answer.
        poll: with --mailbox: the most seconds from one look to the next.
        name: the driver's name; None: the one in the party file's policy.drivers.
        tls_name: the host in a driver's certificate, if a company's CA made it; or NAME=HOST.
        proxy: an HTTP proxy to CONNECT through, or none; None: https_proxy of the environment.
    """
    from dovetail.network.addresses import (
        check_address,
        check_proxy,
        drivers_by_letter,
        drivers_of,
        tls_names,
    )

    driver = driver or []
    _check_one_way(driver, mailbox, once=once, linger=linger)
    for each in driver:
        check_address(each.rpartition("=")[2])
    through = check_proxy(proxy)
    if health is not None:
        check_address(health)
    file = precheck.check_party(party)
    allowed = file.policy.drivers
    letters: tuple[str, ...] = ()
    drivers: dict[str, str] = {}
    if mailbox is not None:
        letters = drivers_by_letter(str(party), allowed, name)
    else:
        drivers = drivers_of(str(party), allowed, driver, name)
    hosts = tls_names(drivers, tls_name or ()) if drivers else {}
    precheck.check_certificates(party, file, certificates)
    from pkgutil import resolve_name

    from dovetail.models.computing import device as device_of
    from dovetail.network.client import Way
    from dovetail.network.logs import json_lines
    from dovetail.node.engines import elsewhere_section
    from dovetail.node.join import serve_site
    from dovetail.node.partyfile import open_site

    torch_device = device_of(device or "cpu")
    site = open_site(party)
    # A handler only notes it: an Event may not be set by a signal that interrupts it.
    json_log = log is LogKind.JSON
    with _signals() as signalled, json_lines(site.name) if json_log else nullcontext():
        if mailbox is not None:
            resolve_name(elsewhere_section("mailbox").joiner)(
                site,
                letters,
                where=mailbox,
                poll_s=poll,
                once=once,
                linger_s=linger,
                proxy_ca=proxy_ca,
                stopped=lambda: bool(signalled),
                certificates=certificates,
                site_folder=site_folder,
                device=torch_device,
                quiet=quiet or json_log,
                health=health,
            )
            return
        serve_site(
            site,
            drivers,
            ways={each: Way(through, hosts.get(each)) for each in drivers},
            stopped=lambda: bool(signalled),
            certificates=certificates,
            site_folder=site_folder,
            device=torch_device,
            quiet=quiet or json_log,
            health=health,
        )


def _check_one_way(
    driver: Sequence[str], mailbox: str | None, *, once: bool, linger: float
) -> None:
    """Refuse two ways to a driver, or none, and a group of processes.

    Raises:
        ConfigError: what to name.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError(
            "a party joins as one process: start dovetail join without torchrun, which shares "
            "the steps of dovetail train where all parties are in one place"
        )
    if (mailbox is None) == (not driver):
        raise ConfigError(
            "name where the driver listens, --driver HOST:PORT, or where letters lie, --mailbox "
            "PLACE" + (": one of them" if driver else "")
        )
    if mailbox is None and (once or linger):
        raise ConfigError("--once and --linger go with --mailbox PLACE")
    if linger and not once:
        raise ConfigError("--linger goes with --once")


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
