"""Whatever bytes come, the decoder gives a message or a MessageError, and nothing else.

Inputs are a function of their seed, which a failure prints; ``inputs(way, seed)`` makes them again.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from dovetail.errors import MessageError
from dovetail.network import Message, decode, encode
from dovetail.network.messages import open_message

SEEDS = range(100)
INPUTS_OF_A_SEED = 250


class Codes(Message):
    """One field of every kind."""

    samples_B: Tensor
    code_BD: Tensor
    known_B: Tensor
    step: int
    share: float
    last: bool
    name: str
    names: tuple[str, ...]


class Scalars(Message):
    """No tensor."""

    seed: int
    shape: tuple[int, ...]


class Nothing(Message):
    """No field."""


ACCEPT = (Codes, Scalars, Nothing)


def valid_messages() -> list[bytes]:
    rng = torch.Generator().manual_seed(0)
    codes = Codes(
        torch.arange(4),
        torch.randn(4, 3, generator=rng),
        torch.tensor([True, False, True, True]),
        7,
        0.25,
        False,
        "shop",
        ("a", "b"),
    )
    messages = [encode(codes, run="bank-0", sequence=2**60, precision=each) for each in PRECISIONS]
    messages += [encode(Scalars(3, (2, 3)), run="bank-0", sequence=1), encode(Nothing())]
    return [bytes(message) for message in messages]


PRECISIONS = ("float32", "float16", "bfloat16", "int8")
VALID = valid_messages()


def with_header(header: bytes, body: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + body


def halves(message: bytes) -> tuple[bytes, bytes]:
    """Header and tensors."""
    start = 8 + int.from_bytes(message[:8], "little")
    return message[8:start], message[start:]


# --- Ways to go wrong -----------------------------------------------------------------------------


def cut(rng: random.Random) -> bytes:
    """Truncated, prolonged, or with a piece missing in the middle."""
    message = rng.choice(VALID)
    begin, end = sorted(rng.randrange(len(message) + 1) for _ in range(2))
    tail = rng.randbytes(rng.randrange(1, 40))
    return rng.choice([message[:begin], message + tail, message[:begin] + message[end:]])


def noise(rng: random.Random) -> bytes:
    """Random bytes: alone, as a header, or as the tensors of a header that is in order."""
    data = rng.randbytes(rng.randrange(300))
    header, body = halves(rng.choice(VALID))
    return rng.choice([data, with_header(data, body), with_header(header, data[: len(body)])])


def flips(rng: random.Random) -> bytes:
    """A few bits or bytes changed."""
    data = bytearray(rng.choice(VALID))
    for _ in range(rng.randrange(1, 5)):
        index = rng.randrange(len(data))
        data[index] = rng.choice([data[index] ^ (1 << rng.randrange(8)), rng.randrange(256)])
    return bytes(data)


def spliced(rng: random.Random) -> bytes:
    """One message's header on another's tensors, or pieces of two headers, lengths right or not."""
    (header, _), (other, body) = (halves(rng.choice(VALID)) for _ in range(2))
    if rng.random() < 0.7:
        header = header[: rng.randrange(len(header))] + other[rng.randrange(len(other)) :]
    data = with_header(header, body)
    if rng.random() < 0.2:
        lies = [0, 1, len(header) - 1, len(header) + 1, 2**31, 2**32, 2**63, 2**64 - 1]
        data = rng.choice(lies).to_bytes(8, "little") + data[8:]
    return data


JUNK: list[Any] = [
    None, True, False, 0, 1, -1, 3, 2**31, 2**63, 2**64, 10**400, 0.5, -0.0, 1e308, "", "x", "F32",
    "I8", "float32", "int8", "1", "-1", "{}", "[]", "[[", "\ud800", "\0", "{\"seed\": 1}", [], [0],
    [1, 2], [-1], [2**62, 4], [[]], {}, {"x": 1}, {"__metadata__": {}}, float("nan"), float("inf"),
]  # fmt: skip


def changed_json(rng: random.Random) -> bytes:
    """A header whose JSON is changed in one place or a few, inside its texts too."""
    text, body = halves(rng.choice(VALID))
    header = json.loads(text)
    for _ in range(rng.randrange(1, 4)):
        metadata = header.get("__metadata__")
        inner = rng.choice(["fields", "narrowed"])
        if rng.random() < 0.4 and isinstance(metadata, dict) and inner in metadata:
            try:
                fields = json.loads(metadata[inner])
            except (ValueError, TypeError):
                continue
            metadata[inner] = json.dumps(change(rng, fields))
        else:
            header = change(rng, header)
        if not isinstance(header, dict):
            break
    text = json.dumps(header).encode()
    if rng.random() < 0.1:  # the same name twice
        text = text[:-1] + b"," + text[1:]
    return with_header(text, body)


def change(rng: random.Random, value: Any) -> Any:
    """The value with one change somewhere in it."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return copy.deepcopy(rng.choice(JUNK))
    key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
    what = rng.random()
    if what < 0.15:
        del value[key]
    elif what < 0.3 and isinstance(value, dict):
        value[rng.choice(["x", "code_BD", "code_BD.scale", "seed", "run", key + " "])] = value[key]
    else:
        value[key] = change(rng, value[key])
    return value


WAYS = {way.__name__: way for way in (cut, noise, flips, spliced, changed_json)}


def inputs(way: Callable[[random.Random], bytes], seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    return (way(rng) for _ in range(INPUTS_OF_A_SEED))


def outcome(data: bytes) -> bool:
    """Whether it is a message; anything but a MessageError goes through."""
    try:
        open_message(data)
    except MessageError:
        with pytest.raises(MessageError):  # what has no header is no message
            decode(data, ACCEPT)
        return False
    try:
        message = decode(data, ACCEPT)
    except MessageError:
        return False
    assert sum(tensor.nbytes for tensor in message.tensors().values()) <= 4 * len(data)
    return True


@pytest.mark.network
@pytest.mark.parametrize("way", WAYS)
def test_the_decoder_gives_a_message_or_a_message_error(way: str) -> None:
    num_messages = 0
    for seed in SEEDS:
        for number, data in enumerate(inputs(WAYS[way], seed)):
            try:
                num_messages += outcome(data)
            except BaseException as error:
                words = f"way {way!r}, seed {seed}, input {number}: {data!r}"
                raise AssertionError(words) from error
    # Some changes leave a message: of a tensor's or a number's value. Most do not.
    assert num_messages < len(SEEDS) * INPUTS_OF_A_SEED / 2


def test_there_are_more_than_100000_inputs() -> None:
    assert len(WAYS) * len(SEEDS) * INPUTS_OF_A_SEED >= 100_000


@pytest.mark.parametrize("way", WAYS)
def test_inputs_are_a_function_of_their_seed(way: str) -> None:
    first = list(inputs(WAYS[way], 0))
    assert first == list(inputs(WAYS[way], 0))
    assert len(set(first)) > INPUTS_OF_A_SEED / 2
    assert not all(data in VALID for data in first)
    for data in first:
        outcome(data)


def test_what_is_changed_is_in_order_before() -> None:
    assert all(outcome(data) for data in VALID)
