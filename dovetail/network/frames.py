"""Frames of a ``Stream``: how messages are cut into them, and heartbeats.

    frame   16 bytes, little-endian: "DVTL", kind (1 byte), 3 zero bytes, number (8 bytes); a piece
    HELLO   number = bytes of the piece, JSON: who speaks; the first frame of either side
    MESSAGE number = bytes of the whole message; its first piece
    MORE    number = where this piece starts in its message
    REFUSED number = bytes of the piece, text: party -> driver, why it will not read a message

A length is believed only as far as bytes have come: nothing is allocated for those announced.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from dovetail.errors import MessageError
from dovetail.network.messages import PROTOCOL, Data

METHOD = "/dovetail.Stream/Exchange"

#: The largest piece: larger ones are no faster, and a heartbeat waits behind the piece before it.
CHUNK_BYTES = 2**20

HELLO, MESSAGE, MORE, REFUSED = 1, 2, 3, 4

_MAGIC = b"DVTL"
# 16 bytes, so that the tensors of a message that came in one frame are aligned in memory.
_FRAME = struct.Struct("<4sB3xQ")

#: The most bytes of a piece that is not of a message.
_MAX_TEXT_BYTES = 4096

#: Of them, the most bytes that the proof in a hello may have, which is a third longer as text.
MAX_HELLO_PROOF_BYTES = 2900


class TooLargeError(MessageError):
    """A message is announced that is larger than allowed; its frames are passed over."""


def frames(kind: int, data: Data) -> Iterator[bytes]:
    """The frames of one message, hello or refusal."""
    view = memoryview(data)
    yield b"".join((_FRAME.pack(_MAGIC, kind, len(view)), view[:CHUNK_BYTES]))
    for start in range(CHUNK_BYTES, len(view), CHUNK_BYTES):
        piece = view[start : start + CHUNK_BYTES]
        yield b"".join((_FRAME.pack(_MAGIC, MORE, start), piece))


class Assembler:
    """Puts the frames of one direction of one stream together again.

    Args:
        max_bytes: the largest message.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._whole: bytearray | None = None  # of a message under way; None: passed over, or none
        self._length = 0
        self._position = 0

    def add(self, frame: bytes) -> tuple[int, Data] | None:
        """The kind and content of what this frame completes; None where more is to come.

        Raises:
            TooLargeError: once for a message that is larger than allowed; go on to pass over it.
            MessageError: no frame, or not the one that is due.
        """
        if len(frame) < _FRAME.size:
            raise MessageError(f"{len(frame)} bytes that are no frame")
        magic, kind, number = _FRAME.unpack_from(frame)
        piece = memoryview(frame)[_FRAME.size :]
        if magic != _MAGIC or len(piece) > CHUNK_BYTES:
            raise MessageError(f"{len(frame)} bytes that are no frame")
        if kind == MORE:
            return self._more(number, piece)
        if self._position < self._length:
            raise MessageError("a frame begins while another message is under way")
        if kind == MESSAGE:
            return self._begin(number, piece)
        if kind not in (HELLO, REFUSED) or number != len(piece) or number > _MAX_TEXT_BYTES:
            raise MessageError(f"a frame of unknown kind {kind}, or of a wrong length")
        return kind, piece

    def _begin(self, length: int, piece: memoryview) -> tuple[int, Data] | None:
        if len(piece) != min(length, CHUNK_BYTES):
            raise MessageError(
                f"a message of {length} bytes cannot begin with a piece of {len(piece)}"
            )
        if length > self._max_bytes:
            self._length, self._position, self._whole = length, len(piece), None
            raise TooLargeError(
                f"a message of {length} bytes; at most {self._max_bytes} are allowed"
            )
        if len(piece) == length:
            return MESSAGE, piece
        self._length, self._position, self._whole = length, len(piece), bytearray(piece)
        return None

    def _more(self, start: int, piece: memoryview) -> tuple[int, Data] | None:
        due = min(self._length - self._position, CHUNK_BYTES)
        if not due or start != self._position or len(piece) != due:
            raise MessageError(
                f"expected {due} bytes of a message from {self._position}, got {len(piece)} "
                f"from {start}"
            )
        self._position += due
        if self._whole is None:
            return None
        self._whole += piece
        if self._position < self._length:
            return None
        whole, self._whole = self._whole, None
        return MESSAGE, whole


@dataclass(frozen=True)
class Hello:
    """Greeting that says who speaks: checked before any message.

    Attributes:
        instance: drawn at random by each process.
        nonce: drawn by a party for each line; the driver's ``proof`` is of it.
        proof: a driver's, that it has the key of a certificate of its name; see ``renewal.py``.
        start_s: how long a party's process took from its start to its first line.
    """

    instance: str
    protocol: str = PROTOCOL
    nonce: str = ""
    proof: str = ""
    start_s: float = 0.0

    def statement(self, driver: str, party: str) -> bytes:
        """Bytes that a driver signs on the connection that this party's hello started."""
        fields = ["dovetail-drives-1", driver, party, self.instance, self.nonce]
        return json.dumps(fields).encode()

    def encode(self) -> bytes:
        return b"".join(frames(HELLO, json.dumps(asdict(self)).encode()))

    @classmethod
    def decode(cls, kind: int, data: Data) -> Hello:
        """The hello that a stream starts with.

        Raises:
            MessageError: something else, or another protocol.
        """
        try:
            fields = json.loads(bytes(data)) if kind == HELLO else None
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise MessageError("a stream begins with a hello, and this one did not")
        if fields.get("protocol") != PROTOCOL:
            raise MessageError(
                f"expected protocol {PROTOCOL}, got {fields.get('protocol')!r}; install the same "
                "version of dovetail at every party"
            )
        start_s = fields.get("start_s", 0.0)
        return cls(
            str(fields.get("instance")),
            nonce=str(fields.get("nonce", "")),
            proof=str(fields.get("proof", "")),
            start_s=start_s if isinstance(start_s, float) else 0.0,
        )


def options(silence_s: float) -> list[tuple[str, int]]:
    """gRPC's options at either end, so that a silent peer counts as gone after so many seconds.

    A ping goes out after a third of them, and has the rest to come back.
    """
    ping_ms = max(1, round(silence_s * 1000 / 3))
    return [
        ("grpc.max_receive_message_length", CHUNK_BYTES + _FRAME.size),
        ("grpc.max_send_message_length", CHUNK_BYTES + _FRAME.size),
        ("grpc.keepalive_time_ms", ping_ms),
        ("grpc.keepalive_timeout_ms", 2 * ping_ms),
        # Without it gRPC waits a minute for the answer to a ping, whatever the line above says.
        ("grpc.http2.ping_timeout_ms", 2 * ping_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),  # no limit
        # A server takes frequent pings for an attack unless told otherwise.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 0),
        ("grpc.http2.max_ping_strikes", 0),
    ]
