"""Proofs that a point that was sent is a secret times the hash of an id.

Who claims that its point U is an id that both have says U = a H(y), with a secret a that it sent
all of its points with. The receiver of that knows y, and U, and asks:

    c H(y)     -->    a c H(y), to be equal to    c U        for a fresh secret c in each question

An honest party multiplies by a as it did before, without knowing which claim a question is about.
One that made U without the id y knows no a with U = a H(y). It may know b H(y), b U and such
products of other ids, but each question has a c of its own, and so c U from c H(y) is a problem of
computational Diffie-Hellman. That is so, too, if U is a multiple of *another* id that both have:
then values a b H that are equal on both sides can be had for exchanged indices, but no proofs.

Questions are about claims drawn at random: all of up to ``CHECKED`` (in
``settings/alignment.py``), and of more so many or every 50th, whichever is more. Of K claims with m
wrong ones, all pass with a probability of at most (1 - m/K)^Q, Q the number of questions.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from dovetail.alignment.curve import POINT_BYTES, Workers

#: Of many claims, one in so many is checked.
ONE_IN = 50

#: Bytes of a point that are compared.
VALUE_BYTES = 16


def num_questions(num_claims: int, checked: int) -> int:
    """How many of the claims are checked.

    >>> num_questions(100, checked=400), num_questions(50_000, checked=400)
    (100, 1000)
    """
    return min(num_claims, max(checked, num_claims // ONE_IN))


@dataclass(frozen=True, eq=False)
class Questions:
    """Questions that were asked, and what is right.

    Attributes:
        points_Q32: what is sent, c H(y).
        right_Q16: what must come back.
    """

    points_Q32: np.ndarray
    right_Q16: np.ndarray

    @classmethod
    def about(cls, local_Q32: np.ndarray, theirs_Q32: np.ndarray, workers: Workers) -> Questions:
        """Questions about claims that these points of theirs are these ids' hashes, row by row."""
        secrets = np.frombuffer(os.urandom(local_Q32.size), dtype=np.uint8)
        secrets_Q32 = secrets.reshape(-1, POINT_BYTES)
        right_Q32 = workers.multiply_each(secrets_Q32, theirs_Q32)
        return cls(
            workers.multiply_each(secrets_Q32, local_Q32),
            np.ascontiguousarray(right_Q32[:, :VALUE_BYTES]),
        )

    def __len__(self) -> int:
        return len(self.points_Q32)

    def num_wrong(self, values_B16: np.ndarray, batch: slice) -> int:
        """How many of the answers to a batch of them are not right."""
        return int((values_B16 != self.right_Q16[batch]).any(axis=1).sum())
