"""``Stream``: the driver listens, each party connects and keeps one bidirectional stream open.

Who speaks is the common name of the certificate, checked by mutual TLS before any byte is read.
Of two connections with one name the newer counts and the older is closed: a party that lost its
line must get back in. If another process held the older, it is asked to stop.

Whoever can reach the port can open connections that never show a certificate. Their number has a
cap and their time one, kept by gRPC below Python: idle ones cannot use up this process's
descriptors. While somebody keeps the cap full, who is connected stays so, and one that has lost its
line gets back in only between others; only a firewall prevents that.

How requests wait, go out again and fail is that of all lines (``lines.py``). Here a party also
loses its line by an answer that cannot be read at all.
"""

from __future__ import annotations

import logging
import secrets
import threading
from base64 import b64encode
from collections.abc import Iterator, Sequence
from concurrent import futures
from datetime import UTC, datetime
from typing import Any

import grpc
from cryptography import x509

from dovetail.errors import ConfigError, MessageError
from dovetail.network import frames as wire
from dovetail.network.certificates import read_certificates
from dovetail.network.connection import Connection, Link
from dovetail.network.credentials import Credentials, expiry_warning
from dovetail.network.ledger import LedgerFile
from dovetail.network.messages import MAX_MESSAGE_BYTES
from dovetail.network.printable import printable
from dovetail.network.renewal import LOOK_S, Certified, certified
from dovetail.network.retry import raise_descriptor_limit
from dovetail.network.sessions import Lines
from dovetail.network.strangers import Strangers

#: Connections at one time, beside a few for each party, of whoever reaches the port.
MAX_STRANGERS = 64

#: Seconds until a connection must have shown its certificate; and then, until it has begun a call.
HANDSHAKE_S = 10.0

_log = logging.getLogger(__name__)


class Stream(Lines):
    """The driver's server.

    Args:
        address: "host:port" to listen on; port 0 takes any that is free.
        driver: the driver's name; its certificate must have it.
        credentials: the driver's certificate and key, and whom it believes; a ``Certified``
            takes up changes, and a line whose certificate is revoked is cut.
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
        credentials: Credentials | Certified,
        parties: Sequence[str],
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        silence_s: float = 6.0,
        ledger: LedgerFile | None = None,
    ) -> None:
        self._certified = certified(credentials)
        super().__init__(
            parties,
            driver=driver,
            max_message_bytes=max_message_bytes,
            ledger=ledger,
            identity=self._certified,
        )
        self._closed = False
        self._strangers, self.port = Strangers(), 0
        self._hello = secrets.token_hex(8)
        self._threads = _Threads()
        raise_descriptor_limit()
        settings = _server_options(silence_s, MAX_STRANGERS + 4 * len(parties))
        self._server = grpc.server(self._threads, options=settings)
        handler = grpc.stream_stream_rpc_method_handler(self._exchange)
        _, service, method = wire.METHOD.split("/")
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        self._offered = self._certified.credentials
        server_credentials = grpc.dynamic_ssl_server_credentials(
            _offer(self._offered), self._offer_new, require_client_authentication=True
        )
        try:
            self.port = self._server.add_secure_port(address, server_credentials)
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {address} ({error}); is the address one of this machine's, and "
                "the port free?"
            ) from None
        self._server.start()
        self._ended = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True, name="dovetail-renewal")
        self._looking.start()

    def close(self) -> None:
        """Hang up; parties wait for the driver's return."""
        self._closed = True
        self._ended.set()
        for link in self.links.values():
            link.close()
        # A call that comes in just now can keep gRPC from ever saying that it has stopped.
        self._server.stop(grace=1.0).wait(5.0)
        # An interpreter that leaves while gRPC's code runs on another thread may abort.
        for thread in (self._looking, *self._threads.started):
            thread.join(1.0)

    def strangers(self) -> list[str]:
        return self._strangers.addresses()

    def _offer_new(self) -> Any:
        """Credentials for the next handshake, if they have changed; gRPC asks each time."""
        self._strangers.handshake(self.port)
        fresh = self._certified.credentials
        if fresh is self._offered:
            return None
        self._offered = fresh
        return _offer(fresh)

    def _look(self) -> None:
        """Takes up new certificates and lists, and cuts the lines of those that are revoked."""
        cut: list[Connection] = []
        while not self._ended.wait(LOOK_S):
            for connection in cut:  # it has had its time to end by itself
                connection.cut()
            cut = []
            self._certified.refresh()
            for link in self.links.values():
                for connection in link.connections:
                    why = self._certified.revocations.why(connection.shown)
                    if why is None:
                        continue
                    _log.warning(
                        "%s: cut the line to %s (%s): %s",
                        self.driver,
                        link.name,
                        connection.peer,
                        why,
                    )
                    link.bar(connection, why)
                    cut.append(connection)

    def _advice(self, missing: Sequence[str]) -> str:
        return (
            "is dovetail join running there, with this driver's address, and may it reach port "
            f"{self.port}?"
        )

    def _exchange(self, incoming: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Bytes that one connection is sent; runs on a thread of its own."""
        self._strangers.called(context.peer())
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
        shown = _certificates(context)
        revoked = self._certified.revocations.why(shown)
        if revoked is not None:
            _log.warning(
                "%s: refused a connection from %s: %s", self.driver, context.peer(), revoked
            )
            context.set_code(grpc.StatusCode.PERMISSION_DENIED)
            context.set_details(revoked)
            return
        expires = expiry_warning(shown[0], datetime.now(UTC))
        if expires:
            _log.warning("%s: %s", self.driver, expires)
        connection = Connection(name, context.peer(), shown=shown, cut=context.cancel)
        if not context.add_callback(connection.hang_up):
            return
        link.opened(connection)
        self._threads.submit(self._receive, incoming, link, connection)
        greeting = connection.greeting.get()
        if greeting is not None:
            yield greeting
        while (message := connection.outbox.get()) is not None:
            yield from wire.frames(wire.MESSAGE, message)
        if connection.refusal is not None:
            code, details = connection.refusal
            context.set_code(code)
            context.set_details(details)

    def _receive(self, incoming: Iterator[bytes], link: Link, connection: Connection) -> None:
        """Reads one connection to its end; nothing that comes can harm another."""
        assembler = wire.Assembler(self.max_message_bytes)
        try:
            for frame in incoming:
                whole = assembler.add(frame)
                if whole is None:
                    continue
                kind, data = whole
                if connection.instance is None:
                    hello = wire.Hello.decode(kind, data)
                    connection.instance, connection.start_s = hello.instance, hello.start_s
                    statement = hello.statement(self.driver, link.name)
                    proof = self._certified.sign(statement, most=wire.MAX_HELLO_PROOF_BYTES)
                    connection.greeting.put(
                        wire.Hello(self._hello, proof=b64encode(proof).decode()).encode()
                    )
                    link.connected(connection)
                elif kind == wire.MESSAGE:
                    link.answered(connection, data)
                elif kind == wire.REFUSED:
                    link.refused(connection, f"it refused {printable(bytes(data).decode())}")
                else:
                    raise MessageError("a second hello")
        except (MessageError, UnicodeDecodeError) as error:
            if isinstance(error, wire.TooLargeError):
                error = wire.TooLargeError(f"{error} (engine.max_message_mb)")
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


def _certificates(context: Any) -> tuple[x509.Certificate, ...]:
    """Certificates that the peer has shown: its own, and those behind it."""
    shown = context.auth_context()
    # A server's chain is without the peer's own certificate.
    data = b"".join((*shown["x509_pem_cert"], *shown.get("x509_pem_cert_chain", ())))
    return read_certificates(data, where="what was shown")


def _offer(credentials: Credentials) -> Any:
    return grpc.ssl_server_certificate_configuration(
        [(credentials.key, credentials.certificate)], credentials.ca
    )


def _server_options(silence_s: float, max_connections: int) -> list[tuple[str, int]]:
    return [
        *wire.options(silence_s),
        ("grpc.so_reuseport", 0),  # a port that another driver has is an error
        ("grpc.max_concurrent_streams", 2),  # a party needs one
        ("grpc.max_allowed_incoming_connections", max_connections),  # handshakes included
        ("grpc.server_handshake_timeout_ms", round(HANDSHAKE_S * 1000)),
        ("grpc.max_connection_idle_ms", round(HANDSHAKE_S * 1000)),  # a party's call stays open
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
