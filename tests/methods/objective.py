"""What HyFEM's matching and averaging make smaller."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.models.matching import Assignment, Classifier, matched_slice


def objective(
    classifiers: Sequence[Classifier],
    assignments: Sequence[Assignment],
    sizes: Sequence[int],
    weights: Sequence[float],
    server: Sequence[np.ndarray],
) -> float:
    """(11): sum_m p_m/2 |w_m - Pi_m w_0|^2."""
    total = 0.0
    for classifier, assignment, weight in zip(classifiers, assignments, weights, strict=True):
        slices = matched_slice(server, classifier.blocks, assignment, sizes)
        for layer, other in zip(classifier.layers, slices, strict=True):
            total += 0.5 * weight * float(np.square(layer - other).sum())
    return total
