"""A party's end of a ``Stream``: connects, answers, and connects again when the line is lost."""

from __future__ import annotations

import logging
import random
import secrets
import threading
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

import grpc
from cryptography import x509

from dovetail.errors import MessageError, NetworkError
from dovetail.network import frames as wire
from dovetail.network.certificates import tls_name
from dovetail.network.credentials import Credentials, expiry_warning
from dovetail.network.host import Host
from dovetail.network.messages import Data
from dovetail.network.printable import printable
from dovetail.network.renewal import LOOK_S, Certified, certified, check_proof
from dovetail.network.retry import since_start_s

#: Seconds between two attempts: from the first, doubling, to the last; each times 0.5 to 1.
BACKOFF_S = (0.1, 5.0)

#: Answers that wait for a driver to read them; until it does, no more of its requests are read.
MAX_WAITING = 2

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """Event on a party's connection to its driver.

    ``kind`` is "connected"; "lost", of a line that was there; "waiting", for a driver that is not
    there yet; "refused", which takes a person to put right; or "warned", of what will. Attempts
    go on in any case.
    """

    kind: Literal["connected", "lost", "waiting", "refused", "warned"]
    text: str


@dataclass(frozen=True)
class Way:
    """How a driver is reached.

    Attributes:
        proxy: URL of an HTTP proxy that is asked to CONNECT; "" goes without, whatever the
            environment says; None does as ``https_proxy`` and ``no_proxy`` of the environment say.
        tls_name: the DNS name that the driver's certificate must have, where an authority of a
            company gave it none of Dovetail's; None: Dovetail's.
    """

    proxy: str | None = None
    tls_name: str | None = None


#: As the environment says, to a driver whose certificate Dovetail made.
AS_EVER = Way()


def serve(
    host: Host,
    address: str,
    credentials: Credentials | Certified,
    *,
    driver: str,
    stop: threading.Event,
    way: Way = AS_EVER,
    on_event: Callable[[Event], None] | None = None,
    silence_s: float = 6.0,
) -> None:
    """Answer a driver until told to stop.

    Args:
        host: answers.
        address: "host:port" where the driver listens.
        credentials: this party's certificate and key, and whom it believes; a ``Certified``
            takes up changes on a new line, and a revoked driver's line is cut.
        driver: the name that the driver's certificate must have, whatever the host is called.
        stop: ends it, once the message in hand is answered.
        way: how the driver is reached.
        on_event: called with connections, losses and refusals; not twice the same in a row.
        silence_s: a driver that is silent for so long counts as gone.

    Raises:
        NetworkError: another process with this certificate took this one's place.
    """
    line = _Line(host, address, certified(credentials), driver, stop, silence_s, way)
    watchers = [
        threading.Thread(target=line.hang_up_on_stop, daemon=True, name="dovetail-stop"),
        threading.Thread(target=line.look, daemon=True, name="dovetail-renewal"),
    ]
    for watcher in watchers:
        watcher.start()
    last: Event | None = None

    def report(event: Event) -> None:
        nonlocal last
        if event != last and on_event is not None:
            on_event(event)
        last = event

    jitter = random.SystemRandom()  # no one else's random numbers change
    pause_s = BACKOFF_S[0]
    try:
        while not stop.is_set():
            was_connected, event = line.dial(report)
            if stop.is_set():
                return
            report(event)
            if was_connected:
                pause_s = BACKOFF_S[0]
                if line.is_renewed():  # at once: nothing was wrong
                    continue
            stop.wait(pause_s * jitter.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, BACKOFF_S[1])
    finally:
        line.ended.set()
        if stop.is_set():
            for watcher in watchers:
                watcher.join(2.0)


class _Outbox:
    """Queue of what waits to be sent on one connection: not more than a little.

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

    def is_closed(self) -> bool:
        with self._changed:
            return self._closed


class _Line:
    """Attempts of one party to reach one driver."""

    def __init__(
        self,
        host: Host,
        address: str,
        credentials: Certified,
        driver: str,
        stop: threading.Event,
        silence_s: float,
        way: Way,
    ) -> None:
        self.host = host
        self.address = address
        self.driver = driver
        self.stop = stop
        self.hello = wire.Hello(secrets.token_hex(8), start_s=round(since_start_s(), 3))
        self.certified = credentials
        self.shown = credentials.credentials  # on this line
        self.must_prove = way.tls_name is not None
        self.options: list[tuple[str, int | str]] = [
            *wire.options(silence_s),
            # The name that the certificate must have: who answers counts, not on which host.
            ("grpc.ssl_target_name_override", way.tls_name or tls_name(driver)),
            ("grpc.use_local_subchannel_pool", 1),  # no back-off beside ours
            ("grpc.enable_retries", 0),
        ]
        if way.proxy is not None:
            self.options += [("grpc.enable_http_proxy", int(bool(way.proxy)))]
            self.options += [("grpc.http_proxy", way.proxy)] if way.proxy else []
        self.driver_shown: tuple[x509.Certificate, ...] = ()
        self.revoked = ""  # why the driver's certificate does not count
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

    def is_renewed(self) -> bool:
        """Whether there is another certificate to show than on the last line."""
        return not self.shown.shows_as(self.certified.credentials)

    def look(self) -> None:
        """Take up new certificates on a new line, and cut that of a driver whose is revoked."""
        while not (self.stop.wait(LOOK_S) or self.ended.is_set()):
            self.certified.refresh()
            revoked = self.certified.revocations.why(self.driver_shown)
            if revoked is not None:
                self.revoked = revoked
                self.driver_shown = ()
                self.call.cancel()
            elif self.is_renewed() and not self.outbox.is_closed():
                # What is in hand is answered; what comes after it is asked again on the new line.
                outbox = self.outbox
                outbox.leave()
                with self.answering:
                    outbox.close()

    def dial(self, report: Callable[[Event], None]) -> tuple[bool, Event]:
        """Try once to connect; whether it got through, and how it ended."""
        self.shown = shown = self.certified.credentials
        self.outbox = outbox = _Outbox()
        if self.stop.is_set():  # before there was this line to close
            outbox.close()
        connected = False
        hello = replace(self.hello, nonce=secrets.token_hex(16))
        credentials = grpc.ssl_channel_credentials(shown.ca, shown.key, shown.certificate)
        with grpc.secure_channel(self.address, credentials, self.options) as channel:
            try:
                self.call = channel.stream_stream(wire.METHOD)(self._outgoing(outbox, hello))
                if not self.call.add_callback(outbox.close):  # nobody waits on a lost line
                    outbox.close()
                for greeting in self._answer(outbox, hello):
                    connected = True
                    report(Event("connected", f"connected to {self.driver} at {self.address}"))
                    if greeting is not None:
                        report(greeting)
                ended = Event("lost", f"{self.driver} has closed the connection")
                if self.is_renewed():
                    ended = Event(
                        "lost",
                        f"the certificate was renewed; the line to {self.driver} begins anew",
                    )
            except grpc.RpcError as error:
                ended = self._event(error, connected)
            except _UnprovenError as error:
                _log.warning("%s: no line to %s: %s", self.host.name, self.driver, error)
                ended = Event("refused", f"no line to {self.driver}: {error}")
            except MessageError as error:
                _log.warning("%s: the line to %s is closed: %s", self.host.name, self.driver, error)
                ended = Event("lost", f"what came from {self.driver} cannot be read: {error}")
            finally:
                self.driver_shown = ()
                outbox.close()
        return connected, ended

    def _outgoing(self, outbox: _Outbox, hello: wire.Hello) -> Iterator[bytes]:
        yield hello.encode()
        while (item := outbox.get()) is not None:
            yield from wire.frames(*item)

    def _answer(self, outbox: _Outbox, hello: wire.Hello) -> Iterator[Event | None]:
        """Answers all that comes; yields once, when the driver has said hello: what to warn of."""
        assembler = wire.Assembler(self.host.max_bytes)
        greeted = False
        for frame in self.call:
            try:
                whole = assembler.add(frame)
            except wire.TooLargeError as error:
                outbox.put(wire.REFUSED, self.host.pass_over(str(error), self.driver).encode())
                continue
            if whole is None:
                continue
            kind, data = whole
            if not greeted:
                warning = self._check_driver(wire.Hello.decode(kind, data), hello)
                self.host.connected(self.driver)
                greeted = True
                yield warning
                continue
            if kind != wire.MESSAGE:
                raise MessageError("expected a message")
            with self.answering:
                if not self.stop.is_set():
                    outbox.put(wire.MESSAGE, self.host.handle(data, self.driver))

    def _check_driver(self, greeting: wire.Hello, hello: wire.Hello) -> Event | None:
        """Which certificate of its the driver has the key of; gRPC does not say which it showed.

        It is asked for where a list might name it, or where its name in TLS is only a host's.

        Raises:
            _UnprovenError: none that counts.
        """
        if not greeting.proof and not self.must_prove and not self.certified.credentials.revoked:
            return None
        try:
            certificate = check_proof(
                self.driver,
                hello.statement(self.driver, self.host.name),
                b64decode(greeting.proof),
                self.certified.authorities,
                at=datetime.now(UTC),
                revocations=self.certified.revocations,
            )
        except (MessageError, ValueError) as error:
            raise _UnprovenError(str(error)) from None
        self.driver_shown = (certificate,)
        warning = expiry_warning(certificate, datetime.now(UTC))
        return Event("warned", warning) if warning else None

    def _event(self, error: Any, connected: bool) -> Event:
        """Event for a failed call, with what to do about it."""
        code, details = error.code(), printable(str(error.details()))
        if self.revoked:
            revoked, self.revoked = self.revoked, ""
            return Event("refused", f"cut the line to {self.driver}: {revoked}")
        if code == grpc.StatusCode.ABORTED:
            raise NetworkError(details)
        if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION):
            return Event("refused", f"{self.driver} refused: {details}")
        if connected:
            return Event("lost", f"lost the line to {self.driver} at {self.address} ({details})")
        if "http proxy" in details.lower():
            return Event(
                "refused",
                f"the proxy does not let it through to {self.driver} at {self.address} "
                f"({details}): ask whoever runs it to allow CONNECT to {self.address}",
            )
        if _is_tls(details):
            return Event(
                "refused",
                f"no trusted line to {self.driver} at {self.address} ({_tls_cause(details)}): "
                "check that both certificates are of one authority, that neither has expired, and "
                f"that the driver's certificate is of {self.driver!r}; {self.driver} sees nothing "
                "of this, so tell whoever runs it",
            )
        why = details.rpartition("Failed to connect to remote host: ")[2]  # gRPC says it in full
        return Event("waiting", f"{self.driver} is not at {self.address} yet ({why})")


class _UnprovenError(Exception):
    """Error: whoever answers has not shown that it has the key of a driver's certificate that
    counts."""


def _tls_cause(details: str) -> str:
    """Cause in OpenSSL's words that a person can use."""
    text = details.lower()
    if "hostname verification" in text:
        return "its certificate is of another name"
    if "certificate_verify_failed" in text:
        return details.rpartition("CERTIFICATE_VERIFY_FAILED: ")[2].split(":")[0] or details
    return details[-80:]


def _is_tls(details: str) -> bool:
    """Whether a connection failed over certificates; gRPC has no code for it.

    A driver that does not believe our certificate says so only by closing the socket, when for us
    the handshake is over (TLS 1.3).
    """
    text = details.lower()
    return any(
        word in text
        for word in (
            *("ssl", "tls", "handshake", "certificate", "verification"),
            *("socket closed", "connection reset", "broken pipe"),
        )
    )
