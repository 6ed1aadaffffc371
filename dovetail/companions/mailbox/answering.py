"""A party's side of a mailbox: opens what drivers have left for it, and leaves its answers.

Letters are answered in the order of their numbers. What is not of a driver that the party named, or
not as that driver has signed it, is not opened, and not answered. A number is handled once: the
journal says what was answered, so that a process can end after each letter and another go on. A
letter is opened once, too: its key is gone once its answer is written down (``keys.py``).
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from dovetail.companions.mailbox import letters
from dovetail.companions.mailbox.journal import Entry, Journal
from dovetail.companions.mailbox.keys import LetterKeys, private_key
from dovetail.companions.mailbox.places import MAIL, Place, UnfitError
from dovetail.companions.mailbox.watching import LetterWatch
from dovetail.errors import MessageError
from dovetail.network.certificates import may_listen
from dovetail.network.host import Host
from dovetail.network.messages import open_message
from dovetail.network.renewal import Certified

#: Letters of one driver that are looked at in one go; a driver has one on its way, and may have
#: left some in conversations before.
MOST_LETTERS = 100


#: A driver that looks more often than after so many seconds is not kept up with.
LEAST_POLL_S = 0.05


class Parks(Protocol):
    """Keeps what a party's runs are in, between letters."""

    def park(self, driver: str, mark: int) -> None:
        """Write what has changed since the last call, as that of this mark."""

    def busy(self, driver: str) -> str:
        """Description of this driver's runs that cannot be written now; "" for none."""


class Mailman:
    """Answers the letters that lie in a place.

    Args:
        host: answers messages.
        place: where letters lie.
        keys: the party's.
        identity: signs and checks.
        drivers: whose letters are opened.
        site_folder: the folder where it remembers.
        parks: keeps what runs are in.
        watch: reports what is wrong with letters.
    """

    def __init__(
        self,
        host: Host,
        place: Place,
        keys: LetterKeys,
        identity: Certified,
        drivers: Sequence[str],
        site_folder: Path,
        parks: Parks,
        watch: LetterWatch,
    ) -> None:
        self._host, self._place, self._keys = host, place, keys
        self._identity, self._parks, self._watch = identity, parks, watch
        self._folder = f"{MAIL}{host.name}/"
        self._journals = {driver: Journal(site_folder, driver) for driver in drivers}
        self._process = secrets.token_hex(8)
        self._looked = 0.0
        self.poll_s = math.inf  # that drivers look after, as their last letters say
        self._strangers: set[str] = set()
        for driver, journal in self._journals.items():
            last = journal.last
            if last.instance:
                host.resume(driver, last.instance, last.sequence)

    @property
    def last(self) -> dict[str, Entry]:
        """Driver -> what was answered last."""
        return {driver: journal.last for driver, journal in self._journals.items()}

    def busy(self) -> str:
        """Description of what is half done, so that this process must not end; "" for nothing."""
        return next(filter(None, map(self._parks.busy, self._journals)), "")

    def look(self, stopped: Callable[[], bool] = lambda: False) -> int:
        """Answer what lies there; how many letters were.

        Raises:
            PlaceError: the place cannot be reached.
            OSError: what was answered cannot be written down, and did not leave.
        """
        names = [letters.read_name(name) for name in self._place.names(self._folder)]
        requests = [each for each in names if each is not None and each.kind == "q"]
        looked, num_answered = time.time(), 0
        for driver, journal in self._journals.items():
            from_driver = sorted(each for each in requests if each.sender == driver)
            for named in from_driver[:MOST_LETTERS]:
                if stopped():
                    return num_answered
                num_answered += self._answer(driver, journal, named)
        self._tell_strangers(requests)
        self._looked = looked
        return num_answered

    def _tell_strangers(self, requests: Sequence[letters.Named]) -> None:
        others = {each.sender for each in requests} - set(self._journals)
        for sender in sorted(others - self._strangers)[:MOST_LETTERS]:
            self._strangers.add(sender)
            self._watch.tell(
                f"a letter that says it is of {sender!r} lies in {self._place.where} and is not "
                "opened: no such driver was named (policy.drivers, --name)"
            )

    def _answer(self, driver: str, journal: Journal, named: letters.Named) -> bool:
        """Whether the letter was answered; it is taken away where it is of no more use."""
        file = self._folder + named.name
        last = journal.last
        if self._is_old(named, last):
            self._refuse(driver, file, self._why_old(driver, named, last))
            return False
        try:
            data = self._place.get(file, self._host.max_bytes + letters.MAX_EXTRA_BYTES)
            if data is None:
                return False
            letter = letters.read_letter(data, named.name, self._host.name, self._identity)
            if not may_listen(letter.certificate):
                raise letters.LetterError(
                    f"it is signed with a certificate of {driver!r} that may join and not drive"
                )
            label = letter.label
            if (label.conversation, label.number) == (last.conversation, last.number):
                journal.tried(label.attempt)  # its answer was lost, or this process killed
                self._leave(label, journal)
                return True
            next_one = last.key if label.conversation == last.conversation else ""
            body = letter.open([*map(private_key, filter(None, [next_one])), *self._keys.private])
            opened = open_message(body)
            del data, letter  # which a large one would hold while it is answered
        except UnfitError as error:  # it holds up no other letter
            what = f"request {named.number} of {driver!r} is no letter: {error}"
            self._refuse(driver, file, what)
            return False
        except letters.TornError as error:
            if self._watch.is_torn(named.name):
                what = f"request {named.number} of {driver!r} is torn: {error}"
                self._refuse(driver, file, what)
            return False
        except MessageError as error:
            where = self._place.where
            what = f"request {named.number} of {driver!r} was altered in {where}, or on the way"
            self._refuse(driver, file, f"{what}: {error}")
            return False
        self._watch.late(label, self._looked)
        if label.poll_s >= LEAST_POLL_S:
            self.poll_s = min(self.poll_s, label.poll_s)
        if label.conversation != last.conversation:
            self._host.connected(driver)
        missed = last.number if label.conversation == last.conversation else 0
        if label.answered > missed:
            why = (
                f"request {label.answered} of {driver!r} was answered, and nothing of that is "
                f"known here, where {missed} was the last: {self._host.name}'s site is older than "
                "this run, as one from a backup, or another process answers in its name"
            )
            self._watch.tell(why)
            answer = self._host.turn_away(opened, driver, why)
        else:
            answer = self._host.handle(body, driver)
        header = opened.header
        self._parks.park(driver, last.mark + 1)
        entry = Entry(
            label.conversation,
            label.number,
            label.attempt,
            instance=header.instance,
            sequence=header.sequence,
            key=X25519PrivateKey.generate().private_bytes_raw().hex(),
        )
        journal.keep(entry, answer)
        self._leave(label, journal)
        return True

    def _leave(self, label: letters.LetterLabel, journal: Journal) -> None:
        """Put the answer there, and take the request away."""
        answer = letters.LetterLabel(
            self._host.name,
            label.sender,
            label.conversation,
            label.number,
            label.attempt,
            "a",
            time.time(),
            private_key(journal.last.key).public_key().public_bytes_raw().hex(),
            process=self._process,
        )
        to = X25519PublicKey.from_public_bytes(bytes.fromhex(label.key))
        self._place.put(answer.place, letters.seal(answer, journal.answer(), to, self._identity))
        self._place.remove(label.place)
        journal.done()

    def _is_old(self, named: letters.Named, last: Entry) -> bool:
        """Whether this was answered before, or is of a process that another has replaced."""
        if named.conversation != last.conversation:
            return named.conversation < last.conversation
        if named.number != last.number:
            return named.number < last.number
        return named.attempt < last.attempt or (named.attempt == last.attempt and last.done)

    def _why_old(self, driver: str, named: letters.Named, last: Entry) -> str:
        where = self._place.where
        if named.conversation < last.conversation:
            return (
                f"request {named.number} of {driver!r} is of a process of the driver that another "
                f"has taken the place of: {where} shows old letters, two processes drive with one "
                "certificate, or the driver's clock went back"
            )
        return (
            f"request {named.number} of {driver!r} was shown again by {where} after it was "
            "answered and removed: a repeated letter"
        )

    def _refuse(self, driver: str, file: str, why: str) -> None:
        """Write it down, report it, and remove the letter."""
        self._host.refuse(driver, why)
        self._watch.tell(why)
        with suppress(UnfitError):  # a folder, say
            self._place.remove(file)
