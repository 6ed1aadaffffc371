"""HTTP server of a relay, and which requests it answers.

    PUT, GET       /cards/PARTY           a card: put by that party, read by all
    GET            /mail/PARTY/           names: all for that party, their own for others
    PUT            /mail/PARTY/LETTER     by the sender in the letter's name
    GET            /mail/PARTY/LETTER     by that party
    DELETE         /mail/PARTY/LETTER     by that party, or the sender

Who asks has signed the request with its certificate's key (``signed.py``); mutual
TLS may guard the door besides. Each party may ask so often a second, in the long run, have so many
requests under way, and leave so much (``store.Bounds``); a request has so long to come.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NoReturn

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dovetail.companions.mailbox.keys import MAX_CARD_BYTES
from dovetail.companions.mailbox.letters import read_name
from dovetail.companions.mailbox.places import CARDS, MAIL
from dovetail.companions.mailbox.relay_store import FullError, Store
from dovetail.companions.mailbox.signed import PROCESS, Signatures, Statement, UnsignedError
from dovetail.errors import ConfigError
from dovetail.network.certificates import certificate_name

#: Seconds that the next piece of a body may take; bytes a second that all of it has to come at,
#: so that a byte now and then does not hold a connection for good.
PIECE_S, LEAST_BYTES_S = 30.0, 2**16

#: Connections of one party at a time, and its requests, which may share a proxy's connections, of
#: ``MAX_REQUESTS``: none can hold them all.
MAX_CONNECTIONS, MAX_REQUESTS = 32, 256

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


class _Counted:
    """A response that is under way until its last byte has gone, or its connection."""

    def __init__(self, response: ASGIApp, ended: Callable[[], None]) -> None:
        self._response, self._ended = response, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._response(scope, receive, send)
        finally:
            self._ended()


_Answer = Callable[[Request, Statement, str], Awaitable[Response]]


class Relay:
    """Answers requests.

    Args:
        store: where letters lie.
        rate: how often each party may ask.
        signatures: finds whose a request is.
    """

    def __init__(self, store: Store, rate: Rate, signatures: Signatures) -> None:
        self._store, self._rate, self._signatures = store, rate, signatures
        self._under_way: Counter[str] = Counter()

    def application(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/cards/{party}", self._bounded(self._card), methods=["GET", "PUT"]),
            Route("/mail/{party}/", self._bounded(self._names), methods=["GET"]),
            Route(
                "/mail/{party}/{letter}",
                self._bounded(self._letter),
                methods=["GET", "PUT", "DELETE"],
            ),
        ]
        return Starlette(routes=routes)

    def _bounded(self, answer: _Answer) -> Callable[[Request], Awaitable[_Counted]]:
        """An endpoint that knows who asks, and refuses a party that has too much under way."""

        async def endpoint(request: Request) -> _Counted:
            signed = self._signed(request)
            party = certificate_name(signed.party)
            if self._under_way[party] >= MAX_CONNECTIONS:
                self._store.refused()
                why = f"{MAX_CONNECTIONS} of your requests are under way; end one of them first"
                raise HTTPException(429, why, headers={"Retry-After": "1"})
            self._under_way[party] += 1
            try:
                response = await answer(request, signed, _owner(request))
            except BaseException:
                self._ended(party)
                raise
            return _Counted(response, lambda: self._ended(party))

        return endpoint

    def _ended(self, party: str) -> None:
        self._under_way[party] -= 1
        if not self._under_way[party]:
            del self._under_way[party]

    async def _card(self, request: Request, signed: Statement, party: str) -> Response:
        if request.method in ("GET", "HEAD"):
            return await self._get(CARDS + party)
        if signed.party != party:
            self._refuse(signed, f"a card of {party!r} is left by that party alone")
        return await self._put(request, signed, CARDS + party, MAX_CARD_BYTES)

    async def _names(self, request: Request, signed: Statement, party: str) -> Response:
        found = await run_in_threadpool(self._store.names, f"{MAIL}{party}/", signed.party)
        return Response(json.dumps(found), media_type="application/json")

    async def _letter(self, request: Request, signed: Statement, party: str) -> Response:
        named = read_name(request.path_params["letter"])
        if named is None:
            raise HTTPException(400, "that is no letter's name")
        name = f"{MAIL}{party}/{named.name}"
        if request.method == "PUT":
            if signed.party != named.sender:
                self._refuse(signed, f"a letter of {named.sender!r} is left by it alone")
            return await self._put(request, signed, name, self._store.bounds.most)
        reads = request.method in ("GET", "HEAD")  # HEAD comes with GET
        if signed.party != party and (reads or signed.party != named.sender):
            self._refuse(signed, f"a letter to {party!r} is for that party alone")
        if reads:
            return await self._get(name)
        await run_in_threadpool(self._store.remove, name)
        return Response(status_code=204)

    async def _get(self, name: str) -> Response:
        path = await run_in_threadpool(self._store.path, name)
        if path is None or not path.is_file():
            raise HTTPException(404, "there is no such file")
        return FileResponse(path, media_type="application/octet-stream")

    async def _put(self, request: Request, signed: Statement, name: str, most: int) -> Response:
        announced = request.headers.get("content-length", "")
        if not announced.isdigit():
            raise HTTPException(411, "say how long it is (Content-Length)")
        num_bytes, digest = int(announced), hashlib.sha256()
        if num_bytes > most:
            raise HTTPException(413, f"{num_bytes} bytes; at most {most}")
        try:
            with self._store.receive(name, num_bytes) as receiving:
                pieces = request.stream().__aiter__()
                async with asyncio.timeout(PIECE_S + num_bytes / LEAST_BYTES_S):
                    with suppress(StopAsyncIteration):
                        while True:
                            piece = await asyncio.wait_for(anext(pieces), PIECE_S)
                            digest.update(piece)
                            await run_in_threadpool(receiving.write, piece)
                if digest.hexdigest() != signed.sha256:
                    raise HTTPException(401, "the body is not the one that was signed")
                whole = await run_in_threadpool(receiving.done)
        except FullError as error:
            raise HTTPException(507, str(error)) from None
        except (TimeoutError, ClientDisconnect):
            raise HTTPException(408, "it did not come whole") from None
        except OSError as error:
            _log.error("a file is not kept: %s", error)
            raise HTTPException(503, "the relay cannot write just now") from None
        if not whole:
            raise HTTPException(400, "it did not come whole")
        return Response(status_code=204)

    def _signed(self, request: Request) -> Statement:
        """Signed statement of the party that sent this request.

        Raises:
            HTTPException: why the request is not answered.
        """
        header, path = request.headers.get("authorization", ""), request.scope["path"]
        try:
            signed = self._signatures.check(header, request.method, path)
            if not self._rate.allows(certificate_name(signed.party)):
                self._store.refused()
                why = "asked too often; wait a second"
                raise HTTPException(429, why, headers={"Retry-After": "1"})
            self._signatures.once(signed)
        except (UnsignedError, ConfigError) as error:
            process = {PROCESS: self._signatures.process}
            raise HTTPException(401, str(error), headers=process) from None
        return signed

    def _refuse(self, signed: Statement, why: str) -> NoReturn:
        self._store.refused()
        _log.warning("refused %s: %s", signed.party, why)
        raise HTTPException(403, f"{signed.party!r} is refused: {why}")


def _owner(request: Request) -> str:
    """The party that an address names."""
    try:
        return certificate_name(request.path_params["party"])
    except ConfigError:
        raise HTTPException(400, "that is no party's name") from None
