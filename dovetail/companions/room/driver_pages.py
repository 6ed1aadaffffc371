"""A driver's pages, and what they post."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from dovetail.companions.room.driver import DriverRoom
from dovetail.companions.room.guard import REPORT_HEADERS
from dovetail.companions.room.pages import form_of, quoted, rendered
from dovetail.errors import ConfigError, DovetailError


class DriverPages:
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
        return await rendered("runs.html", self._overview)

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
        """Page of a run: its state, its report, its models."""
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

        return await rendered("run.html", values)

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
        form = await form_of(request)
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
        return RedirectResponse(f"/runs/{quoted(name)}", 303)

    async def model(self, request: Request) -> Response:
        """A model's card, and a form to try it."""
        name = request.path_params["name"]
        form = await form_of(request) if request.method == "POST" else {}
        model = form.get("model") or request.query_params.get("model", "")
        rows = form.get("rows", "")

        def values() -> dict[str, Any]:
            room, prediction, why = self._room, None, ""
            remarks: list[warnings.WarningMessage] = []
            columns = room.columns(name, model)
            if rows:
                try:
                    with warnings.catch_warnings(record=True, action="always") as remarks:
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
                "remarks": [str(each.message) for each in remarks],
            }

        return await rendered("model.html", values)


def _table(columns: Any) -> dict[str, Any]:
    """Names and rows of texts."""
    names = list(columns)
    rows = zip(*(columns[name].tolist() for name in names), strict=True)
    shown = [[f"{each:.4g}" if isinstance(each, float) else str(each) for each in r] for r in rows]
    return {"names": names, "rows": shown}
