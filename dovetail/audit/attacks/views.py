"""What attackers do with numbers before they look at them: one scale, directions, side by side."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def scaled(x_NF: np.ndarray) -> np.ndarray:
    """Each column at mean 0 and deviation 1; constant ones at 0."""
    x = x_NF - x_NF.mean(axis=0)
    deviation = x.std(axis=0)
    return np.asarray(x / np.where(deviation > 1e-12, deviation, 1.0), dtype=np.float64)


def directions(x_NF: np.ndarray) -> np.ndarray:
    """Each row at length 1; rows of zeros stay zeros."""
    return np.asarray(x_NF / np.linalg.norm(x_NF, axis=1, keepdims=True).clip(1e-12))


def whitened(x_NF: np.ndarray, *, width: int = 64) -> np.ndarray:
    """Principal components, each at deviation 1: what is small and exact counts as much as any."""
    left, lengths, _ = np.linalg.svd(x_NF - x_NF.mean(axis=0), full_matrices=False)
    rank = max(1, int((lengths > 1e-5 * lengths[0]).sum()))
    return np.asarray(left[:, : min(rank, width)] * np.sqrt(len(x_NF)), dtype=np.float64)


def message_views(views: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What was seen of each row, whole and as a direction."""
    shown: dict[str, np.ndarray] = {}
    for name, x in views.items():
        if name == "first":  # of networks that were hardly trained; for columns only
            continue
        shown[f"{name} as sent"] = np.asarray(x, dtype=np.float64)
        shown[f"{name}, direction"] = directions(x)
    return shown


def local_views(x_NF: np.ndarray | None) -> dict[str, np.ndarray]:
    """What the attacker has by itself."""
    if x_NF is None:
        return {}
    return {"own columns": scaled(x_NF), "own columns, direction": directions(scaled(x_NF))}
