"""Curve25519 by u-coordinates: hashing to it, multiplying on it, and processes to do so.

    v^2 = f(u) = u (u^2 + A u + 1) over p = 2^255 - 19,  A = 486662               RFC 7748, 4.1

A point is 32 bytes: its u, little-endian. P and -P have the same u, so "point" means the pair.

**Hashing** is r = SHA-512(domain, id) mod p, then the map Elligator 2 (RFC 9380, 6.7.1):

    w = -A / (1 + 2 r^2)
    u = w if f(w) is a square, else -A - w

u is then on the curve, never on its twist. That matters: multiplication keeps a point on the curve
or on the twist, so a blinded twist point would reveal one bit of its id's hash. Nobody knows the
discrete logarithm of u; a hash times a base point would allow a dictionary attack. The map reaches
half of the curve's u, each from r, -r, 1/(2r) and -1/(2r). A multiplication by 8 follows (below),
after which no point is more than twice as likely as under a uniform hash.

**Multiplying** is X25519: u(P) -> u(k P), constant in time. A scalar is clamped: k = 8 m with m in
[2^251, 2^252).
    - The factor 8 is the cofactor: what comes out lies in the subgroup of prime order
      l = 2^252 + d, 2^124 < d < 2^125, whatever small-order part went in.
    - m and l - m give the same u, and l - m runs over (d, 2^251 + d]. So up to sign the clamped
      scalars are all non-zero scalars, each as likely as any other, but for a share below 2^-125:
      clamping costs nothing.
    - 0 comes out only if the point's order divides 8 (or 4, on the twist); it is the mark of
      failure here, and the caller refuses it.
    - A dishonest party's twist point is multiplied as well: the twist's order is 4 times a prime,
      so it learns nothing of k (RFC 7748, 7).

The hash's time depends on the id (gmpy2's Jacobi symbol); whoever answers messages hashes before
the first, so no other party can time it.

This file imports neither torch nor what imports it: worker processes start with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha512
from itertools import accumulate, pairwise
from multiprocessing import get_context
from typing import TYPE_CHECKING, cast

import gmpy2
import numpy as np

from dovetail.cluster import current

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

POINT_BYTES = 32

_DOMAIN = b"dovetail private set intersection 1: id to Curve25519\0"
_P = gmpy2.mpz(2**255 - 19)
_A = 486662
#: What stands before 32 bytes to make them a public key (RFC 8410, 4). Read this way, a key takes
#: 1.3 us; by X25519PublicKey.from_public_bytes, 2.0 us.
_SPKI = bytes.fromhex("302a300506032b656e032100")

_CHUNK = 2048  # points a worker takes at a time: about 70 ms

_AT_ONCE = 64 * _CHUNK  # points that are on the way to workers and back


def to_curve(field_elements: Sequence[int]) -> list[int]:
    """u of each r: Elligator 2. About 2 us each.

    1 + 2 r^2 is never 0, since -1/2 is no square; nor is w, so f(w) != 0.
    """
    denominators = [1 + 2 * r * r % _P for r in map(gmpy2.mpz, field_elements)]
    us = []
    for inverse in _inverses(denominators):
        w = -_A * inverse % _P
        on_curve = gmpy2.jacobi(w * (w * (w + _A) + 1), _P) == 1
        us.append(int(w if on_curve else (-_A - w) % _P))
    return us


def _inverses(values: list[gmpy2.mpz]) -> list[gmpy2.mpz]:
    """1/x mod p of each: one inversion and three products each (Montgomery's trick)."""
    if not values:
        return []
    products = list(accumulate(values, lambda a, b: a * b % _P))
    rest = gmpy2.invert(products[-1], _P)
    inverses = []
    for index in range(len(values) - 1, 0, -1):
        inverses.append(rest * products[index - 1] % _P)
        rest = rest * values[index] % _P
    inverses.append(rest)
    return inverses[::-1]


def _hash(packed: bytes) -> bytes:
    """Points of packed ids, one after another."""
    hashes = [sha512(_DOMAIN + item).digest() for item in _unpack(packed)]
    us = to_curve([int.from_bytes(digest, "little") for digest in hashes])
    return b"".join([u.to_bytes(POINT_BYTES, "little") for u in us])


def _multiply(secret_and_points: bytes) -> bytes:
    """k times each point; zeros for a point of low order."""
    # Seven MB, for who aligns alone.
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    load = cast("Callable[[bytes], X25519PublicKey]", load_der_public_key)
    exchange = X25519PrivateKey.from_private_bytes(secret_and_points[:POINT_BYTES]).exchange
    starts = range(POINT_BYTES, len(secret_and_points), POINT_BYTES)
    keys = [load(_SPKI + secret_and_points[at : at + POINT_BYTES]) for at in starts]
    try:
        return b"".join(map(exchange, keys))
    except ValueError:  # OpenSSL refuses the result 0: find out which
        return b"".join([_multiply_one(exchange, key) for key in keys])


def _multiply_each(secrets_and_points: bytes) -> bytes:
    """k times P for each pair of k and P."""
    pairs = range(0, len(secrets_and_points), 2 * POINT_BYTES)
    return b"".join([_multiply(secrets_and_points[at : at + 2 * POINT_BYTES]) for at in pairs])


def _multiply_one(exchange: Callable[[X25519PublicKey], bytes], key: X25519PublicKey) -> bytes:
    try:
        return exchange(key)
    except ValueError:
        return bytes(POINT_BYTES)


def _pack(items: Sequence[bytes]) -> bytes:
    """Count, lengths (uint32), then the items."""
    lengths = np.fromiter(map(len, items), dtype="<u4", count=len(items))
    return len(items).to_bytes(4, "little") + lengths.tobytes() + b"".join(items)


def _unpack(packed: bytes) -> list[bytes]:
    count = int.from_bytes(packed[:4], "little")
    lengths = np.frombuffer(packed, dtype="<u4", offset=4, count=count).tolist()
    ends = accumulate(lengths, initial=4 + 4 * count)
    return [packed[start:end] for start, end in pairwise(ends)]


class Workers:
    """Does the curve's arithmetic, on one core or in several processes.

    Processes start with the first work that is worth sharing, and end with ``close`` or the
    ``with`` block. They receive bytes and return bytes. As always with processes that are spawned,
    a script that uses them guards its top level by ``if __name__ == "__main__":``. A party with a
    cluster of its own ([party] compute) has it done there: secrets and points stay on its machines.

    Args:
        num: how many processes; 1 works in this one and starts none.
    """

    def __init__(self, num: int = 1) -> None:
        if num < 1:
            raise ValueError(f"expected at least 1 worker, got {num}")
        self._tasks = current()
        self.num = num if self._tasks.here else self._tasks.slots
        self._pool: ProcessPoolExecutor | None = None

    def hash(self, ids: Sequence[bytes]) -> np.ndarray:
        """(N, 32) uint8, the point of each id."""
        points_N32 = np.empty((len(ids), POINT_BYTES), dtype=np.uint8)
        for start in range(0, len(ids), _AT_ONCE):  # each packed anew: never all of them
            some = ids[start : start + _AT_ONCE]
            chunks = [_pack(some[at : at + _CHUNK]) for at in range(0, len(some), _CHUNK)]
            points_N32[start : start + len(some)] = self._points(_hash, chunks)
        return points_N32

    def multiply(self, secret: bytes, points_N32: np.ndarray) -> np.ndarray:
        """(N, 32) uint8, the secret times each point; zeros for a point of low order."""
        assert len(secret) == POINT_BYTES
        size = max(1, min(_CHUNK, -(-len(points_N32) // self.num)))
        chunks = [
            secret + points_N32[at : at + size].tobytes() for at in range(0, len(points_N32), size)
        ]
        return self._points(_multiply, chunks)

    def multiply_each(self, secrets_N32: np.ndarray, points_N32: np.ndarray) -> np.ndarray:
        """(N, 32) uint8, each point times a secret of its own; twice the time of ``multiply``."""
        pairs = np.concatenate([secrets_N32, points_N32], axis=1)
        assert pairs.shape[1] == 2 * POINT_BYTES
        size = max(1, min(_CHUNK, -(-len(pairs) // self.num)))
        chunks = [pairs[at : at + size].tobytes() for at in range(0, len(pairs), size)]
        return self._points(_multiply_each, chunks)

    def _points(self, work: Callable[[bytes], bytes], chunks: list[bytes]) -> np.ndarray:
        worth_sharing = sum(map(len, chunks)) > _CHUNK * POINT_BYTES
        done: Iterator[bytes] = map(work, chunks)
        if worth_sharing and not self._tasks.here:
            done = self._tasks.map(work, chunks)
        elif worth_sharing and self.num > 1:
            done = self._started().map(work, chunks)
        return np.frombuffer(bytearray().join(done), dtype=np.uint8).reshape(-1, POINT_BYTES)

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # Not fork: torch and gRPC have threads.
            self._pool = ProcessPoolExecutor(self.num, mp_context=get_context("spawn"))
        return self._pool

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
