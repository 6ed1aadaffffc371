"""A room's HTTP: pages, what they post, and events that say when to look again.

A page is whole in every answer; the script in it only asks for it again when something has changed.
So it reads without the script, too, and a form works by keyboard alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from importlib.resources import files

from prometheus_client.core import Metric
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from dovetail.companions.room.driver import DriverRoom
from dovetail.companions.room.driver_pages import DriverPages
from dovetail.companions.room.guard import Entry, Guarded
from dovetail.companions.room.owner import OwnerRoom
from dovetail.companions.room.owner_pages import OwnerPages
from dovetail.companions.room.pages import templates
from dovetail.companions.room.watch import Watch
from dovetail.companions.service.origins import SameOriginOnly
from dovetail.errors import DovetailError
from dovetail.node.probes import gauge
from dovetail.report.views import COLOURS

#: Pages that wait for events at a time: half of the connections that a room takes.
MAX_EVENTS = 256


class Room:
    """Web application of a data owner's room or a driver's.

    Args:
        room: what is shown and done.
        entry: who may enter.
        hosts: names that requests may be for; None: any.
    """

    def __init__(
        self, room: OwnerRoom | DriverRoom, entry: Entry, *, hosts: list[str] | None
    ) -> None:
        self.room = room
        self._entry = entry
        self._hosts = hosts
        self.watch = Watch(room.files, room.state)
        self._pages = OwnerPages(room) if isinstance(room, OwnerRoom) else DriverPages(room)

    def application(self) -> Starlette:
        routes = [
            Route("/", self._pages.overview),
            Route("/events", self.events),
            Route("/room.css", _style),
            Route("/room.js", _script),
            Route("/favicon.ico", _no_icon),
            *self._pages.routes(),
        ]
        guard = [Middleware(SameOriginOnly), Middleware(Guarded, entry=self._entry)]
        if self._hosts is not None:
            guard.insert(0, Middleware(TrustedHostMiddleware, allowed_hosts=self._hosts))
        return Starlette(
            routes=routes,
            middleware=guard,
            lifespan=self._life,
            exception_handlers={HTTPException: _refused, DovetailError: _unfit},
        )

    @contextlib.asynccontextmanager
    async def _life(self, _: Starlette) -> AsyncIterator[None]:
        looking = asyncio.create_task(self.watch.run())
        try:
            yield
        finally:
            looking.cancel()
            self.room.jobs.close()

    def metrics(self) -> Iterator[Metric]:
        """Open pages, and commands by how they stand, for Prometheus."""
        yield gauge("dovetail_room_pages", "Pages that are open.", "", {"": self.watch.open})
        jobs = Counter(job.state for job in self.room.jobs.all())
        yield gauge("dovetail_room_jobs", "Commands that are known.", "state", jobs)

    async def events(self, _: Request) -> Response:
        """Says when to look again.

        Raises:
            HTTPException: as many wait as may; others' pages and forms are answered all the same.
        """
        if self.watch.open >= MAX_EVENTS:
            raise HTTPException(503, "too many pages of this room are open; close some")
        return StreamingResponse(
            self.watch.events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )


async def _style(_: Request) -> Response:
    light, dark = (
        " ".join(f"--c{index}: {pair[side]};" for index, pair in enumerate(COLOURS))
        for side in (0, 1)
    )
    shared = files("dovetail.report").joinpath("templates/style.css").read_text("utf-8")
    style = files("dovetail.companions.room").joinpath("templates/room.css").read_text("utf-8")
    text = shared.replace("{{ light }}", light).replace("{{ dark }}", dark) + style
    return Response(text, media_type="text/css")


async def _no_icon(_: Request) -> Response:
    return Response(status_code=204)


async def _script(_: Request) -> Response:
    text = files("dovetail.companions.room").joinpath("templates/room.js").read_text("utf-8")
    return Response(text, media_type="text/javascript")


def _page_of(why: str, code: int) -> Response:
    page = templates().get_template("refused.html").render(title="Refused", why=why)
    return HTMLResponse(page, code)


async def _refused(_: Request, error: Exception) -> Response:
    code = getattr(error, "status_code", 500)
    return PlainTextResponse(f"{getattr(error, 'detail', error)}\n", code)


async def _unfit(_: Request, error: Exception) -> Response:
    """A user's mistake: one sentence, and a way back."""
    return _page_of(str(error), 422)
