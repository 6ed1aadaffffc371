"""A data owner's pages, and what they post."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from dovetail.companions.room.owner import OwnerRoom
from dovetail.companions.room.pages import form_of, quoted, rendered
from dovetail.errors import ConfigError
from dovetail.runs.proposing import page


class OwnerPages:
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
        return await rendered("owner.html", self._overview)

    def _overview(self) -> dict[str, Any]:
        room = self._room
        broken = room.left()[1]
        return {
            "room": room,
            "title": room.title,
            "serving": room.serving(),
            "proposals": room.proposals(),
            "told": room.told(),
            "broken": broken,
            "refusals": room.refusals(),
            "log": room.log(),
            "job": room.jobs.of("join"),
        }

    async def proposal(self, request: Request) -> Response:
        """Page of a proposal, to read."""
        name = request.path_params["name"]

        def values() -> dict[str, Any]:
            review = self._room.proposal(name)
            title = f"Proposal {review.name}"
            text = page(review.proposal)
            return {"room": self._room, "title": title, "review": review, "page": text}

        return await rendered("proposal.html", values)

    async def hand_in(self, request: Request) -> Response:
        """Keep a proposal that came as a file."""
        form = await form_of(request)
        proposal = await asyncio.to_thread(self._room.hand_in, form.get("file", ""))
        return RedirectResponse(f"/proposals/{proposal.name[:12]}", 303)

    async def answer(self, request: Request) -> Response:
        """Sign a proposal, or refuse it."""
        name, form = request.path_params["name"], await form_of(request)
        refuse = None if form.get("answer") == "sign" else form.get("why", "")
        await asyncio.to_thread(self._room.answer, name, refuse=refuse)
        return RedirectResponse(f"/proposals/{name}", 303)

    async def answered(self, request: Request) -> Response:
        """The signed answer, to be sent to the driver."""
        name = request.path_params["name"]
        review = await asyncio.to_thread(self._room.proposal, name)
        if review.ours is None:
            raise ConfigError(f"the proposal {review.name} is not answered yet")
        file = f"proposal.{self._room.site.name}.json"
        return Response(
            review.ours.text,
            media_type="application/json",
            headers={"Content-Disposition": f"attachment; filename*=UTF-8''{quoted(file)}"},
        )

    async def serve(self, _: Request) -> Response:
        """Answer drivers."""
        await asyncio.to_thread(self._room.serve)
        return RedirectResponse("/", 303)

    async def stop(self, _: Request) -> Response:
        """Answer nobody."""
        await asyncio.to_thread(self._room.stop)
        return RedirectResponse("/", 303)
