"""``dovetail join``: a party goes online, and answers one driver until it is told to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from dovetail.models.devices import device as device_of
from dovetail.site.join import check_address, serve_site
from dovetail.site.partyfile import open_site


def run_join(
    path: Path,
    *,
    address: str,
    driver: str | None,
    certificates: Path | None,
    home: Path | None,
    device_name: str | None,
    quiet: bool,
) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    check_address(address)
    device = device_of(device_name or "cpu")
    site = open_site(path)
    # A handler only notes it: an Event may not be set by a signal that interrupts it.
    with _signals() as signalled:
        serve_site(
            site,
            address,
            driver=driver,
            stopped=lambda: bool(signalled),
            certificates=certificates,
            home=home,
            device=device,
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
