"""Frames: what is cut is put together again, and nothing else is believed."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import MessageError
from dovetail.network.frames import (
    CHUNK_BYTES,
    HELLO,
    MESSAGE,
    MORE,
    REFUSED,
    Assembler,
    Hello,
    TooLargeError,
    frames,
)
from dovetail.network.printable import printable


def frame(kind: int, number: int, piece: bytes = b"", magic: bytes = b"DVTL") -> bytes:
    return struct.pack("<4sB3xQ", magic, kind, number) + piece


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3_500_000])
def test_a_message_comes_back_as_it_was_cut(size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assembler = Assembler(size)
    for _ in range(2):  # one after the other on one stream
        done = [assembler.add(piece) for piece in frames(MESSAGE, data)]
        assert done[:-1] == [None] * (len(done) - 1)
        assert done[-1] is not None
        assert done[-1][0] == MESSAGE
        assert bytes(done[-1][1]) == data
        assert len(done) == max(1, -(-size // CHUNK_BYTES))


@pytest.mark.parametrize("length", [2**32, 2**64 - 1, 1001])
def test_a_length_over_the_limit_is_refused_and_allocates_nothing(length: int) -> None:
    piece = bytes(min(length, CHUNK_BYTES))
    announced = frame(MESSAGE, length, piece)
    tracemalloc.start()
    with pytest.raises(
        TooLargeError, match=f"a message of {length} bytes; at most 1000 are allowed"
    ):
        Assembler(1000).add(announced)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_a_length_within_the_limit_is_believed_only_as_bytes_come() -> None:
    announced = frame(MESSAGE, 2**32, bytes(CHUNK_BYTES))
    tracemalloc.start()
    assert Assembler(2**33).add(announced) is None
    assert tracemalloc.get_traced_memory()[1] < 3 * CHUNK_BYTES
    tracemalloc.stop()


def test_a_message_that_is_too_large_is_passed_over_and_the_next_one_is_read() -> None:
    assembler = Assembler(1000)
    too_large = list(frames(MESSAGE, bytes(2 * CHUNK_BYTES + 5)))
    with pytest.raises(TooLargeError):
        assembler.add(too_large[0])
    assert [assembler.add(piece) for piece in too_large[1:]] == [None, None]
    done = assembler.add(frame(MESSAGE, 2, b"ok"))
    assert done is not None
    assert bytes(done[1]) == b"ok"


WHOLE = bytes(CHUNK_BYTES)


@pytest.mark.parametrize(
    "wrong",
    [
        [b""],
        [b"DVTL"],
        [frame(MESSAGE, 2, b"ok", magic=b"HTTP")],
        [frame(9, 0)],
        [frame(MESSAGE, 3, b"ok")],
        [frame(MESSAGE, 1, b"ok")],
        [frame(MORE, 0, b"ok")],
        [frame(MESSAGE, 2 * CHUNK_BYTES, WHOLE), frame(MESSAGE, 2, b"ok")],
        [frame(MESSAGE, 2 * CHUNK_BYTES, WHOLE), frame(MORE, 0, WHOLE)],
        [frame(MESSAGE, 2 * CHUNK_BYTES, WHOLE), frame(MORE, CHUNK_BYTES, b"")],
        [frame(MESSAGE, CHUNK_BYTES + 1, WHOLE), frame(MORE, CHUNK_BYTES, b"ok")],
        [frame(HELLO, 3, b"ok")],
        [frame(HELLO, 5000, bytes(5000))],
        [frame(REFUSED, 5000, bytes(5000))],
        [frame(MESSAGE, 2**40, WHOLE + b"1")],
    ],
)
def test_what_is_no_frame_or_not_due_is_refused(wrong: list[bytes]) -> None:
    assembler = Assembler(2**30)
    for sent in wrong[:-1]:
        assembler.add(sent)
    with pytest.raises(MessageError):
        assembler.add(wrong[-1])


@pytest.mark.slow
@given(
    st.lists(
        st.binary(max_size=64)
        | st.builds(
            frame, st.integers(0, 255), st.integers(0, 100) | st.integers(0, 2**64 - 1), st.binary()
        )
    )
)
def test_random_frames_do_no_more_than_be_refused(sent: list[bytes]) -> None:
    assembler = Assembler(1000)
    for each in sent:
        try:
            done = assembler.add(each)
        except MessageError:
            continue
        assert done is None or len(done[1]) <= 4096


def test_a_hello_says_who_speaks() -> None:
    (sent,) = [Hello("a1").encode()]
    done = Assembler(0).add(sent)
    assert done is not None
    assert Hello.decode(*done) == Hello("a1")


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        (MESSAGE, b"{}", "begins with a hello"),
        (HELLO, b"no JSON", "begins with a hello"),
        (HELLO, b"[" * 4000, "begins with a hello"),
        (HELLO, b"\xff\xfe", "begins with a hello"),
        (HELLO, b"[]", "begins with a hello"),
        (HELLO, b'{"protocol": "0", "instance": "a"}', "got '0'; install the same version"),
        (HELLO, b"{}", "got None"),
    ],
)
def test_anything_else_is_no_hello(kind: int, data: bytes, words: str) -> None:
    with pytest.raises(MessageError, match=words):
        Hello.decode(kind, data)


def test_a_peers_text_cannot_steer_a_terminal() -> None:
    assert printable("red\x1b[31m\r\nline\u202e") == "red [31m  line "
    assert len(printable("x" * 10_000)) == 1000
