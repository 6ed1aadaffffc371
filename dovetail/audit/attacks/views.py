"""Views that attackers make of numbers: one scale, directions, side by side."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dovetail.methods.facets.views import scaled


def directions(x_NF: np.ndarray) -> np.ndarray:
    """Each row at length 1; rows of zeros stay zeros."""
    return np.asarray(x_NF / np.linalg.norm(x_NF, axis=1, keepdims=True).clip(1e-12))


def message_views(views: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Views of what was seen of each row, whole and as a direction."""
    shown: dict[str, np.ndarray] = {}
    for name, x in views.items():
        if name == "first":  # of networks that were hardly trained; for columns only
            continue
        shown[f"{name} as sent"] = np.asarray(x, dtype=np.float64)
        shown[f"{name}, direction"] = directions(x)
    return shown


def local_views(x_NF: np.ndarray | None) -> dict[str, np.ndarray]:
    """Views of what the attacker has by itself."""
    if x_NF is None:
        return {}
    return {"own columns": scaled(x_NF), "own columns, direction": directions(scaled(x_NF))}
