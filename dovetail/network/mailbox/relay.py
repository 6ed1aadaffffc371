"""A relay (``dovetail relay``) as a place: HTTPS with mutual TLS, outward from both sides."""

from __future__ import annotations

import os
import random
import ssl
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dovetail.errors import ConfigError
from dovetail.network.credentials import Credentials
from dovetail.network.mailbox.places import MAX_NAMES, PlaceError
from dovetail.network.printable import printable
from dovetail.network.renewal import Renewed
from dovetail.network.retry import open_private

#: How often it is asked again if it was asked too often.
TRIES = 5

#: Seconds that a request may take to begin to be answered.
TIMEOUT_S = 30.0


class Relay:
    """A place behind an address; proxies are those of the environment (``https_proxy``).

    Args:
        where: https://HOST:PORT.
        shown: what this party shows, and whom it believes; taken up as it changes.

    Attributes:
        where: what people call it.

    Raises:
        ConfigError: an address that is none, or packages that are not installed.
    """

    def __init__(self, where: str, shown: Renewed) -> None:
        self.where = where.rstrip("/")
        self._shown = shown
        self._lock = threading.Lock()
        self._used: Credentials | None = None
        self._client: Any = None
        try:
            import httpx
        except ImportError:
            raise ConfigError(
                "a relay needs packages that are not installed here; pip install "
                "'dovetail-fl[relay]'"
            ) from None
        self._httpx = httpx
        parts = httpx.URL(where)
        if parts.scheme != "https" or not parts.host or parts.path.strip("/"):
            raise ConfigError(f"a relay is https://HOST:PORT, got {where!r}")

    def _open(self) -> Any:
        """A client that shows what this party shows now."""
        with self._lock:
            credentials = self._shown.credentials
            if self._used is credentials:
                return self._client
            older = self._client
            self._client = self._httpx.Client(
                base_url=self.where,
                verify=_context(credentials),
                timeout=TIMEOUT_S,
                follow_redirects=False,
            )
            self._used = credentials
        if older is not None:
            older.close()
        return self._client

    def _ask(self, method: str, name: str, data: bytes | None = None) -> Any:
        """The answer, read whole, if it is one of those that a relay gives.

        Raises:
            PlaceError: none, or that it will not.
        """
        for _ in range(TRIES):
            try:
                answer = self._open().request(method, "/" + quote(name), content=data)
            except self._httpx.HTTPError as error:
                raise self._unreachable(error) from None
            if answer.status_code != 429:
                break
            time.sleep(random.SystemRandom().uniform(0.5, 1.5))  # it was asked too often
        return self._checked(answer, method, name)

    def _checked(self, answer: Any, method: str, name: str) -> Any:
        if answer.status_code in (200, 204, 404):
            return answer
        why = printable(answer.text[:300].strip())
        raise PlaceError(f"{self.where} will not {method} {name} ({answer.status_code}): {why}")

    def _unreachable(self, error: Exception) -> PlaceError:
        why = printable(str(error)) or type(error).__name__
        advice = ""
        if "certificate" in why.lower() or "tls" in why.lower() or "ssl" in why.lower():
            advice = (
                "; both sides and the relay need certificates of one authority, the relay's with "
                "its host in it (--host), and a proxy on the way must not open TLS to it"
            )
        return PlaceError(f"{self.where} is not reached ({why}){advice}")

    def put(self, name: str, data: bytes) -> None:
        answer = self._ask("PUT", name, data)
        if answer.status_code == 404:
            raise PlaceError(f"{self.where} is no relay: it knows nothing of {name}")

    def get(self, name: str, most: int) -> bytes | None:
        try:
            with self._open().stream("GET", "/" + quote(name)) as answer:
                if answer.status_code != 200:
                    answer.read()
                    self._checked(answer, "GET", name)
                    return None
                data = bytearray()
                for piece in answer.iter_raw():
                    data += piece
                    if len(data) > most:
                        raise PlaceError(
                            f"{self.where}/{name} is longer than {most} bytes, and is not read"
                        )
                return bytes(data)
        except self._httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def names(self, folder: str) -> list[str]:
        answer = self._ask("GET", folder)
        try:
            found = answer.json()
            if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
                raise ValueError("no names")
        except ValueError:
            raise PlaceError(f"{self.where} is no relay: it tells no names of letters") from None
        return found[:MAX_NAMES]

    def remove(self, name: str) -> None:
        self._ask("DELETE", name)

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()


def _context(credentials: Credentials) -> ssl.SSLContext:
    """TLS that shows a party's certificate, and believes its authority alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=credentials.ca.decode())
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:  # read from files alone
        paths = [Path(folder) / name for name in ("certificate", "key")]
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        for path, data in zip(paths, (credentials.certificate, credentials.key), strict=True):
            with open(open_private(path, flags), "wb") as file:
                file.write(data)
        context.load_cert_chain(*map(str, paths))
    return context
