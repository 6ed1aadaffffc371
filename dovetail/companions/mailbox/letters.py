"""A letter: a message's bytes, sealed to the receiver's key and signed with the sender's.

    dovetail letter 1\\n
    length, label     JSON in the clear: sender, receiver, conversation, number, attempt, kind, when
    length, proof     the sender's certificate, and its signature of label and sealed bytes
    sealed            HPKE (RFC 9180), base mode: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256,
                      ChaCha20-Poly1305; its info is the label, so that it opens under no other

Sealing and signing are ``cryptography``'s. Whoever carries a letter sees the label, the
certificates and the length: who writes to whom, when, how much. It sees no run, no type of message
and no content, and changes nothing unnoticed: what is cut off is *torn*, all else is *altered*.

A driver's process is one *conversation*, named by when it began; in it requests to one party are
numbered from 1, one at a time; a number that the driver gave up is not used again. A request whose
answer does not come goes out again under its number, as another *attempt*: so the same attempt
twice is somebody's repetition.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from dovetail.errors import MessageError
from dovetail.network.messages import Data
from dovetail.network.renewal import MAX_PROOF_BYTES, Certified, check_proof

SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)

#: What sealing adds: an X25519 key, and ChaCha20-Poly1305's tag.
SEAL_BYTES = 32 + 16

#: The most that a letter has beside its message.
MAX_EXTRA_BYTES = MAX_PROOF_BYTES + 4096

_MAGIC = b"dovetail letter 1\n"
_LENGTH = struct.Struct(">I")
_NAME = re.compile(
    r"(?P<sender>.+)\.(?P<conversation>\d{15}-[0-9a-f]{8})"
    r"\.(?P<number>\d{6,12})\.(?P<attempt>\d{1,6})\.(?P<kind>[qa])"
)


class LetterError(MessageError):
    """A file that is no letter as it was sent."""


class TornError(LetterError):
    """A letter that is there in part."""


@dataclass(frozen=True)
class LetterLabel:
    """Label on a letter.

    Attributes:
        sender, receiver: parties' names.
        conversation: the driver's process; later ones sort behind earlier ones.
        number: from 1, of this conversation between these two.
        attempt: from 1, of this number.
        kind: "q": a request, "a": what answers it.
        sent: seconds since the epoch, by the sender's clock.
        key: X25519 key, in hexadecimal: of a request, what its answer is to be sealed to; of an
            answer, what the next request of this conversation is to be sealed to.
        process: of an answer: drawn at random by each process of the party.
        answered: of a request: the highest number that was answered before it.
        num_bytes: length of what is sealed.
        poll_s: of a request: seconds from one look of the driver to the next.
    """

    sender: str
    receiver: str
    conversation: str
    number: int
    attempt: int
    kind: Literal["q", "a"]
    sent: float
    key: str = ""
    process: str = ""
    answered: int = 0
    num_bytes: int = 0
    poll_s: float = 0.0

    @property
    def name(self) -> str:
        """Name of the file in the receiver's folder."""
        return f"{self.sender}.{self.conversation}.{self.number:06d}.{self.attempt}.{self.kind}"

    @property
    def place(self) -> str:
        """Where it lies."""
        return f"mail/{self.receiver}/{self.name}"

    def __str__(self) -> str:
        what = "request" if self.kind == "q" else "answer"
        return f"{what} {self.number} of {self.sender!r}"


@dataclass(frozen=True, order=True)
class Named:
    """Facts that a file's name gives of the letter in it, before that is read."""

    conversation: str
    number: int
    attempt: int
    sender: str
    kind: str
    name: str


def read_name(name: str) -> Named | None:
    """Facts in a file's name; None if it is not a letter's."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    parts = found.groupdict()
    numbers = int(parts["number"]), int(parts["attempt"])
    return Named(parts["conversation"], *numbers, parts["sender"], parts["kind"], name)


def seal(label: LetterLabel, body: Data, to: X25519PublicKey, identity: Certified) -> bytes:
    """The letter's bytes."""
    fields = {**asdict(label), "num_bytes": len(body) + SEAL_BYTES}
    head = json.dumps(fields, sort_keys=True).encode()
    sealed = SUITE.encrypt(bytes(body), to, info=_MAGIC + head)
    proof = identity.sign(_statement(head, sealed))
    parts = (_MAGIC, _LENGTH.pack(len(head)), head, _LENGTH.pack(len(proof)), proof, sealed)
    return b"".join(parts)


@dataclass(frozen=True)
class Letter:
    """Letter as its sender has signed it.

    Attributes:
        label: what stands on it.
        certificate: the sender's.
    """

    label: LetterLabel
    certificate: x509.Certificate
    _head: bytes
    _sealed: memoryview

    def open(self, keys: Sequence[X25519PrivateKey]) -> bytes:
        """The message.

        Args:
            keys: the receiver's; a key that was replaced may still have been written to.

        Raises:
            LetterError: it is sealed to none of them.
        """
        for key in keys:
            try:
                return SUITE.decrypt(self._sealed, key, info=_MAGIC + self._head)
            except InvalidTag:
                continue
        raise LetterError(
            f"{self.label} is sealed to another key than {self.label.receiver!r} has now"
        )


def read_letter(data: bytes, name: str, receiver: str, identity: Certified) -> Letter:
    """The letter in a file, once its signature is checked; it is still sealed.

    Args:
        data: the file's bytes.
        name: the file's.
        receiver: in whose folder it lies.
        identity: whose certificates count.

    Raises:
        TornError: it is there in part.
        LetterError: it is not what its sender has signed, or belongs elsewhere.
    """
    if data[: len(_MAGIC)] != _MAGIC[: len(data)]:
        raise LetterError("it is no letter")
    head, index = _part(data, len(_MAGIC), 4096)
    proof, index = _part(data, index, MAX_PROOF_BYTES)
    sealed = memoryview(data)[index:]  # of a large letter no second copy
    try:
        label = LetterLabel(**json.loads(head))
        if label.name != name or label.receiver != receiver:
            raise ValueError("it lies under another name than it was given")
        num_bytes = int(label.num_bytes)
    except (ValueError, TypeError, RecursionError) as error:
        raise LetterError(f"its label is not as it was written ({error})") from None
    if len(sealed) < num_bytes:
        raise TornError(f"{len(sealed)} of {num_bytes} bytes are there")
    certificate = check_proof(
        label.sender,
        _statement(head, sealed),
        proof,
        identity.authorities,
        at=datetime.now(UTC),
        revocations=identity.revocations,
    )
    return Letter(label, certificate, head, sealed)


def _part(data: bytes, index: int, most: int) -> tuple[bytes, int]:
    """The next part, and where it ends."""
    start = index + _LENGTH.size
    if len(data) < start:
        raise TornError(f"{len(data)} bytes are there, and its label does not end with them")
    (length,) = _LENGTH.unpack_from(data, index)
    if length > most:
        raise LetterError(f"a part of {length} bytes; at most {most} are read")
    if len(data) < start + length:
        raise TornError(f"{len(data)} bytes are there, and its label does not end with them")
    return data[start : start + length], start + length


def _statement(head: bytes, sealed: Data) -> bytes:
    """Bytes that are signed."""
    return _MAGIC + head + hashlib.sha256(sealed).digest()
