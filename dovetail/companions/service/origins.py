"""Requests that a web page of somebody else's makes, which a browser sends without asking anybody.

A browser says in Sec-Fetch-Site whose page asks, which no page can change, and in Origin who it is.
Programs send neither. The page at / may be opened from anywhere, as links are.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class SameOriginOnly:
    """Refuses requests of other sites' pages.

    Args:
        application: answers all others.
    """

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_link(scope):
            why = foreign(Headers(scope=scope))
            if why is not None:
                await JSONResponse({"error": why}, status_code=403)(scope, receive, send)
                return
        await self._application(scope, receive, send)


def foreign(headers: Headers) -> str | None:
    """Why a request is of another site's page; None if it is of none.

    >>> foreign(Headers({"host": "localhost:8000", "origin": "http://localhost:8000"}))
    >>> foreign(Headers({"host": "localhost:8000", "origin": "https://evil.example"}))
    "refuses a page of 'https://evil.example': only the service's own page may ask"
    """
    origin = headers.get("origin")
    site = headers.get("sec-fetch-site")
    if site is not None:  # a proxy may have changed the host, and cannot change this
        same_origin = site in ("same-origin", "none")
    else:
        same_origin = origin is None or _same(origin, headers.get("host", ""))
    if same_origin:
        return None
    shown = (origin or "another site")[:100]
    return f"refuses a page of {shown!r}: only the service's own page may ask"


def _same(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return bool(host) and parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def _is_link(scope: Scope) -> bool:
    return scope["path"] == "/" and scope["method"] in ("GET", "HEAD")
