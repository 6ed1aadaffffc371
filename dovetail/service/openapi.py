"""What the service answers, as an OpenAPI 3.1 document and as a page to read.

The page has no script and asks nobody: everything in it stands in the document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from dovetail.service.served import Served

_ERRORS = {
    "400": "The body cannot be read.",
    "401": "The token is missing or wrong.",
    "403": "A page of another site asks.",
    "404": "There is no such model.",
    "408": "The body did not arrive in time.",
    "411": "There is no body.",
    "413": "The body has too many bytes or rows.",
    "415": "The body is neither JSON, CSV nor Parquet.",
    "422": "Rows do not fit the model; `errors` names the row and the column.",
    "503": "Too many large bodies arrive at once.",
}

_OPTIONS = {
    "partial": (
        {"type": "boolean", "default": False},
        "Predict the rows that can be used; `errors` names the others.",
    ),
    "allow_unseen": (
        {"type": "boolean", "default": False},
        "Take categories that training did not see as missing.",
    ),
    "coverage": (
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        "Add the set of classes, or the interval, that holds the truth this often. Needs a model "
        "that was calibrated.",
    ),
}


def document(models: Mapping[str, Served], *, version: str, guarded: bool) -> dict[str, Any]:
    """The OpenAPI document of these models.

    Args:
        models: name -> model.
        version: of the service.
        guarded: whether requests must bear a token.
    """
    paths: dict[str, Any] = {}
    for name in models:
        prefix = "" if len(models) == 1 else f"/models/{name}"
        paths[f"{prefix}/predict"] = {"post": _predict(name)}
        paths[f"{prefix}/schema"] = {"get": _get(f"JSON Schema of one row for {name}")}
        paths[f"{prefix}/card"] = {"get": _get(f"The card of {name}, if it has one", "404")}
    paths |= {
        "/models": {"get": _get("The models that are served, with their versions")},
        "/health": {"get": {**_get("Whether the service answers"), "security": []}},
        "/ready": {"get": {**_get("Whether requests may come"), "security": []}},
        "/metrics": {"get": _get("Prometheus metrics: requests, rows, seconds, drift", text=True)},
        "/reload": {
            "post": {
                **_get("Read the models' files again", "403"),
                "parameters": [
                    {
                        "name": "X-Dovetail",
                        "in": "header",
                        "required": not guarded,
                        "schema": {"const": "reload"},
                        "description": "Required if there is no token.",
                    }
                ],
            }
        },
    }
    schema: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Dovetail predictions",
            "version": version,
            "description": "Predictions of models that need no partner, or joint models if "
            "partners are connected.",
        },
        "paths": paths,
        "components": {
            "schemas": {
                **{f"{name}.row": model.schema() for name, model in models.items()},
                **{f"{name}.answer": _answer(model) for name, model in models.items()},
                "error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {"error": {"type": "string"}, "errors": _BAD_CELLS},
                },
            }
        },
    }
    if guarded:
        schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{"token": []}]
    return schema


_BAD_CELLS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["row", "column", "error"],
        "properties": {
            "row": {"type": "integer", "minimum": 0},
            "column": {"type": ["string", "null"]},
            "error": {"type": "string"},
        },
    },
}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _predict(name: str) -> dict[str, Any]:
    row = _ref(f"{name}.row")
    rows = {"type": "array", "items": row, "minItems": 1}
    body = {
        "oneOf": [
            row,
            rows,
            {"type": "object", "required": ["rows"], "properties": {"rows": rows}},
        ]
    }
    text, binary = {"type": "string"}, {"type": "string", "format": "binary"}
    return {
        "summary": f"Predict rows with {name}",
        "operationId": f"predict_{name}",
        "parameters": [
            {"name": key, "in": "query", "schema": kind, "description": about}
            for key, (kind, about) in _OPTIONS.items()
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": body},
                "text/csv": {"schema": text},
                "application/vnd.apache.parquet": {"schema": binary},
            },
        },
        "responses": {
            "200": {
                "description": "A prediction for each row, in their order.",
                "content": {"application/json": {"schema": _ref(f"{name}.answer")}},
            },
            **_refusals(*_ERRORS),
        },
    }


def _get(summary: str, *errors: str, text: bool = False) -> dict[str, Any]:
    kind = "text/plain" if text else "application/json"
    return {
        "summary": summary,
        "responses": {
            "200": {"description": summary + ".", "content": {kind: {}}},
            **_refusals("401", *errors),
        },
    }


def _refusals(*codes: str) -> dict[str, Any]:
    content = {"application/json": {"schema": _ref("error")}}
    return {
        code: {"description": _ERRORS[code], "content": content} for code in dict.fromkeys(codes)
    }


def _answer(model: Served) -> dict[str, Any]:
    kind = model.schema()["x-answer"]
    line: dict[str, Any] = {"prediction": {"type": "number"}}
    if kind["kind"] == "class":
        line = {
            "prediction": {"enum": kind["classes"]},
            "probabilities": {"type": "object", "additionalProperties": {"type": "number"}},
            "set": {"type": "array", "items": {"type": "string"}},
        }
    elif "labels" in kind:
        of_labels = {
            "type": "object",
            "properties": {name: {"type": "number"} for name in kind["labels"]},
        }
        line = {"prediction": of_labels, "probabilities": of_labels}
    else:
        line |= {"low": {"type": "number"}, "high": {"type": "number"}}
    line["row"] = {"type": "integer", "description": "With partial, which row this is."}
    return {
        "type": "object",
        "required": ["model", "version", "predictions"],
        "properties": {
            "model": {"const": model.name},
            "version": {"type": "string"},
            "ignored": {"type": "array", "items": {"type": "string"}},
            "errors": _BAD_CELLS,
            "predictions": {
                "type": "array",
                "items": {"type": "object", "required": ["prediction"], "properties": line},
            },
        },
    }


# --- The page -------------------------------------------------------------------------------------

_STYLE = (
    ":root{color-scheme:light dark}body{margin:0 auto;max-width:60rem;padding:1rem;"
    "font:16px/1.5 system-ui,sans-serif}h2{margin:2rem 0 .25rem;font-size:1.1rem}"
    "table{border-collapse:collapse;display:block;overflow-x:auto}"
    "th,td{text-align:left;padding:.2rem .8rem .2rem 0;vertical-align:top;"
    "border-bottom:1px solid #8884}pre{overflow-x:auto;padding:.6rem;background:#8882}"
    "code{overflow-wrap:anywhere}"
)


def page(schema: Mapping[str, Any]) -> str:
    """The document as HTML: each address, what it takes and what it answers."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Dovetail: addresses</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(schema['info']['title'])}</h1><p>{escape(schema['info']['description'])} "
        '<a href="openapi.json">openapi.json</a> has this page for programs; '
        '<a href=".">a form</a> tries one row.</p>'
    ]
    if "security" in schema:
        parts.append("<p>Send the header <code>Authorization: Bearer TOKEN</code>.</p>")
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
            parts.append(f"<p>{escape(operation['summary'])}.</p>")
            parts += _operation(path, operation, schema["components"]["schemas"])
    return "".join(parts) + "</body></html>"


def _operation(
    path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]
) -> Iterator[str]:
    if "requestBody" in operation:
        name = operation["operationId"].removeprefix("predict_")
        row = schemas[f"{name}.row"]
        yield _table(
            ("column", "values", ""),
            [
                (key, _values(entry), entry.get("description", ""))
                for key, entry in row["properties"].items()
            ],
        )
        example = {
            key: entry.get("examples", [None])[0] for key, entry in row["properties"].items()
        }
        body = json.dumps(example, ensure_ascii=False).replace("'", "'\\''")
        kind = "content-type: application/json"
        command = f"curl -s localhost:8000{path} -H '{kind}' -d '{body}'"
        yield f"<pre>{escape(command)}</pre>"
    if "parameters" in operation:
        yield _table(
            ("option", "in", "meaning"),
            [(each["name"], each["in"], each["description"]) for each in operation["parameters"]],
        )
    yield _table(
        ("answer", ""),
        [(code, entry["description"]) for code, entry in operation["responses"].items()],
    )


def _values(entry: Mapping[str, Any]) -> str:
    if "enum" in entry:
        return ", ".join("null" if each is None else str(each) for each in entry["enum"])
    kind = entry.get("format", entry["type"])
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    top = "".join(f"<th>{escape(each)}</th>" for each in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{top}</tr>{body}</table>"
