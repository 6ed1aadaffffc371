"""What a relay answers, and to whom.

    PUT, GET       /cards/PARTY           a card: put by that party, read by all
    GET            /mail/PARTY/           names: all for that party, their own for others
    PUT            /mail/PARTY/LETTER     by the sender in the letter's name
    GET            /mail/PARTY/LETTER     by that party
    DELETE         /mail/PARTY/LETTER     by that party, or the sender

Who asks is the one common name of the certificate of mutual TLS. Each party may ask so often a
second, in the long run, and leave so much (``store.Bounds``); a request has so long to come.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from cryptography import x509
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from dovetail.errors import ConfigError
from dovetail.network.certificates import certificate_name, name_of
from dovetail.network.mailbox.keys import MAX_CARD_BYTES
from dovetail.network.mailbox.letters import read_name
from dovetail.network.mailbox.places import CARDS, MAIL
from dovetail.node.relay.store import FullError, Store

#: Seconds that the next piece of a body may take.
PIECE_S = 30.0

_log = logging.getLogger(__name__)


class Rate:
    """How often each party may ask: so many times a second in the long run, and at once.

    Args:
        per_s: in the long run.
        at_once: after a pause.
        clock: seconds.
    """

    #: Parties that are remembered; whoever asked least recently is forgotten first.
    MOST = 10_000

    def __init__(
        self, per_s: float, at_once: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_s, self._at_once, self._clock = per_s, at_once, clock
        self._left: dict[str, tuple[float, float]] = {}  # party -> how many, when

    def allows(self, party: str) -> bool:
        """Whether this party may ask now; counts it if so."""
        now = self._clock()
        left, then = self._left.pop(party, (float(self._at_once), now))
        left = min(self._at_once, left + (now - then) * self._per_s)
        allowed = left >= 1
        self._left[party] = (left - 1 if allowed else left), now
        if len(self._left) > self.MOST:
            del self._left[next(iter(self._left))]
        return allowed


class Relay:
    """Answers requests.

    Args:
        store: where letters lie.
        rate: how often each party may ask.
    """

    def __init__(self, store: Store, rate: Rate) -> None:
        self._store, self._rate = store, rate

    def application(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/cards/{party}", self._card, methods=["GET", "PUT"]),
            Route("/mail/{party}/", self._names, methods=["GET"]),
            Route("/mail/{party}/{letter}", self._letter, methods=["GET", "PUT", "DELETE"]),
        ]
        return Starlette(routes=routes)

    async def _card(self, request: Request) -> Response:
        party, asks = _owner(request), self._asking(request)
        if isinstance(asks, Response) or party is None:
            return asks if isinstance(asks, Response) else _no("that is no party's name")
        name = CARDS + party
        if request.method == "GET":
            return await self._get(name)
        if asks != party:
            return self._refuse(asks, f"a card of {party!r} is left by that party alone")
        return await self._put(request, name, MAX_CARD_BYTES)

    async def _names(self, request: Request) -> Response:
        party, asks = _owner(request), self._asking(request)
        if isinstance(asks, Response) or party is None:
            return asks if isinstance(asks, Response) else _no("that is no party's name")
        found = await run_in_threadpool(self._store.names, f"{MAIL}{party}/", asks)
        return Response(json.dumps(found), media_type="application/json")

    async def _letter(self, request: Request) -> Response:
        party, asks = _owner(request), self._asking(request)
        if isinstance(asks, Response) or party is None:
            return asks if isinstance(asks, Response) else _no("that is no party's name")
        named = read_name(request.path_params["letter"])
        if named is None:
            return _no("that is no letter's name")
        name = f"{MAIL}{party}/{named.name}"
        if request.method == "PUT":
            if asks != named.sender:
                return self._refuse(asks, f"a letter of {named.sender!r} is left by it alone")
            return await self._put(request, name, self._store.bounds.most)
        if asks != party and (request.method == "GET" or asks != named.sender):
            return self._refuse(asks, f"a letter to {party!r} is for that party alone")
        if request.method == "GET":
            return await self._get(name)
        await run_in_threadpool(self._store.remove, name)
        return Response(status_code=204)

    async def _get(self, name: str) -> Response:
        path = await run_in_threadpool(self._store.path, name)
        if path is None or not path.is_file():
            return _no("there is no such file", 404)
        return FileResponse(path, media_type="application/octet-stream")

    async def _put(self, request: Request, name: str, most: int) -> Response:
        announced = request.headers.get("content-length", "")
        if not announced.isdigit():
            return _no("say how long it is (Content-Length)", 411)
        num_bytes = int(announced)
        if num_bytes > most:
            return _no(f"{num_bytes} bytes; at most {most}", 413)
        try:
            with self._store.receive(name, num_bytes) as receiving:
                pieces = request.stream().__aiter__()
                with suppress(StopAsyncIteration):
                    while True:
                        piece = await asyncio.wait_for(anext(pieces), PIECE_S)
                        await run_in_threadpool(receiving.write, piece)
                whole = await run_in_threadpool(receiving.done)
        except FullError as error:
            return _no(str(error), 507)
        except (TimeoutError, ClientDisconnect):
            return _no("it did not come whole", 408)
        except OSError as error:
            _log.error("a file is not kept: %s", error)
            return _no("the relay cannot write just now", 503)
        return Response(status_code=204) if whole else _no("it did not come whole", 400)

    def _asking(self, request: Request) -> str | Response:
        """Whose request it is, or why it is not answered."""
        shown = getattr(request.state, "certificate", None)
        try:
            asks = certificate_name(name_of(x509.load_der_x509_certificate(shown or b"")))
        except (ValueError, ConfigError):
            return _no("no certificate with a party's name was shown", 403)
        if not self._rate.allows(asks):
            self._store.refused()
            return PlainTextResponse(
                "asked too often; wait a second\n", 429, headers={"Retry-After": "1"}
            )
        return asks

    def _refuse(self, asks: str, why: str) -> Response:
        self._store.refused()
        _log.warning("refused %s: %s", asks, why)
        return _no(f"{asks!r} is refused: {why}", 403)


def _owner(request: Request) -> str | None:
    """The party that an address names."""
    try:
        return certificate_name(request.path_params["party"])
    except ConfigError:
        return None


def _no(why: str, status: int = 400) -> Response:
    return PlainTextResponse(f"{why}\n", status)
