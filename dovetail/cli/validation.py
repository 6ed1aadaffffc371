"""What is wrong with a file, in one sentence: the key, what was expected, the nearest known key."""

from __future__ import annotations

import difflib
import tomllib
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from dovetail.errors import ConfigError

B = TypeVar("B", bound=BaseModel)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        ConfigError: no such file, or no TOML.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error})") from None
    return toml_tables(text, where=str(path))


def toml_tables(text: str, *, where: str) -> dict[str, Any]:
    """The tables of a TOML text.

    Raises:
        ConfigError: no TOML.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is no TOML: {error}") from None


def validate(model: type[B], values: Any, *, where: str) -> B:
    """The values as this model.

    Raises:
        ConfigError: the first thing that does not fit, in one sentence.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{where}: {_sentence(model, error)}") from None


def _sentence(model: type[BaseModel], error: ValidationError) -> str:
    # An unknown key explains more than the errors that follow from it.
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    first = details[0]
    path = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        known = _fields(model, path[:-1])
        near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
        return f"unknown key {'.'.join(path)!r}; {hint}"
    if first["type"] == "missing":
        return f"the key {'.'.join(path)!r} is missing"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return f"{'.'.join(path)}: {message}" if path else message
    return f"{'.'.join(path)}: {message[0].lower()}{message[1:]}, got {first['input']!r}"


def _fields(model: type[BaseModel], path: list[str]) -> list[str]:
    """Field names at this place of the model; unions contribute all of theirs."""
    models = [model]
    for part in path:
        inner: list[type[BaseModel]] = []
        for each in models:
            if part in each.model_fields:
                inner += _models(each.model_fields[part].annotation)
        # A part that is no field is a union's tag or a list's index: stay where we are.
        models = inner or models
    return [name for each in models for name in each.model_fields]


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if isinstance(annotation, types.GenericAlias) or typing.get_origin(annotation) is not None:
        return [found for inner in typing.get_args(annotation) for found in _models(inner)]
    return []
