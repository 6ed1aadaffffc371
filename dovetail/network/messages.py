"""Messages: frozen dataclasses of tensors, numbers and strings, and their bytes.

A message's bytes are one safetensors file, which other tools can open:

    8 bytes       length of the header, little-endian
    header        JSON: per tensor its dtype, shape and place; "__metadata__" (below)
    tensors       one after the other, without gaps

    __metadata__  protocol   "3"
                  type       "<file>.<class>", for example "apfed.Codes"
                  run        which run it belongs to
                  sequence   the sender's number of it
                  instance   the driver's process, which counts them; not of an answer
                  precision  how the sender's float32 tensors travel
                  fields     the message's other fields, as JSON
                  narrowed   JSON: name -> dtype to give back; only where a tensor travels narrower

Nothing in it can be executed. A reader believes no length: the header's is compared with the bytes
that are there and with ``MAX_HEADER_BYTES`` before anything is parsed, and names, dtypes, shapes
and places of tensors are checked before a tensor is made.

Tensors are copied once into the bytes and not at all out of a writable buffer: they lie in it.

How float32 tensors travel, x being a value and everything else arriving as it left:

    float32   as they are
    float16   |error| <= |x| / 2048, near zero 3e-8; a finite value beyond 65504 arrives as 65504:
              gradients of codes near zero can be so large, and a refusal would cost the step
    bfloat16  |error| <= |x| / 256; a finite value beyond 3.39e38 arrives as that
    int8      whole multiples -127 .. 127 of a scale per row of the first axis (one for a tensor of
              one axis or none), which travels beside them as "<name>.scale":
              |error| <= scale / 2 with scale = max|row| / 127, plus float32's own rounding;
              a row below 1.5e-36 arrives as zeros; NaN and infinity are refused

NaN and infinity survive float16 and bfloat16, so that a receiver can notice them.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import types
import typing
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import FrozenInstanceError, dataclass, field, fields
from functools import cache, lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar, dataclass_transform

import numpy as np
import torch
from torch import Tensor

from dovetail.errors import MessageError
from dovetail.settings.section import Precision

PROTOCOL = "3"

#: The largest message that is read unless the caller says otherwise.
MAX_MESSAGE_BYTES = 2**28

#: The largest header: room for fields of a hundred thousand numbers.
MAX_HEADER_BYTES = 2**20

#: The longest name of a run.
MAX_RUN_LENGTH = 200

MAX_SEQUENCE = 2**63 - 1

PRECISIONS: tuple[Precision, ...] = ("float32", "float16", "bfloat16", "int8")

#: Bytes of a message. Tensors of a writable buffer are not copied out of it.
Data = bytes | bytearray | memoryview

M = TypeVar("M", bound="Message")
F = TypeVar("F", bound=Callable[..., Any])

_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_NARROW = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
}

_METADATA = {"protocol", "type", "run", "sequence", "precision", "fields"}
_INSTANCE = re.compile(r"\w{1,64}", re.ASCII)
_TYPE = re.compile(r"\w+\.\w+", re.ASCII)
_MAX_TYPE_LENGTH = 100
_MAX_AXES = 64  # torch's own limit
_MAX_DEPTH = 8  # a header has 4

# Rows below have no scale that is a normal number; scales above could give infinity back.
_SMALLEST_ROW = 127 * torch.finfo(torch.float32).tiny
_LARGEST_SCALE = torch.finfo(torch.float32).max / 127 * (1 - 2**-22)

_to_json = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def _once(work: F) -> F:
    """Decorator that works out a result once for each type; of ``cache`` mypy says that a class has
    no hash."""
    return typing.cast(F, cache(work))


@dataclass(frozen=True)
class Values:
    """Values that a tensor field may hold; its shape is after the last "_" of its name.

    A letter is a size, the same in all fields of a message, and a number is that many: ``keys_K32``
    is (K, 32).

    Attributes:
        dtype: of every value.
        shape: letters and numbers, where the name has none.
        most: the largest size there may be.
        finite: no value is NaN or infinite; False where its receiver sees to that in a pass over
            the values that it makes anyway.
        means: what a party's policy must know of it: "samples" are indices of rows, each once;
            "draws" the same, any number of times; in "weights" and "bytes" no rows are counted.
    """

    dtype: torch.dtype
    shape: str = ""
    most: int | None = None
    finite: bool = True
    means: Literal["", "samples", "draws", "weights", "bytes"] = ""

    def sizes(self, name: str) -> list[str]:
        """Letters and numbers, an axis each."""
        return re.findall(r"[A-Z]|\d+", self.shape or name.rpartition("_")[2])


#: Tensors as messages declare them; a value of a floating one is finite.
Floats = Annotated[Tensor, Values(torch.float32)]
Doubles = Annotated[Tensor, Values(torch.float64)]
Integers = Annotated[Tensor, Values(torch.int64)]
Bytes = Annotated[Tensor, Values(torch.uint8)]

#: Indices of samples that a message asks about: a policy limits how many, and how often each.
Samples = Annotated[Tensor, Values(torch.int64, means="samples")]
Draws = Annotated[Tensor, Values(torch.int64, means="draws")]

#: Parameters of a network, one after the other.
Weights = Annotated[Tensor, Values(torch.float32, means="weights")]

#: The same of float32, where its receiver refuses what is not finite.
Numbers = Annotated[Tensor, Values(torch.float32, finite=False)]


class _Frozen:
    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


@dataclass_transform(frozen_default=True, eq_default=False)
@dataclass(frozen=True, eq=False)
class Message(_Frozen):
    """Base of all messages; a subclass is a frozen dataclass, and needs no decorator.

    Its fields are tensors, ints, floats, bools, strings, or tuples of one of the last four. A
    tensor that is declared as ``Floats`` or the like is held to that wherever it arrives.
    """

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False)(cls)
        # ``_Frozen`` does as these; a class that has them refuses the decorator, written by habit.
        del cls.__setattr__, cls.__delattr__

    def check(self, **sizes: int) -> None:
        """Refuse tensors that are not as declared; a subclass refuses what else cannot be.

        Args:
            sizes: letter -> size, as the receiver knows it; any other is what comes first.

        Raises:
            MessageError: naming the field, what was expected and what came.
        """
        for name, values in _values(type(self)).items():
            tensor: Tensor = getattr(self, name)
            letters = values.sizes(name)
            if tensor.ndim == len(letters):
                for letter, size in zip(letters, tensor.shape, strict=True):
                    sizes.setdefault(letter, size)
            shape = tuple(int(each) if each.isdigit() else sizes.get(each, 0) for each in letters)
            check_shape(self, name, shape, values.dtype)
            if values.most is not None and max(shape, default=0) > values.most:
                raise MessageError(
                    f"{self.wire_name()}.{name}: {max(shape)} are more than {values.most}"
                )
            if values.finite and tensor.is_floating_point() and not tensor.isfinite().all():
                raise MessageError(f"{self.wire_name()}.{name}: a value in it is not finite")

    @classmethod
    def wire_name(cls) -> str:
        """``<file>.<class>``, for example ``apfed.Codes``; a class attribute ``family`` is in
        for the file, where a method's messages are in several."""
        return _wire_name(cls)

    @classmethod
    def named(cls, family: str, module: str) -> type[Self]:
        """Type of the same message as one of a method's, in ``module`` under the same name."""
        return type(cls.__name__, (cls,), {"family": family, "__module__": module})

    def tensors(self) -> dict[str, Tensor]:
        """Field name -> tensor, in the order of declaration."""
        return {
            name: value
            for name in _declared(type(self))
            if isinstance(value := getattr(self, name), Tensor)
        }


@_once
def _wire_name(kind: type[Any]) -> str:
    family = getattr(kind, "family", "") or kind.__module__.rpartition(".")[2]
    return f"{family}.{kind.__qualname__}"


@dataclass(frozen=True)
class Header:
    """Header of a message.

    Attributes:
        protocol: ``PROTOCOL``; any other is refused.
        type: a message's wire name.
        run: which run it belongs to.
        sequence: the sender's number of it, 0 to 2^63 - 1.
        precision: how the sender's float32 tensors travel; an answer should travel likewise.
        instance: drawn at random by each process of a driver; "" of an answer.
    """

    protocol: str
    type: str
    run: str
    sequence: int
    precision: Precision = "float32"
    instance: str = ""


# --- Writing -------------------------------------------------------------------------------------


class OnWire(NamedTuple):
    """A tensor as it travels."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    num_bytes: int


def on_wire(message: Message, precision: Precision = "float32") -> tuple[OnWire, ...]:
    """The tensors of a message as they travel, each int8 one followed by its scales."""
    return _layout(message.wire_name(), _shapes(message.tensors()), precision).travelling


class _Layout(NamedTuple):
    """Where tensors of such names, shapes and dtypes lie in the bytes of a message."""

    travelling: tuple[OnWire, ...]
    begins: tuple[int, ...]  # of each that travels
    num_bytes: int
    entries: str  # of the header, each after a comma
    narrowed: frozenset[str]
    metadata: dict[str, str]  # that of the precision


_Shapes = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]


def _shapes(tensors: Mapping[str, Tensor]) -> _Shapes:
    return tuple((name, tensor.shape, tensor.dtype) for name, tensor in tensors.items())


@lru_cache(maxsize=1024)  # a method sends the same few shapes again and again
def _layout(kind: str, shapes: _Shapes, precision: Precision) -> _Layout:
    travelling = []
    narrowed = []
    for name, size, dtype in shapes:
        shape, narrow = tuple(size), _NARROW[precision]
        if dtype == torch.float32 != narrow:
            narrowed.append(name)
            dtype = narrow
        if dtype not in _CODES:
            raise MessageError(f"{kind}.{name}: tensors of {dtype} are not sent")
        travelling.append(OnWire(name, shape, dtype, math.prod(shape) * dtype.itemsize))
        if dtype == torch.int8 and name in narrowed:
            num = _num_scales(shape)
            travelling.append(OnWire(f"{name}.scale", (num,), torch.float32, 4 * num))
    # The widest first, so that each tensor is aligned in memory.
    entries = {}
    begins = {}
    end = 0
    for name, shape, dtype, num_bytes in sorted(travelling, key=lambda each: -each.dtype.itemsize):
        begins[name], end = end, end + num_bytes
        offsets = begins[name], end
        entries[name] = {"dtype": _CODES[dtype], "shape": shape, "data_offsets": offsets}
    metadata: dict[str, str] = {"precision": precision}
    if narrowed:
        metadata["narrowed"] = _to_json(dict.fromkeys(narrowed, "float32"))
    return _Layout(
        tuple(travelling),
        tuple(begins[each.name] for each in travelling),
        end,
        "".join(f",{_to_json(name)}:{_to_json(entry)}" for name, entry in entries.items()),
        frozenset(narrowed),
        metadata,
    )


def encode(
    message: Message,
    *,
    run: str = "",
    sequence: int = 0,
    precision: Precision = "float32",
    instance: str = "",
) -> memoryview:
    """The message as safetensors bytes, in a new buffer of their own; the inverse of ``decode``.

    Raises:
        MessageError: a float that is not finite, one in a tensor that travels as int8, or
            more fields than a header may have.
    """
    kind = message.wire_name()
    if not 0 <= sequence <= MAX_SEQUENCE or len(run) > MAX_RUN_LENGTH:
        raise ValueError(
            f"expected a sequence number in 0..2^63-1 and a run name of at most {MAX_RUN_LENGTH} "
            f"characters, got {sequence} and {run!r}"
        )
    tensors = message.tensors()
    fields = _scalars(message, tensors)
    parts = _header_text if len(fields) <= _MAX_KNOWN_BYTES else _header_text.__wrapped__
    layout, before, after = parts(kind, _shapes(tensors), precision, run, instance, fields)
    text = b"%b%d%b" % (before, sequence, after)
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise MessageError(
            f"{kind}: its fields take {len(text)} bytes and may take {MAX_HEADER_BYTES}; "
            "long lists of numbers travel as tensors"
        )
    start = 8 + len(text)
    data = np.empty(start + layout.num_bytes, np.uint8).data
    data[:8] = len(text).to_bytes(8, "little")
    data[8:start] = text
    written = {
        each.name: _tensor_in(data, start + begin, each.shape, each.dtype)
        for each, begin in zip(layout.travelling, layout.begins, strict=True)
    }
    for name, tensor in tensors.items():
        if name in layout.narrowed:
            _write_narrow(f"{kind}.{name}", tensor.detach(), written, name)
        else:
            written[name].copy_(tensor.detach())
    return data


@lru_cache(maxsize=256)  # of a step's messages only the number changes from one to the next
def _header_text(
    kind: str, shapes: _Shapes, precision: Precision, run: str, instance: str, fields: str
) -> tuple[_Layout, bytes, bytes]:
    """How such a message lies in its bytes, and its header before and after the number."""
    layout = _layout(kind, shapes, precision)
    before = {"protocol": PROTOCOL, "type": kind, "run": run}
    after = {"fields": fields, **layout.metadata}
    if instance:
        after["instance"] = instance
    first, rest = _to_json(before)[:-1], _to_json(after)[1:]
    return (
        layout,
        f'{{"__metadata__":{first},"sequence":"'.encode(),
        f'",{rest}{layout.entries}}}'.encode(),
    )


def _scalars(message: Message, tensors: Mapping[str, Tensor]) -> str:
    scalars = {
        name: getattr(message, name) for name in _declared(type(message)) if name not in tensors
    }
    try:
        return _to_json(scalars) if scalars else "{}"
    except ValueError:
        raise MessageError(f"{message.wire_name()}: a number in it is not finite") from None


def _num_scales(shape: tuple[int, ...]) -> int:
    return shape[0] if len(shape) > 1 else 1


def _write_narrow(named: str, x: Tensor, written: Mapping[str, Tensor], name: str) -> None:
    narrow = written[name]
    if narrow.dtype == torch.int8:
        _write_int8(named, x, narrow, written[f"{name}.scale"])
        return
    narrow.copy_(x)
    largest = torch.finfo(narrow.dtype).max
    if x.numel() and not _largest(x) <= largest:  # beyond, or NaN
        narrow.copy_(torch.where(x.isfinite(), x.clamp(-largest, largest), x))


def _largest(x: Tensor) -> float:
    """The largest absolute value; NaN if one is."""
    low, high = x.aminmax()
    return max(-low.item(), high.item())


def _write_int8(named: str, x: Tensor, narrow: Tensor, scale_R: Tensor) -> None:
    x_RN = x.flatten(1) if x.dim() > 1 else x.reshape(1, -1)
    if not x.numel():
        scale_R.zero_()
        return
    largest_R = x_RN.amax(dim=1).maximum(-x_RN.amin(dim=1))
    if not math.isfinite(largest_R.max()):
        raise MessageError(f"{named}: a value is not finite, and int8 has no code for that")
    exact_R = (largest_R / 127).clamp_(max=_LARGEST_SCALE)
    exact_R *= largest_R >= _SMALLEST_ROW
    divisor_R = exact_R + (exact_R == 0)
    narrow.view(x_RN.shape).copy_((x_RN / divisor_R[:, None]).round_())
    scale_R.copy_(exact_R)


def _tensor_in(data: memoryview, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The tensor that lies there, in the same memory."""
    num = math.prod(shape)
    if not num:  # frombuffer refuses to read nothing
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=num, offset=start).view(shape)


# --- Reading -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Opened:
    """A message of which only the header has been read; ``decode`` reads the rest.

    Attributes:
        header: what it says of itself.
        data: the whole message.
        start: where its tensors begin.
        about: the rest of the header, which messages may share that differ in their number.
    """

    header: Header
    data: Data
    start: int
    about: _About

    @property
    def digest(self) -> str:
        """SHA-256 of what it asks, whatever its run and number are."""
        asked = [self.header.type, self.about.metadata.get("fields"), self.about.entries]
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
        digest.update(self.data[self.start :])
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class _About:
    """Header without the number; nothing in it is changed once it is made.

    Attributes:
        header: with the number of the first message that had it.
        metadata: as it is there.
        entries: tensor name -> its dtype, shape and place, as they are there, unchecked.
        plans: message type -> how such a message is read, once one was.
    """

    header: Header
    metadata: dict[str, str]
    entries: dict[str, Any]
    plans: dict[type[Message], _Plan] = field(default_factory=dict)

    def numbered(self, sequence: int) -> Header:
        known = self.header
        if sequence == known.sequence:
            return known
        return Header(
            known.protocol, known.type, known.run, sequence, known.precision, known.instance
        )


class _Plan(NamedTuple):
    """Plan that was checked of a header for one type of message: it holds for all that share it."""

    scalars: dict[str, Any]
    spans: dict[str, _Span]
    narrowed: dict[str, Any]
    num_bytes: int  # of all tensors


#: Where the number stands in a header as ``encode`` writes it.
_NUMBER = re.compile(rb'"sequence":"(0|[1-9][0-9]{0,18})"')

#: Headers without their numbers -> what they say: those of a step come again and again.
_known: OrderedDict[tuple[bytes, bytes], _About] = OrderedDict()
_MOST_KNOWN = 256

#: The longest header that is remembered.
_MAX_KNOWN_BYTES = 2**14


def open_message(data: Data) -> Opened:
    """A message's header, its tensors unread: so that a header is parsed once.

    Raises:
        MessageError: bytes that are no message, or of another protocol.
    """
    length = int.from_bytes(data[:8], "little")
    start = 8 + length
    if len(data) < 8 or start > len(data):
        raise MessageError(f"{len(data)} bytes that are no message: the header is cut off")
    if length > MAX_HEADER_BYTES:
        raise MessageError(f"a header of {length} bytes; at most {MAX_HEADER_BYTES} are allowed")
    text = bytes(data[8:start])
    number = _NUMBER.search(text) if length <= _MAX_KNOWN_BYTES else None
    # Trailing blanks fill a header up; how many depends on the number.
    key = None if number is None else (text[: number.start(1)], text[number.end(1) :].rstrip(b" "))
    about = None if key is None else _known.get(key)
    if about is not None and number is not None:
        sequence = int(number[1])
        if sequence <= MAX_SEQUENCE:
            return Opened(about.numbered(sequence), data, start, about)
    about = _about(text)
    if about is None:
        raise MessageError(f"{len(data)} bytes that are no message: the header cannot be read")
    if key is not None and _differs_in_number(about, key):
        _known[key] = about
        while len(_known) > _MOST_KNOWN:
            with suppress(KeyError):  # another thread was faster
                _known.popitem(last=False)
    return Opened(about.header, data, start, about)


def _about(text: bytes) -> _About | None:
    """Header that is parsed; None if it cannot be read.

    Raises:
        MessageError: it is of another protocol, or something in it cannot be.
    """
    try:
        entries = _from_json(str(text, "utf-8"))
        metadata = entries.pop("__metadata__")
        if set(map(type, metadata.values())) == {str}:
            return _About(_header(metadata), metadata, entries)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return None


def _differs_in_number(about: _About, key: tuple[bytes, bytes]) -> bool:
    """Whether a header with other digits there says the same, and nothing but another number.

    What looks like the number might stand elsewhere in a header that somebody made up.
    """
    other = 0 if about.header.sequence else 1
    try:
        read = _about(b"%b%d%b" % (key[0], other, key[1]))
    except MessageError:
        return False
    return (
        read is not None
        and read.header.sequence == other
        and read.entries == about.entries
        and {**read.metadata, "sequence": ""} == {**about.metadata, "sequence": ""}
    )


def decode(
    data: Data | Opened, accept: Collection[type[M]], *, max_bytes: int = MAX_MESSAGE_BYTES
) -> M:
    """The message in these bytes, which must be of one of the types in ``accept``.

    Tensors lie in ``data`` where it is writable, and in one copy of it where it is not: torch has
    no tensors that may not be written to. A narrow tensor becomes float32 again, in new memory of
    up to four times its bytes.

    Raises:
        MessageError: bytes that are no message, more of them than ``max_bytes``, another protocol,
            a type that was not asked for, or fields other than the type declares.
    """
    whole = data.data if isinstance(data, Opened) else data
    if len(whole) > max_bytes:
        raise MessageError(f"a message of {len(whole)} bytes; at most {max_bytes} are allowed")
    opened = data if isinstance(data, Opened) else open_message(data)
    header = opened.header
    kind = next((each for each in accept if each.wire_name() == header.type), None)
    if kind is None:
        names = sorted(each.wire_name() for each in accept)
        raise MessageError(
            f"expected a message of type {' or '.join(names)}, got {_short(repr(header.type))}"
        )
    plan = opened.about.plans.get(kind)
    if plan is None:
        plan = opened.about.plans[kind] = _planned(kind, opened)
    values: dict[str, Any] = {**plan.scalars, **_tensors(kind, opened, plan)}
    return kind(**values)


def _planned(kind: type[Message], opened: Opened) -> _Plan:
    """How a message of this type with this header is read; all that it declares is checked.

    Raises:
        MessageError: fields other than the type declares, or tensors that cannot be.
    """
    metadata, entries = opened.about.metadata, opened.about.entries
    header = opened.header
    scalars = _table(kind, metadata["fields"])
    narrowed = _table(kind, metadata.get("narrowed", "{}"))
    scales = {f"{name}.scale" for name in narrowed} if header.precision == "int8" else set()
    declared = _declared(kind)
    came = [*scalars, *(entries.keys() - scales)]
    if len(came) != len(declared) or set(came) != declared.keys() or not scales <= entries.keys():
        raise MessageError(
            f"{kind.wire_name()}: expected the fields {sorted(declared)}, "
            f"got {_short(str(sorted(came)))}"
        )
    spans = _spans(kind, opened, narrowed)
    for name in declared:  # what is a tensor here must be declared as one, and nothing else
        if name in scalars:
            scalars[name] = _checked(kind, name, scalars[name], declared[name])
        elif declared[name] is not Tensor:
            _checked(kind, name, torch.empty(0), declared[name])
    end = max((each.end for each in spans.values()), default=0)
    return _Plan(scalars, spans, narrowed, end)


def _table(kind: type[Message], text: str) -> dict[str, Any]:
    """The table of names in a JSON text."""
    if text == "{}":
        return {}
    try:
        table = _from_json(text)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"{kind.wire_name()}: its fields cannot be read ({error})") from None
    if not isinstance(table, dict):
        raise MessageError(f"{kind.wire_name()}: its fields are no table of names")
    return table


def _header(metadata: Mapping[str, str]) -> Header:
    protocol = metadata.get("protocol")
    if protocol != PROTOCOL:
        raise MessageError(
            f"expected a message of protocol {PROTOCOL}, got {_short(repr(protocol))}; "
            "install the same version of dovetail at every party"
        )
    if metadata.keys() - {"narrowed", "instance"} != _METADATA:
        raise MessageError(
            f"expected a header with {sorted(_METADATA)}, got {_short(str(sorted(metadata)))}"
        )
    if len(metadata["type"]) > _MAX_TYPE_LENGTH or not _TYPE.fullmatch(metadata["type"]):
        raise MessageError(
            f"expected a type like 'apfed.Codes', of at most {_MAX_TYPE_LENGTH} characters, "
            f"got {_short(repr(metadata['type']))}"
        )
    number, run, precision = metadata["sequence"], metadata["run"], metadata["precision"]
    sequence = int(number) if len(number) <= 19 and number.isdecimal() else -1
    if str(sequence) != number or not 0 <= sequence <= MAX_SEQUENCE:
        raise MessageError(f"expected a sequence number, got {_short(repr(number))}")
    if len(run) > MAX_RUN_LENGTH:
        raise MessageError(
            f"a run name of {len(run)} characters; at most {MAX_RUN_LENGTH} are allowed"
        )
    instance = metadata.get("instance", "")
    if "instance" in metadata and not _INSTANCE.fullmatch(instance):
        raise MessageError(f"expected the id of a process, got {_short(repr(instance))}")
    for known in PRECISIONS:
        if precision == known:
            return Header(protocol, metadata["type"], run, sequence, known, instance)
    raise MessageError(f"expected a precision of {PRECISIONS}, got {_short(repr(precision))}")


def _spans(kind: type[Message], opened: Opened, narrowed: Mapping[str, Any]) -> dict[str, _Span]:
    """Where tensors lie; none is made before all are checked."""
    precision, data, start = opened.header.precision, opened.data, opened.start
    spans = {name: _span(kind, name, entry) for name, entry in opened.about.entries.items()}
    end = 0
    for each in sorted(spans.values(), key=lambda each: (each.begin, each.end)):
        if each.begin != end:
            raise MessageError(f"{kind.wire_name()}: its tensors do not lie end to end")
        end = each.end
    if start + end != len(data):
        raise MessageError(
            f"{kind.wire_name()}: its tensors take {end} bytes, but {len(data) - start} are there"
        )
    for name, dtype in narrowed.items():
        narrow = spans.get(name)
        scale = spans.get(f"{name}.scale")
        if (
            precision == "float32"
            or dtype != "float32"
            or narrow is None
            or narrow.dtype != _NARROW[precision]
            or (
                narrow.dtype == torch.int8
                and (
                    scale is None
                    or scale.dtype != torch.float32
                    or scale.shape != (_num_scales(narrow.shape),)
                )
            )
        ):
            raise MessageError(
                f"{kind.wire_name()}: {_short(repr(name))} cannot be widened from "
                f"{precision} to {_short(repr(dtype))}"
            )
    return spans


def _tensors(kind: type[Message], opened: Opened, plan: _Plan) -> dict[str, Tensor]:
    """The tensors by field name, as wide as they were."""
    precision, data, start = opened.header.precision, opened.data, opened.start
    _, spans, narrowed, end = plan
    if start + end != len(data):
        raise MessageError(
            f"{kind.wire_name()}: its tensors take {end} bytes, but {len(data) - start} are there"
        )
    view = memoryview(data)
    if view.readonly and spans:  # one copy, to where PyTorch's own tensors would begin
        buffer = torch.empty(end, dtype=torch.uint8)
        buffer.numpy()[:] = np.frombuffer(view, dtype=np.uint8, offset=start) if end else 0
        view, start = buffer.numpy().data, 0
    tensors = {name: _read(kind, name, span, view, start) for name, span in spans.items()}
    for name in narrowed:
        wide = tensors[name].to(torch.float32)
        if precision == "int8":
            scale_R = tensors.pop(f"{name}.scale")
            wide *= scale_R.view(-1, *(1 for _ in wide.shape[1:])) if wide.dim() > 1 else scale_R[0]
        tensors[name] = wide
    return tensors


class _Span(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def _span(kind: type[Message], name: str, entry: Any) -> _Span:
    """Place and shape of one tensor in a header, if such a tensor can be."""
    try:
        code, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        dtype = _DTYPES[code]
        # In Python's own integers: no product of sizes is too large to be compared.
        if (
            len(entry) == 3
            and type(shape) is list
            and len(shape) <= _MAX_AXES
            and all(type(size) is int and size >= 0 for size in shape)
            and type(begin) is int
            and type(end) is int
            and begin >= 0
            and end - begin == math.prod(shape) * dtype.itemsize
            and math.prod(size or 1 for size in shape) < 2**60
        ):
            return _Span(dtype, tuple(shape), begin, end)
    except (KeyError, TypeError, ValueError, IndexError):
        pass
    raise MessageError(
        f"{kind.wire_name()}.{name}: no tensor can be described by {_short(str(entry))}"
    )


#: Bytes; where PyTorch's own tensors begin.
_ALIGNMENT = 64


def _read(kind: type[Message], name: str, span: _Span, view: memoryview, start: int) -> Tensor:
    tensor = _tensor_in(view, start + span.begin, span.shape, span.dtype)
    if tensor.data_ptr() % (_ALIGNMENT if span.dtype.is_floating_point else span.dtype.itemsize):
        # Processors may refuse to compute across word boundaries, and kernels take sums in another
        # order where a tensor begins elsewhere than PyTorch's own: bits would depend on the header.
        tensor = tensor.clone()
    if span.dtype == torch.bool and (tensor.view(torch.uint8) > 1).any():
        raise MessageError(f"{kind.wire_name()}.{name}: a bool in it is neither 0 nor 1")
    return tensor


def _from_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: no JSON, nested too deeply, or a name twice in one table.
    """
    # Few brackets cannot be deep; json itself gives up, slowly, at about a thousand.
    if text.count("[") + text.count("{") > 500:
        _check_depth(text)
    return _decoder.decode(text)


def _check_depth(text: str) -> None:
    depth, quoted, escaped = 0, False, False
    for character in text:
        if quoted:
            quoted = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            quoted = True
        elif character in "[{":
            depth += 1
            if depth > _MAX_DEPTH:
                raise ValueError("it is nested too deeply")
        elif character in "]}":
            depth -= 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name stands in it twice")
    return table


_decoder = json.JSONDecoder(object_pairs_hook=_unique)


def _short(text: str) -> str:
    """Text of a stranger, for an error's words."""
    return text if len(text) <= 200 else f"{text[:200]} …"


@_once
def _declared(kind: type[Any]) -> dict[str, Any]:
    """Field name -> declared type, of a message type."""
    hints = typing.get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


def means_of(kind: type[Message]) -> dict[str, str]:
    """Field name -> what it means ("samples", "weights" ...), of the tensors that say so."""
    return {name: values.means for name, values in _values(kind).items() if values.means}


def undeclared(kind: type[Message]) -> list[str]:
    """Tensors of a message that are declared as nothing."""
    hints, known = typing.get_type_hints(kind), _values(kind)
    return [name for name, hint in hints.items() if hint is Tensor and name not in known]


@_once
def _values(kind: type[Any]) -> dict[str, Values]:
    """Field name -> what it may hold, of the fields that say so."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {
        each.name: extra
        for each in fields(kind)
        for extra in getattr(hints[each.name], "__metadata__", ())
        if isinstance(extra, Values)
    }


def _checked(kind: type[Message], name: str, value: Any, declared: Any) -> Any:
    """The value if it is of its field's declared type; lists become tuples."""
    if declared is Tensor:
        if isinstance(value, Tensor):
            return value
    elif (origin := typing.get_origin(declared)) is tuple:
        inner = typing.get_args(declared)[0]
        if isinstance(value, list) and all(_is_scalar(item, inner) for item in value):
            return tuple(value)
    elif origin in (typing.Union, types.UnionType):
        raise TypeError(f"{kind.__qualname__}.{name}: message fields have one type")
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
