"""Mutual information where one place has all columns."""

from __future__ import annotations

import numpy as np

from dovetail.errors import DataError
from dovetail.methods.selection import ross


def pooled(x_NF: np.ndarray, labels_N: np.ndarray, neighbours: int = 3) -> float:
    """I in nats where one place has all columns: the baseline, by trees instead of messages.

    Args:
        x_NF: (N, F) rows.
        labels_N: (N,) classes.
        neighbours: k.

    Raises:
        DataError: no class has two rows.
    """
    from scipy.spatial import cKDTree

    classes, index, counts = np.unique(labels_N, return_inverse=True, return_counts=True)
    kept = counts[index] > 1
    if not kept.any():
        raise DataError("no class has two rows; mutual information needs neighbours")
    x, index = np.asarray(x_NF, dtype=np.float64)[kept], index[kept]
    radius, same = np.empty(len(x)), np.empty(len(x), dtype=np.int64)
    for label in range(len(classes)):
        rows = np.flatnonzero(index == label)
        if len(rows):
            tree, nearest = cKDTree(x[rows]), min(neighbours, len(rows) - 1) + 1  # itself is one
            radius[rows] = tree.query(x[rows], [nearest])[0][:, 0] * (1 + 1e-10)  # a rounded root
            same[rows] = tree.query_ball_point(x[rows], radius[rows], return_length=True) - 1
    nearer = cKDTree(x).query_ball_point(x, radius, return_length=True) - 1
    return ross(len(x), counts[index], same, nearer)
