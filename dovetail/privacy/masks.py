"""Secure aggregation: masks that cancel in the sum, so that only the sum can be read.

Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: "Practical Secure
Aggregation for Privacy-Preserving Machine Learning", CCS 2017, section 4.0.1 (one mask for each
pair). ``dropout.py`` adds the second mask and the secret shares of 4.0.2, which spare a failed sum.

    y_u = x_u + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)   mod 2^64
    sum_u y_u = sum_u x_u                                       mod 2^64

    s_uv     X25519 of u's and v's keys of this attempt, through HKDF-SHA256 with all that u and v
             received about the sum: who takes part, with which key, and the caller's context
    PRG      the ChaCha20 key stream
    x_u      the values in fixed point: round(value * 2^32), so that the sum is exact

    Letters: P values of a vector.

Who learns what:
    The driver: public keys, and the sum over all who took part; with n parties, whoever colludes
    with n - 2 of them learns the sum of the other two, not each one's.
    A party: the others' public keys, and the sum if the driver hands it on. Of two parties each
    can subtract its own share: with two, only the driver is kept from reading.

What is assumed: that the public keys are the parties' own. They travel through the driver, and one
that puts its own in their place reads everything: ``sums.py`` has them signed. A party cannot know
whether another's share is honest, and nor can the driver: masked values cannot be checked one by
one.

A party lost after keys were exchanged leaves masks that do not cancel, and with these alone that
sum is lost. A key pair serves one attempt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from dovetail.errors import MessageError, TrainingError

#: Bits behind the binary point: a step of 2.3e-10, finer than float32 for values above 0.004.
FRACTION_BITS = 32

#: Values of all parties together stay below this, far from the wrap at 2^31.
LIMIT = 2.0**30

#: Bytes of a public key.
KEY_BYTES = 32


def to_fixed(values_P: Tensor, num_parties: int) -> Tensor:
    """(P,) int64 fixed point of values whose sum over the parties cannot overflow.

    Raises:
        TrainingError: values that are not finite, or too large.

    >>> to_fixed(torch.tensor([0.5, -1.0]), 2).tolist()
    [2147483648, -4294967296]
    """
    largest = LIMIT / num_parties
    wide = values_P.double()
    if not bool((wide.abs() < largest).all()):  # also where one is NaN
        raise TrainingError(
            f"its weights must be finite and below {largest:.3g} to be summed in secret; lower "
            "the learning_rate"
        )
    return (wide * 2.0**FRACTION_BITS).round().to(torch.int64)


def from_fixed(total_P: Tensor) -> Tensor:
    """(P,) float32 values of a fixed-point sum."""
    return (total_P.double() / 2.0**FRACTION_BITS).float()


def total(shares: Iterable[Tensor]) -> Tensor:
    """Sum modulo 2^64 of (P,) int64 shares, masked or not."""
    words = [share.numpy().view(np.uint64) for share in shares]
    return torch.from_numpy(np.sum(words, axis=0, dtype=np.uint64).view(np.int64))


class MaskKeys:
    """Key pair of one party for one attempt at one sum."""

    def __init__(self) -> None:
        self._private: X25519PrivateKey | None = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()

    def mask(
        self, party: str, publics: Mapping[str, bytes], fixed_P: Tensor, *, context: bytes = b""
    ) -> Tensor:
        """The values with this party's masks on them; the private key is then forgotten.

        Args:
            party: who this is.
            publics: everyone who takes part, this party too -> public key.
            fixed_P: (P,) int64, from ``to_fixed``.
            context: what else all must agree on; masks of parties that do not, do not cancel.

        Raises:
            MessageError: this party is alone, is not among them, another's key is given for its
                own, a key that is none, or a second mask from one key pair.
        """
        if self._private is None:
            raise MessageError("a key pair masks once; ask for new keys to repeat the round")
        if publics.get(party) != self.public:
            raise MessageError(f"the keys of this sum do not hold the one {party!r} gave")
        if len(publics) < 2:
            raise MessageError("a sum over one party is its own weights; it needs two or more")
        private, self._private = self._private, None
        masked = fixed_P.numpy().view(np.uint64).copy()
        for other in publics:
            if other != party:
                masked += masks_between(private, party, other, publics, context, len(masked))
        return torch.from_numpy(masked.view(np.int64))

    def private_bytes(self) -> bytes:
        """The private key, to be split among others; before it masks.

        Raises:
            MessageError: it was forgotten.
        """
        if self._private is None:
            raise MessageError("a key pair masks once; ask for new keys to repeat the round")
        return self._private.private_bytes_raw()


def masks_between(
    private: X25519PrivateKey,
    party: str,
    other: str,
    publics: Mapping[str, bytes],
    context: bytes,
    length: int,
) -> np.ndarray:
    """(length,) uint64 that ``party`` adds to its values for ``other``.

    Args:
        private: the key of either of the two.
        publics, context: as of ``MaskKeys.mask``, of the one that adds it.

    Raises:
        MessageError: a key that is none.
    """
    public_key = private.public_key().public_bytes_raw()
    theirs = other if publics[party] == public_key else party
    agreed = [context.hex(), sorted((name, key.hex()) for name, key in publics.items())]
    info = b"dovetail masks 2" + hashlib.sha256(json.dumps(agreed).encode()).digest()
    pair = b"".join(sorted((publics[party], publics[other])))
    stream = _stream(private, theirs, publics[theirs], info + pair, length)
    return stream if party < other else -stream


def key_stream(seed: bytes, length: int) -> np.ndarray:
    """(length,) uint64 that whoever has the 32 bytes can compute: ChaCha20's."""
    # The key is used once, so a zero nonce is fine.
    cipher = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * length)), dtype=np.dtype("<u8"))


def _stream(
    private: X25519PrivateKey, other: str, public: bytes, info: bytes, length: int
) -> np.ndarray:
    """(length,) uint64 that only the two can compute whose keys these are."""
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise MessageError(f"the key of party {other!r} is no X25519 public key") from None
    seed = HKDF(SHA256(), length=32, salt=None, info=info).derive(secret)
    return key_stream(seed, length)
