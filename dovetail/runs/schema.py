"""JSON Schema of run files and party files, so that editors complete and check them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from dovetail import __version__, methods
from dovetail.node.partysections import party_file
from dovetail.runs.keys import comments_of, first_line
from dovetail.runs.runfile import run_file

#: Kind of file -> the model that reads it.
FILES: Mapping[str, Callable[[], type[BaseModel]]] = {"run": run_file, "party": party_file}


class _Described(GenerateJsonSchema):
    """Pydantic's schema, in which each key has the comment beside its field as description."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        described = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        if line := first_line(model):
            described["description"] = line
        for name, text in comments_of(model).items():
            if name in described.get("properties", {}):
                described["properties"][name]["description"] = text
        return described


def schema_of(kind: str) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a kind of file, JSON-ready.

    It has every key with its type, default and meaning. What depends on several keys at once is
    checked by ``dovetail`` alone, and so are grid files, whose cells are run files.

    Args:
        kind: "run" or "party".
    """
    schema = FILES[kind]().model_json_schema(schema_generator=_Described)
    properties = schema["properties"]
    if kind == "run":
        names = sorted(methods.variants())
        properties["method"]["enum"] = names
        properties["baselines"]["items"] = {"type": "string", "enum": names}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": f"Dovetail {kind} file",
        "$comment": f"written by dovetail {__version__}: dovetail schema {kind}",
    }
