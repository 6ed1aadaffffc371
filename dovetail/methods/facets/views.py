"""Columns on one scale, as attackers look at them."""

from __future__ import annotations

import numpy as np


def scaled(x_NF: np.ndarray) -> np.ndarray:
    """Each column at mean 0 and deviation 1; constant ones at 0."""
    x = x_NF - x_NF.mean(axis=0)
    deviation = x.std(axis=0)
    return np.asarray(x / np.where(deviation > 1e-12, deviation, 1.0), dtype=np.float64)


def whitened(x_NF: np.ndarray, *, width: int = 64) -> np.ndarray:
    """Principal components, each at deviation 1: what is small and exact counts as much as any."""
    left, lengths, _ = np.linalg.svd(x_NF - x_NF.mean(axis=0), full_matrices=False)
    rank = max(1, int((lengths > 1e-5 * lengths[0]).sum()))
    return np.asarray(left[:, : min(rank, width)] * np.sqrt(len(x_NF)), dtype=np.float64)
