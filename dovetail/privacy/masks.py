r"""Secure aggregation: masks that cancel in the sum, so that only the sum can be read.

Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: "Practical Secure
Aggregation for Privacy-Preserving Machine Learning", CCS 2017, section 4.0.1 (one mask for each
pair). Below are the second mask and the secret shares of 4.0.2, which spare a failed sum.

    y_u = x_u + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)   mod 2^64
    sum_u y_u = sum_u x_u                                       mod 2^64

    s_uv     X25519 of u's and v's keys of this attempt, through HKDF-SHA256 with all that u and v
             received about the sum: who takes part, with which key, and the caller's context
    PRG      the ChaCha20 key stream
    x_u      the values in fixed point: round(value * 2^32), so that the sum is exact

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

Secrets are split in parts (Shamir: "How to share a secret", Communications of the ACM 22(11),
1979). Any ``threshold`` of them give the secret back, and fewer reveal nothing of it.

    f(x) = secret + a_1 x + ... + a_{t-1} x^{t-1}   mod p,  a_i drawn from the system
    part of party number i = f(i)                   i = 1 ... n
    secret = f(0) = sum_i f(i) prod_{j != i} j / (j - i)    over any t parts  (Lagrange)

    p = 2^521 - 1, the smallest Mersenne prime above 2^256: keys and seeds have 256 bits

A part that its holder changed gives another secret. ``joined`` gets how to know the right one,
and finds it as long as ``threshold`` parts are right.

Sums that outlive a lost party (section 4.0.2 and figure 4) have second masks, and keys in parts
that others hold:

    y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)     mod 2^64

    trip 0  AdvertiseKeys      u gives two public keys, signed: of masks (s) and of a cipher (c)
    trip 1  ShareKeys          u splits its private key of masks and its seed b_u, t of n, and
                               encrypts each v's parts for v                             U1 -> U2
    trip 2  MaskedInput        u gives y_u                                               U2 -> U3
    trip 4  Unmasking          u gives its part of b_v of each v in U3, and its part of the key of
                               each v in U2 that is not: of each v one of the two, never both

    sum_{U3} x_u = sum_{U3} y_u - sum_{U3} PRG(b_u) -+ sum_{v in U2 \ U3} masks of v with U3

    Letters: P values of a vector; t threshold; n parties that gave keys.

What a lost party costs is its own values. If they come late, its seed b hides them still.

Departures from the paper: no trip 3, in which parties sign who is in U3. It keeps a driver from
telling some that v is lost and others that it is not, and so from both of v's secrets. Here
counting does: each party answers once in a round, and gives of each v one part. With n_c parties on
the driver's side it needs 2 (t - n_c) of the other n - n_c, and there are not so many while
2 t > n + n_c: for the default t above 2/3 of n, with n_c up to a third. The commitment to b_u is
ours: with it, and with the public key, a wrong part is found.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import combinations, islice

import numpy as np
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from dovetail.errors import MessageError, TrainingError
from dovetail.settings.privacy import QUORUM

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


PRIME = 2**521 - 1

#: Bytes of a part.
PART_BYTES = 66

#: Choices of ``threshold`` parts that are tried where some are wrong.
_MOST_TRIED = 5000


def split(secret: int, *, num: int, threshold: int) -> list[int]:
    """``num`` parts, of which ``threshold`` give the secret back; the first is f(1).

    Raises:
        ValueError: a secret outside the field, or a threshold that no number of parts meets.

    >>> parts = split(42, num=5, threshold=3)
    >>> join({2: parts[1], 4: parts[3], 5: parts[4]})
    42
    """
    if not 0 <= secret < PRIME:
        raise ValueError("a secret lies in the field, from 0 to 2^521 - 2")
    if not 1 <= threshold <= num:
        raise ValueError(f"a threshold lies between 1 and the {num} parts, got {threshold}")
    terms = [secret, *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_value(terms, x) for x in range(1, num + 1)]


def join(parts: Mapping[int, int]) -> int:
    """f(0) of the polynomial through these parts, number -> part.

    Raises:
        ValueError: no parts, or a number that is none of a party's.
    """
    if not parts or any(not 0 < x < PRIME for x in parts):
        raise ValueError("parts are numbered from 1, and there is at least one")
    total = 0
    for x, part in parts.items():
        above, below = 1, 1
        for other in parts:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        total = (total + part * above * pow(below, -1, PRIME)) % PRIME
    return total


def joined(parts: Mapping[int, int], threshold: int, is_right: Callable[[int], bool]) -> int | None:
    """The secret that ``is_right`` knows, of any ``threshold`` of these parts; None of no choice.

    With all parts right the first choice is it. Some wrong ones cost more choices, and nothing
    else while ``threshold`` right ones are there.
    """
    for chosen in islice(combinations(sorted(parts), threshold), _MOST_TRIED):
        secret = join({x: parts[x] for x in chosen})
        if is_right(secret):
            return secret
    return None


def _value(terms: list[int], x: int) -> int:
    """Horner's rule."""
    value = 0
    for term in reversed(terms):
        value = (value * x + term) % PRIME
    return value


#: Bytes of what a party shows of itself: two public keys and a commitment.
PUBLIC_BYTES = 3 * KEY_BYTES

#: Bytes of two parts for one party, encrypted.
SEALED_BYTES = 2 * PART_BYTES + 16


def threshold_of(num: int, share: float = QUORUM) -> int:
    """The fewest parties that are more than this share of ``num``.

    >>> [threshold_of(num) for num in (3, 4, 5, 6, 10)]
    [3, 3, 4, 5, 7]
    """
    return min(num, int(np.floor(share * num + 1e-9)) + 1)


class SumSecrets:
    """Keys and seed of one party for one attempt at one sum."""

    def __init__(self) -> None:
        self._masks = MaskKeys()
        self._cipher = X25519PrivateKey.generate()
        self._seed = secrets.token_bytes(32)
        self._key = self._masks.private_bytes()
        #: Public keys of masks and of the cipher, and what b_u is held to.
        self.public = b"".join(
            [
                self._masks.public,
                self._cipher.public_key().public_bytes_raw(),
                hashlib.sha256(b"dovetail seed 1\n" + self._seed).digest(),
            ]
        )
        self._is_split = False
        self._parts: dict[str, bytes] = {}

    def sealed(
        self, party: str, publics: Mapping[str, bytes], threshold: int, *, context: bytes
    ) -> list[bytes]:
        """Each party's parts of this one's key and seed, encrypted for it; in the order of names.

        Raises:
            MessageError: asked twice, another key given for its own, or one that is none.
        """
        if self._is_split:
            raise MessageError("keys are split once; ask for new ones to repeat the round")
        if publics.get(party) != self.public:
            raise MessageError(f"the keys of this sum do not hold the one {party!r} gave")
        self._is_split = True
        num = len(publics)
        parts = [
            split(int.from_bytes(secret, "big"), num=num, threshold=threshold)
            for secret in (self._key, self._seed)
        ]
        sealed = []
        for index, other in enumerate(sorted(publics)):
            plain = b"".join(each[index].to_bytes(PART_BYTES, "big") for each in parts)
            key = self._shared(party, other, publics[other], context)
            sealed.append(ChaCha20Poly1305(key).encrypt(bytes(12), plain, context))
        self._key = b""  # no longer known but in parts
        return sealed

    def mask(
        self,
        party: str,
        publics: Mapping[str, bytes],
        sealed: Mapping[str, bytes],
        fixed_P: Tensor,
        *,
        sealing: bytes,
        context: bytes,
    ) -> Tensor:
        """(P,) int64 under both masks.

        Args:
            party: who this is.
            publics: who takes part (U2, this party too) -> public keys.
            sealed: each of them -> the parts it encrypted for this party.
            fixed_P: (P,) int64, from ``to_fixed``.
            sealing, context: what parts and masks are bound to.

        Raises:
            MessageError: parts that were changed, or as of ``MaskKeys.mask``.
        """
        if set(sealed) != set(publics):
            raise MessageError("each party that takes part gives parts of its secrets to each")
        parts = {}
        for other, box in sealed.items():
            key = self._shared(other, party, publics[other], sealing)
            try:
                parts[other] = ChaCha20Poly1305(key).decrypt(bytes(12), box, sealing)
            except InvalidTag:
                raise MessageError(
                    f"what {other!r} gave {party!r} for this sum was changed on its way"
                ) from None
        masks = {name: public[:KEY_BYTES] for name, public in publics.items()}
        masked_P = self._masks.mask(party, masks, fixed_P, context=context)
        words = masked_P.numpy().view(np.uint64) + key_stream(self._seed, len(fixed_P))
        self._seed, self._parts = b"", parts
        return torch.from_numpy(words.view(np.int64))

    def opened(self, survivors: Collection[str]) -> dict[str, int]:
        """Party -> the part of its seed if its values came, else of its key; only once.

        Raises:
            MessageError: asked before a mask or twice, or of parties that do not take part.
        """
        parts, self._parts = self._parts, {}
        if not parts:
            raise MessageError("parts are given once; of one party both would tell its values")
        unknown = sorted(set(survivors) - set(parts))
        if unknown:
            raise MessageError(f"{unknown[0]!r} does not take part in this sum")
        return {
            other: int.from_bytes(
                plain[PART_BYTES:] if other in survivors else plain[:PART_BYTES], "big"
            )
            for other, plain in parts.items()
        }

    def _shared(self, sender: str, receiver: str, public: bytes, context: bytes) -> bytes:
        """The key of what one of the two encrypts for the other."""
        try:
            shared = self._cipher.exchange(
                X25519PublicKey.from_public_bytes(public[KEY_BYTES : 2 * KEY_BYTES])
            )
        except ValueError:
            raise MessageError(f"a key of {sender!r} or {receiver!r} is no X25519 key") from None
        info = b"dovetail parts 1\n" + b"\n".join([sender.encode(), receiver.encode(), context])
        return HKDF(SHA256(), length=32, salt=None, info=info).derive(shared)


def unmasked(
    masked: Mapping[str, Tensor],
    publics: Mapping[str, bytes],
    parts: Mapping[str, Mapping[str, int]],
    threshold: int,
    *,
    members: Sequence[str],
    contexts: Mapping[str, bytes],
) -> Tensor:
    """(P,) int64: the sum over those whose values came; what the driver computes.

    Args:
        masked: party -> (P,) int64 that it gave (U3).
        publics: party -> public keys, of those who split theirs (U2).
        parts: holder -> owner -> the part that the holder gave.
        threshold: parts that are needed.
        members: all who gave keys (U1), in the order that numbers the parts.
        contexts: party -> what it received of this sum, as it says.

    Raises:
        TrainingError: too few parts, or too many that are wrong; naming whose secret it was.
    """
    numbers = {name: index + 1 for index, name in enumerate(sorted(members))}
    length = len(next(iter(masked.values())))
    total = np.zeros(length, dtype=np.uint64)
    for values_P in masked.values():
        total += values_P.numpy().view(np.uint64)
    masks = {name: public[:KEY_BYTES] for name, public in publics.items()}
    for owner, public in publics.items():
        held = {
            numbers[name]: parts_of[owner] for name, parts_of in parts.items() if owner in parts_of
        }
        came = owner in masked
        secret = joined(held, threshold, _seed_is(public) if came else _key_is(public))
        if secret is None:
            raise TrainingError(
                f"{len(held)} parts do not give the {'seed' if came else 'key'} of {owner!r} back; "
                f"{threshold} right ones do"
            )
        raw = secret.to_bytes(32, "big")
        if came:
            total -= key_stream(raw, length)
            continue
        private = X25519PrivateKey.from_private_bytes(raw)
        for name in masked:  # as ``name`` added it, of what ``name`` was told
            total -= masks_between(private, name, owner, masks, contexts[name], length)
    return torch.from_numpy(total.view(np.int64))


def _seed_is(public: bytes) -> Callable[[int], bool]:
    """Whether a secret is the seed that a party is held to."""

    def is_right(secret: int) -> bool:
        if secret >= 2**256:
            return False
        seed = b"dovetail seed 1\n" + secret.to_bytes(32, "big")
        return hashlib.sha256(seed).digest() == public[2 * KEY_BYTES :]

    return is_right


def _key_is(public: bytes) -> Callable[[int], bool]:
    """Whether a secret is the key of a party's public one."""

    def is_right(secret: int) -> bool:
        if secret >= 2**256:
            return False
        key = X25519PrivateKey.from_private_bytes(secret.to_bytes(32, "big"))
        return key.public_key().public_bytes_raw() == public[:KEY_BYTES]

    return is_right
