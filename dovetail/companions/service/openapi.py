"""Description of the service as an OpenAPI 3.1 document and as a page to read.

``openapi.json`` is the document as far as it is the same for all models, and what each adds to it;
``docs.html`` is the page, which has no script and asks nobody.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment

from dovetail.companions.service.served import Served

#: Stands in ``openapi.json`` for a model's name.
_MODEL = "MODEL"


def _text(name: str) -> str:
    return files("dovetail.companions.service").joinpath(name).read_text(encoding="utf-8")


def document(models: Mapping[str, Served], *, version: str, guarded: bool) -> dict[str, Any]:
    """The OpenAPI document of these models.

    Args:
        models: name -> model.
        version: of the service.
        guarded: whether requests must bear a token.
    """
    text = _text("openapi.json")
    schema: dict[str, Any] = json.loads(text)["document"]
    schema["info"]["version"] = version
    schema["paths"]["/reload"]["post"]["parameters"][0]["required"] = not guarded
    paths: dict[str, Any] = {}
    for name, model in models.items():
        added = json.loads(text.replace(_MODEL, name))["model"]
        prefix = "" if len(models) == 1 else f"/models/{name}"
        paths |= {f"{prefix}{path}": methods for path, methods in added["paths"].items()}
        row, answer = model.schema(), added["answer"]
        answer["properties"]["predictions"]["items"]["properties"] |= _line(row["x-answer"])
        schema["components"]["schemas"] |= {f"{name}.row": row, f"{name}.answer": answer}
    schema["paths"] = {**paths, **schema["paths"]}
    if guarded:
        schema["security"] = [{"token": []}]
    else:
        del schema["components"]["securitySchemes"]
    return schema


def _line(kind: Mapping[str, Any]) -> dict[str, Any]:
    """Schema of the answer for one row."""
    number = {"type": "number"}
    if kind["kind"] == "class":
        return {
            "prediction": {"enum": kind["classes"]},
            "probabilities": {"type": "object", "additionalProperties": number},
            "set": {"type": "array", "items": {"type": "string"}},
        }
    if "labels" in kind:
        of_labels = {"type": "object", "properties": dict.fromkeys(kind["labels"], number)}
        return {"prediction": of_labels, "probabilities": of_labels}
    return {"prediction": number, "low": number, "high": number}


def page(schema: Mapping[str, Any]) -> str:
    """The document as HTML: each address, what it takes and what it answers."""
    template = Environment(autoescape=True).from_string(_text("docs.html"))
    return template.render(schema, example=_example)


def _example(columns: Mapping[str, Mapping[str, Any]]) -> str:
    """A row as JSON, for a shell's single quotes."""
    row = {name: each.get("examples", [None])[0] for name, each in columns.items()}
    return json.dumps(row, ensure_ascii=False).replace("'", "'\\''")
