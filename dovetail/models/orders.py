"""Scores of an order of rows, of many draws of them at once; scikit-learn takes 10 ms for each.

Letters: N rows, B draws of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def areas(
    second_N: np.ndarray, is_second_N: np.ndarray
) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """Area under the ROC curve and average precision, of (B, N) how often rows count."""
    order = np.argsort(-second_N, kind="stable")
    starts = np.flatnonzero(np.diff(second_N[order], prepend=np.inf))  # of rows of one value
    positive = is_second_N[order].astype(np.float64)

    def measure(weights_BN: np.ndarray) -> dict[str, np.ndarray]:
        ordered = weights_BN[:, order]
        true = np.add.reduceat(ordered * positive, starts, axis=1)
        every = np.add.reduceat(ordered, starts, axis=1)
        false = every - true
        hits, alarms = true.cumsum(axis=1), false.cumsum(axis=1)
        below = alarms[:, -1:] - alarms + false / 2
        return {
            "auc": (true * below).sum(axis=1) / (hits[:, -1] * alarms[:, -1]),
            "average_precision": (true * (hits / np.maximum(hits + alarms, 1))).sum(axis=1)
            / hits[:, -1],
        }

    return measure
