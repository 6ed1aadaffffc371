"""A party looks for letters in a place, and answers them: all the time, or once and then ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dovetail.methods.party import Site
from dovetail.network.client import Event
from dovetail.network.mailbox.answering import Mailman
from dovetail.network.mailbox.keys import Keys
from dovetail.network.mailbox.opening import open_place
from dovetail.network.mailbox.places import PlaceError
from dovetail.network.mailbox.watching import Watch
from dovetail.node.hosting import Opened, opened_home, shown_by
from dovetail.node.join import TICK_S, describe
from dovetail.node.parked import Parked
from dovetail.node.site_folder import site_folder_of

#: In a party's site: its keys, and what it remembers of drivers' letters.
FOLDER = "mailbox"

#: Seconds that ``once`` waits for the next letter of what cannot be written and is half done.
BUSY_S = 600.0


@dataclass(frozen=True)
class Looking:
    """How a party looks for letters.

    Attributes:
        where: the place.
        poll_s: seconds from one look to the next.
        once: whether it ends when nothing more is there.
        linger_s: of ``once``: seconds that it waits for another letter after it has answered one.
        proxy_ca: authority of a proxy that opens TLS on the way to a relay.
    """

    where: str
    poll_s: float = 10.0
    once: bool = False
    linger_s: float = 0.0
    proxy_ca: Path | None = None


def answer_letters(
    site: Site,
    looking: Looking,
    drivers: Sequence[str],
    *,
    stopped: Callable[[], bool],
    certificates: Path | None = None,
    site_folder: Path | None = None,
    device: torch.device | None = None,
    quiet: bool = False,
    health: str | None = None,
) -> int:
    """Answer letters until told to stop, or once; how many.

    Args:
        site: the party.
        looking: where, and how often.
        drivers: whose letters are opened.
        stopped, certificates, site_folder, device, quiet, health: as of ``serve_site``.

    Raises:
        ConfigError: a place, driver, certificate or site that will not do.
        PlaceError: the place cannot be reached, if it is looked at once.
    """
    shown = shown_by(site, certificates)
    place = open_place(looking.where, shown, looking.proxy_ca)
    parked = Parked()
    path = site_folder or site_folder_of(site.path)
    try:
        with (
            opened_home(site, path, shown, drivers, device, quiet, parked) as opened,
            opened.probes(health),
        ):
            for line in describe(site, dict.fromkeys(drivers, place.where), opened.path):
                opened.teller.line(line)
            folder = opened.path / FOLDER
            keys = Keys(folder)
            watch = Watch(place.where, opened.teller.print)
            mailman = Mailman(opened.host, place, keys, shown, drivers, folder, parked, watch)
            parked.begin({driver: entry.mark for driver, entry in mailman.last.items()})
            round_ = _Round(opened, mailman, looking, drivers, stopped)
            return round_.run(keys, lambda: keys.publish(place, shown))
    finally:
        place.close()


class _Round:
    """One process's looks at the place."""

    def __init__(
        self,
        opened: Opened,
        mailman: Mailman,
        looking: Looking,
        drivers: Sequence[str],
        stopped: Callable[[], bool],
    ) -> None:
        self._opened, self._mailman = opened, mailman
        self._looking, self._drivers = looking, drivers
        self._stopped = stopped
        self._published = False
        self._last = time.monotonic()  # when a letter was answered

    def run(self, keys: Keys, publish: Callable[[], None]) -> int:
        """How many letters were answered; the key of all those that were is gone then."""
        num_answered, looking, teller = 0, self._looking, self._opened.teller
        while not self._stopped():
            self._opened.shown.refresh()
            found = self._look(keys, publish)
            if found:
                num_answered += found
                self._last = time.monotonic()
                continue
            if looking.once and self._is_over():
                break
            self._wait(min(looking.poll_s, looking.linger_s or looking.poll_s))
        if self._published:
            keys.forget()
        busy = self._mailman.busy()
        if busy:
            teller.print(f"ends in the middle: {busy}; the driver has to begin that anew")
        if looking.once:
            letters = f"{num_answered} letter{'' if num_answered == 1 else 's'}"
            teller.print(f"answered {letters}; nothing more lies in {looking.where}")
        return num_answered

    def _look(self, keys: Keys, publish: Callable[[], None]) -> int:
        where = self._looking.where
        try:
            if not self._published:
                publish()
                self._published = True
            found = self._mailman.look(self._stopped)
            if not found and keys.renew():
                self._published = False
                publish()
                self._published = True
        except PlaceError as error:
            if self._looking.once:
                raise
            self._tell(Event("waiting", f"{error}; it is tried again"))
            return 0
        self._tell(Event("connected", f"looks for letters in {where}"))
        return found

    def _tell(self, event: Event) -> None:
        for driver in self._drivers:
            self._opened.teller.changed(event, driver)

    def _is_over(self) -> bool:
        """Whether nothing more is to be waited for."""
        idle_s = time.monotonic() - self._last
        least_s = self._looking.linger_s
        return idle_s >= (max(least_s, BUSY_S) if self._mailman.busy() else least_s)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopped() and (left := until - time.monotonic()) > 0:
            time.sleep(min(TICK_S, left))
            self._opened.teller.tick()
