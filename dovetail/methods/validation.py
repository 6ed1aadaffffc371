"""Sentence on what is wrong with a file: the key, what was expected, the nearest known key."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from dovetail.errors import ConfigError
from dovetail.files import did_you_mean, unknown_key

B = TypeVar("B", bound=BaseModel)

#: What pydantic calls by its types of Python, in the words of files.
_INPUTS = {
    **dict.fromkeys(("list_type", "tuple_type", "set_type"), "input should be a list"),
    **dict.fromkeys(
        ("dict_type", "mapping_type", "model_type", "model_attributes_type"),
        "input should be a table of keys",
    ),
}


def validate(model: type[B], values: Any, *, where: str) -> B:
    """The values as this model.

    Raises:
        ConfigError: the first thing that does not fit, in one sentence.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{where}: {sentence(model, values, error)}") from None


def sentence(model: type[BaseModel], values: Any, error: ValidationError) -> str:
    """The first thing in these values that does not fit the model."""
    details = error.errors()

    def is_another(detail: Mapping[str, Any]) -> bool:
        # A key that another alternative of the union has, where more than keys does not fit.
        *keys, key = _keys(values, detail["loc"]) or [""]
        beside = [each["type"] for each in details if each["loc"][:-1] == detail["loc"][:-1]]
        return key in _fields(model, keys) and set(beside) != {"extra_forbidden"}

    def rank(detail: Mapping[str, Any]) -> tuple[int, int]:
        # An unknown key explains more than the errors that follow from it; among the alternatives
        # of a union, the one that fits furthest is the one that was meant.
        depth = len(_keys(values, detail["loc"])) + (detail["type"] == "missing")
        if detail["type"] != "extra_forbidden":
            return 1, -depth
        return (2 if is_another(detail) else 0), -depth

    first = min(details, key=rank)
    loc = [str(part) for part in first["loc"]]
    path = ".".join(_keys(values, first["loc"]))
    match first["type"]:
        case "extra_forbidden":
            known = _fields(model, path.split(".")[:-1])
            return unknown_key(path, _fields(model, loc[:-1]) if loc[-1] in known else known)
        case "missing":
            return f"the key {'.'.join([*filter(None, [path]), loc[-1]])!r} is missing"
        case "union_tag_not_found":
            return f"the key '{path}.kind' is missing; it says what the rest means"
        case "union_tag_invalid":
            expected, got = first["ctx"]["expected_tags"], first["ctx"]["tag"]
            return (
                f"{path}.kind: expected one of {expected}, got "
                f"{got!r}{_did_you_mean(got, expected)}"
            )
    message = _INPUTS.get(first["type"], first["msg"].removeprefix("Value error, "))
    if first["type"] == "value_error":
        return f"{path}: {message}" if path else message
    close = _did_you_mean(
        first["input"], first["ctx"]["expected"] if "literal" in first["type"] else ""
    )
    return f"{path}: {message[0].lower()}{message[1:]}, got {first['input']!r}{close}"


def _did_you_mean(word: object, expected: str) -> str:
    """The nearest of the words that pydantic lists between quotes."""
    return did_you_mean(word, re.findall(r"'([^']*)'", expected))


def _keys(values: Any, loc: Sequence[str | int]) -> list[str]:
    """The keys of a place in the file: what pydantic calls it, less the names of alternatives."""
    keys = []
    for part in loc:
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            continue
        keys.append(str(part))
    return keys


def _fields(model: type[BaseModel], path: list[str]) -> list[str]:
    """Field names at this place of the model; of unions those of the one named, or all."""
    models = [model]
    for part in path:
        named = [each for each in models if each.__name__ == part]
        if named:
            models = named
            continue
        inner: list[type[BaseModel]] = []
        for each in models:
            if part in each.model_fields:
                inner += _models(each.model_fields[part].annotation)
        # A part that is no field is a union's tag or a list's index: stay where we are.
        models = inner or models
    return list(dict.fromkeys(name for each in models for name in each.model_fields))


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if isinstance(annotation, types.GenericAlias) or typing.get_origin(annotation) is not None:
        return [found for inner in typing.get_args(annotation) for found in _models(inner)]
    return []
