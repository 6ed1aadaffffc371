"""A message comes back from its bytes as it was, and nothing else passes for one."""

from __future__ import annotations

import json
import math
import random
import re
import string
import tracemalloc
from dataclasses import FrozenInstanceError, dataclass
from typing import Annotated, Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dovetail.errors import MessageError
from dovetail.network import (
    Bytes,
    Floats,
    Header,
    Message,
    Replies,
    Values,
    check_shape,
    decode,
    encode,
)
from dovetail.network.messages import MAX_HEADER_BYTES, MAX_SEQUENCE, on_wire, open_message
from dovetail.settings.section import Precision

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


class Nothing(Message):
    """No field."""


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
    header = {
        "protocol": "3",
        "type": kind,
        "run": "",
        "sequence": "0",
        "precision": "float32",
        "fields": text,
    }
    return safetensors.torch.save(tensors or {}, metadata=header)


METADATA = {
    "protocol": "3",
    "type": "test_messages.Nothing",
    "run": "",
    "sequence": "0",
    "precision": "float32",
    "fields": "{}",
}


def with_metadata(**changed: Any) -> bytes:
    """A message without fields, but for what is changed; None leaves it out."""
    metadata = {**METADATA, **changed}
    metadata = {name: value for name, value in metadata.items() if value is not None}
    return with_header(json.dumps({"__metadata__": metadata}))


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


@settings(max_examples=80)
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


def test_a_message_is_frozen_with_the_decorator_and_without() -> None:
    class Plain(Message):
        number: int

    @dataclass(frozen=True)
    class Decorated(Message):
        number: int

    for kind in (Plain, Decorated):
        made = kind(number=1)
        with pytest.raises(FrozenInstanceError, match="cannot assign to field 'number'"):
            made.number = 2  # type: ignore[misc]
        with pytest.raises(FrozenInstanceError, match="cannot delete"):
            del made.number
        assert made.number == 1


def test_a_message_without_fields_is_a_message() -> None:
    assert isinstance(decode(encode(Nothing()), (Nothing,)), Nothing)


def test_a_wire_name_is_file_and_class() -> None:
    assert Everything.wire_name() == "test_messages.Everything"


@pytest.mark.parametrize("share", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_not_sent(share: float) -> None:
    with pytest.raises(MessageError, match=r"test_messages\.Everything: .* not finite"):
        encode(everything(share=share))


def test_a_message_of_another_protocol_is_refused() -> None:
    for protocol in ("0", "1", "11", ""):
        data = safetensors.torch.save({}, metadata={"protocol": protocol})
        with pytest.raises(MessageError, match=f"protocol 3, got '{protocol}'; install the same"):
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
        decode(bytes(data) + b"\0", (Everything,))


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
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_a_header_that_is_none_is_refused(header: str | bytes) -> None:
    with pytest.raises(MessageError):
        decode(with_header(header), (Nothing,))


@pytest.mark.parametrize("value", [None, 3, 1.5, True, [], ["x"], {}], ids=str)
@pytest.mark.parametrize("name", METADATA)
def test_metadata_that_lacks_something_or_is_no_text_is_refused(name: str, value: Any) -> None:
    assert isinstance(decode(with_metadata(), (Nothing,)), Nothing)
    with pytest.raises(MessageError):
        decode(with_metadata(**{name: value}), (Nothing,))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"sequence": "-1"}, "expected a sequence number, got '-1'"),
        ({"sequence": "01"}, "expected a sequence number, got '01'"),
        ({"sequence": ""}, "expected a sequence number, got ''"),
        ({"sequence": "٣"}, "expected a sequence number"),
        ({"sequence": str(2**63)}, "expected a sequence number, got '9223372036854775808'"),
        ({"sequence": "9" * 5000}, "expected a sequence number, got '999"),
        ({"run": "x" * 201}, "a run name of 201 characters; at most 200 are allowed"),
        ({"precision": "float8"}, "expected a precision of .*, got 'float8'"),
        ({"more": "x"}, "expected a header with "),
        ({"narrowed": "[]"}, "its fields are no table"),
        ({"narrowed": "{"}, "its fields cannot be read"),
        ({"narrowed": '{"x": "float32"}'}, "'x' cannot be widened from float32 to 'float32'"),
        ({"fields": '{"a": 1, "a": 1}'}, "a name stands in it twice"),
    ],
)
def test_metadata_that_cannot_be_is_refused(changed: dict[str, str], words: str) -> None:
    with pytest.raises(MessageError, match=words):
        decode(with_metadata(**changed), (Nothing,))


def test_a_header_comes_back_without_the_tensors() -> None:
    data = encode(everything(), run="out/bank 3", sequence=MAX_SEQUENCE, precision="int8")
    header = Header("3", "test_messages.Everything", "out/bank 3", MAX_SEQUENCE, "int8")
    assert open_message(data).header == header
    length = 8 + int.from_bytes(data[:8], "little")
    assert open_message(data[:length]).header == header
    with pytest.raises(MessageError, match="the header is cut off"):
        open_message(data[: length - 1])
    with pytest.raises(MessageError, match="expected a message of protocol 3, got '1'"):
        open_message(with_metadata(protocol="1"))


@pytest.mark.parametrize(
    "numbered", [{"sequence": -1}, {"sequence": 2**63}, {"run": "x" * 201}], ids=str
)
def test_a_number_or_run_that_would_be_refused_is_not_sent(numbered: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected a sequence number in 0\.\.2\^63-1 and a run"):
        encode(Nothing(), **numbered)


# --- Limits: nothing is believed or made before it is checked -----------------------------------


def tensor_header(**described: Any) -> str:
    metadata = {**METADATA, "type": "test_messages.One"}
    return json.dumps({"__metadata__": metadata, **described})


class One(Message):
    """A single tensor."""

    x: Tensor


def test_a_tensor_that_can_be_is_read() -> None:
    described = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    data = with_header(tensor_header(x=described), np.float32(2.5).tobytes())
    assert decode(data, (One,)).x.tolist() == [2.5]


@pytest.mark.parametrize(
    "changed",
    [
        {"shape": [2]},
        {"shape": [-1]},
        {"shape": [-1, -1]},
        {"shape": [1.0]},
        {"shape": [True]},
        {"shape": ["1"]},
        {"shape": None},
        {"shape": 1},
        {"shape": [1] * 65},
        {"shape": [2**62, 8]},  # times 4 bytes is 0 in 64 bits
        {"shape": [2**64 + 1]},
        {"shape": [0, 2**62, 2**62], "data_offsets": [0, 0]},
        {"data_offsets": [0, 400]},
        {"data_offsets": [4, 0]},
        {"data_offsets": [1, 5]},
        {"data_offsets": [-4, 0]},
        {"data_offsets": [0]},
        {"data_offsets": [0, 4, 4]},
        {"data_offsets": [0.0, 4.0]},
        {"data_offsets": [0, 2**64 + 4]},
        {"data_offsets": 4},
        {"dtype": "F99"},
        {"dtype": "F4", "shape": [8]},
        {"dtype": "F8_E8M0", "shape": [4]},
        {"dtype": 3},
        {"dtype": ["F32"]},
        {"more": 1},
    ],
    ids=str,
)
def test_a_tensor_that_cannot_be_is_refused(changed: dict[str, Any]) -> None:
    described = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **changed}
    with pytest.raises(MessageError, match=r"test_messages\.One"):
        decode(with_header(tensor_header(x=described), bytes(4)), (One,))


@pytest.mark.parametrize("described", [{}, 3, [], "F32", None], ids=str)
def test_a_tensor_that_is_not_described_is_refused(described: Any) -> None:
    with pytest.raises(MessageError, match=r"One\.x: no tensor can be described by"):
        decode(with_header(tensor_header(x=described), bytes(4)), (One,))


class Two(Message):
    x: Tensor
    y: Tensor


def test_tensors_lie_end_to_end_and_take_all_bytes() -> None:
    metadata = {**METADATA, "type": Two.wire_name(), "fields": "{}"}
    for spans, num_bytes, words in (
        (((0, 4), (0, 4)), 4, "do not lie end to end"),  # one upon the other
        (((0, 4), (2, 6)), 6, "do not lie end to end"),
        (((0, 4), (8, 12)), 12, "do not lie end to end"),  # a gap
        (((4, 8), (8, 12)), 12, "do not lie end to end"),
        (((0, 4), (4, 8)), 9, "take 8 bytes, but 9 are there"),
        (((0, 4), (4, 8)), 7, "take 8 bytes, but 7 are there"),
    ):
        described = [{"dtype": "F32", "shape": [1], "data_offsets": span} for span in spans]
        header = json.dumps({"__metadata__": metadata, "x": described[0], "y": described[1]})
        with pytest.raises(MessageError, match=words):
            decode(with_header(header, bytes(num_bytes)), (Two,))


def test_a_tensor_that_is_described_twice_is_refused() -> None:
    text = tensor_header(x={"dtype": "F32", "shape": [1], "data_offsets": [0, 4]})
    with pytest.raises(MessageError, match="the header cannot be read"):
        decode(with_header(text[:-1] + ', "x": 1}', bytes(4)), (One,))


def test_a_bool_is_0_or_1() -> None:
    described = {"dtype": "BOOL", "shape": [3], "data_offsets": [0, 3]}
    header = tensor_header(x=described)
    assert decode(with_header(header, b"\1\0\1"), (One,)).x.tolist() == [True, False, True]
    with pytest.raises(MessageError, match=r"One\.x: a bool in it is neither 0 nor 1"):
        decode(with_header(header, b"\1\0\2"), (One,))


def large_claims() -> dict[str, bytes]:
    four_gib = {"dtype": "F32", "shape": [2**30], "data_offsets": [0, 2**32]}
    deep = json.dumps({**METADATA, "fields": "[" * 900_000})
    return {
        "a header of 2^63 bytes": (2**63).to_bytes(8, "little") + bytes(100),
        "a header of 4 GiB": (2**32).to_bytes(8, "little") + bytes(100),
        "a tensor of 4 GiB": with_header(tensor_header(x=four_gib), bytes(100)),
        "brackets": with_header("[" * MAX_HEADER_BYTES),
        "brackets in a text": with_header('{"__metadata__": ' + deep + "}"),
        "a header too large": with_header(" " * (MAX_HEADER_BYTES + 1)),
    }


@pytest.mark.parametrize("claim", large_claims())
def test_a_claim_of_size_takes_no_memory(claim: str) -> None:
    data = large_claims()[claim]
    tracemalloc.start()
    try:
        with pytest.raises(MessageError):
            decode(data, (One, Nothing))
        assert tracemalloc.get_traced_memory()[1] < 3 * len(data) + 100_000
    finally:
        tracemalloc.stop()


def test_a_message_larger_than_allowed_is_not_opened() -> None:
    data = encode(everything())
    decode(data, (Everything,), max_bytes=len(data))
    with pytest.raises(MessageError, match=rf"{len(data)} bytes; at most {len(data) - 1} are"):
        decode(data, (Everything,), max_bytes=len(data) - 1)
    with pytest.raises(MessageError, match="a message of 9 bytes; at most 8 are allowed"):
        decode(b"no header", (Everything,), max_bytes=8)


def test_more_fields_than_a_header_may_have_are_not_sent() -> None:
    decode(encode(everything(shape=(1,) * 200_000)), (Everything,))
    with pytest.raises(MessageError, match=r"its fields take .* may take 1048576; long lists"):
        encode(everything(shape=(1,) * 600_000))


def test_a_dtype_that_is_not_sent_is_named() -> None:
    with pytest.raises(MessageError, match=r"One\.x: tensors of torch.complex64 are not sent"):
        encode(One(torch.zeros(2, dtype=torch.complex64)))


# --- Memory -------------------------------------------------------------------------------------


def memory(data: Any) -> range:
    begin = np.frombuffer(data, np.uint8).ctypes.data
    return range(begin, begin + len(data))


def test_tensors_lie_in_the_bytes_they_came_in_if_they_are_aligned_there() -> None:
    sent = everything(x=torch.randn(7, 3))
    for data in (encode(sent), bytearray(encode(sent))):
        came = decode(data, (Everything,))
        for name, tensor in sent.tensors().items():
            part = getattr(came, name)
            if part.dtype.is_floating_point:  # where PyTorch's own begin: bits of sums depend on it
                assert part.data_ptr() % 64 == 0
            else:
                assert part.data_ptr() in memory(data)
            assert torch.equal(part, tensor)
    came = decode(bytes(encode(sent)), (Everything,))
    came.x.zero_()  # its own copy: bytes never change


def test_tensors_are_aligned_however_their_bytes_were_cut_out() -> None:
    sent = Everything(
        x=torch.tensor([True, False, True]),
        y=torch.randn(5, dtype=torch.float64),
        **{name: getattr(everything(), name) for name in ("count", "share", "ready", "name")},
        shape=(),
        names=(),
    )
    data = encode(sent)
    for shift in range(9):
        moved = memoryview(bytearray(shift) + data)[shift:]
        came = decode(moved, (Everything,))
        assert came.y.data_ptr() % 8 == 0
        assert torch.equal(came.x, sent.x)
        assert torch.equal(came.y, sent.y)


def test_bytes_share_no_memory_with_the_message() -> None:
    x = torch.ones(3)
    data = encode(One(x))
    x.zero_()
    assert decode(data, (One,)).x.tolist() == [1.0, 1.0, 1.0]


@settings(max_examples=40)
@given(x=TENSORS, y=TENSORS)
def test_other_tools_open_the_bytes(x: Tensor, y: Tensor) -> None:
    message = everything(x=x, y=y)
    data = encode(message, run="a", sequence=7)
    assert len(data) % 8 == sum(each.num_bytes for each in on_wire(message)) % 8
    opened = safetensors.torch.load(bytes(data))
    assert opened.keys() == {"x", "y"}
    assert torch.equal(opened["x"], x)
    assert torch.equal(opened["y"], y)
    assert opened["x"].dtype == x.dtype


# --- Narrower than they are ---------------------------------------------------------------------

NARROW: tuple[Precision, ...] = ("float16", "bfloat16", "int8")

WIDE = st.builds(
    lambda shape, seed, scale: (
        torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 10.0**scale
    ),
    st.lists(st.integers(0, 5), max_size=4),
    st.integers(0, 99),
    st.integers(-45, 3),
)


def carried(x: Tensor, precision: Precision) -> Tensor:
    return decode(encode(One(x), precision=precision), (One,)).x


@settings(max_examples=150)
@given(x=WIDE, precision=st.sampled_from(NARROW))
def test_what_travels_narrower_comes_back_within_its_bound(x: Tensor, precision: Precision) -> None:
    came = carried(x, precision)
    assert came.dtype == torch.float32
    assert came.shape == x.shape
    error = (came.double() - x.double()).abs()
    if precision == "float16":
        assert (error <= (x.double().abs() / 2048).clamp(min=3e-8)).all()
    elif precision == "bfloat16":
        assert (error <= (x.double().abs() / 256).clamp(min=1e-40)).all()
    elif x.numel():
        rows = x.flatten(1) if x.dim() > 1 else x.reshape(1, -1)
        half_scale = rows.double().abs().amax(1, keepdim=True) / 127 / 2
        assert (error.view(rows.shape) <= (half_scale * 1.0001).clamp(min=1.5e-36)).all()


def test_int8_by_hand() -> None:
    x = torch.tensor([[127.0, -63.6, 0.4], [0.0, 0.0, 0.0], [-2.54, 1.0, 0.02]])
    expected = torch.tensor([[127.0, -64.0, 0.0], [0.0, 0.0, 0.0], [-2.54, 1.0, 0.02]])
    torch.testing.assert_close(carried(x, "int8"), expected)
    one_scale = torch.tensor([127.0, -63.6, 0.4])
    assert carried(one_scale, "int8").tolist() == [127.0, -64.0, 0.0]
    assert carried(torch.tensor(-3.0), "int8").item() == pytest.approx(-3.0)
    message = One(torch.ones(2, 3, 4))
    assert [(each.name, each.shape, each.num_bytes) for each in on_wire(message, "int8")] == [
        ("x", (2, 3, 4), 24),
        ("x.scale", (2,), 8),
    ]


@pytest.mark.parametrize("precision", NARROW)
def test_zeros_and_empty_tensors_stay_what_they_are(precision: Precision) -> None:
    for shape in ((), (0,), (3,), (0, 4), (4, 0), (2, 3), (2, 0, 3), (0, 0)):
        assert torch.equal(carried(torch.zeros(shape), precision), torch.zeros(shape))


def test_the_largest_and_smallest_numbers_survive_int8() -> None:
    largest = torch.finfo(torch.float32).max
    x = torch.tensor([[largest, -largest], [largest * 0.999, 1.0], [1.6e-36, -1.6e-36]])
    torch.testing.assert_close(carried(x, "int8"), x, rtol=1e-5, atol=1e-36 * largest)
    assert carried(x, "int8").isfinite().all()
    assert carried(torch.tensor([1.4e-36, 1e-45]), "int8").tolist() == [0.0, 0.0]


def test_only_float32_travels_narrower() -> None:
    for dtype in DTYPES:
        x = torch.tensor([1, 0, 1]).to(dtype)
        data = encode(everything(x=x, y=x), precision="float16")
        came = decode(data, (Everything,))
        assert came.x.dtype == came.y.dtype == dtype
        assert torch.equal(came.x, x)


def test_float16_halves_the_bytes_and_int8_quarters_them() -> None:
    message = One(torch.randn(64, 512))
    sizes = [len(encode(message, precision=each)) for each in ("float32", *NARROW)]
    tensors = [64 * 512 * 4, 64 * 512 * 2, 64 * 512 * 2, 64 * 512 + 64 * 4]
    assert [sum(each.num_bytes for each in on_wire(message, "int8"))] == tensors[3:]
    for size, num_bytes in zip(sizes, tensors, strict=True):
        assert num_bytes < size < num_bytes + 400


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_a_value_that_has_no_room_arrives_as_the_largest(precision: Precision) -> None:
    largest = torch.finfo(getattr(torch, precision)).max
    x = torch.tensor([largest, -largest, largest * 1.003, -largest * 1.003, math.inf, -math.inf])
    came = carried(x, precision).tolist()
    assert came == [largest, -largest, largest, -largest, math.inf, -math.inf]
    x = torch.tensor([math.nan, math.inf, largest * 1.003, 1.0])
    expected = torch.tensor([math.nan, math.inf, largest, 1.0])
    torch.testing.assert_close(carried(x, precision), expected, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_int8_refuses_what_is_not_finite(value: float) -> None:
    for x in (torch.tensor(value), torch.tensor([[1.0], [value]])):
        with pytest.raises(MessageError, match=r"One\.x: a value is not finite, and int8 has no"):
            carried(x, "int8")


def test_narrow_tensors_of_any_layout_come_back() -> None:
    whole = torch.randn(6, 8)
    for x in (
        whole.T,
        whole[::2, 1:7:3],
        whole[:, 0],
        whole.expand(2, 6, 8),
        whole.requires_grad_(),
    ):
        for precision in NARROW:
            torch.testing.assert_close(
                carried(x, precision), x.detach(), rtol=0.01, atol=x.abs().max().item() / 250
            )


@pytest.mark.parametrize(
    ("changed", "tensors"),
    [
        ({}, {}),  # its scale is missing
        ({}, {"x.scale": torch.ones(3)}),
        ({}, {"x.scale": torch.ones(2, 1)}),
        ({}, {"x.scale": torch.ones(2, dtype=torch.float64)}),
        ({}, {"x.scale": torch.ones(2), "y.scale": torch.ones(2)}),
        ({"narrowed": '{"x": "float64"}'}, {"x.scale": torch.ones(2)}),
        ({"narrowed": '{"x": 1}'}, {"x.scale": torch.ones(2)}),
        ({"narrowed": '{"y": "float32"}'}, {"y.scale": torch.ones(2)}),
        ({"narrowed": "{}"}, {"x.scale": torch.ones(2)}),
        ({"precision": "float16"}, {"x.scale": torch.ones(2)}),
        ({"precision": "float16"}, {}),
        ({"precision": "float32"}, {}),
    ],
)
def test_what_was_not_narrowed_is_not_widened(
    changed: dict[str, str], tensors: dict[str, Tensor]
) -> None:
    metadata = {
        **METADATA,
        "type": "test_messages.One",
        "precision": "int8",
        "narrowed": '{"x": "float32"}',
    }
    x = torch.ones(2, 3, dtype=torch.int8)
    whole = safetensors.torch.save({"x": x, "x.scale": torch.tensor([2.0, 3.0])}, metadata=metadata)
    assert decode(whole, (One,)).x.tolist() == [[2.0] * 3, [3.0] * 3]
    with pytest.raises(MessageError):
        decode(safetensors.torch.save({"x": x, **tensors}, {**metadata, **changed}), (One,))


# --- Bytes that are no message ------------------------------------------------------------------


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


class Declared(Message):
    rows_BD: Floats
    keys_B4: Bytes
    weights: Annotated[Tensor, Values(torch.float32, "P", most=3, finite=False)]


def declared(**changed: Tensor) -> Declared:
    fields = {"rows_BD": torch.zeros(2, 5), "keys_B4": torch.zeros(2, 4, dtype=torch.uint8)}
    return Declared(**{**fields, "weights": torch.full((3,), torch.nan), **changed})


def test_tensors_that_are_as_declared_pass_and_travel_as_ever() -> None:
    declared().check()
    declared().check(B=2, D=5, P=3)
    again = decode(bytes(encode(declared())), (Declared,))
    assert torch.equal(again.rows_BD, torch.zeros(2, 5))


@pytest.mark.parametrize(
    ("changed", "sizes", "words"),
    [
        ({"rows_BD": torch.zeros(2, 5).double()}, {}, r"rows_BD: .*float32, got .*float64"),
        ({"rows_BD": torch.zeros(2)}, {}, r"rows_BD: expected shape"),
        ({"rows_BD": torch.zeros(3, 5)}, {}, r"keys_B4: expected shape \(3, 4\) .* \(2, 4\)"),
        ({}, {"D": 6}, r"rows_BD: expected shape \(2, 6\) .* \(2, 5\)"),
        ({"rows_BD": torch.full((2, 5), torch.inf)}, {}, "rows_BD: a value in it is not finite"),
        ({"weights": torch.zeros(4)}, {}, "weights: 4 are more than 3"),
    ],
)
def test_a_tensor_that_is_not_as_declared_is_refused_and_its_sender_named(
    changed: dict[str, Tensor], sizes: dict[str, int], words: str
) -> None:
    with pytest.raises(MessageError, match=words):
        declared(**changed).check(**sizes)
    replies = Replies({"bank": declared(), "shop": declared(**changed)}, {})
    if changed:
        assert set(replies.fitting(**sizes)) == {"bank"}
        assert re.search(words, replies.failures["shop"].cause)
        assert replies.failures["shop"].party == "shop"


class Either(Message):
    value: int | None


def test_a_field_declared_as_either_of_two_types_is_a_bug() -> None:
    with pytest.raises(TypeError, match="message fields have one type"):
        decode(packed({"value": 1}, kind=Either.wire_name()), (Either,))
