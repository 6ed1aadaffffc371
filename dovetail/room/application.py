"""A room's HTTP: pages, what they post, and events that say when to look again.

A page is whole in every answer; the script in it only asks for it again when something has changed.
So it reads without the script, too, and a form works by keyboard alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup
from prometheus_client.core import GaugeMetricFamily, Metric
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from dovetail.errors import ConfigError, DovetailError
from dovetail.network.printable import printable
from dovetail.report.views import COLOURS
from dovetail.room.driver import DriverRoom
from dovetail.room.guard import REPORT_HEADERS, Entry, Guarded
from dovetail.room.owner import MAX_PROPOSAL, OwnerRoom
from dovetail.room.watch import Watch
from dovetail.runs.proposing import page
from dovetail.service.origins import SameOriginOnly

#: Bytes of a form, and of one field; seconds that it has to come.
MAX_FORM, FORM_S = 2 * MAX_PROPOSAL, 30.0

#: Pages that wait for events at a time: half of the connections that a room takes.
MAX_EVENTS = 256


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("dovetail.room"),
        autoescape=True,  # names and reasons come from others
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["printable"] = printable
    made.filters["markdown"] = _markdown
    made.filters["clock"] = lambda at: f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}"
    return made


def _markdown(text: str) -> Markup:
    """Markdown of ours, in which words of others stand; HTML in it is text."""
    made = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    made = made.replace("<table>", '<div class="scroll"><table>').replace(
        "</table>", "</table></div>"
    )
    return Markup(made)


class Room:
    """One application, of a data owner's room or a driver's.

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
        self._pages = _OwnerPages(room) if isinstance(room, OwnerRoom) else _DriverPages(room)

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
        pages = GaugeMetricFamily("dovetail_room_pages", "Pages that are open.")
        pages.add_metric([], float(self.watch.open))
        yield pages
        jobs = GaugeMetricFamily("dovetail_room_jobs", "Commands that are known.", labels=["state"])
        for state, number in Counter(job.state for job in self.room.jobs.all()).items():
            jobs.add_metric([state], float(number))
        yield jobs

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


class _OwnerPages:
    """A data owner's pages."""

    def __init__(self, room: OwnerRoom) -> None:
        self._room = room

    def routes(self) -> list[Route]:
        return [
            Route("/proposals", self.hand_in, methods=["POST"]),
            Route("/proposals/{name}", self.proposal),
            Route("/proposals/{name}/answer", self.answer, methods=["POST"]),
            Route("/proposals/{name}/answer.json", self.answered),
            Route("/serve", self.serve, methods=["POST"]),
            Route("/stop", self.stop, methods=["POST"]),
        ]

    async def overview(self, request: Request) -> Response:
        return await _rendered("owner.html", self._overview)

    def _overview(self) -> dict[str, Any]:
        room = self._room
        left, broken = room.left()
        return {
            "room": room,
            "title": room.title,
            "serving": room.serving(),
            "proposals": room.proposals(),
            "left": left,
            "broken": broken,
            "refusals": room.refusals(),
            "log": room.log(),
            "job": room.jobs.of("join"),
        }

    async def proposal(self, request: Request) -> Response:
        """One proposal, to read."""
        name = request.path_params["name"]

        def values() -> dict[str, Any]:
            serving = self._room.proposal(name)
            title = f"Proposal {serving.name}"
            text = page(serving.proposal)
            return {"room": self._room, "title": title, "standing": serving, "page": text}

        return await _rendered("proposal.html", values)

    async def hand_in(self, request: Request) -> Response:
        """Keep a proposal that came as a file."""
        form = await _form(request)
        proposal = await asyncio.to_thread(self._room.hand_in, form.get("file", ""))
        return RedirectResponse(f"/proposals/{proposal.name[:12]}", 303)

    async def answer(self, request: Request) -> Response:
        """Sign a proposal, or refuse it."""
        name, form = request.path_params["name"], await _form(request)
        refuse = None if form.get("answer") == "sign" else form.get("why", "")
        await asyncio.to_thread(self._room.answer, name, refuse=refuse)
        return RedirectResponse(f"/proposals/{name}", 303)

    async def answered(self, request: Request) -> Response:
        """The signed answer, to be sent to the driver."""
        name = request.path_params["name"]
        serving = await asyncio.to_thread(self._room.proposal, name)
        if serving.ours is None:
            raise ConfigError(f"the proposal {serving.name} is not answered yet")
        file = f"proposal.{self._room.site.name}.json"
        return Response(
            serving.ours.text,
            media_type="application/json",
            headers={"Content-Disposition": f"attachment; filename*=UTF-8''{_quoted(file)}"},
        )

    async def serve(self, _: Request) -> Response:
        """Answer drivers."""
        await asyncio.to_thread(self._room.serve)
        return RedirectResponse("/", 303)

    async def stop(self, _: Request) -> Response:
        """Answer nobody."""
        await asyncio.to_thread(self._room.stop)
        return RedirectResponse("/", 303)


class _DriverPages:
    """A driver's pages."""

    def __init__(self, room: DriverRoom) -> None:
        self._room = room

    def routes(self) -> list[Route]:
        return [
            Route("/runs", self.train, methods=["POST"]),
            Route("/compare", self.compare),
            Route("/runs/{name}", self.run),
            Route("/runs/{name}/report", self.report),
            Route("/runs/{name}/stop", self.stop, methods=["POST"]),
            Route("/runs/{name}/audit", self.audit, methods=["POST"]),
            Route("/runs/{name}/model", self.model, methods=["GET", "POST"]),
        ]

    async def overview(self, request: Request) -> Response:
        return await _rendered("runs.html", self._overview)

    def _overview(self) -> dict[str, Any]:
        room = self._room
        return {
            "room": room,
            "title": room.title,
            "runs": room.runs(),
            "files": room.run_files(),
            "proposals": room.proposals(),
            "jobs": room.jobs.all()[:20],
        }

    async def run(self, request: Request) -> Response:
        """One run: how it stands, its report, its models."""
        name = request.path_params["name"]

        def values() -> dict[str, Any]:
            room = self._room
            audit = f"audit of {name}"
            known = name in {path.name for path in room.folders()}
            if not known and room.jobs.of(name) is None:
                raise ConfigError(f"there is no run {name[:80]!r} here")
            return {
                "room": room,
                "title": name,
                "known": known,
                "models": room.models(name) if known else [],
                "run": room.run(name) if known else None,
                "job": room.jobs.of(name),
                "audit": room.jobs.of(audit),
                "log": room.jobs.log(name),
                "audit_log": room.jobs.log(audit),
            }

        return await _rendered("run.html", values)

    async def compare(self, request: Request) -> Response:
        """Several runs side by side."""
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if not names:
            raise ConfigError("choose the runs to compare")
        return HTMLResponse(
            await asyncio.to_thread(self._room.report, names), headers=REPORT_HEADERS
        )

    async def report(self, request: Request) -> Response:
        """A run's report, as ``dovetail report`` writes it."""
        name = request.path_params["name"]
        page = await asyncio.to_thread(self._room.report, [name])
        return HTMLResponse(page, headers=REPORT_HEADERS)

    async def train(self, request: Request) -> Response:
        """Let a run wait for its turn."""
        form = await _form(request)
        file, name = form.get("file", ""), form.get("name", "").strip()
        resume, proposal = form.get("resume") == "yes", form.get("proposal", "")
        await asyncio.to_thread(self._room.train, file, name, proposal=proposal, resume=resume)
        return RedirectResponse("/", 303)

    async def stop(self, request: Request) -> Response:
        """End a run; what it has finished is kept."""
        await asyncio.to_thread(self._room.stop, request.path_params["name"])
        return RedirectResponse("/", 303)

    async def audit(self, request: Request) -> Response:
        """Let an audit wait for its turn."""
        name = request.path_params["name"]
        await asyncio.to_thread(self._room.audit, name)
        return RedirectResponse(f"/runs/{_quoted(name)}", 303)

    async def model(self, request: Request) -> Response:
        """A model's card, and a form to try it."""
        name = request.path_params["name"]
        form = await _form(request) if request.method == "POST" else {}
        model = form.get("model") or request.query_params.get("model", "")
        rows = form.get("rows", "")

        def values() -> dict[str, Any]:
            room, prediction, why = self._room, None, ""
            columns = room.columns(name, model)
            if rows:
                try:
                    prediction = room.predict(name, model, rows)
                except DovetailError as error:
                    why = str(error)
            return {
                "room": room,
                "title": f"{model} of {name}",
                "name": name,
                "model": model,
                "card": room.card(name, model),
                "columns": columns,
                "rows": rows or ",".join(columns) + "\n",
                "said": None if prediction is None else _table(prediction.columns()),
                "why": why,
            }

        return await _rendered("model.html", values)


def _table(columns: Any) -> dict[str, Any]:
    """Names and rows of texts."""
    names = list(columns)
    rows = zip(*(columns[name].tolist() for name in names), strict=True)
    shown = [[f"{each:.4g}" if isinstance(each, float) else str(each) for each in r] for r in rows]
    return {"names": names, "rows": shown}


async def _rendered(template: str, values: Callable[[], dict[str, Any]]) -> Response:
    """A page; what it shows is read on another thread."""

    def render() -> str:
        return _templates().get_template(template).render(values())

    return HTMLResponse(await asyncio.to_thread(render))


async def _form(request: Request) -> dict[str, str]:
    """What a page has posted, files as their text.

    Raises:
        HTTPException: too much of it.
    """
    length = request.headers.get("content-length", "")
    if not length.isdigit() or int(length) > MAX_FORM:
        raise HTTPException(413, f"a form has {MAX_FORM:,} bytes at most, and says how many")
    read = request.form(max_files=1, max_fields=20, max_part_size=MAX_FORM)
    try:
        async with asyncio.timeout(FORM_S), read as form:
            return {
                key: (await value.read()).decode("utf-8", "replace")
                if isinstance(value, UploadFile)
                else value
                for key, value in form.items()
            }
    except TimeoutError:
        raise HTTPException(408, f"a form has {FORM_S:g} s to come") from None


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


async def _style(_: Request) -> Response:
    light, dark = (
        " ".join(f"--c{index}: {pair[side]};" for index, pair in enumerate(COLOURS))
        for side in (0, 1)
    )
    shared = files("dovetail.report").joinpath("templates/style.css").read_text("utf-8")
    style = files("dovetail.room").joinpath("templates/room.css").read_text("utf-8")
    text = shared.replace("{{ light }}", light).replace("{{ dark }}", dark) + style
    return Response(text, media_type="text/css")


async def _no_icon(_: Request) -> Response:
    return Response(status_code=204)


async def _script(_: Request) -> Response:
    text = files("dovetail.room").joinpath("templates/room.js").read_text("utf-8")
    return Response(text, media_type="text/javascript")


def _page_of(why: str, code: int) -> Response:
    page = _templates().get_template("refused.html").render(title="Refused", why=why)
    return HTMLResponse(page, code)


async def _refused(_: Request, error: Exception) -> Response:
    code = getattr(error, "status_code", 500)
    return PlainTextResponse(f"{getattr(error, 'detail', error)}\n", code)


async def _unfit(_: Request, error: Exception) -> Response:
    """A user's mistake: one sentence, and a way back."""
    return _page_of(str(error), 422)
