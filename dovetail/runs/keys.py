"""Every key of run files and party files: type, default and meaning, read from the code itself.

A key's meaning is the comment beside its field, so that it stands once: after the field on its
line, or in the lines right above it. Of these is the JSON Schema of
both files, by which editors complete and check them.
"""

from __future__ import annotations

import inspect
import io
import tokenize
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from dovetail import __version__, methods
from dovetail.node.partysections import party_file
from dovetail.runs.runfile import run_file


@dataclass(frozen=True)
class Key:
    """Key of a file.

    Attributes:
        name: as the file has it.
        type: in words.
        default: as TOML; "required", or "none" where the key may be left out and stands for
            nothing.
        meaning: the comment beside it; "" where there is none.
    """

    name: str
    type: str
    default: str
    meaning: str


@dataclass(frozen=True)
class Part:
    """A table of the file.

    Attributes:
        title: such as "[engine]", with what makes it this kind of table.
        about: the first line of its docstring.
        keys: in their order.
    """

    title: str
    about: str
    keys: tuple[Key, ...]


def run_file_parts() -> list[Part]:
    """The tables of a run file: its own keys first, then what belongs to all, then the methods."""
    every = methods.every()
    kind = run_file()
    parts = list(parts_of("", kind, skip={"passive", *every}))
    parts[0] = Part("at the top", "What every run file has.", parts[0].keys)
    for name, method in every.items():
        parts += parts_of(name, method.Settings)
        if name == "apfed" and method.PartySettings is not None:
            parts += parts_of("passive", method.PartySettings)
    return parts


def party_file_parts() -> list[Part]:
    """The tables of a party file: [party], [policy], and its settings of the methods."""
    return list(parts_of("", party_file()))[1:]  # at the top are tables only


def parts_of(
    path: str, model: type[BaseModel], *, skip: Sequence[str] | set[str] = ()
) -> Iterator[Part]:
    """A table of a file and those inside it."""
    fields = {name: field for name, field in model.model_fields.items() if name not in skip}
    comments = comments_of(model)
    inner: list[tuple[str, type[BaseModel]]] = []
    keys = []
    for name, field in fields.items():
        below = _models(field.annotation)
        key_path = f"{path}.{name}" if path else name
        inner += [(key_path + _NAMED * _is_named(field.annotation), each) for each in below]
        if below and not _also_plain(field.annotation):
            continue
        keys.append(Key(name, type_text(field.annotation), _default(field), comments.get(name, "")))
    title = f"[{path}]" if path else ""
    for choice in ("kind", "goal"):  # which of several tables it is
        variant = model.model_fields.get(choice)
        if (
            variant is not None
            and get_origin(variant.annotation) is Literal
            and (len(get_args(variant.annotation)) == 1 or choice == "goal")
        ):
            title += f', {choice} = "{get_args(variant.annotation)[0]}"'
    yield Part(title, first_line(model), tuple(keys))
    for key_path, each in inner:
        yield from parts_of(key_path, each)


#: Ends the path of tables that a user names.
_NAMED = ".NAME"


def _is_named(annotation: Any) -> bool:
    return get_origin(annotation) is dict and bool(_models(get_args(annotation)[1]))


def first_line(model: type[BaseModel]) -> str:
    text = model.__doc__ or ""
    return text.strip().splitlines()[0] if text.strip() else ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return toml_text(value)


def toml_text(value: Any) -> str:
    """A value as a file has it; "none" for what is left out."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, (tuple, list, set, frozenset)):
        return f"[{', '.join(toml_text(each) for each in value)}]"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{key} = {toml_text(each)}" for key, each in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, float):
        return f"{value:g}" if value != int(value) or abs(value) >= 1e6 else f"{value:.1f}"
    return str(value)


#: What simple types are called.
_WORDS = {
    str: "text",
    Path: "text",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "none",
    Any: "anything",
}


def type_text(annotation: Any) -> str:
    """A type in words.

    >>> type_text(tuple[str, ...] | None), type_text(Literal["a", "b", "c"])
    ('list of texts', '"a", "b" or "c"')
    """
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(inside[0])
    if origin in (Union, types.UnionType):
        return _either(dict.fromkeys(type_text(each) for each in inside if each is not type(None)))
    if origin is Literal:
        return _either(toml_text(each) for each in inside)
    if origin in (tuple, list, Sequence):
        one = type_text(inside[0])
        plural = {"text": "texts", "integer": "integers", "number": "numbers"}
        return f"list of {plural.get(one, one)}"
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return f"table of {type_text(inside[1])}"
    if annotation in _WORDS:
        return _WORDS[annotation]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    name = getattr(annotation, "__name__", None) or str(annotation)
    return str(name)


def _either(choices: Iterable[str]) -> str:
    *others, last = choices
    return f"{', '.join(others)} or {last}" if others else last


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The tables that a key may be."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inside in get_args(annotation) for model in _models(inside)]


def _also_plain(annotation: Any) -> bool:
    """Whether the key may be something else than a table, too."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _also_plain(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return any(_also_plain(each) for each in get_args(annotation) if each is not type(None))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return False
    return not _models(annotation)


@cache
def comments_of(model: type[BaseModel]) -> Mapping[str, str]:
    """Field -> the comment beside it, of the class and those it is made of."""
    comments: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            try:
                comments |= comments_in(inspect.getsource(each))
            except (OSError, TypeError):  # made when it was needed: it has no source
                continue
    return comments


def comments_in(source: str) -> dict[str, str]:
    """Field -> the comment beside it, of a class.

    >>> comments_in("class A:\\n    # long\\n    # story\\n    x: int\\n    y: int = 1  # short\\n")
    {'x': 'long story', 'y': 'short'}
    """
    comments: dict[str, str] = {}
    above: list[str] = []
    name, beside = "", ""
    first = True  # of a logical line
    tokens = list(tokenize.generate_tokens(io.StringIO(inspect.cleandoc("\n") + source).readline))
    for index, token in enumerate(tokens):
        if token.type == tokenize.COMMENT:
            text = token.string.lstrip("#: ").strip()
            if first:
                above.append(text)
            else:
                beside = f"{beside} {text}".strip()
        elif token.type == tokenize.NEWLINE:
            if name and (comment := " ".join([*above, beside]).strip()):
                comments[name] = comment
            above, name, beside, first = [], "", "", True
        elif token.type == tokenize.NL:
            if first and token.line.strip() == "":
                above = []
        elif token.type not in (tokenize.INDENT, tokenize.DEDENT):
            if first and token.type == tokenize.NAME and tokens[index + 1].string == ":":
                name = token.string
            first = False
    return comments


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
