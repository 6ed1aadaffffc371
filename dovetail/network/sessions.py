"""Lines from a driver to its parties, whatever carries them: who is here, and the engine of a run.

A party has one request at a time on its line; more wait their turn. When the line is lost, the
request goes out again on the next one, under the same number, so that the party's ``Host`` handles
it once. A party counts as failed

    at its deadline         and then at once, until it has answered or come back
    without a connection    after a grace period, once; and then at once until it is back
    on a wrong answer       for that request
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, Self, TypeVar

from dovetail.errors import ConfigError, MessageError, NetworkError, PartyError, RefusalError
from dovetail.network.checkpoint import Save, Saved
from dovetail.network.connection import Link, Request
from dovetail.network.control import Failed, Notice, Noticed
from dovetail.network.engine import Engine, Replies
from dovetail.network.heads import Heads, Tell, Told
from dovetail.network.ledger import LedgerFile
from dovetail.network.messages import MAX_MESSAGE_BYTES, Data, Message, Opened, decode, encode
from dovetail.network.printable import printable
from dovetail.network.renewal import Identity
from dovetail.settings.section import Precision

R = TypeVar("R", bound=Message)

#: Seconds that ``patient`` waits for a lost party where nobody says.
PATIENT_S = 60.0

#: Called with the names of the parties that are here, and of those that are missing.
OnChange = Callable[[tuple[str, ...], tuple[str, ...]], None]


class Lines:
    """A driver's lines to its parties; who carries them says when one is there or lost.

    Args:
        parties: their names.
        driver: the driver's.
        max_message_bytes: the largest answer.
        ledger: where it is written down what leaves the driver and comes to it; None writes
            nothing.
        identity: signs the heads of the ledger, and checks those of parties'; None: no certificate.

    Attributes:
        links: party -> its line.
    """

    def __init__(
        self,
        parties: Sequence[str],
        *,
        driver: str,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        ledger: LedgerFile | None = None,
        identity: Identity | None = None,
    ) -> None:
        self.driver = driver
        self.identity = identity
        self.heads = None if ledger is None else Heads(ledger, identity)
        self.ledger = ledger
        self.max_message_bytes = max_message_bytes
        self.instance = secrets.token_hex(8)  # whose the numbers are; no clock is asked
        self.sequences = itertools.count(1)
        self.recording = threading.Lock()  # requests to several parties leave at the same time
        self._changed = threading.Condition()
        self.links = {name: Link(name, self._announce) for name in parties}

    @property
    def connected(self) -> tuple[str, ...]:
        """Names of the parties that are here."""
        return tuple(name for name, link in self.links.items() if link.is_connected)

    def strangers(self) -> list[str]:
        """Addresses that connect again and again, and whose certificates do not fit."""
        return []

    def wait(self, timeout_s: float | None = None, on_change: OnChange | None = None) -> None:
        """Wait until all parties are here.

        Args:
            timeout_s: how long; None waits for ever.
            on_change: told at once and then whenever somebody comes or goes.

        Raises:
            NetworkError: some are still missing.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        reported: tuple[str, ...] | None = None
        with self._changed:
            while True:
                here = self.connected
                missing = tuple(name for name in self.links if name not in here)
                if here != reported and on_change is not None:
                    on_change(here, missing)
                reported = here
                if not missing:
                    return
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise NetworkError(
                        f"after {timeout_s:g} s there is no connection from "
                        f"{', '.join(map(repr, missing))}; {self._advice(missing)}"
                    )
                self._changed.wait(left)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up, for good."""
        raise NotImplementedError

    def check(self) -> None:
        """Called before each request: raises where there is no sense in going on, even alone."""

    def patience(self, timeout_s: float | None, of_run: float | None) -> float | None:
        """Seconds that an answer is waited for: what a method sets, or else its run; None: ever."""
        return of_run if timeout_s is None else timeout_s

    def _advice(self, missing: Sequence[str]) -> str:
        """Advice on what to look for if these parties did not come."""
        raise NotImplementedError

    def engine(
        self,
        run: str,
        *,
        parties: Sequence[str] | None = None,
        precision: Precision = "float32",
        grace_s: float | None = None,
        wait_s: float | None = None,
        timeout_s: float | None = None,
    ) -> Engine:
        """The engine of one run, with a ledger of its own.

        Args:
            run: names the run at the parties.
            parties: some of these lines'; None takes all.
            precision: how float32 tensors travel to the parties.
            grace_s: how long a party without a connection is waited for; None: as long as a
                restart of it takes.
            wait_s: how long by ``patient``; None: a minute.
            timeout_s: how long an answer is waited for where the algorithm sets no limit.
        """
        names = tuple(self.links if parties is None else parties)
        patient_s = PATIENT_S if wait_s is None else wait_s
        return _LinesEngine(self, run, names, precision, grace_s, timeout_s, patient_s)

    def _announce(self) -> None:
        with self._changed:
            self._changed.notify_all()


class _LinesEngine(Engine):
    """Engine of one run over such connections."""

    def __init__(
        self,
        lines: Lines,
        run: str,
        parties: tuple[str, ...],
        precision: Precision,
        grace_s: float | None,
        timeout_s: float | None,
        patient_s: float,
    ) -> None:
        super().__init__(lines.driver)
        unknown = [name for name in parties if name not in lines.links]
        if unknown:
            raise ConfigError(f"no such parties: {unknown}; name some of {list(lines.links)}")
        self._lines = lines
        self.run = run
        self._parties = parties
        self._precision = precision
        self._grace_s = grace_s
        self._timeout_s = timeout_s
        self._patient_s = patient_s
        self._least_s = 0.0

    def patient(self) -> Engine:
        fresh = copy(self)
        fresh._least_s = self._patient_s
        return fresh

    @property
    def parties(self) -> tuple[str, ...]:
        return self._parties

    def send(
        self, requests: Mapping[str, Message], reply: type[R], *, timeout_s: float | None = None
    ) -> _Sent[R]:
        self._lines.check()
        timeout_s = self._lines.patience(timeout_s, self._timeout_s)
        sent: dict[str, Request | PartyError] = {}
        # The same message to several is encoded once.
        encoded: dict[int, tuple[int, Data, str]] = {}
        requests = self._with_head(requests)
        for name, message in requests.items():
            if name not in self._parties:
                cause = f"no such party; there are {list(self._parties)}"
                sent[name] = PartyError(name, cause)
                continue
            try:
                if id(message) not in encoded:
                    sequence = next(self._lines.sequences)
                    data = encode(
                        message,
                        run=self.run,
                        sequence=sequence,
                        precision=self._precision,
                        instance=self._lines.instance,
                    )
                    keeps = self._lines.ledger is not None
                    digest = hashlib.sha256(data).hexdigest() if keeps else ""
                    encoded[id(message)] = sequence, data, digest
            except MessageError as error:
                sent[name] = PartyError(name, str(error))
                continue
            sequence, whole, digest = encoded[id(message)]
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            request = Request(
                sequence,
                self.run,
                message.wire_name(),
                whole,
                deadline,
                self._grace_s,
                self._least_s,
                time.time(),
                partial(self._record, name, message, sequence, digest),
                partial(self._came, name, sequence),
            )
            self._lines.links[name].submit(request)
            sent[name] = request
        return _Sent(self, sent, reply)

    def notify(self, party: str, why: str) -> None:
        """Nobody waits for what answers it: a party that has gone hears of it when it is back."""
        self.send({party: Notice(printable(why))}, Noticed)

    def _with_head(self, requests: Mapping[str, Message]) -> Mapping[str, Message]:
        """Requests, with the head of the driver's ledger in those to save and to end."""
        heads = self._lines.heads
        if heads is None or not any(isinstance(each, Save | Tell) for each in requests.values()):
            return requests
        with self._lines.recording:
            head = heads.current()
        with_heads = {
            id(each): replace(each, head=head)
            for each in requests.values()
            if isinstance(each, Save | Tell)
        }
        return {name: with_heads.get(id(each), each) for name, each in requests.items()}

    def _record(
        self, party: str, message: Message, sequence: int, digest: str, connection: int
    ) -> None:
        """Write down what is about to leave the driver; what cannot be is not sent."""
        with self._lines.recording:
            if self._lines.ledger is not None:
                self._lines.ledger.record(
                    party,
                    message,
                    run=self.run,
                    sequence=sequence,
                    precision=self._precision,
                    digest=digest,
                    connection=connection,
                )
            self.ledger.record(self.driver, party, message, self._precision)

    def _came(
        self, party: str, sequence: int, data: Data | None, opened: Opened | None, connection: int
    ) -> None:
        """Write down what has come of a party: no data of one that would not read the request."""
        if self._lines.ledger is None:
            return
        message, num_bytes, digest = Failed.wire_name(), 0, ""
        if data is not None:
            message, num_bytes = "", len(data)
            digest = hashlib.sha256(data).hexdigest()
            if opened is not None:
                message, num_bytes = opened.header.type, len(data) - opened.start
        with self._lines.recording:
            self._lines.ledger.came(
                party,
                message,
                num_bytes,
                run=self.run,
                sequence=sequence,
                digest=digest,
                connection=connection,
            )

    def receive(self, party: str, request: Request, reply: type[R]) -> R:
        """The answer to one request.

        Raises:
            PartyError: none came, or another than asked for.
        """
        opened = self._lines.links[party].wait(request)
        accepted: tuple[type[Message], ...] = (reply, Failed)
        try:
            answer = decode(opened, accepted, max_bytes=self._lines.max_message_bytes)
        except MessageError as error:
            raise PartyError(party, printable(str(error))) from None
        if isinstance(answer, Failed):
            raise RefusalError(party, printable(answer.cause))
        assert isinstance(answer, reply)
        heads = self._lines.heads
        message: Message = answer
        if heads is not None and isinstance(message, Saved | Told):
            try:
                heads.keep(party, message.head)
            except MessageError as error:
                raise PartyError(party, printable(str(error))) from None
        self.ledger.record(party, self.driver, answer, opened.header.precision)
        return answer


@dataclass(eq=False)
class _Sent(Generic[R]):
    """Messages under way."""

    engine: _LinesEngine
    sent: Mapping[str, Request | PartyError]
    reply: type[R]
    received: Replies[R] | None = None

    def replies(self) -> Replies[R]:
        if self.received is None:
            answered: dict[str, R] = {}
            failures: dict[str, PartyError] = {}
            for party, request in self.sent.items():
                try:
                    if isinstance(request, PartyError):
                        raise request
                    answered[party] = self.engine.receive(party, request, self.reply)
                except PartyError as failure:
                    failures[party] = failure
            self.received = Replies(answered, failures)
        return self.received
