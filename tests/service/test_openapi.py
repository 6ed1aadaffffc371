"""The OpenAPI document says what the service does, and /docs shows it without asking anybody."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from learned import clinic_table, fitted_model

from dovetail import __version__
from dovetail.companions.service.application import Limits, Service
from dovetail.companions.service.served import Shelf
from dovetail.models.learners.linear import Linear


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    index = tmp_path_factory.mktemp("served") / "clinic"
    fitted_model(clinic_table(400), [Linear()]).save(index)
    return index


def answers_of(
    made: Service, what: Callable[[httpx.AsyncClient], Awaitable[Any]], **headers: str
) -> Any:
    async def ask() -> Any:
        transport = httpx.ASGITransport(made.application())
        async with httpx.AsyncClient(
            transport=transport, base_url="http://service", headers=headers
        ) as client:
            return await what(client)

    return asyncio.run(ask())


def service(*folders: Path, token: str | None = None) -> Service:
    shelf = Shelf({f"m{index}": each for index, each in enumerate(folders)}, print)
    return Service(shelf, Limits(rows=200, body=200_000, token=token), watch_s=0)


def checker(schema: dict[str, Any], name: str) -> jsonschema.Draft202012Validator:
    """A validator of a schema in the document, with references resolved in it."""
    return jsonschema.Draft202012Validator({**schema, "$ref": f"#/components/schemas/{name}"})


def test_every_address_of_the_service_is_in_the_document_and_the_reverse(folder: Path) -> None:
    made = service(folder)
    routes = {route.path for route in made.application().routes}  # type: ignore[attr-defined]
    pages = {"/", "/openapi.json", "/docs"}
    alone = {path for path in routes if not path.startswith("/models/{name}")} - pages

    async def ask(client: httpx.AsyncClient) -> dict[str, Any]:
        schema: dict[str, Any] = (await client.get("/openapi.json")).json()
        for path, methods in schema["paths"].items():
            for method in methods:
                reply = await client.request(method, path, headers={"x-dovetail": "reload"})
                assert str(reply.status_code) in methods[method]["responses"], path
                assert "no such page" not in reply.text
        return schema

    schema = answers_of(made, ask)
    assert {*schema["paths"]} == alone
    assert schema["openapi"] == "3.1.0"
    assert schema["info"]["version"] == __version__


def test_requests_and_answers_are_as_the_document_says(folder: Path) -> None:
    row = {"age": 51.5, "job": "cook", "smoker": "true", "admitted": "2024-05-01"}

    async def ask(client: httpx.AsyncClient) -> None:
        reported = (await client.get("/openapi.json")).json()
        schema = checker(reported, "m0.row")
        names = {*reported["components"]["schemas"]["m0.row"]["properties"]}
        whole = {**dict.fromkeys(names), **{key: row[key] for key in row if key in names}}
        schema.validate(whole)
        with pytest.raises(jsonschema.ValidationError):
            schema.validate({**whole, "age": "old"})
        answer = (await client.post("/predict", json=[whole, whole])).json()
        checker(reported, "m0.answer").validate(answer)
        wizard = {**whole, "job": "wizard"}
        partly = (await client.post("/predict?partial=true", json=[wizard, whole])).json()
        checker(reported, "m0.answer").validate(partly)
        assert [line["row"] for line in partly["predictions"]] == [2]
        refused = await client.post("/predict", json=[wizard])
        checker(reported, "error").validate(refused.json())
        options = {each["name"] for each in reported["paths"]["/predict"]["post"]["parameters"]}
        assert options == {"partial", "allow_unseen", "coverage"}

    answers_of(service(folder), ask)


def test_several_models_have_addresses_of_their_own(folder: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> dict[str, Any]:
        schema: dict[str, Any] = (await client.get("/openapi.json")).json()
        return schema

    schema = answers_of(service(folder, folder), ask)
    assert {"/models/m0/predict", "/models/m1/predict", "/models"} < {*schema["paths"]}
    for name in ("m0", "m1"):
        assert (
            schema["paths"][f"/models/{name}/predict"]["post"]["operationId"] == f"predict_{name}"
        )


def test_a_guarded_service_guards_what_its_columns_are(folder: Path) -> None:
    made = service(folder, token="0123456789abcdef")

    async def ask(client: httpx.AsyncClient) -> Any:
        return [await client.get(path) for path in ("/openapi.json", "/docs")]

    assert [each.status_code for each in answers_of(made, ask)] == [401, 401]
    schema, page = answers_of(made, ask, authorization="Bearer 0123456789abcdef")
    assert schema.json()["security"] == [{"token": []}]
    assert "Authorization: Bearer TOKEN" in page.text


def test_the_page_has_no_script_and_asks_nobody(folder: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.get("/docs")

    page = answers_of(service(folder), ask)
    assert page.headers["content-security-policy"].startswith("default-src 'none'; style-src")
    assert "script-src" not in page.headers["content-security-policy"]
    assert not re.search(r"<script|<link|<img|src=|https?://", page.text)
    assert "POST /predict" in page.text
    assert re.search(r"in training \d", page.text)
    example = re.search(r"-d '(\{.*?\})'</pre>", html.unescape(page.text))
    assert example is not None
    assert {*json.loads(example[1])} >= {"age", "job"}
