"""Access to a room: by its token, a certificate, or a proxy that names the user.

A token opens the room once, in an address that is printed when the room starts; from then on a
cookie has it, which no other site's page can send (SameSite=Strict) and no script can read.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "dovetail_room"

#: What every page says to a browser: nothing from elsewhere, in no frame of another site.
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'self'; form-action 'self'; "
    "base-uri 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

#: Of the report's pages, which carry their own style.
REPORT_HEADERS = {
    **HEADERS,
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'self'",
}


@dataclass(frozen=True)
class Entry:
    """How one enters.

    Attributes:
        token: opens the room; "" where certificates or a proxy guard it.
        identity_header: in which a reverse proxy says who asks; "" if there is none.
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    identity_header: str = ""


class Guarded:
    """Answers nobody whom the entry does not let in.

    Args:
        application: answers the others.
        entry: how one enters.
    """

    def __init__(self, application: ASGIApp, entry: Entry) -> None:
        self._application = application
        self._entry = entry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                message["headers"] += [
                    (name.lower().encode(), value.encode())
                    for name, value in HEADERS.items()
                    if name.lower().encode() not in given
                ]
            await send(message)

        answer = self._refusal(scope)
        await (answer or self._application)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Response that refuses a request; None: let in."""
        entry, headers = self._entry, Headers(scope=scope)
        if entry.identity_header:
            if headers.get(entry.identity_header):
                return None
            return PlainTextResponse(
                f"the proxy before this room names nobody in {entry.identity_header}", 401
            )
        if not entry.token:
            return None
        if scope["method"] == "GET" and scope["path"] == "/":
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
            if given:
                if not _same(given, entry.token):
                    return PlainTextResponse("not this room's token", 401)
                answer = RedirectResponse("/", 303)
                secure = scope.get("scheme") == "https"
                answer.set_cookie(
                    COOKIE, given, httponly=True, samesite="strict", secure=secure, path="/"
                )
                return answer
        if _same(cookie_parser(headers.get("cookie", "")).get(COOKIE, ""), entry.token):
            return None
        return PlainTextResponse(
            "open the address that dovetail room printed when it started; it has the token", 401
        )


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())
