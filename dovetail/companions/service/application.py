"""The service's HTTP: what is asked, what is answered, what is refused.

A refusal is a sentence in JSON: 400 a body that cannot be read, 401 no token, 403 a page of another
site asks, 404 no such model or page, 405, 408 a body that does not come, 411 none at all, 413 too
large, 415 of another kind, 422 rows that do not fit, 503 too many large bodies at once. Nothing
that a request says ends in a traceback.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import compress
from typing import Any

import numpy as np
from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from dovetail import __version__
from dovetail.companions.service import openapi
from dovetail.companions.service.batching import Batcher
from dovetail.companions.service.bodies import SMALL, BodyGate, read_body
from dovetail.companions.service.metering import Meters
from dovetail.companions.service.origins import SameOriginOnly
from dovetail.companions.service.rows import Asked, errors_json
from dovetail.companions.service.served import Answered, Served, Shelf
from dovetail.errors import DataError, DovetailError
from dovetail.files import did_you_mean
from dovetail.models.calibration import radius_of
from dovetail.models.prediction import Prediction

_LOG = logging.getLogger("dovetail.companions.service")

_SUFFIXES = {
    "text/csv": ".csv",
    "application/vnd.apache.parquet": ".parquet",
    "application/x-parquet": ".parquet",
    "application/parquet": ".parquet",
}
#: Asks partners of a joint model about rows with these ids.
PredictJointly = Callable[[Served, Asked, Sequence[Any]], Awaitable["Answered"]]


@dataclass(frozen=True)
class Limits:
    """Limits of one request, in size and time.

    Attributes:
        body: bytes.
        in_flight: bytes of all large bodies together.
        rows: of one request.
        body_s: seconds for a body to come.
        token: what requests must bear; None: nothing.
        hosts: names that requests may be for; None: any.
    """

    body: int = 16 * 2**20
    in_flight: int = 32 * 2**20
    rows: int = 20_000
    body_s: float = 30.0
    token: str | None = None
    hosts: Sequence[str] | None = None


class Service:
    """Web application of one or several models.

    Args:
        shelf: the models.
        limits: of requests.
        watch_s: seconds between looks at whether a model's files changed; 0 for never.
        jointly: asks the partners of a joint model; None: the solo model answers.
        id_column: the column of ids that partners are asked with.
    """

    def __init__(
        self,
        shelf: Shelf,
        limits: Limits,
        *,
        watch_s: float = 2.0,
        jointly: PredictJointly | None = None,
        id_column: str | None = None,
    ) -> None:
        self.shelf = shelf
        self.limits = limits
        self.meters = Meters()
        self._batcher = Batcher(self.meters.ran)
        self._gate = BodyGate(max(limits.in_flight, limits.body))
        self._watch_s = watch_s
        self._jointly = jointly
        self._id_column = id_column

    def application(self) -> Starlette:
        routes = []
        for path in ("", "/models/{name}"):  # the first are found first
            routes += [
                Route(f"{path}/predict", self.predict, methods=["POST"]),
                Route(f"{path}/schema", self.schema),
                Route(f"{path}/card", self.card),
            ]
        routes += [
            Route("/", self.page),
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/metrics", self.metrics),
            Route("/reload", self.reload, methods=["POST"]),
            Route("/models", self.models),
            Route("/openapi.json", self.openapi),
            Route("/docs", self.docs),
        ]
        guard = [Middleware(SameOriginOnly)]
        if self.limits.hosts is not None:
            guard.append(Middleware(TrustedHostMiddleware, allowed_hosts=[*self.limits.hosts]))
        application = Starlette(
            routes=routes,
            middleware=guard,
            lifespan=self._life,
            exception_handlers={
                HTTPException: _refused,
                DovetailError: _unfit,
                ClientDisconnect: _disconnected,
                Exception: _failed,
            },
        )
        application.router.redirect_slashes = False  # /predict/ is no page, and says so
        return application

    # --- What is asked ----------------------------------------------------------------------------

    async def predict(self, request: Request) -> Response:
        began = time.perf_counter()
        status, num_rows, name = 500, 0, ""
        try:
            self._admit(request)
            model = self._model(request)
            name = model.name
            response, num_rows = await self._predicted(request, model)
            status = response.status_code
            return response
        except HTTPException as refused:
            status = refused.status_code
            raise
        except DovetailError:
            status = 422
            raise
        finally:
            self.meters.answered(name, status, num_rows, time.perf_counter() - began)

    async def _predicted(self, request: Request, model: Served) -> tuple[Response, int]:
        for name in request.query_params:
            if name not in _OPTIONS:
                raise HTTPException(
                    422,
                    f"no option {name[:100]!r}; there are {', '.join(_OPTIONS)}"
                    f"{did_you_mean(name[:100], _OPTIONS)}",
                )
        coverage = self._radius(request, model)
        asked = await self._asked(request, model)
        bad, total = asked.bad, len(asked)
        if bad and (not _flag(request, "partial") or len(asked.bad_rows) == total):
            text = (
                f"{len(asked.bad_rows)} of {total} rows cannot be used; with ?partial=true the "
                "others are answered, with ?allow_unseen=true a category that training has not "
                "seen counts as missing"
            )
            return _refusal(422, text, errors=errors_json(bad)), 0
        unusable = {*asked.bad_rows}
        answered_rows = [row for row in range(total) if row not in unusable] if bad else None
        if bad:
            asked = asked.without_bad()
        answer: dict[str, Any] = {"model": model.name, "version": model.version}
        if asked.ignored:
            answer["ignored"] = list(asked.ignored)
        answered: Answered | None = None
        # What a set or an interval promises was measured on what the solo model says.
        if self._jointly is not None and model.joint is not None and coverage is None:
            answered = await self._jointly(model, asked, asked.ids or [None] * len(asked))
            answer["missing"] = answered.missing
        if answered is not None and answered.prediction is not None:
            lines = _lines(answered.prediction)
        else:
            prediction = await self._batcher.predict(model, asked)
            lines = _lines(prediction if coverage is None else prediction.conformal(coverage))
        if model.joint is not None:
            said = [()] * len(lines) if answered is None else answered.by  # by the solo model
            for line, by in zip(lines, said, strict=True):
                line["said_by"] = "joint" if by else "solo"
                line["answered"] = list(by)
            self.meters.said(model.name, said)
        if answered_rows is not None:
            for line, row in zip(lines, answered_rows, strict=True):
                line["row"] = row + 1
            answer["errors"] = errors_json(bad)
        self.meters.watch(model, asked)
        return _json({**answer, "predictions": lines}), len(lines)

    async def schema(self, request: Request) -> Response:
        self._admit(request)
        return JSONResponse(self._model(request).schema())

    async def card(self, request: Request) -> Response:
        self._admit(request)
        model = self._model(request)
        card = model.card()
        if card is None:
            raise HTTPException(404, f"model {model.name!r} has no card; dovetail card writes one")
        if "text/markdown" in request.headers.get("accept", ""):
            text = (model.path / "card.md").read_text(encoding="utf-8")
            bare = {"x-content-type-options": "nosniff"}
            return PlainTextResponse(text, media_type="text/markdown", headers=bare)
        return JSONResponse(card)

    async def models(self, request: Request) -> Response:
        self._admit(request)
        return JSONResponse({"models": self._models_json()})

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "models": self._models_json()})

    async def ready(self, request: Request) -> Response:
        """Models are read before anything listens: one that is to be read again answers as it was,
        and a joint model without its partners by the one that needs nobody."""
        return JSONResponse({"status": "ready", "models": sorted(self.shelf.models)})

    async def metrics(self, request: Request) -> Response:
        self._admit(request)
        return Response(self.meters.text(), media_type="text/plain; version=0.0.4")

    async def reload(self, request: Request) -> Response:
        self._admit(request)
        if self.limits.token is None and request.headers.get("x-dovetail") is None:
            # A page of somebody else's cannot send this header without being allowed to.
            raise HTTPException(403, "send the header X-Dovetail: reload")
        return JSONResponse({"models": await asyncio.to_thread(self.shelf.reload)})

    async def page(self, request: Request) -> Response:
        text = (files("dovetail.companions.service") / "page.html").read_text(encoding="utf-8")
        allowed = "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        return HTMLResponse(text, headers=_page_headers(allowed))

    async def openapi(self, request: Request) -> Response:
        self._admit(request)
        return JSONResponse(self._document())

    async def docs(self, request: Request) -> Response:
        self._admit(request)
        return HTMLResponse(openapi.page(self._document()), headers=_page_headers())

    def _document(self) -> dict[str, Any]:
        return openapi.document(
            self.shelf.models, version=__version__, guarded=self.limits.token is not None
        )

    # --- How it is read ---------------------------------------------------------------------------

    def _admit(self, request: Request) -> None:
        if self.limits.token is None:
            return
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.limits.token}".encode()):
            raise HTTPException(
                401,
                "send the header Authorization: Bearer TOKEN",
                headers={"www-authenticate": "Bearer"},
            )

    def _model(self, request: Request) -> Served:
        models = self.shelf.models
        name = request.path_params.get("name") or request.query_params.get("model")
        if name is None:
            if len(models) == 1:
                return next(iter(models.values()))
            raise HTTPException(
                404, f"several models are served; name one: /models/NAME/..., of {list(models)}"
            )
        if name not in models:
            raise HTTPException(404, f"no model {name[:100]!r} is served; there are {list(models)}")
        return models[name]

    def _radius(self, request: Request, model: Served) -> float | None:
        """How far the sets or intervals reach that are asked for."""
        text = request.query_params.get("coverage")
        if text is None:
            return None
        try:
            coverage = float(text)
        except ValueError:
            raise HTTPException(
                422, f"a coverage is a number such as 0.9, got {text[:40]!r}"
            ) from None
        try:
            return radius_of(model.onnx.about, coverage, party=model.onnx.party)
        except DovetailError as error:
            raise HTTPException(422, str(error)) from None

    async def _asked(self, request: Request, model: Served) -> Asked:
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind != "application/json" and kind not in _SUFFIXES:
            # One that a page of somebody else's could send unasked is none of these.
            raise HTTPException(
                415,
                f"send the header Content-Type: application/json, or {', '.join(_SUFFIXES)}; "
                f"got {kind[:100]!r}",
            )
        id_column = None
        if self._jointly is not None and model.joint is not None:
            id_column = self._id_column
        most_rows, unseen = self.limits.rows, _flag(request, "allow_unseen")

        def parse(content: bytes) -> Asked:
            if kind == "application/json":
                try:
                    given = from_json(content, allow_inf_nan=True, cache_strings="keys")
                except ValueError as error:
                    raise HTTPException(400, f"the body is no JSON ({_short(error)})") from None
                return model.reader.json(
                    given, most_rows=most_rows, allow_unseen=unseen, id_column=id_column
                )
            wanted = {*model.reader.columns, *([] if id_column is None else [id_column])}
            return model.reader.table(
                read_body(content, _SUFFIXES[kind], most_rows=most_rows, columns=wanted),
                most_rows=most_rows,
                allow_unseen=unseen,
                id_column=id_column,
            )

        def parsed(content: bytes) -> Asked:
            try:
                return parse(content)
            except StopIteration as error:  # no future takes it: whoever waits would wait for good
                raise RuntimeError("a reader ended early") from error

        limits = self.limits
        async with self._gate.body(request, most=limits.body, within_s=limits.body_s) as content:
            if kind == "application/json" and len(content) <= SMALL:
                return parse(content)
            async with self._gate.alone:
                return await asyncio.to_thread(parsed, content)

    def _models_json(self) -> dict[str, Any]:
        return {
            name: {
                "version": model.version,
                "party": model.onnx.party,
                "label": model.label,
                "since": round(model.since, 3),
                "joint": model.joint is not None,
            }
            for name, model in self.shelf.models.items()
        }

    # --- While it lives ---------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _life(self, application: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(self._look())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _look(self) -> None:
        """Read models again when their files change."""
        while self._watch_s:
            await asyncio.sleep(self._watch_s)
            changed = self.shelf.changed()
            if changed:
                reloaded = await asyncio.to_thread(self.shelf.reload, changed)
                _LOG.info("read again: %s", reloaded)


#: What may stand behind the address of a prediction.
_OPTIONS = ("model", "partial", "allow_unseen", "coverage")


def _flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "").lower() in ("1", "true", "yes")


def _lines(prediction: Prediction) -> list[dict[str, Any]]:
    """Answers for each row; of several labels label -> answer."""
    names = [str(each) for each in prediction.labels or prediction.classes]
    columns: dict[str, list[Any]] = {"prediction": prediction.values.tolist()}
    if prediction.labels:
        columns["prediction"] = [
            dict(zip(names, row, strict=True)) for row in columns["prediction"]
        ]
    if prediction.probabilities is not None:
        rounded = np.round(prediction.probabilities.astype(float), 6).tolist()
        columns["probabilities"] = [dict(zip(names, row, strict=True)) for row in rounded]
    if prediction.within is not None:
        columns["set"] = [list(compress(prediction.classes, row)) for row in prediction.within]
    if prediction.low is not None and prediction.high is not None:
        columns |= {"low": prediction.low.tolist(), "high": prediction.high.tolist()}
    columns |= {name: values.tolist() for name, values in prediction.named.items()}
    return [
        {name: None if cell != cell else cell for name, cell in zip(columns, row, strict=True)}
        for row in zip(*columns.values(), strict=True)
    ]


def _page_headers(allowed: str = "") -> dict[str, str]:
    """A page may ask nobody, but for what is allowed."""
    return {
        "content-security-policy": f"default-src 'none'; style-src 'unsafe-inline'; {allowed}"
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }


def _json(content: Any) -> Response:
    return Response(json.dumps(content, allow_nan=False), media_type="application/json")


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def _refusal(status: int, text: str, headers: Any = None, **more: Any) -> Response:
    return JSONResponse({"error": text, **more}, status_code=status, headers=headers)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    texts = {404: "there is no such page", 405: "this page takes another method"}
    text = error.detail
    if text in ("Not Found", "Method Not Allowed"):
        text = texts[error.status_code]
    return _refusal(error.status_code, text, error.headers)


async def _unfit(request: Request, error: Exception) -> Response:
    return _refusal(422 if isinstance(error, DataError) else 500, str(error))


async def _disconnected(request: Request, error: Exception) -> Response:
    return Response(status_code=400)


async def _failed(request: Request, error: Exception) -> Response:
    return _refusal(500, "the service failed; its log says how")
