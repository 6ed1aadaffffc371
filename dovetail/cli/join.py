"""``dovetail join``: a party goes online, and answers one driver until it is told to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from dovetail.cli import early
from dovetail.cli.options import Certificates, Device, Quiet


def join(
    party: Annotated[Path, typer.Argument(help="A party file (TOML).")],
    driver: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the driver listens.")],
    name: Annotated[
        str | None,
        typer.Option(help="The driver's name. [the one in the party file's policy.drivers]"),
    ] = None,
    tls_name: Annotated[
        str | None,
        typer.Option(
            metavar="HOST", help="The host in the driver's certificate, if a company's CA made it."
        ),
    ] = None,
    certificates: Certificates = None,
    home: Annotated[
        Path | None, typer.Option(help="What it keeps. [STEM.site beside the party file]")
    ] = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Go online as a party, and answer one driver until told to stop (Ctrl-C).

    Dials the driver and stays, through failures of either side. Only what the party file's
    [policy] allows is answered; refusals are shown and kept. No table leaves this machine: what
    does is counted in STEM.site/ledger.jsonl.
    """
    early.check_party(party)
    from dovetail.models.devices import device as device_of
    from dovetail.network.dialling import Way
    from dovetail.site.join import check_address, serve_site
    from dovetail.site.partyfile import open_site

    check_address(driver)
    place = device_of(device or "cpu")
    site = open_site(party)
    # A handler only notes it: an Event may not be set by a signal that interrupts it.
    with _signals() as signalled:
        serve_site(
            site,
            driver,
            driver=name,
            way=Way(tls_name=tls_name),
            stopped=lambda: bool(signalled),
            certificates=certificates,
            home=home,
            device=place,
            quiet=quiet,
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
