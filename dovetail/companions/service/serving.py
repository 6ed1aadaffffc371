"""The service's socket: where it listens, who may ask, and how it ends."""

from __future__ import annotations

import gc
import ipaddress
import logging
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.companions.service.served import Shelf
from dovetail.errors import ConfigError
from dovetail.lazy import needed

#: Seconds that requests in flight are given when the service ends.
_GRACE_S = 5
#: Seconds that the head of a request may take to come.
_HEAD_S = 10.0
_LEAST_TOKEN = 16


#: Why a certificate (DER) no longer counts; None if it does.
Revoked = Callable[[bytes], str | None]


@dataclass(frozen=True)
class Address:
    """Where a service listens, and what guards it.

    Attributes:
        host, port: this machine only, unless it is guarded; port 0 takes a free one.
        token_file: has the token that requests must bear.
        certificates: folder of ca.pem, NAME.pem and NAME.key; who has no certificate of that
            authority is not answered.
        mutual: whether a certificate is asked for; else whoever answers must know who asks.
    """

    host: str
    port: int
    token_file: Path | None = None
    certificates: Path | None = None
    mutual: bool = True

    def token(self) -> str | None:
        """Token that requests must bear.

        Raises:
            ConfigError: no such file, or a token that can be guessed.
        """
        if self.token_file is None:
            return None
        try:
            token = self.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the token file {self.token_file} cannot be read ({error})"
            ) from None
        if len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable():
            raise ConfigError(
                f"{self.token_file} needs a token of {_LEAST_TOKEN} printable characters or more "
                f"in one line, got {len(token)}; openssl rand -hex 32 makes one"
            )
        return token

    def hosts(self) -> list[str] | None:
        """Names that requests may be for: on this machine alone, so that no page elsewhere asks."""
        return ["localhost", "127.0.0.1", "[::1]"] if is_loopback(self.host) else None

    def check(self) -> None:
        """Refuse to listen to everybody.

        Raises:
            ConfigError: neither token nor certificates beyond this machine.
        """
        if not is_loopback(self.host) and self.token_file is None and self.certificates is None:
            raise ConfigError(
                f"--host {self.host} is not this machine alone, and whoever reaches it could ask; "
                "give --certificates FOLDER (mutual TLS) or --token-file FILE, or leave --host out"
            )

    def tls(self) -> dict[str, Any]:
        """uvicorn's settings of TLS, mutual unless that is off.

        Raises:
            ConfigError: a folder that lacks a file.
        """
        if self.certificates is None:
            return {}
        folder, name = self.certificates, certified_name(self.certificates)
        return {
            "ssl_certfile": str(folder / f"{name}.pem"),
            "ssl_keyfile": str(folder / f"{name}.key"),
            "ssl_ca_certs": str(folder / "ca.pem"),
            "ssl_cert_reqs": ssl.CERT_REQUIRED if self.mutual else ssl.CERT_NONE,
        }


def certified_name(folder: Path) -> str:
    """Whose certificate a folder has.

    Raises:
        ConfigError: a folder that lacks a file.
    """
    keys = sorted(folder.glob("*.key"))
    names = [key.stem for key in keys if (folder / f"{key.stem}.pem").exists()]
    if not (folder / "ca.pem").exists() or len(names) != 1:
        raise ConfigError(
            f"{folder} needs ca.pem and one NAME.pem with NAME.key, as dovetail certificates "
            f"makes them; it has {sorted(each.name for each in folder.glob('*'))[:10]}"
        )
    return names[0]


class _Places:
    """An application that answers so many requests at one time, and probes beside them.

    Args:
        application: answers.
        most: requests.
    """

    def __init__(self, application: Any, most: int) -> None:
        self._application, self._free = application, most

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] == "/health":
            await self._application(scope, receive, send)
            return
        if not self._free:
            headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": b"too many requests; ask again"})
            return
        self._free -= 1
        try:
            await self._application(scope, receive, send)
        finally:
            self._free += 1


def _protocol(revoked: Revoked | None, max_of_peer: int | None, most: int) -> type:
    """uvicorn's protocol, which closes connections that keep a place and ask nothing.

    Those of certificates that no longer count, too, and of one that has too many. Of more
    connections than ``most``, the one whose request is due for longest makes room.
    """
    of_peer: Counter[bytes] = Counter()
    silent: dict[Any, None] = {}  # connections whose request is due, the oldest first

    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        app_state: dict[str, Any]
        _shown = b""  # its peer's certificate
        _late: Any = None  # what closes it, while the head of a request is due

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._look()
            tls = transport.get_extra_info("ssl_object")
            shown = b"" if tls is None else tls.getpeercert(binary_form=True) or b""
            self.app_state = {**self.app_state, "certificate": shown}
            self._shown = shown
            of_peer[shown] += 1
            if len(self.connections) > most and len(silent) > 1:
                next(iter(silent)).transport.abort()
            if max_of_peer is not None and of_peer[shown] > max_of_peer:
                transport.abort()
                return
            if revoked is None:
                return
            try:
                why = revoked(shown)
            except (ConfigError, OSError) as error:  # nobody is answered by a list that broke
                why = str(error)
            if why is not None:
                logging.getLogger("dovetail.companions.service").warning("not answered: %s", why)
                transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            of_peer[self._shown] -= 1
            if not of_peer[self._shown]:
                del of_peer[self._shown]
            silent.pop(self, None)
            if self._late is not None:
                self._late.cancel()

        def _look(self) -> None:
            """From the first byte of a request on: a byte now and then gives no more time."""
            due = self.cycle is None or self.cycle.response_complete
            if due and self._late is None:
                self._late = self.loop.call_later(_HEAD_S, self.transport.close)
                silent[self] = None
            elif not due and self._late is not None:
                self._late.cancel()
                self._late = None
                silent.pop(self, None)

    return Protocol


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def named(models: Sequence[str], folder_of: Callable[[Path], Path]) -> dict[str, Path]:
    """Name -> folder or ONNX file, of texts such as "RUN" and "NAME=PATH".

    Raises:
        ConfigError: two of one name, or a name that no address can have.
    """
    folders: dict[str, Path] = {}
    for text in models:
        name, sign, rest = text.partition("=")
        path = Path(rest if sign else text)
        if path.suffix.lower() != ".onnx":
            path = folder_of(path)
        if not sign:
            name = path.stem if path.suffix.lower() == ".onnx" else path.name
        if not name or not all(each.isalnum() or each in "-_." for each in name):
            raise ConfigError(
                f"a model's name has letters, digits, '-', '_' and '.', got {name!r}; say NAME=PATH"
            )
        if name in folders:
            raise ConfigError(f"two models are called {name!r}; say NAME=PATH for one of them")
        folders[name] = path
    return folders


def run(
    models: dict[str, Path],
    address: Address,
    *,
    max_rows: int,
    max_bytes: int,
    max_requests: int,
    watch_s: float,
    quiet: bool,
    jointly: Callable[..., Awaitable[Any]] | None = None,
    id_column: str | None = None,
    revoked: Revoked | None = None,
) -> None:
    """Serve until told to stop (SIGINT, SIGTERM); requests in flight are answered first.

    Args:
        revoked: looked at with each connection's certificate, where these are asked for.

    Raises:
        ConfigError: packages that are not installed, or an unguarded address.
        ModelError: a model that cannot be opened.
    """
    with needed("serving", "'dovetail-fl[serve]'"):
        import uvicorn  # noqa: F401 - asked for here, so that its lack is told in a sentence

        from dovetail.companions.service.application import Limits, Service
    address.check()
    token = address.token()
    log = logging.getLogger("dovetail.companions.service")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("dovetail: %(message)s"))
    log.handlers[:] = [handler]
    log.setLevel(logging.WARNING if quiet else logging.INFO)
    shelf = Shelf(models, log.warning)
    limits = Limits(max_bytes, max_rows, token=token, hosts=address.hosts())
    service = Service(shelf, limits, watch_s=watch_s, jointly=jointly, id_column=id_column)
    names = ", ".join(f"{name} ({each.version})" for name, each in shelf.models.items())
    listen(
        service.application(),
        address,
        max_requests=max_requests,
        revoked=revoked,
        print_line=lambda url: log.info("serving %s at %s", names, url),
    )
    log.info("stopped")


def listen(
    application: Any,
    address: Address,
    *,
    max_requests: int,
    print_line: Callable[[str], None],
    revoked: Revoked | None = None,
    max_of_peer: int | None = None,
) -> None:
    """Answer by an ASGI application until told to stop; requests in flight are answered first.

    A request's ``state`` has its peer's certificate, "certificate" (DER), under mutual TLS.

    Args:
        application: what answers.
        address: where, and what guards it.
        max_requests: at one time.
        print_line: told the URL, once it listens.
        revoked: looked at with each connection's certificate, where these are asked for.
        max_of_peer: connections at one time that show the same certificate; None: any number.

    Raises:
        ConfigError: it cannot listen there.
    """
    import uvicorn

    tls = address.tls()
    config = uvicorn.Config(
        _Places(application, max_requests),
        host=address.host,
        port=address.port,
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_GRACE_S,
        h11_max_incomplete_event_size=64 * 1024,
        http=_protocol(revoked, max_of_peer, max_requests),
        **tls,
    )
    try:
        # Listens at once: who asks from here on waits until the service answers.
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        listening = socket.create_server((address.host, address.port), family=family, backlog=2048)
        # What it accepts inherits it. asyncio sets it of sockets that name their protocol only;
        # without it an answer's second packet waits 40 ms for the first one's acknowledgement.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {address.host}:{address.port} ({error.strerror}); --port 0 takes a "
            "free one"
        ) from None
    print_line(f"{'https' if tls else 'http'}://{address.host}:{listening.getsockname()[1]}")
    # What is there by now stays: looking through all of it would hold requests up for 0.2 s.
    gc.collect()
    gc.freeze()
    try:
        with listening:
            uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:  # raised again once what was asked is answered
        pass
    finally:
        gc.unfreeze()  # or libraries say at the end that what is frozen is leaked
