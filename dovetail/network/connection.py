"""The driver's side of one party: its connections, and the request that is on the wire."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import grpc
from cryptography import x509

from dovetail.errors import MessageError, NetworkError, PartyError
from dovetail.network.messages import Data, Opened, open_message
from dovetail.network.printable import printable

#: (an answer's bytes, the same opened if it can be, number of the connection): writes down that it
#: came.
Came = Callable[[Data | None, Opened | None, int], None]

#: Seconds that a lost party is waited for, besides twice the time that its start took.
GRACE_S = 10.0

#: The longest start that a party is believed to need.
MAX_START_S = 60.0

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Connection:
    """Stream of one party: what it is to be sent, and how it is to end."""

    name: str
    peer: str
    instance: str | None = None  # of the party's process; None until it has said hello
    outbox: SimpleQueue[Data | None] = field(default_factory=SimpleQueue)
    refusal: tuple[Any, str] | None = None  # gRPC's code, and why
    greeting: SimpleQueue[bytes | None] = field(default_factory=SimpleQueue)  # the driver's hello
    shown: tuple[x509.Certificate, ...] = ()  # the party's certificate, and those behind it
    cut: Callable[[], Any] = lambda: None  # ends the call whether or not the party reads
    number: int = 0  # of this process's connections with that party
    start_s: float = 0.0  # how long the party's process took to start, as it says

    def hang_up(self, refusal: tuple[Any, str] | None = None) -> None:
        self.refusal = self.refusal or refusal
        self.greeting.put(None)
        self.outbox.put(None)


@dataclass(eq=False)
class Request:
    """A message to one party, and what became of it."""

    sequence: int
    run: str
    kind: str
    data: Data
    deadline: float | None
    grace_s: float | None  # None: as long as a restart of the party takes
    least_s: float  # that a party without a connection is waited for in any case
    sent: float  # since the epoch, for people
    record: Callable[[int], None]  # writes down that it leaves, on which connection
    came: Came  # writes down what answers it
    reply: Opened | None = None
    failure: str | None = None
    unwritten: Exception | None = None  # why it could not be written down, and was not sent

    @property
    def is_open(self) -> bool:
        return self.reply is None and self.failure is None


class Link:
    """Link of the driver to one party, over all its connections."""

    def __init__(self, name: str, announce: Callable[[], None]) -> None:
        self.name = name
        self._announce = announce
        self._condition = threading.Condition(threading.Lock())
        self._opening: Connection | None = None  # has not said hello
        self._connection: Connection | None = None
        self._down_since = time.monotonic()
        self._down_clock = _clock(time.time())
        self._grace = True  # whether it is waited for while it has no connection
        self._asked: Request | None = None  # on the wire; may have failed and not be answered yet
        self._waiting: deque[Request] = deque()
        self._closed = False
        self._barred = ""  # why its last line was cut, if it was
        self._num_connections = 0
        self._start_s = 0.0  # how long its process took to start

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def num_connections(self) -> int:
        """How many there were; one more when another process of the party answers."""
        return self._num_connections

    @property
    def connections(self) -> tuple[Connection, ...]:
        """Connections of the link: the one that counts, and one that has not said hello."""
        with self._condition:
            return tuple(each for each in (self._connection, self._opening) if each is not None)

    # --- the driver's threads ---

    def submit(self, request: Request) -> None:
        """Send it now, or when its turn comes; fails at once if the party cannot be reached."""
        with self._condition:
            request.failure = self._unreachable(request, time.monotonic())
            if request.failure is None:
                self._waiting.append(request)
                self._send_next()
            if request.unwritten is not None:
                raise request.unwritten

    def wait(self, request: Request) -> Opened:
        """Answer to a request; waits for it.

        Raises:
            PartyError: none came in time.
            NetworkError, OSError: it could not be written down when its turn came.
        """
        with self._condition:
            while request.is_open:
                now = time.monotonic()
                request.failure = self._late(request, now) or self._unreachable(request, now)
                if request.failure is not None:
                    self._give_up(request)
                    break
                is_away = self._connection is None and request.least_s > 0
                limits = [] if request.deadline is None or is_away else [request.deadline]
                if self._connection is None:
                    limits.append(self._down_since + self._grace_s(request))
                self._condition.wait(min(limits) - now if limits else None)
        if request.unwritten is not None:
            raise request.unwritten
        if request.reply is None:
            raise PartyError(self.name, request.failure or "")
        return request.reply

    def _late(self, request: Request, now: float) -> str | None:
        is_away = self._connection is None and request.least_s > 0
        if is_away or request.deadline is None or now < request.deadline:
            return None
        return f"has not answered {request.kind} since {_clock(request.sent)}"

    def _unreachable(self, request: Request, now: float) -> str | None:
        """Why nothing can come from the party, if so."""
        if self._closed:
            return "the driver has hung up"
        if self._connection is None:
            if self._grace and now < self._down_since + self._grace_s(request):
                return None
            why = f": {self._barred}" if self._barred else "; start dovetail join there again"
            return f"has not been connected since {self._down_clock}{why}"
        if self._asked is not None and self._asked is not request and not self._asked.is_open:
            return f"has not answered {self._asked.kind} since {_clock(self._asked.sent)}"
        return None

    def _grace_s(self, request: Request) -> float:
        """How long the party may be away before this request fails."""
        grace_s = request.grace_s
        if grace_s is None:
            grace_s = GRACE_S + 2 * self._start_s
        return max(grace_s, request.least_s)

    def _give_up(self, request: Request) -> None:
        if request in self._waiting:
            self._waiting.remove(request)
        if self._connection is None:
            self._grace = False
            self._forget_failed()
        self._condition.notify_all()  # those behind it cannot be answered either

    def close(self) -> None:
        """Hang up for good."""
        # Ctrl-C between taking the lock and the block that gives it back leaves it taken.
        taken = self._condition.acquire(timeout=1.0)
        self._closed = True
        for connection in (self._opening, self._connection):
            if connection is not None:
                connection.hang_up()
        if taken:
            self._condition.notify_all()
            self._condition.release()

    # --- the connections' threads ---

    def opened(self, connection: Connection) -> None:
        """Note a connection that may be about to say hello; a newer one replaces it."""
        with self._condition:
            if self._opening is not None:
                self._opening.hang_up()
            self._opening = connection

    def connected(self, connection: Connection) -> None:
        """The party is back: what it had not answered goes out again."""
        with self._condition:
            if connection is not self._opening:  # a newer one has come
                return
            older, self._opening, self._connection = self._connection, None, connection
            self._barred = ""
            self._num_connections += 1
            connection.number = self._num_connections
            if older is not None:
                self._replace(older, connection)
            _log.info("%s has connected from %s", self.name, connection.peer)
            self._grace = True
            self._forget_failed()
            self._start_s = min(max(0.0, connection.start_s), MAX_START_S)
            if self._asked is not None:
                if self._asked.deadline is not None:  # it does not answer while it is away
                    self._asked.deadline += time.monotonic() - self._down_since
                connection.outbox.put(self._asked.data)
            self._send_next()
            self._condition.notify_all()
        self._announce()

    def renumber(self, connection: Connection) -> None:
        """Another process of the party answers on it from here on: in ledgers, another
        connection."""
        with self._condition:
            self._num_connections += 1
            connection.number = self._num_connections

    def _replace(self, older: Connection, newer: Connection) -> None:
        if older.instance == newer.instance:
            older.hang_up()
            return
        cause = (
            f"another process with the certificate of {self.name!r} has connected and takes the "
            "place of this one; run only one, and give nobody else the key"
        )
        _log.warning("%s: from %s and %s: %s", self.name, older.peer, newer.peer, cause)
        older.hang_up((grpc.StatusCode.ABORTED, cause))

    def lost(self, connection: Connection) -> None:
        with self._condition:
            if self._opening is connection:
                self._opening = None
            if self._connection is not connection:
                return
            _log.info("%s has lost its connection from %s", self.name, connection.peer)
            self._connection = None
            self._down_since, self._down_clock = time.monotonic(), _clock(time.time())
            # Who was overdue already has had its time.
            self._grace = self._asked is None or self._asked.is_open
            self._forget_failed()
            self._condition.notify_all()
        self._announce()

    def answered(self, connection: Connection, data: Data) -> None:
        """The answer to what is on the wire; too late for one that has failed."""
        with self._condition:
            request = self._due(connection)
            if request is None:
                return
            opened = None
            try:
                opened = open_message(data)
                header = opened.header
                if (header.run, header.sequence) != (request.run, request.sequence):
                    raise MessageError(
                        f"it answered number {header.sequence} of run {header.run!r}, asked was "
                        f"number {request.sequence} of run {request.run!r}"
                    )
            except MessageError as error:
                cause: str | None = printable(str(error))
                _log.warning("%s: %s", self.name, cause)
            else:
                cause = None
            cause = self._write_came(request, data, opened, connection) or cause
            self._done(request, reply=opened if cause is None else None, failure=cause)

    def refused(self, connection: Connection, cause: str) -> None:
        """The party will not read what is on the wire."""
        with self._condition:
            request = self._due(connection)
            if request is not None:
                unwritten = self._write_came(request, None, None, connection)
                self._done(request, failure=unwritten or cause)

    def _write_came(
        self, request: Request, data: Data | None, opened: Opened | None, connection: Connection
    ) -> str | None:
        """Why the answer cannot be written down, if so; then it does not count."""
        try:
            request.came(data, opened, connection.number)
        except (NetworkError, OSError) as error:
            request.unwritten = error
            return str(error)
        return None

    def bar(self, connection: Connection, cause: str) -> None:
        """Cut a line that must not be: nothing more comes on it, and nobody waits for its return.

        What is on the wire fails: who is barred is not asked it again.
        """
        with self._condition:
            if connection is self._connection:
                self._barred = cause
                if self._asked is not None:
                    self._done(self._asked, failure=cause, go_on=False)
        self.lost(connection)
        with self._condition:
            if self._barred:
                self._grace = False
                self._condition.notify_all()
        connection.hang_up((grpc.StatusCode.PERMISSION_DENIED, cause))

    def lied(self, connection: Connection, cause: str) -> None:
        """Note an invalid answer; the request on the wire is not asked again of its party."""
        with self._condition:
            if connection is self._connection and self._asked is not None:
                self._done(self._asked, failure=cause, go_on=False)

    def _due(self, connection: Connection) -> Request | None:
        if connection is not self._connection:
            return None  # what was replaced no longer counts
        if self._asked is None:
            raise MessageError("a message that nobody asked for")
        return self._asked

    def _done(
        self,
        request: Request,
        *,
        reply: Opened | None = None,
        failure: str | None = None,
        go_on: bool = True,
    ) -> None:
        if request.is_open:
            request.reply, request.failure = reply, failure
        self._asked = None
        if go_on:
            self._send_next()
        self._condition.notify_all()

    def _send_next(self) -> None:
        """Hand the next message to the connection, once it is written down; what cannot be is not
        handed over."""
        while self._asked is None and self._waiting and self._connection is not None:
            request = self._waiting.popleft()
            try:
                request.record(self._connection.number)
            except (NetworkError, OSError) as error:
                request.unwritten, request.failure = error, str(error)
                continue
            self._asked = request
            self._connection.outbox.put(request.data)

    def _forget_failed(self) -> None:
        """On a new connection nothing is waited for that has failed on the old one."""
        if self._asked is not None and not self._asked.is_open:
            self._asked = None


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))
