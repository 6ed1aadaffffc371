"""A party looks for letters in a place, and answers them: all the time, or once and then ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from dovetail.companions.mailbox.answering import Mailman
from dovetail.companions.mailbox.keys import LetterKeys
from dovetail.companions.mailbox.opening import open_place
from dovetail.companions.mailbox.places import Place, PlaceError, next_look_s
from dovetail.companions.mailbox.watching import LetterWatch
from dovetail.methods.base import Site
from dovetail.models import derive_key
from dovetail.network.client import Event
from dovetail.network.renewal import Certified
from dovetail.node.hosting import opened_home, shown_by
from dovetail.node.join import TICK_S, describe
from dovetail.node.parked import Parked
from dovetail.node.site_folder import site_folder_of, site_secret
from dovetail.node.status_line import StatusLine

#: In a party's site: its keys, and what it remembers of drivers' letters.
FOLDER = "mailbox"

#: Seconds that ``once`` waits for the next letter of what cannot be written and is half done.
BUSY_S = 600.0


@dataclass(frozen=True)
class Looking:
    """How a party looks for letters.

    Attributes:
        where: the place.
        poll_s: the most seconds from one look to the next.
        once: whether it ends when nothing more is there.
        linger_s: of ``once``: seconds that it waits for another letter after it has answered one.
        proxy_ca: authority of a proxy that opens TLS on the way to a relay.
    """

    where: str
    poll_s: float = 10.0
    once: bool = False
    linger_s: float = 0.0
    proxy_ca: Path | None = None


def join(
    site: Site,
    drivers: Sequence[str],
    *,
    where: str,
    poll_s: float = 10.0,
    once: bool = False,
    linger_s: float = 0.0,
    proxy_ca: Path | None = None,
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
        drivers: whose letters are opened.
        where, poll_s, once, linger_s, proxy_ca: as of ``Looking``.
        stopped, certificates, site_folder, device, quiet, health: as of ``serve_site``.

    Raises:
        ConfigError: a place, driver, certificate or site that will not do.
        PlaceError: the place cannot be reached, if it is looked at once.
    """
    looking = Looking(where, poll_s, once, linger_s, proxy_ca)
    shown = shown_by(site, certificates)
    place = open_place(where, shown, proxy_ca)
    path = site_folder or site_folder_of(site.path)
    parked = Parked(path / FOLDER, lambda: derive_key(site_secret(path), "alignment", num_bytes=32))
    try:
        with (
            opened_home(site, path, shown, drivers, device, quiet, parked) as opened,
            opened.probes(health),
        ):
            for line in describe(site, dict.fromkeys(drivers, place.where), opened.path):
                opened.teller.line(line)
            folder = opened.path / FOLDER
            keys = LetterKeys(folder)
            watch = LetterWatch(place.where, opened.teller.print, kept=folder / "torn.json")
            mailman = Mailman(opened.host, place, keys, shown, drivers, folder, parked, watch)
            parked.begin({driver: entry.mark for driver, entry in mailman.last.items()})
            return _Round(
                opened.teller, mailman, keys, place, shown, looking, drivers, stopped, parked
            ).run()
    finally:
        place.close()


@dataclass(eq=False)
class _Round:
    """Looks of one process at the place."""

    teller: StatusLine
    mailman: Mailman
    keys: LetterKeys
    place: Place
    shown: Certified
    looking: Looking
    drivers: Sequence[str]
    stopped: Callable[[], bool]
    parked: Parked
    published: bool = False
    last: float = field(default_factory=time.monotonic)  # when a letter was answered

    def run(self) -> int:
        """How many letters were answered; the key of all those that were is gone then."""
        num_answered, looking = 0, self.looking
        while not self.stopped():
            self.shown.refresh()
            found = self._look()
            if found:
                num_answered += found
                self.last = time.monotonic()
                continue
            if looking.once and self._is_over():
                break
            poll_s = min(looking.poll_s, looking.linger_s or looking.poll_s, self.mailman.poll_s)
            self._wait(next_look_s(time.monotonic() - self.last, poll_s))
        if self.published:
            self.keys.forget()
        busy = self.mailman.busy()
        if self.parked.leave_alignments():
            self.teller.print("ends in the middle of an alignment; dovetail join goes on with it")
        elif busy:
            self.teller.print(f"ends in the middle: {busy}; the driver has to begin that anew")
        if looking.once:
            letters = f"{num_answered} letter{'' if num_answered == 1 else 's'}"
            self.teller.print(f"answered {letters}; nothing more lies in {looking.where}")
        return num_answered

    def _look(self) -> int:
        try:
            if not self.published:
                self._publish()
            found = self.mailman.look(self.stopped)
            if not found and self.keys.renew():
                self._publish()
        except PlaceError as error:
            if self.looking.once:
                raise
            self._tell(Event("waiting", f"{error}; it is tried again"))
            return 0
        self._tell(Event("connected", f"looks for letters in {self.looking.where}"))
        return found

    def _publish(self) -> None:
        self.published = False
        self.keys.publish(self.place, self.shown)
        self.published = True

    def _tell(self, event: Event) -> None:
        for driver in self.drivers:
            self.teller.changed(event, driver)

    def _is_over(self) -> bool:
        """Whether nothing more is to be waited for."""
        idle_s = time.monotonic() - self.last
        least_s = self.looking.linger_s
        return idle_s >= (max(least_s, BUSY_S) if self.mailman.busy() else least_s)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self.stopped() and (left := until - time.monotonic()) > 0:
            time.sleep(min(TICK_S, left))
            self.teller.tick()
