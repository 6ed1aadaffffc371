"""Scores of probabilities: of each row's, and of the order of rows, all or many draws at once.

scikit-learn gives the same; it takes as long to import as torch, and 10 ms to check each draw.

Letters: N rows, B draws of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

#: No probability counts as nearer to 0 or 1, as in scikit-learn.
_EPS = float(np.finfo(np.float64).eps)


def log_losses(probability_N: np.ndarray) -> np.ndarray:
    """(N,) nats, by the probability that was given to what each row is."""
    losses: np.ndarray = -np.log(np.clip(probability_N, _EPS, 1 - _EPS))
    return losses


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


def _counts(second_N: np.ndarray, is_second_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows at or above each value that occurs, the highest first: false ones, true ones."""
    order = np.argsort(second_N, kind="stable")[::-1]
    ends = np.append(np.flatnonzero(np.diff(second_N[order])), len(order) - 1)
    true = is_second_N[order].cumsum()[ends].astype(np.float64)
    return 1 + ends - true, true


def roc(second_N: np.ndarray, is_second_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """False and true positives, as shares, of every corner of the curve."""
    false, true = _counts(second_N, is_second_N)
    if len(false) > 2:
        turns = (np.diff(false, 2) != 0) | (np.diff(true, 2) != 0)
        corners = np.concatenate([[True], turns, [True]])
        false, true = false[corners], true[corners]
    return np.append(0.0, false) / false[-1], np.append(0.0, true) / true[-1]


def roc_auc(second_N: np.ndarray, is_second_N: np.ndarray) -> float:
    """Area under the ROC curve; both classes must occur.

    >>> roc_auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))
    0.75
    """
    false, true = roc(second_N, is_second_N)
    return float((np.diff(false) * (true[1:] + true[:-1]) / 2).sum())


def precision_recall(
    second_N: np.ndarray, is_second_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Precision and recall at each value that occurs, the highest first; before it 1 and 0."""
    false, true = _counts(second_N, is_second_N)
    return np.append(1.0, true / (true + false)), np.append(0.0, true / true[-1])


def average_precision(second_N: np.ndarray, is_second_N: np.ndarray) -> float:
    """Precision, averaged over the steps of recall; a row of the second class must occur."""
    precision, recall = precision_recall(second_N, is_second_N)
    return float((np.diff(recall) * precision[1:]).sum())
