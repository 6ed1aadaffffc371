"""``Stream``: the driver listens, each party dials out and keeps one bidirectional stream open.

Who speaks is the common name of the certificate, checked by mutual TLS before any byte is read.
Of two connections with one name the newer counts and the older is closed: a party that lost its
line must get back in. If another process held the older, it is told to stop.

A party has one request at a time on the wire; more wait their turn. When its line is lost, the
request goes out again on the next one, under the same number, so that the party's ``Host`` handles
it once. A party counts as failed

    at its deadline         and then at once, until it has answered or come back
    without a connection    after a grace period, once; and then at once until it is back
    on a wrong answer       for that request; if it cannot be read at all, the line is closed too
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import grpc

from dovetail.errors import ConfigError, MessageError, NetworkError, PartyError
from dovetail.network.certificates import Credentials
from dovetail.network.control import Failed
from dovetail.network.engine import Engine, Replies
from dovetail.network.frames import (
    MESSAGE,
    METHOD,
    REFUSED,
    Assembler,
    Hello,
    frames,
    options,
    printable,
)
from dovetail.network.ledger import LedgerFile
from dovetail.network.link import Connection, Link, Request
from dovetail.network.messages import (
    MAX_MESSAGE_BYTES,
    Data,
    Message,
    Precision,
    decode,
    encode,
)

R = TypeVar("R", bound=Message)

#: Called with the names of the parties that are here, and of those that are missing.
OnChange = Callable[[tuple[str, ...], tuple[str, ...]], None]

_log = logging.getLogger(__name__)


class Stream:
    """The driver's server.

    Args:
        address: "host:port" to listen on; port 0 takes any that is free.
        driver: the driver's name; its certificate must have it.
        credentials: the driver's certificate and key, and whom it believes.
        parties: names of those that may connect.
        max_message_bytes: the largest answer.
        silence_s: a party that is silent for so long counts as gone.
        ledger: where it is written down what leaves the driver; None writes nothing.

    Attributes:
        port: where it listens.

    Raises:
        ConfigError: it cannot listen there.
    """

    def __init__(
        self,
        address: str,
        *,
        driver: str,
        credentials: Credentials,
        parties: Sequence[str],
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        silence_s: float = 6.0,
        ledger: LedgerFile | None = None,
    ) -> None:
        self.driver = driver
        self.ledger = ledger
        self.max_message_bytes = max_message_bytes
        self.sequences = itertools.count(time.time_ns())
        self.recording = threading.Lock()  # requests to several parties leave at the same time
        self._changed = threading.Condition()
        self._closed = False
        self._hello = Hello(secrets.token_hex(8)).encode()
        self.links = {name: Link(name, self._announce) for name in parties}
        self._threads = _Threads()
        self._server = grpc.server(self._threads, options=_server_options(silence_s))
        handler = grpc.stream_stream_rpc_method_handler(self._exchange)
        _, service, method = METHOD.split("/")
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        server_credentials = grpc.ssl_server_credentials(
            [(credentials.key, credentials.certificate)], credentials.ca, require_client_auth=True
        )
        try:
            self.port: int = self._server.add_secure_port(address, server_credentials)
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {address} ({error}); is the address one of this machine's, and "
                "the port free?"
            ) from None
        self._server.start()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; parties wait for the driver's return."""
        self._closed = True
        for link in self.links.values():
            link.close()
        self._server.stop(grace=1.0).wait()
        # An interpreter that leaves while gRPC's code runs on another thread may abort.
        for thread in self._threads.started:
            thread.join(1.0)

    @property
    def connected(self) -> tuple[str, ...]:
        """Names of the parties that are here."""
        return tuple(name for name, link in self.links.items() if link.is_connected)

    def wait(self, timeout_s: float | None = None, on_change: OnChange | None = None) -> None:
        """Wait until all parties are here.

        Args:
            timeout_s: how long; None waits for ever.
            on_change: told at once and then whenever somebody comes or goes.

        Raises:
            NetworkError: some are still missing.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        told: tuple[str, ...] | None = None
        with self._changed:
            while True:
                here = self.connected
                missing = tuple(name for name in self.links if name not in here)
                if here != told and on_change is not None:
                    on_change(here, missing)
                told = here
                if not missing:
                    return
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise NetworkError(
                        f"after {timeout_s:g} s there is no connection from "
                        f"{', '.join(map(repr, missing))}; is dovetail join running there, with "
                        f"this driver's address, and may it reach port {self.port}?"
                    )
                self._changed.wait(left)

    def engine(
        self,
        run: str,
        *,
        parties: Sequence[str] | None = None,
        precision: Precision = "float32",
        grace_s: float = 5.0,
        timeout_s: float | None = None,
    ) -> Engine:
        """The engine of one run, with a ledger of its own.

        Args:
            run: names the run at the parties.
            parties: some of this stream's; None takes all.
            precision: how float32 tensors travel to the parties.
            grace_s: how long a party without a connection is waited for.
            timeout_s: how long an answer is waited for where the algorithm sets no limit.
        """
        names = tuple(self.links if parties is None else parties)
        return _StreamEngine(self, run, names, precision, grace_s, timeout_s)

    def _announce(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _exchange(self, incoming: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """What one connection is sent; runs on a thread of its own."""
        name = _certified_name(context)
        link = self.links.get(name)
        if self._closed:  # the party waits for the driver's return
            context.set_code(grpc.StatusCode.UNAVAILABLE)
            context.set_details("the driver is leaving")
            return
        if link is None:
            cause = f"{name!r} is not a party of this run; it has {', '.join(self.links)}"
            _log.warning("%s: refused a connection from %s: %s", self.driver, context.peer(), cause)
            context.set_code(grpc.StatusCode.PERMISSION_DENIED)
            context.set_details("this run does not expect that name; ask its driver to add it")
            return
        connection = Connection(name, context.peer())
        if not context.add_callback(connection.hang_up):
            return
        link.opened(connection)
        self._threads.submit(self._receive, incoming, link, connection)
        yield self._hello
        while (message := connection.outbox.get()) is not None:
            yield from frames(MESSAGE, message)
        if connection.refusal is not None:
            code, details = connection.refusal
            context.set_code(code)
            context.set_details(details)

    def _receive(self, incoming: Iterator[bytes], link: Link, connection: Connection) -> None:
        """Reads one connection to its end; nothing that comes can harm another."""
        assembler = Assembler(self.max_message_bytes)
        try:
            for frame in incoming:
                whole = assembler.add(frame)
                if whole is None:
                    continue
                kind, data = whole
                if connection.instance is None:
                    connection.instance = Hello.decode(kind, data).instance
                    link.connected(connection)
                elif kind == MESSAGE:
                    link.answered(connection, data)
                elif kind == REFUSED:
                    link.refused(connection, f"it refused {printable(bytes(data).decode())}")
                else:
                    raise MessageError("a second hello")
        except (MessageError, UnicodeDecodeError) as error:
            _log.warning(
                "%s: closed the line to %s (%s): %s", self.driver, link.name, connection.peer, error
            )
            link.lied(connection, f"what it sent cannot be read: {error}")
            link.lost(connection)  # before the party hears of it
            connection.hang_up((grpc.StatusCode.FAILED_PRECONDITION, str(error)))
        except grpc.RpcError:
            pass  # the line is lost
        finally:
            link.lost(connection)
            connection.hang_up()


def _certified_name(context: Any) -> str:
    """The one common name of the peer's certificate; empty if it has none or several."""
    names = context.auth_context().get("x509_common_name", ())
    return str(names[0].decode(errors="replace")) if len(names) == 1 else ""


def _server_options(silence_s: float) -> list[tuple[str, int]]:
    return [
        *options(silence_s),
        ("grpc.so_reuseport", 0),  # a port that another driver has is an error
        ("grpc.max_concurrent_streams", 2),  # a party needs one
    ]


class _Threads(futures.Executor):
    """A thread for each call, that does not keep the interpreter from leaving."""

    def __init__(self) -> None:
        self.started: list[threading.Thread] = []

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        done: futures.Future[Any] = futures.Future()

        def run() -> None:
            try:
                done.set_result(function(*args, **kwargs))
            except BaseException as error:
                done.set_exception(error)

        thread = threading.Thread(target=run, daemon=True)
        self.started = [*(each for each in self.started if each.is_alive()), thread]
        thread.start()
        return done


class _StreamEngine(Engine):
    """One run over a ``Stream``."""

    def __init__(
        self,
        stream: Stream,
        run: str,
        parties: tuple[str, ...],
        precision: Precision,
        grace_s: float,
        timeout_s: float | None,
    ) -> None:
        super().__init__(stream.driver)
        unknown = [name for name in parties if name not in stream.links]
        if unknown:
            raise ConfigError(f"no such parties: {unknown}; there are {list(stream.links)}")
        self._stream = stream
        self._run = run
        self._parties = parties
        self._precision = precision
        self._grace_s = grace_s
        self._timeout_s = timeout_s

    @property
    def parties(self) -> tuple[str, ...]:
        return self._parties

    def send(
        self, requests: Mapping[str, Message], reply: type[R], *, timeout_s: float | None = None
    ) -> _Sent[R]:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        sent: dict[str, Request | PartyError] = {}
        encoded: dict[int, tuple[int, Data]] = {}  # the same message to several is encoded once
        for name, message in requests.items():
            if name not in self._parties:
                cause = f"no such party; there are {list(self._parties)}"
                sent[name] = PartyError(name, cause)
                continue
            try:
                if id(message) not in encoded:
                    sequence = next(self._stream.sequences)
                    data = encode(
                        message, run=self._run, sequence=sequence, precision=self._precision
                    )
                    encoded[id(message)] = sequence, data
            except MessageError as error:
                sent[name] = PartyError(name, str(error))
                continue
            sequence, whole = encoded[id(message)]
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            request = Request(
                sequence,
                self._run,
                message.wire_name(),
                whole,
                deadline,
                self._grace_s,
                time.time(),
                partial(self._record, name, message, sequence),
            )
            self._stream.links[name].submit(request)
            sent[name] = request
        return _Sent(self, sent, reply)

    def _record(self, party: str, message: Message, sequence: int) -> None:
        """Write down what is about to leave the driver; what cannot be is not sent."""
        with self._stream.recording:
            if self._stream.ledger is not None:
                self._stream.ledger.record(
                    party, message, run=self._run, sequence=sequence, precision=self._precision
                )
            self.ledger.record(self.driver, party, message, self._precision)

    def receive(self, party: str, request: Request, reply: type[R]) -> R:
        """The answer to one request.

        Raises:
            PartyError: none came, or another than asked for.
        """
        opened = self._stream.links[party].wait(request)
        accepted: tuple[type[Message], ...] = (reply, Failed)
        try:
            answer = decode(opened, accepted, max_bytes=self._stream.max_message_bytes)
        except MessageError as error:
            raise PartyError(party, printable(str(error))) from None
        if isinstance(answer, Failed):
            raise PartyError(party, printable(answer.cause))
        assert isinstance(answer, reply)
        self.ledger.record(party, self.driver, answer, opened.header.precision)
        return answer


@dataclass(eq=False)
class _Sent(Generic[R]):
    """Messages under way."""

    engine: _StreamEngine
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
