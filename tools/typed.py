"""Settings of methods as types that editors complete: ``dovetail/api/settings.pyi``.

``make keys`` writes that file from the sections of run files and party files.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, WrapValidator

from dovetail import methods
from dovetail.methods.settings.party import PartySection
from dovetail.node.engines import StreamSection
from dovetail.runs.runfile import DataSection

PATH = Path(__file__).parents[1] / "dovetail" / "api" / "settings.pyi"

_HEAD = '''"""Settings of methods, as editors and type checkers know them.

Written by ``make keys`` from the sections of run files and party files; the
pages of keys say what each means.
"""
# ruff: noqa: E501, I001
# fmt: off

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict
'''

_NAMES = {
    "apfed": "APFed", "chfl": "CHFL", "hyfem": "HyFEM", "fedoptimus": "FedOptimus",
    "kaplan-meier": "Survival",
}  # fmt: skip


#: Keys that are arguments in Python -> their section, and which of its keys are not among them.
_KEYS: Mapping[str, tuple[type[Any], Collection[str]]] = {
    "PartyKeys": (PartySection, ("name", "table", "id", "label")),
    "SimulateKeys": (DataSection, ("source", "test_source", "test", "partition", "label")),
    "ListenKeys": (StreamSection, ("kind", "listen", "partners", "certificates")),
}


def module_text() -> str:
    """The file, as it should be."""
    written: dict[str, str] = {}
    party: dict[str, str] = {}
    for name, title in _NAMES.items():
        method = methods.method_of(name)
        _write(f"{title}Settings", method.Settings, title, written)
        if method.PartySettings is not None:
            _write(f"{title}PartySettings", method.PartySettings, title, written)
            party[method.name] = f"{title}PartySettings"
    for name, (section, besides) in _KEYS.items():
        _write(name, section, "", written, besides=besides)
    written["PartySettings"] = (
        "class PartySettings(PartyKeys, total=False):\n"
        '    """Keys of [party], and a party\'s own settings of each method."""\n\n'
        + "".join(f"    {name}: {kind}\n" for name, kind in party.items())
    )
    return "\n\n".join([_HEAD, *written.values()])


def _write(
    name: str,
    section: type[Any],
    title: str,
    written: dict[str, str],
    *,
    besides: Collection[str] = (),
) -> None:
    """Write the class of a section behind those of the sections in it."""
    if name in written:
        return
    keys = "".join(
        f"    {key}: {_text(kind, title, written)}\n"
        for key, kind in _kinds(section)
        if key not in besides
    )
    written[name] = f"class {name}(TypedDict, total=False):\n{keys}"


def _kinds(section: type[Any]) -> Iterator[tuple[str, Any]]:
    """Key -> its type."""
    if issubclass(section, BaseModel):
        for key, known in section.model_fields.items():
            yield (
                key,
                Annotated[known.annotation, *known.metadata]
                if known.metadata
                else known.annotation,
            )
        return
    hints = get_type_hints(section, include_extras=True)
    for each in fields(section):
        if each.init:
            yield each.name, hints[each.name]


def _text(kind: Any, title: str, written: dict[str, str]) -> str:
    """A type as it is written; what TOML and Python may give for it."""
    origin, given = get_origin(kind), get_args(kind)

    def of(each: Any) -> str:
        return _text(each, title, written)

    if origin is Annotated:
        is_wider = any(isinstance(each, WrapValidator) for each in given[1:])
        return of(given[0]) + " | Any" * is_wider  # also a network, from Python
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, given))}]"
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(map(of, given)))
    if origin is tuple:
        inner = [each for each in given if each is not Ellipsis]
        return f"Sequence[{' | '.join(dict.fromkeys(map(of, inner)))}]"
    if origin is not None and issubclass(origin, Mapping):
        return f"Mapping[{of(given[0])}, {of(given[1])}]"
    if kind is type(None):
        return "None"
    if isinstance(kind, type) and (issubclass(kind, BaseModel) or is_dataclass(kind)):
        is_methods = kind.__module__.startswith(f"dovetail.methods.settings.{title.lower()}")
        name = f"{title if is_methods else ''}{kind.__name__.removesuffix('Section')}"
        _write(name, kind, title, written)
        return name
    return "Any" if kind is Any else str(kind.__name__)
