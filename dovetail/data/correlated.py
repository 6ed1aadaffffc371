"""Splits of a table's columns by how much common and other columns correlate (CHFL, V-B4).

The paper sums the correlation coefficients of each common column with each other one, of every way
to choose the common columns. Their number is that of all subsets: where it is above ``MAX_WAYS``,
so many are drawn at random, and the largest and smallest sums are then bettered by swaps of one
column for another until no swap helps. Absolute values are summed, which the paper leaves open: a
coefficient of -1 ties two columns as much as one of 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Literal

import numpy as np

from dovetail.data.tables import Table
from dovetail.errors import DataError

Correlation = Literal["maximum", "median", "minimum"]

#: So many ways to choose common columns are looked at one by one.
MAX_WAYS = 20_000


def correlations(table: Table) -> np.ndarray:
    """(C, C) absolute correlation coefficients of number columns; 0 of one that is constant.

    Raises:
        DataError: a column that is no number.
    """
    columns = []
    for name in table.names:
        column = table.column(name)
        try:
            values = column.values.astype(np.float64)
        except (TypeError, ValueError):
            raise DataError(
                f"{table.description}: column {name!r} is no number, and has no correlation; "
                "leave partition.correlation out"
            ) from None
        present = values[~column.missing]
        mean = present.mean() if len(present) else 0.0
        columns.append(np.where(column.missing, mean, values) - mean)
    centred = np.stack(columns)
    norms = np.linalg.norm(centred, axis=1)
    unit = np.divide(centred, norms[:, None], out=np.zeros_like(centred), where=norms[:, None] > 0)
    strengths: np.ndarray = np.abs(unit @ unit.T)
    np.fill_diagonal(strengths, 0.0)
    return strengths


def between(correlations_CC: np.ndarray, common: Sequence[int]) -> float:
    """The sum over pairs of a common column and another."""
    inside = np.zeros(len(correlations_CC))
    inside[list(common)] = 1.0
    return float(inside @ correlations_CC @ (1.0 - inside))


def common_columns(
    table: Table, num_common: int, wanted: Correlation, *, seed: int
) -> tuple[str, ...]:
    """The common columns whose sum is the largest, the smallest or in the middle.

    Args:
        table: training rows.
        num_common: how many are common.
        wanted: which.
        seed: of the draws, where not every way is looked at.
    """
    correlations_CC = correlations(table)
    num = len(table.names)
    if math.comb(num, num_common) <= MAX_WAYS:
        ways = [list(way) for way in combinations(range(num), num_common)]
    else:
        rng = np.random.default_rng([seed, 2])
        ways = [sorted(rng.permutation(num)[:num_common].tolist()) for _ in range(MAX_WAYS)]
    sums = np.array([between(correlations_CC, way) for way in ways])
    order = np.argsort(sums, kind="stable")
    if wanted == "median":
        best = ways[order[len(order) // 2]]
    else:
        sign = 1.0 if wanted == "maximum" else -1.0
        best = _swapped(correlations_CC, ways[order[-1 if wanted == "maximum" else 0]], sign)
    return tuple(table.names[index] for index in sorted(best))


def _swapped(correlations_CC: np.ndarray, common: Sequence[int], sign: float) -> list[int]:
    """The common columns after the best swaps of two columns, until none helps."""
    best = list(common)
    while True:
        inside = np.zeros(len(correlations_CC), dtype=bool)
        inside[best] = True
        to_inside = correlations_CC @ inside
        to_outside = correlations_CC @ ~inside
        members, other = np.flatnonzero(inside), np.flatnonzero(~inside)
        # Moving i out and j in: i's ties inside and j's outside now cross, the others do no more.
        out = (to_inside - to_outside)[members][:, None]
        into = (to_outside - to_inside)[other][None, :]
        gains = sign * (out + into + 2 * correlations_CC[np.ix_(members, other)])
        index = int(gains.argmax())
        if gains.flat[index] <= 1e-9:
            return best
        i, j = np.unravel_index(index, gains.shape)
        best = [each for each in best if each != members[i]] + [int(other[j])]
