"""Orders and picks of more rows than memory is to hold at once.

What is random in all rows is done a bucket at a time: rows are put into buckets by a few bits of a
number, in one pass that writes each bucket from its beginning to its end, and a bucket fits into
memory. Of few rows there is one bucket, and nothing but numpy's own functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dovetail.data.stored import in_file, let_go, read_rows, zeros

#: Rows of a bucket, about; and of a pass at a time.
BUCKET = 1 << 20


@dataclass(frozen=True, eq=False)
class Buckets:
    """Rows by bucket.

    Attributes:
        rows_N: their numbers, those of a bucket together and rising.
        values_N: what was carried along, in the same order.
        starts: where each bucket starts, and where the last ends.
    """

    rows_N: np.ndarray
    values_N: np.ndarray
    starts: np.ndarray

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(rows, values) of one bucket after another."""
        for start, stop in zip(self.starts[:-1], self.starts[1:], strict=True):
            yield self.rows_N[start:stop], self.values_N[start:stop]
            let_go()


def num_repeated(values_N: np.ndarray) -> int:
    """How many values are not the first of their kind; ``np.unique`` keeps 60 bytes of each."""
    rising_N = np.sort(values_N)
    return int((rising_N[1:] == rising_N[:-1]).sum())


def absent(num: int, party: str = "") -> np.ndarray:
    """(num,) int64, -1 each: rows of samples that a party does not have."""
    rows = zeros((num,), np.int64, party)
    for part in parts(num):
        rows[part] = -1
    return rows


def _batch() -> int:
    """Rows that are picked or put between two looks, where they lie near each other."""
    return max(1, BUCKET >> 4)


def bits_of(num: int) -> int:
    """So many bits make buckets of about ``BUCKET`` of so many rows."""
    return int(num // BUCKET).bit_length()


def parts(num: int) -> Iterator[slice]:
    """So many rows, a part after another."""
    for start in range(0, num, BUCKET):
        yield slice(start, min(start + BUCKET, num))
        let_go()


def in_buckets(
    values_N: np.ndarray, bucket_of: Callable[[np.ndarray], np.ndarray], bits: int, party: str = ""
) -> Buckets:
    """These values by bucket.

    Args:
        values_N: (N, ...) what is carried along.
        bucket_of: values -> (B,) whole numbers below 2^bits.
        bits: log2 of how many buckets there are.
        party: in whose folder large files lie.
    """
    num = len(values_N)
    counts = np.zeros(2**bits, dtype=np.int64)
    for part in parts(num):
        counts += np.bincount(bucket_of(values_N[part]), minlength=2**bits)
    starts = np.concatenate([[0], np.cumsum(counts)])
    rows_N = zeros((num,), np.int64, party)
    carried_N = zeros(values_N.shape, values_N.dtype, party)
    at = starts[:-1].copy()
    for part in parts(num):
        values = values_N[part]
        buckets = bucket_of(values).astype(np.int64)
        order = np.argsort(buckets, kind="stable")
        here = np.bincount(buckets, minlength=2**bits)
        first = np.cumsum(here) - here
        places = np.arange(len(order)) + (at - first)[buckets[order]]
        rows_N[places] = order + part.start
        carried_N[places] = values[order]
        at += here
    return Buckets(rows_N, carried_N, starts)


def random_order(num: int, party: str = "") -> np.ndarray:
    """(num,) int64, a uniformly random permutation from the system's secure random numbers.

    Of many rows each is put into a bucket at random, and each bucket into a random order.
    """
    bits = bits_of(num)
    if not bits:
        return _shuffled(num)
    firsts_N = zeros((num,), np.uint16, party)
    for part in parts(num):
        drawn = np.frombuffer(os.urandom(2 * (part.stop - part.start)), dtype=np.uint16)
        firsts_N[part] = drawn >> (16 - bits)
    made = in_buckets(firsts_N, lambda firsts: firsts, bits, party)
    for rows, _ in made:
        rows[:] = rows[_shuffled(len(rows))]
    return made.rows_N


def _shuffled(num: int) -> np.ndarray:
    while True:
        keys = np.frombuffer(os.urandom(8 * num), dtype=np.uint64)
        order = np.argsort(keys, kind="stable")
        if (np.diff(keys[order]) != 0).all():  # a tie would favour the order before
            return order


def inverse(order_N: np.ndarray, party: str = "") -> np.ndarray:
    """(N,) int64 where each number is in a permutation."""
    num = len(order_N)
    bits = bits_of(num)
    inverse_N = zeros((num,), np.int64, party)
    if not bits:
        inverse_N[order_N] = np.arange(num)
        return inverse_N
    shift = _shift(num, bits)
    made = in_buckets(order_N, lambda numbers: numbers >> shift, bits, party)
    for bucket, (places, numbers) in enumerate(made):
        here = np.empty(len(numbers), dtype=np.int64)
        here[numbers - (bucket << shift)] = places
        inverse_N[bucket << shift : (bucket << shift) + len(here)] = here
    return inverse_N


def picked(values_N: np.ndarray, rows_K: np.ndarray, party: str = "") -> np.ndarray:
    """(K, ...) the values of these rows."""
    if not in_file(values_N):
        in_memory_K: np.ndarray = values_N[rows_K]
        return in_memory_K
    if len(rows_K) <= _batch():
        return read_rows(values_N, rows_K)
    bits = max(bits_of(len(rows_K)), bits_of(len(values_N)))
    shift = _shift(len(values_N), bits)
    picked_K = zeros((len(rows_K), *values_N.shape[1:]), values_N.dtype, party)
    for places, rows in in_buckets(rows_K, lambda rows: rows >> shift, bits, party):
        for start in range(0, len(rows), _batch()):
            part = slice(start, start + (_batch()))
            picked_K[places[part]] = values_N[rows[part]]
            let_go()
    return picked_K


def put(values_N: np.ndarray, rows_K: np.ndarray, values_K: np.ndarray | int) -> None:
    """Write values at these rows."""
    for start in range(0, len(rows_K), _batch()):
        part = slice(start, start + (_batch()))
        values_N[rows_K[part]] = values_K if isinstance(values_K, int) else values_K[part]
        let_go()


def rising(numbers_K: np.ndarray, party: str = "") -> np.ndarray:
    """(K,) the order in which these different numbers, of 0 or more, rise."""
    bits = bits_of(len(numbers_K))
    if not bits:
        return np.argsort(numbers_K)
    shift = _shift(int(numbers_K.max()) + 1, bits)
    made = in_buckets(numbers_K, lambda numbers: numbers >> shift, bits, party)
    for places, numbers in made:
        places[:] = places[np.argsort(numbers)]
    return made.rows_N


def repeats(numbers_K: np.ndarray, below: int, party: str = "") -> bool:
    """Whether one of these numbers below a bound comes twice."""
    seen = zeros((below,), np.bool_, party)
    put(seen, numbers_K, 1)
    return sum(int(np.count_nonzero(seen[part])) for part in parts(below)) < len(numbers_K)


def _shift(below: int, bits: int) -> int:
    """Number of bits that are left of a number below a bound, shifted by so much."""
    return max(0, (below - 1).bit_length() - bits)
