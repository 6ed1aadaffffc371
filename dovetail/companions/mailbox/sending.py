"""The driver's side of a mailbox: leaves a request for a party, and looks for what answers it.

The request lies there until it is answered: a party takes it away only when its answer lies there.
A request that is gone without an answer was lost, and goes out again as another attempt; so does
one whose answer is torn or altered. The party handles a number once, and repeats its answer.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from dovetail.companions.mailbox import letters
from dovetail.companions.mailbox.keys import read_card
from dovetail.companions.mailbox.places import MAIL, Place, PlaceError, UnfitError, next_look_s
from dovetail.companions.mailbox.watching import LetterWatch, clock
from dovetail.errors import MessageError
from dovetail.network.calls import Call, Calls, SlowError, SpoiltError, UnreachableError
from dovetail.network.ledger import LedgerFile
from dovetail.network.messages import MAX_MESSAGE_BYTES, PROTOCOL, Data, open_message
from dovetail.network.renewal import Certified

#: The most seconds from one look at a place to the next.
POLL_S = 10.0

#: Times ``poll_s`` after which a request that is gone, without an answer, is taken for lost.
LOST_LOOKS = 3

#: How often a request goes out before its party counts as one whose answers cannot be read.
MOST_ATTEMPTS = 5

#: Seconds after which it is told first who is waited for; then after twice as long each time.
REPORT_S = 60.0


class Mailbox(Calls):
    """A driver's lines to its parties, by letters in one place.

    Args:
        place: where they lie.
        parties: who takes part.
        driver: the driver's name.
        identity: signs and checks.
        show: told who is waited for, and what is wrong with letters.
        poll_s: the most seconds from one look to the next.
        max_message_bytes: the largest answer.
        ledger: where it is written down what leaves the driver; None writes nothing.
        watch: what finds out what the place does; None: one that reports to ``show``.
    """

    def __init__(
        self,
        place: Place,
        *,
        parties: Sequence[str],
        driver: str,
        identity: Certified,
        show: Callable[[str], None] = lambda text: None,
        poll_s: float = POLL_S,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        ledger: LedgerFile | None = None,
        watch: LetterWatch | None = None,
    ) -> None:
        self._place = place
        self._leaving = threading.Event()
        conversation = f"{time.time_ns() // 10**6:015d}-{secrets.token_hex(4)}"
        shared = _Shared(
            place,
            driver,
            identity,
            conversation,
            poll_s,
            max_message_bytes + letters.MAX_EXTRA_BYTES,
            watch or LetterWatch(place.where, show),
            show,
            self._leaving,
        )
        self._all = {name: Correspondence(name, shared) for name in parties}
        for each in self._all.values():
            each.withdraw()
        calls: Mapping[str, Call] = self._all
        super().__init__(
            calls,
            driver=driver,
            max_message_bytes=max_message_bytes,
            ledger=ledger,
            identity=identity,
            asks_beside=False,
        )

    def patience(self, timeout_s: float | None, of_run: float | None) -> float | None:
        """Seconds to wait, as the run says: a method's own limits are for an open connection."""
        return of_run

    def close(self) -> None:
        """Take back what nobody has answered."""
        self._leaving.set()
        super().close()
        for each in self._all.values():
            each.withdraw()
        self._place.close()


@dataclass(frozen=True)
class _Shared:
    """State that a driver's correspondences share."""

    place: Place
    driver: str
    identity: Certified
    conversation: str
    poll_s: float
    most: int
    watch: LetterWatch
    tell: Callable[[str], None]
    leaving: threading.Event
    key: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate)


class Correspondence:
    """Correspondence of one driver with one party: a ``Call``.

    Attributes:
        process: of the party's that answered last.
    """

    def __init__(self, party: str, shared: _Shared) -> None:
        self.process = ""
        self._party, self._shared = party, shared
        self._card: X25519PublicKey | None = None
        self._next: X25519PublicKey | None = None  # came with the last answer
        self._asked: Data | None = None  # what is not answered yet
        self._number = 0
        self._answered = 0  # the highest number that was
        self._label: letters.LetterLabel | None = None  # of the last attempt, if it could be left
        self._attempts = 0
        self._since = 0.0  # of the first attempt
        self._asked_s = 0.0  # the same by a clock that nobody sets
        self._gone_s: float | None = None  # by it, since when the request is gone; None: lies there
        self._looked = 0.0  # when the place was looked through last
        self._report_s = REPORT_S
        self._read: set[str] = set()  # answers that are done

    def __call__(self, data: bytes, timeout_s: float, /) -> Data:
        if not data:
            return self._hello()
        if data != self._asked:
            self._asked, self._label = data, None
            self._number, self._attempts = self._number + 1, 0
            self._since, self._report_s = time.time(), REPORT_S
            self._asked_s = time.monotonic()
        return self._answer(time.monotonic() + timeout_s, timeout_s)

    def _hello(self) -> bytes:
        """Bytes of the card that a party has left.

        Raises:
            GoneError: nobody has, or it cannot be seen.
        """
        shared = self._shared
        try:
            self._card = read_card(shared.place, self._party, shared.identity)
        except MessageError as error:
            shared.watch.tell(str(error))
            raise UnreachableError(str(error)) from None
        except PlaceError as error:
            raise UnreachableError(str(error)) from None
        if self._card is None:
            raise UnreachableError(
                f"{self._party!r} has left no key in {shared.place.where} yet; is dovetail join "
                f"--mailbox run there, with that place?"
            )
        hello = {"protocol": PROTOCOL, "party": self._party}
        return json.dumps({**hello, "instance": self._card.public_bytes_raw().hex()[:16]}).encode()

    def _answer(self, deadline: float, timeout_s: float) -> Data:
        shared = self._shared
        while True:
            try:
                if self._label is None:
                    self._leave()
                answer = self._look()
                if answer is not None:
                    self._asked, self._answered = None, self._number
                    return answer
            except PlaceError as error:
                shared.watch.tell(f"{error}; it is tried again", "unreachable")
            self._report()
            pause_s = next_look_s(time.monotonic() - self._asked_s, shared.poll_s)
            if time.monotonic() >= deadline or shared.leaving.wait(
                max(0.0, min(pause_s, deadline - time.monotonic()))
            ):
                raise SlowError(f"{self._party!r} has not answered for {timeout_s:g} s")

    def _leave(self) -> None:
        """Put the request there, as another attempt."""
        shared = self._shared
        assert self._asked is not None
        if self._attempts >= MOST_ATTEMPTS:
            raise SpoiltError(
                f"request {self._number} to {self._party!r} was left in {shared.place.where} "
                f"{self._attempts} times, and no answer came that can be read; ask its owner to "
                "look for the cause in join.log of its site"
            )
        label = letters.LetterLabel(
            shared.driver,
            self._party,
            shared.conversation,
            self._number,
            self._attempts + 1,
            "q",
            time.time(),
            shared.key.public_key().public_bytes_raw().hex(),
            answered=self._answered,
            poll_s=shared.poll_s,
        )
        shared.place.put(
            label.place, letters.seal(label, self._asked, self._key(), shared.identity)
        )
        self._label, self._gone_s = label, None
        self._attempts += 1

    def _key(self) -> X25519PublicKey:
        """Key that the request is sealed to: that of the last answer, if there was one.

        A party that was put back from a backup, or has taken a new key, opens it by its card's.

        Raises:
            UnreachableError: its card does not count.
        """
        if self._next is not None and self._attempts < 2:
            return self._next
        if self._attempts:
            self._hello()
        assert self._card is not None
        return self._card

    def _look(self) -> Data | None:
        """The answer, if it is there."""
        shared, label = self._shared, self._label
        assert label is not None
        # In this order: an answer lies there before its request is taken away.
        lies_there = label.name in shared.place.names(MAIL + self._party + "/")
        looked, answer = time.time(), None
        for named in sorted(self._answers()):
            found = self._judge(named)
            answer = found if found is not None else answer
        self._looked = looked
        if answer is not None:
            self._withdraw_attempts(label)
            return answer
        if lies_there:
            self._gone_s = None
        elif self._label is not None:
            now = time.monotonic()
            self._gone_s = now if self._gone_s is None else self._gone_s
            if now - self._gone_s >= LOST_LOOKS * shared.poll_s:
                self._again(f"request {self._number} to {self._party!r}, or its answer, is gone")
        return None

    def _answers(self) -> list[letters.Named]:
        folder = MAIL + self._shared.driver + "/"
        names = [letters.read_name(name) for name in self._shared.place.names(folder)]
        return [
            each
            for each in names
            if each is not None and each.sender == self._party and each.kind == "a"
        ]

    def _judge(self, named: letters.Named) -> Data | None:
        """Data of a file if it is the answer; the file is removed once it is of no more use."""
        shared, where = self._shared, self._shared.place.where
        file = f"{MAIL}{shared.driver}/{named.name}"
        if named.conversation != shared.conversation:
            if named.conversation < shared.conversation:  # of a process before this
                self._drop(file)
            return None
        what = f"answer {named.number} of {self._party!r}"
        if named.name in self._read:
            shared.watch.tell(
                f"{what} was shown again by {where} after it was read and removed: it repeats "
                "letters",
                f"repeated {self._party}",
            )
            self._drop(file)
            return None
        if named.number != self._number:
            self._drop(file)
            return None
        try:
            data = shared.place.get(file, shared.most)
            if data is None:
                return None
            letter = letters.read_letter(data, named.name, shared.driver, shared.identity)
            body = self._opened(letter)
        except UnfitError as error:
            self._read.add(named.name)  # also where it cannot be taken away
            self._spoilt(file, f"{what} is no letter: {error}")
            return None
        except letters.TornError as error:
            if shared.watch.is_torn(named.name):
                self._spoilt(file, f"{what} is torn: {error}")
            return None
        except MessageError as error:
            self._spoilt(file, f"{what} was altered in {where}, or on the way: {error}")
            return None
        self._read.add(named.name)
        self.process = letter.label.process
        shared.watch.late(letter.label, self._looked)
        self._drop(file)
        return body

    def _opened(self, letter: letters.Letter) -> bytes:
        """Raises MessageError: it is sealed to another."""
        body = letter.open([self._shared.key])
        open_message(body)
        try:
            self._next = X25519PublicKey.from_public_bytes(bytes.fromhex(letter.label.key))
        except ValueError:
            raise letters.LetterError("it has no key for the next request") from None
        return body

    def _drop(self, file: str) -> None:
        with suppress(UnfitError):  # a folder, say
            self._shared.place.remove(file)

    def _spoilt(self, file: str, why: str) -> None:
        self._drop(file)
        self._again(why)

    def _again(self, why: str) -> None:
        """The request is to go out again."""
        if self._label is not None:
            self._shared.watch.tell(f"{why}; it is asked again", f"again {self._party}: {why[:40]}")
        self._label = None

    def _report(self) -> None:
        waited = time.time() - self._since
        if waited < self._report_s:
            return
        self._report_s = max(2 * self._report_s, waited)
        lies = "lies" if self._gone_s is None else "lay"
        self._shared.tell(
            f"waiting for {self._party!r} since {clock(self._since)}: request {self._number} "
            f"{lies} in {self._shared.place.where}"
        )

    def _withdraw_attempts(self, label: letters.LetterLabel) -> None:
        """Earlier attempts at what is answered."""
        for attempt in range(1, self._attempts + 1):
            self._shared.place.remove(replace(label, attempt=attempt).place)

    def withdraw(self) -> None:
        """Take back all requests of this driver's that lie there: of processes before, or ours."""
        shared = self._shared
        folder = MAIL + self._party + "/"
        try:
            for name in shared.place.names(folder):
                named = letters.read_name(name)
                if named is not None and named.sender == shared.driver and named.kind == "q":
                    shared.place.remove(folder + name)
        except PlaceError as error:
            shared.watch.tell(f"{error}; it is tried again", "unreachable")
