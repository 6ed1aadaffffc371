"""Sums in secret that outlive a lost party: second masks, and keys in parts that others hold.

Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: "Practical Secure
Aggregation for Privacy-Preserving Machine Learning", CCS 2017, section 4.0.2 and figure 4.

    y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)     mod 2^64

    trip 0  AdvertiseKeys      u gives two public keys, signed: of masks (s) and of a cipher (c)
    trip 1  ShareKeys          u splits its private key of masks and its seed b_u, t of n, and
                               encrypts each v's parts for v                             U1 -> U2
    trip 2  MaskedInput        u gives y_u                                               U2 -> U3
    trip 4  Unmasking          u gives its part of b_v of each v in U3, and its part of the key of
                               each v in U2 that is not: of each v one of the two, never both

    sum_{U3} x_u = sum_{U3} y_u - sum_{U3} PRG(b_u) -+ sum_{v in U2 \\ U3} masks of v with U3

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
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from dovetail.errors import MessageError, TrainingError
from dovetail.privacy.masks import KEY_BYTES, MaskKeys, key_stream, masks_between
from dovetail.privacy.shamir import PART_BYTES, joined, split
from dovetail.settings.privacy import QUORUM

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
