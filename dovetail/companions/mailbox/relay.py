"""A relay (``dovetail relay``) as a place: HTTPS with signed requests, outward from both sides."""

from __future__ import annotations

import json
import os
import random
import ssl
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dovetail.companions.mailbox.places import MAX_NAMES, PlaceError, UnfitError
from dovetail.companions.mailbox.signed import PROCESS, sign_request
from dovetail.errors import ConfigError
from dovetail.lazy import needed
from dovetail.network.credentials import Credentials
from dovetail.network.printable import printable
from dovetail.network.renewal import Certified
from dovetail.network.retry import open_private

#: How often it is asked again if it was asked too often, or is another process now.
TRIES = 5

#: Seconds that a request may take to begin to be answered.
TIMEOUT_S = 30.0

#: Connections at a time; a relay takes twice as many of one party.
MAX_CONNECTIONS = 16

#: Bytes of an answer that is not a letter.
MAX_ANSWER_BYTES = 2**24


class Relay:
    """A place behind an address; proxies are those of the environment (``https_proxy``).

    Args:
        where: https://HOST:PORT.
        shown: what this party shows, and whom it believes; taken up as it changes.
        proxy_ca: PEM of the authority of a proxy that opens TLS; None: no such proxy is passed.

    Attributes:
        where: what people call it.

    Raises:
        ConfigError: an address or a file that is none, or packages that are not installed.
    """

    def __init__(self, where: str, shown: Certified, *, proxy_ca: Path | None = None) -> None:
        self.where = where.rstrip("/")
        self._shown = shown
        self._proxy_ca = proxy_ca
        self._lock = threading.Lock()
        self._used: Credentials | None = None
        self._client: Any = None
        self._process = ""  # of the relay that answered last
        with needed("a relay", "'dovetail-fl[relay]'"):
            import httpx
        self._httpx = httpx
        parts = httpx.URL(where)
        if parts.scheme != "https" or not parts.host or parts.path.strip("/"):
            raise ConfigError(f"a relay is https://HOST:PORT, got {where!r}; name it so")
        _context(shown.credentials, proxy_ca)  # so that a file that is none is reported now

    def _open(self) -> Any:
        """A client that shows what this party shows now."""
        with self._lock:
            credentials = self._shown.credentials
            if self._used is credentials:
                return self._client
            older = self._client
            self._client = self._httpx.Client(
                base_url=self.where,
                verify=_context(credentials, self._proxy_ca),
                timeout=self._httpx.Timeout(TIMEOUT_S, pool=None),
                limits=self._httpx.Limits(max_connections=MAX_CONNECTIONS),
                follow_redirects=False,
            )
            self._used = credentials
        if older is not None:
            older.close()
        return self._client

    def _ask(
        self, method: str, name: str, data: bytes = b"", *, most: int = MAX_ANSWER_BYTES
    ) -> bytes | None:
        """The answer; None if there is no such file.

        Raises:
            PlaceError: no answer, a longer one, or that the relay will not.
        """
        for _ in range(TRIES):
            try:
                status, process, found = self._once(method, name, data, most)
            except self._httpx.HTTPError as error:
                raise self._unreachable(error) from None
            if status == 401 and process not in ("", self._process):
                self._process = process  # as after its start: signed for that one it counts
            elif status == 429:  # it was asked too often
                time.sleep(random.SystemRandom().uniform(0.5, 1.5))
            else:
                break
        if status in (200, 204):
            return found
        if status == 404:
            return None
        why = printable(found[:300].decode(errors="replace").strip())
        raise PlaceError(
            f"{self.where} will not {method} {name} ({status}): {why}; ask who runs the relay"
        )

    def _once(self, method: str, name: str, data: bytes, most: int) -> tuple[int, str, bytes]:
        """Status, process of the relay, and body of what answers one request."""
        signed = sign_request(self._shown, method, f"/{name}", data, self._process)
        asked = self._open().stream(
            method,
            "/" + quote(name),
            content=data if method == "PUT" else None,
            headers={"Authorization": signed},
        )
        with asked as answer:
            body = bytearray()
            for piece in answer.iter_raw():
                body += piece
                if len(body) > (most if answer.status_code == 200 else MAX_ANSWER_BYTES):
                    raise UnfitError(
                        f"{self.where}/{name} is longer than {most} bytes, and is not read"
                    )
            return answer.status_code, answer.headers.get(PROCESS, ""), bytes(body)

    def _unreachable(self, error: Exception) -> PlaceError:
        why = printable(str(error)) or type(error).__name__
        advice = "see that the relay runs, and that its port can be reached from here"
        if self._proxy_ca is not None:
            advice = (
                "a proxy that opens TLS carries no certificate of yours, so the relay must run "
                "with --no-mutual-tls"
            )
        elif any(word in why.lower() for word in ("certificate", "tls", "ssl")):
            advice = (
                "both sides and the relay need certificates of one authority, the relay's with "
                "its host in it (--host). If a proxy on the way opens TLS, name its authority with "
                "engine.proxy_ca or --proxy-ca"
            )
        return PlaceError(f"{self.where} is not reached ({why}); {advice}")

    def put(self, name: str, data: bytes) -> None:
        if self._ask("PUT", name, data) is None:
            raise PlaceError(f"{self.where} is no relay: it knows nothing of {name}; name another")

    def get(self, name: str, most: int) -> bytes | None:
        return self._ask("GET", name, most=most)

    def names(self, folder: str) -> list[str]:
        try:
            found = json.loads(self._ask("GET", folder) or b"")
            if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
                raise ValueError("no names")
        except (ValueError, RecursionError):
            raise PlaceError(
                f"{self.where} is no relay: it tells no names of letters; name another"
            ) from None
        return found[:MAX_NAMES]

    def remove(self, name: str) -> None:
        self._ask("DELETE", name)

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()


def _context(credentials: Credentials, proxy_ca: Path | None) -> ssl.SSLContext:
    """TLS that shows a party's certificate, and believes its authority, and a proxy's.

    Raises:
        ConfigError: a file that holds no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=credentials.ca.decode())
    if proxy_ca is not None:
        try:
            context.load_verify_locations(cafile=proxy_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{proxy_ca} holds no certificate of a proxy's authority, as PEM ({error}); name "
                "the file that does"
            ) from None
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:  # read from files alone
        paths = [Path(folder) / name for name in ("certificate", "key")]
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        for path, data in zip(paths, (credentials.certificate, credentials.key), strict=True):
            with open(open_private(path, flags), "wb") as file:
                file.write(data)
        context.load_cert_chain(*map(str, paths))
    return context
