"""A party's end of a ``Stream``: dials out, answers, and dials again when the line is lost."""

from __future__ import annotations

import logging
import random
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import grpc

from dovetail.errors import MessageError, NetworkError
from dovetail.network.certificates import Credentials, tls_name
from dovetail.network.frames import (
    MESSAGE,
    METHOD,
    REFUSED,
    Assembler,
    Hello,
    TooLargeError,
    frames,
    options,
    printable,
)
from dovetail.network.host import Host
from dovetail.network.messages import Data

#: Seconds between two attempts: from the first, doubling, to the last; each times 0.5 to 1.
BACKOFF_S = (0.1, 5.0)

#: Answers that wait for a driver to read them; until it does, no more of its requests are read.
MAX_WAITING = 2

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """What happened to a party's line to its driver.

    ``kind`` is "connected"; "lost", of a line that was there; "waiting", for a driver that is not
    there yet; or "refused", which takes a person to put right. Dialling goes on in any case.
    """

    kind: Literal["connected", "lost", "waiting", "refused"]
    text: str


def serve(
    host: Host,
    address: str,
    credentials: Credentials,
    *,
    driver: str,
    stop: threading.Event,
    on_event: Callable[[Event], None] | None = None,
    silence_s: float = 6.0,
    backoff_s: tuple[float, float] = BACKOFF_S,
) -> None:
    """Answer a driver until told to stop.

    Args:
        host: answers.
        address: "host:port" where the driver listens.
        credentials: this party's certificate and key, and whom it believes.
        driver: the name that the driver's certificate must have, whatever the host is called.
        stop: ends it, once the message in hand is answered.
        on_event: told of connections, losses and refusals; not twice the same in a row.
        silence_s: a driver that is silent for so long counts as gone.
        backoff_s: seconds between the first two attempts, and the most between two.

    Raises:
        NetworkError: another process with this certificate took this one's place.
    """
    line = _Line(host, address, credentials, driver, stop, silence_s)
    watcher = threading.Thread(target=line.hang_up_on_stop, daemon=True, name="dovetail-stop")
    watcher.start()
    last: Event | None = None

    def tell(event: Event) -> None:
        nonlocal last
        if event != last and on_event is not None:
            on_event(event)
        last = event

    jitter = random.SystemRandom()  # no one else's random numbers change
    pause_s = backoff_s[0]
    try:
        while not stop.is_set():
            was_connected, event = line.dial(tell)
            if stop.is_set():
                return
            tell(event)
            if was_connected:
                pause_s = backoff_s[0]
            stop.wait(pause_s * jitter.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, backoff_s[1])
    finally:
        line.ended.set()
        if stop.is_set():
            watcher.join(2.0)


class _Outbox:
    """What waits to be sent on one connection: not more than a little.

    A driver that asks and does not read the answers could else fill this party's memory with them.
    """

    def __init__(self) -> None:
        self._items: deque[tuple[int, Data]] = deque()
        self._changed = threading.Condition()
        self._leaving = False
        self._closed = False

    def put(self, kind: int, data: Data) -> None:
        """Add it once there is room; drop it if the line is closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._items) < MAX_WAITING or self._leaving or self._closed
            )
            if not self._closed:
                self._items.append((kind, data))
                self._changed.notify_all()

    def get(self) -> tuple[int, Data] | None:
        """The next, once there is one; None after the last of a closed line."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._closed)
            item = self._items.popleft() if self._items else None
            self._changed.notify_all()
            return item

    def leave(self) -> None:
        """Wait for room no more: what is in hand is the last."""
        with self._changed:
            self._leaving = True
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class _Line:
    """One party's attempts to reach one driver."""

    def __init__(
        self,
        host: Host,
        address: str,
        credentials: Credentials,
        driver: str,
        stop: threading.Event,
        silence_s: float,
    ) -> None:
        self.host = host
        self.address = address
        self.driver = driver
        self.stop = stop
        self.hello = Hello(secrets.token_hex(8))
        self.credentials = grpc.ssl_channel_credentials(
            credentials.ca, credentials.key, credentials.certificate
        )
        self.options = [
            *options(silence_s),
            # The name that the certificate must have: who answers counts, not on which host.
            ("grpc.ssl_target_name_override", tls_name(driver)),
            ("grpc.use_local_subchannel_pool", 1),  # no back-off beside ours
            ("grpc.enable_retries", 0),
        ]
        self.outbox = _Outbox()
        self.call: Any = None
        self.answering = threading.Lock()  # held while a message is in hand
        self.ended = threading.Event()

    def hang_up_on_stop(self) -> None:
        """Close the line behind the answer that is in hand."""
        self.stop.wait()
        self.outbox.leave()
        with self.answering:
            self.outbox.close()
        if not self.ended.wait(1.0) and self.call is not None:
            self.call.cancel()  # the driver does not close its side

    def dial(self, tell: Callable[[Event], None]) -> tuple[bool, Event]:
        """One attempt, to its end; whether it got through, and how it ended."""
        self.outbox = outbox = _Outbox()
        if self.stop.is_set():  # before there was this line to close
            outbox.close()
        connected = False
        with grpc.secure_channel(self.address, self.credentials, self.options) as channel:
            try:
                self.call = channel.stream_stream(METHOD)(self._outgoing(outbox))
                if not self.call.add_callback(outbox.close):  # nobody waits on a lost line
                    outbox.close()
                for _ in self._answer(outbox):
                    connected = True
                    tell(Event("connected", f"connected to {self.driver} at {self.address}"))
                ended = Event("lost", f"{self.driver} has closed the line")
            except grpc.RpcError as error:
                ended = self._event(error, connected)
            except MessageError as error:
                _log.warning("%s: the line to %s is closed: %s", self.host.name, self.driver, error)
                ended = Event("lost", f"what came from {self.driver} cannot be read: {error}")
            finally:
                outbox.close()
        return connected, ended

    def _outgoing(self, outbox: _Outbox) -> Iterator[bytes]:
        yield self.hello.encode()
        while (item := outbox.get()) is not None:
            yield from frames(*item)

    def _answer(self, outbox: _Outbox) -> Iterator[None]:
        """Answers all that comes; yields once, when the driver has said hello."""
        assembler = Assembler(self.host.max_bytes)
        greeted = False
        for frame in self.call:
            try:
                whole = assembler.add(frame)
            except TooLargeError as error:
                outbox.put(REFUSED, self.host.pass_over(str(error), self.driver).encode())
                continue
            if whole is None:
                continue
            kind, data = whole
            if not greeted:
                Hello.decode(kind, data)
                self.host.connected(self.driver)
                greeted = True
                yield
                continue
            if kind != MESSAGE:
                raise MessageError("expected a message")
            with self.answering:
                if not self.stop.is_set():
                    outbox.put(MESSAGE, self.host.handle(data, self.driver))

    def _event(self, error: Any, connected: bool) -> Event:
        """What a failed call means, and what to do about it."""
        code, details = error.code(), printable(str(error.details()))
        if code == grpc.StatusCode.ABORTED:
            raise NetworkError(details)
        if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION):
            return Event("refused", f"{self.driver} refused: {details}")
        if connected:
            return Event("lost", f"lost the line to {self.driver} at {self.address} ({details})")
        if _is_tls(details):
            return Event(
                "refused",
                f"no trusted line to {self.driver} at {self.address} ({details}): check that both "
                "certificates are of one authority, that neither has expired, and that the "
                f"driver's certificate is of {self.driver!r}",
            )
        return Event("waiting", f"{self.driver} is not at {self.address} yet ({details})")


def _is_tls(details: str) -> bool:
    """Whether a connection failed over certificates; gRPC has no code for it.

    A driver that does not believe our certificate says so only by closing the socket, when for us
    the handshake is over (TLS 1.3).
    """
    told = details.lower()
    return any(
        word in told
        for word in (
            *("ssl", "tls", "handshake", "certificate", "verification"),
            *("socket closed", "connection reset", "broken pipe"),
        )
    )
