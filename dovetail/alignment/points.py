"""Points of many ids, and which of two sides' values are the same, a part at a time.

Nothing here is larger in memory than a part of ``many_rows.BUCKET`` rows: what there is of each id
(its point, its index, its result) lies in files without a name (``data/stored.py``). Parts are
those of a shared prefix of what both sides have multiplied, which is as good as random and known to
the initiator alone. No message is of a part, so the sizes of parts reveal nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail.alignment.curve import POINT_BYTES, Workers
from dovetail.alignment.ids import normalise, refuse_repeated
from dovetail.alignment.proofs import VALUE_BYTES
from dovetail.data.many_rows import Buckets, bits_of, in_buckets, parts
from dovetail.data.stored import Pile, zeros
from dovetail.errors import AlignmentError, MessageError
from dovetail.settings.alignment import IdAs

#: Ids that are bytes at a time.
_AT_ONCE = 1 << 17


def hashed_ids(
    ids: Sequence[Any] | np.ndarray, *, party: str, id_as: IdAs, workers: Workers
) -> np.ndarray:
    """(N, 32) the points of ids, in row order.

    Raises:
        AlignmentError: ids that are empty, repeated after normalisation, or of another type.
    """
    if len(ids) <= _AT_ONCE or (isinstance(ids, np.ndarray) and ids.ndim != 1):
        few = normalise(ids, party=party, id_as=id_as)
        return workers.hash(few.values)
    points = Pile(POINT_BYTES, np.uint8, party)
    for start in range(0, len(ids), _AT_ONCE):
        try:
            some = normalise(ids[start : start + _AT_ONCE], party=party, id_as=id_as)
        except AlignmentError:
            normalise(ids, party=party, id_as=id_as)  # says it of all of them
            raise
        points.append(workers.hash(some.values))
    points_N32 = points.rows()
    refuse_repeated(party, num_repeated(points_N32, party), len(ids), id_as)
    return points_N32


def hashed_rows(values: np.ndarray, rows_K: np.ndarray, party: str, workers: Workers) -> np.ndarray:
    """(K, 32) the points of these rows' bytes."""
    points = Pile(POINT_BYTES, np.uint8, party)
    for start in range(0, len(rows_K), _AT_ONCE):
        points.append(workers.hash(values[rows_K[start : start + _AT_ONCE]].tolist()))
    return points.rows()


def random_points(num: int, party: str, workers: Workers) -> np.ndarray:
    """(num, 32) points of nobody's id, to be written over."""
    points_N32 = zeros((num, POINT_BYTES), np.uint8, party)
    for start in range(0, num, _AT_ONCE):
        size = min(_AT_ONCE, num - start)
        nobodys = [os.urandom(POINT_BYTES) for _ in range(size)]
        points_N32[start : start + size] = workers.hash(nobodys)
    return points_N32


def matches(
    local_N16: np.ndarray, theirs_M16: np.ndarray, party: str = ""
) -> tuple[np.ndarray, np.ndarray]:
    """(K,) places in the first and (K,) in the second of the values that both have.

    Args:
        local_N16, theirs_M16: values, as good as random.
        party: in whose folder large files lie.

    Raises:
        MessageError: a value that occurs twice on one side.
    """
    pairs, num = _compared(local_N16, theirs_M16, party)
    if num:
        raise MessageError(f"{num} points are repeated; each id must be sent once")
    both_K2 = pairs.rows()
    return both_K2[:, 0], both_K2[:, 1]


def num_repeated(points_N32: np.ndarray, party: str = "") -> int:
    """How many points are not the first of their kind."""
    firsts = Pile(VALUE_BYTES, np.uint8, party)
    for part in parts(len(points_N32)):
        firsts.append(points_N32[part, :VALUE_BYTES])
    return _compared(firsts.rows(), np.empty((0, VALUE_BYTES), np.uint8), party)[1]


def _compared(local_N16: np.ndarray, theirs_M16: np.ndarray, party: str) -> tuple[Pile, int]:
    """(K, 2) places of values that both have, and how many are repeated on a side."""
    bits = bits_of(len(local_N16) + len(theirs_M16))
    sides = [_by_prefix(side, bits, party) for side in (local_N16, theirs_M16)]
    pairs, num = Pile(2, np.int64, party), 0
    for (rows, values), (their_rows, their_values) in zip(*sides, strict=True):
        words = np.concatenate([values, their_values]).view(np.uint64)  # (own + theirs, 2)
        order = np.lexsort((words[:, 1], words[:, 0]))  # stable: the first side's comes first
        same = (words[order[1:]] == words[order[:-1]]).all(axis=1)
        first, second = order[:-1][same], order[1:][same]
        num += int(((first >= len(rows)) | (second < len(rows))).sum())
        if not num:
            pairs.append(np.stack([rows[first], their_rows[second - len(rows)]], axis=1))
    return pairs, num


def _by_prefix(values_N16: np.ndarray, bits: int, party: str) -> Buckets:
    shift = np.uint64(64 - bits)

    def prefix(values: np.ndarray) -> np.ndarray:
        if not bits:  # a shift by all 64 bits is undefined
            return np.zeros(len(values), dtype=np.int64)
        return np.ascontiguousarray(values).view(np.uint64)[:, 0] >> shift

    return in_buckets(values_N16, prefix, bits, party)
