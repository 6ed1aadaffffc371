"""A message comes back from its bytes as it was, and nothing else passes for one."""

from __future__ import annotations

import json
import math
import random
import string
from dataclasses import dataclass
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dovetail.errors import MessageError
from dovetail.network import Message, check_shape, decode, encode

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)


@dataclass(frozen=True, eq=False)
class Everything(Message):
    """One field of every kind."""

    x: Tensor
    y: Tensor
    count: int
    share: float
    ready: bool
    name: str
    shape: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Nothing(Message):
    """No field."""


@dataclass(frozen=True, eq=False)
class Seed(Message):
    """A single number."""

    seed: int


def everything(**changed: Any) -> Everything:
    fields = {
        "x": torch.arange(6.0).reshape(2, 3),
        "y": torch.tensor([1, 2]),
        "count": 3,
        "share": 0.25,
        "ready": True,
        "name": "shop",
        "shape": (2, 3),
        "names": ("a", "b"),
    }
    return Everything(**{**fields, **changed})


def packed(
    fields: Any, tensors: dict[str, Tensor] | None = None, kind: str = "test_messages.Seed"
) -> bytes:
    """Bytes with any JSON at all where a message has its fields."""
    text = fields if isinstance(fields, str) else json.dumps(fields)
    header = {"protocol": "1", "type": kind, "fields": text}
    return safetensors.torch.save(tensors or {}, metadata=header)


def with_header(header: str | bytes, body: bytes = b"") -> bytes:
    header = header.encode() if isinstance(header, str) else header
    return len(header).to_bytes(8, "little") + header + body


TENSORS = st.builds(
    lambda dtype, shape, seed: torch.randint(
        -100, 100, shape, generator=torch.Generator().manual_seed(seed)
    ).to(dtype),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 4), max_size=4),
    st.integers(0, 99),
)


@settings(max_examples=80, deadline=None)
@given(
    x=TENSORS,
    y=TENSORS,
    count=st.integers(),
    share=st.floats(allow_nan=False, allow_infinity=False),
    ready=st.booleans(),
    name=st.text(),
    shape=st.lists(st.integers(0, 2**70), max_size=4).map(tuple),
    names=st.lists(st.text(), max_size=3).map(tuple),
)
def test_a_message_comes_back_from_its_bytes(**fields: Any) -> None:
    came = decode(encode(Everything(**fields)), (Nothing, Everything))
    assert isinstance(came, Everything)
    for name, sent in fields.items():
        value = getattr(came, name)
        assert type(value) is type(sent)
        if isinstance(sent, Tensor):
            assert value.dtype == sent.dtype
            assert torch.equal(value, sent)
        else:
            assert value == sent


def test_values_that_are_not_finite_may_stand_in_tensors() -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf])
    torch.testing.assert_close(
        decode(encode(everything(x=x)), (Everything,)).x, x, equal_nan=True, rtol=0, atol=0
    )


def test_tensors_may_be_views_of_one_another() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    for x, y in ((whole, whole), (whole.T, whole), (whole[1:], whole[:2]), (whole[:, 1], whole)):
        came = decode(encode(everything(x=x, y=y)), (Everything,))
        assert torch.equal(came.x, x)
        assert torch.equal(came.y, y)


def test_a_graph_stays_behind() -> None:
    x = torch.ones(2, requires_grad=True) * 2
    assert not decode(encode(everything(x=x)), (Everything,)).x.requires_grad


def test_a_message_without_fields_is_a_message() -> None:
    assert isinstance(decode(encode(Nothing()), (Nothing,)), Nothing)


def test_a_wire_name_is_file_and_class() -> None:
    assert Everything.wire_name() == "test_messages.Everything"


@pytest.mark.parametrize("share", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_not_sent(share: float) -> None:
    with pytest.raises(MessageError, match=r"test_messages\.Everything: .* not finite"):
        encode(everything(share=share))


def test_a_message_of_another_protocol_is_refused() -> None:
    for protocol in ("0", "2", "11", ""):
        data = safetensors.torch.save({}, metadata={"protocol": protocol})
        with pytest.raises(MessageError, match=f"protocol 1, got '{protocol}'; install the same"):
            decode(data, (Nothing,))


def test_a_type_that_was_not_asked_for_is_refused() -> None:
    words = r"type test_messages\.Nothing or test_messages\.Seed, got 'test_messages\.Everything'"
    with pytest.raises(MessageError, match=words):
        decode(encode(everything()), (Seed, Nothing))


def test_a_name_alone_opens_nothing() -> None:
    for kind in ("builtins.eval", "torch.nn.Linear", "", "Seed"):
        with pytest.raises(MessageError, match="got "):
            decode(packed({"seed": 1}, kind=kind), (Seed,))


@pytest.mark.parametrize(
    ("fields", "tensors"),
    [
        ({}, {}),
        ({"sed": 1}, {}),
        ({"seed": 1, "more": 2}, {}),
        ({"seed": 1}, {"more": torch.ones(1)}),
        ({"seed": 1}, {"seed": torch.ones(1)}),
    ],
    ids=["missing", "misspelt", "extra", "extra tensor", "twice"],
)
def test_fields_other_than_declared_are_refused(fields: Any, tensors: dict[str, Tensor]) -> None:
    with pytest.raises(MessageError, match=r"Seed: expected the fields \['seed'\], got \["):
        decode(packed(fields, tensors), (Seed,))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("count", 1.0),
        ("count", True),
        ("count", "1"),
        ("count", None),
        ("count", [1]),
        ("share", "0.5"),
        ("share", True),
        ("share", None),
        ("share", math.nan),
        ("share", math.inf),
        ("share", 10**400),
        ("ready", 1),
        ("ready", "true"),
        ("name", 7),
        ("name", ["shop"]),
        ("shape", 3),
        ("shape", [1.5]),
        ("shape", [[1]]),
        ("shape", "12"),
        ("names", ["a", 1]),
        ("names", {"a": "b"}),
        ("x", [1.0, 2.0]),
        ("x", None),
    ],
)
def test_a_field_of_another_type_is_refused_by_its_name(field: str, value: Any) -> None:
    message = everything()
    scalars = {
        name: getattr(message, name)
        for name in ("count", "share", "ready", "name", "shape", "names")
    }
    tensors = {name: tensor for name, tensor in message.tensors().items() if name != field}
    data = packed({**scalars, field: value}, tensors, kind="test_messages.Everything")
    with pytest.raises(MessageError, match=rf"Everything\.{field}: expected "):
        decode(data, (Everything,))


def test_a_whole_number_serves_where_a_float_is_declared() -> None:
    assert decode(encode(everything(share=2)), (Everything,)).share == 2


@pytest.mark.parametrize(
    "fields", ["", "{", "[]", "3", "null", "[" * 100_000, "9" * 5000, '{"seed": 1e', "\x00"]
)
def test_fields_that_are_no_table_are_refused(fields: str) -> None:
    with pytest.raises(MessageError, match=r"test_messages\.Seed: its (bytes|fields) "):
        decode(packed(fields), (Seed,))


def test_every_cut_of_a_message_is_refused() -> None:
    data = encode(everything())
    for length in range(len(data)):
        with pytest.raises(MessageError):
            decode(data[:length], (Everything,))
    with pytest.raises(MessageError):
        decode(data + b"\0", (Everything,))


@pytest.mark.parametrize("claimed", [2**63, 2**64 - 1, 2**32, 10**6])
def test_a_header_longer_than_the_message_is_refused(claimed: int) -> None:
    data = encode(everything())
    with pytest.raises(MessageError, match="the header is cut off"):
        decode(claimed.to_bytes(8, "little") + data[8:], (Everything,))


HEADERS = {
    "empty": "",
    "no table": "[]",
    "no metadata": "{}",
    "metadata no table": '{"__metadata__": 3}',
    "deep": "[" * 100_000,
    "no text": b"\xff\xfe\xfa",
    "type no text": '{"__metadata__": {"protocol": "1", "type": ["x"], "fields": "{}"}}',
    "type a table": '{"__metadata__": {"protocol": "1", "type": {}, "fields": "{}"}}',
    "no fields": '{"__metadata__": {"protocol": "1", "type": "test_messages.Nothing"}}',
    "fields no text": (
        '{"__metadata__": {"protocol": "1", "type": "test_messages.Nothing", "fields": 3}}'
    ),
    "protocol no text": '{"__metadata__": {"protocol": 1, "type": "test_messages.Nothing"}}',
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_a_header_that_is_none_is_refused(header: str | bytes) -> None:
    with pytest.raises(MessageError):
        decode(with_header(header), (Nothing,))


@pytest.mark.parametrize(
    "described",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 400]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2**62, 8], "data_offsets": [0, 4]},
        {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]},
        {"dtype": "F8_E8M0", "shape": [4], "data_offsets": [0, 4]},
        {"dtype": 3, "shape": [1], "data_offsets": [0, 4]},
        {"shape": [1], "data_offsets": [0, 4]},
        {},
        3,
    ],
)
def test_a_tensor_that_cannot_be_is_refused(described: Any) -> None:
    metadata = {"protocol": "1", "type": "test_messages.Everything", "fields": "{}"}
    header = json.dumps({"__metadata__": metadata, "x": described})
    with pytest.raises(MessageError):
        decode(with_header(header, bytes(4)), (Everything,))


def test_random_bytes_are_refused() -> None:
    rng = random.Random(0)
    for _ in range(2000):
        with pytest.raises(MessageError):
            decode(rng.randbytes(rng.randrange(200)), (Everything, Nothing))


def test_random_headers_are_refused() -> None:
    rng = random.Random(0)
    letters = '{}[]",:0123456789' + string.ascii_lowercase + '"__metadata__"'
    for _ in range(1000):
        header = "".join(rng.choices(letters, k=rng.randrange(60)))
        with pytest.raises(MessageError):
            decode(with_header(header), (Everything, Nothing))


def test_a_message_with_bytes_changed_is_a_message_or_refused() -> None:
    rng = random.Random(0)
    whole = encode(everything())
    num_refused = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            assert isinstance(decode(bytes(data), (Everything, Nothing)), Everything)
        except MessageError:
            num_refused += 1
    assert 1000 < num_refused < 3000  # some change only a tensor's or a number's value


def test_a_tensor_of_another_shape_or_dtype_is_refused() -> None:
    message = everything()
    check_shape(message, "x", (2, 3), torch.float32)
    with pytest.raises(MessageError, match=r"Everything\.x: expected shape \(3, 2\) .* \(2, 3\)"):
        check_shape(message, "x", (3, 2), torch.float32)
    with pytest.raises(MessageError, match=r"x: .* of torch.float64, got .* of torch.float32"):
        check_shape(message, "x", (2, 3), torch.float64)


def test_a_field_declared_as_either_of_two_types_is_a_bug() -> None:
    @dataclass(frozen=True, eq=False)
    class Either(Message):
        value: int | None

    with pytest.raises(TypeError, match="message fields have one type"):
        decode(packed({"value": 1}, kind=Either.wire_name()), (Either,))
