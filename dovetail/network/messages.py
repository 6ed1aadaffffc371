"""Messages: frozen dataclasses of tensors, numbers and strings, and their bytes.

On the wire a message is one safetensors file: its tensors by field name, and in the header's
metadata its type and its other fields as JSON. Nothing in it can be executed.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from dovetail.errors import MessageError

PROTOCOL = "1"

M = TypeVar("M", bound="Message")


@dataclass(frozen=True, eq=False)
class Message:
    """Base of all messages; a subclass is a frozen dataclass.

    Its fields are tensors, ints, floats, bools, strings, or tuples of one of the last four.
    """

    @classmethod
    def wire_name(cls) -> str:
        """``<file>.<class>``, for example ``apfed.Codes``."""
        return f"{cls.__module__.rpartition('.')[2]}.{cls.__qualname__}"

    def tensors(self) -> dict[str, Tensor]:
        """Field name -> tensor, in the order of declaration."""
        return {
            field.name: value
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }


def encode(message: Message) -> bytes:
    """The message as safetensors bytes; the inverse of ``decode``.

    Raises:
        MessageError: a float that is not finite.
    """
    tensors: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, value in message.tensors().items():
        value = value.detach().cpu().contiguous()
        storage = value.untyped_storage().data_ptr()
        # safetensors refuses two tensors in one piece of memory.
        tensors[name] = value.clone() if storage in storages else value
        storages.add(storage)
    scalars = {
        field.name: getattr(message, field.name)
        for field in fields(message)
        if field.name not in tensors
    }
    try:
        described = json.dumps(scalars, allow_nan=False)
    except ValueError:
        raise MessageError(
            f"{message.wire_name()}: a number in it is not finite: {scalars}"
        ) from None
    header = {"protocol": PROTOCOL, "type": message.wire_name(), "fields": described}
    return safetensors.torch.save(tensors, metadata=header)


def decode(data: bytes, accept: Collection[type[M]]) -> M:
    """The message in these bytes, which must be of one of the types in ``accept``.

    Raises:
        MessageError: bytes that are no message, another protocol, a type that was not asked for,
            or fields other than the type declares.
    """
    metadata = _metadata(data)
    if metadata.get("protocol") != PROTOCOL:
        raise MessageError(
            f"expected a message of protocol {PROTOCOL}, got {metadata.get('protocol')!r}; "
            "install the same version of dovetail at every party"
        )
    by_name = {kind.wire_name(): kind for kind in accept}
    kind = by_name.get(str(metadata.get("type")))
    if kind is None:
        raise MessageError(
            f"expected a message of type {' or '.join(sorted(by_name))}, "
            f"got {metadata.get('type')!r}"
        )
    try:
        tensors = safetensors.torch.load(data)
        scalars = json.loads(metadata["fields"])
    # RuntimeError: a shape or dtype that torch cannot make, or JSON nested too deeply.
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise MessageError(f"{kind.wire_name()}: its bytes cannot be read ({error})") from None
    if not isinstance(scalars, dict):
        raise MessageError(f"{kind.wire_name()}: its fields are no table of names")
    values: dict[str, Any] = {**scalars, **tensors}
    declared = _declared(kind)
    if values.keys() != declared.keys() or scalars.keys() & tensors.keys():
        raise MessageError(
            f"{kind.wire_name()}: expected the fields {sorted(declared)}, got {sorted(values)}"
        )
    return kind(**{name: _checked(kind, name, values[name], declared[name]) for name in declared})


def _metadata(data: bytes) -> dict[str, Any]:
    """The header's metadata; safetensors' own readers do not return it for bytes."""
    header_length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or header_length > len(data) - 8:
        raise MessageError(f"{len(data)} bytes that are no message: the header is cut off")
    try:
        metadata = json.loads(data[8 : 8 + header_length])["__metadata__"]
    except (ValueError, KeyError, TypeError, RecursionError):
        metadata = None
    if not isinstance(metadata, dict):
        raise MessageError(f"{len(data)} bytes that are no message: the header cannot be read")
    return metadata


def _declared(kind: type[Message]) -> dict[str, Any]:
    """Field name -> declared type, of a message type."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _checked(kind: type[Message], name: str, value: Any, declared: Any) -> Any:
    """The value if it is of its field's declared type; lists become tuples."""
    origin = typing.get_origin(declared)
    if origin in (typing.Union, types.UnionType):
        raise TypeError(f"{kind.__qualname__}.{name}: message fields have one type")
    if origin is tuple:
        inner = typing.get_args(declared)[0]
        if isinstance(value, list | tuple) and all(_is_scalar(item, inner) for item in value):
            return tuple(value)
    elif declared is Tensor:
        if isinstance(value, Tensor):
            return value
    elif _is_scalar(value, declared):
        return value
    raise MessageError(
        f"{kind.wire_name()}.{name}: expected {getattr(declared, '__name__', declared)}, "
        f"got {type(value).__name__}"
    )


def _is_scalar(value: Any, declared: type) -> bool:
    if declared is float:
        try:
            return type(value) in (int, float) and math.isfinite(value)
        except OverflowError:  # an integer beyond the largest float
            return False
    return type(value) is declared  # bool is no int here


def check_shape(message: Message, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse a tensor field that is not of this shape and dtype.

    Raises:
        MessageError: naming the field, what was expected and what came.
    """
    value: Tensor = getattr(message, name)
    if tuple(value.shape) != shape or value.dtype != dtype:
        raise MessageError(
            f"{message.wire_name()}.{name}: expected shape {shape} of {dtype}, "
            f"got {tuple(value.shape)} of {value.dtype}"
        )
