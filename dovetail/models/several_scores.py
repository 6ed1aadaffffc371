"""Scores of several labels: of each, their mean, and of the order that a row's labels get.

    auc_labels, average_precision_labels    means over the labels, of the rows that have each
    lrap, coverage_error, ranking_loss      of rows that have all labels, as scikit-learn has them
    r2_labels, rmse_labels                  means over the labels; RMSE in standard deviations

Letters: N rows, L labels, B draws of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from dovetail.data import MultiLabel, MultiTarget
from dovetail.models.orders import areas, average_precision, log_losses, roc_auc

Several = MultiLabel | MultiTarget

#: Scores of each label by itself: score -> its mean over the labels.
_MEANS: Mapping[str, str] = {
    "auc": "auc_labels",
    "average_precision": "average_precision_labels",
    "r2": "r2_labels",
}


def headline(task: Several) -> str:
    """The score that tables show first."""
    return "auc_labels" if isinstance(task, MultiLabel) else "r2_labels"


def of_each(task: Several, outputs: Tensor, labels: Tensor) -> dict[str, dict[str, float]]:
    """Label -> its scores on the rows that have it; of an order where these are not all alike.

    Returns:
        Of yes and no: "rows", "positive" (share), "auc", "average_precision", "log_loss", "brier";
        of numbers: "rows", "rmse" and "mae" in the label's own unit, "r2".
    """
    said_NL = task.values(outputs.double().numpy())
    truth_NL = labels.double().numpy()
    if isinstance(task, MultiTarget):
        truth_NL = task.values(truth_NL)
    scores: dict[str, dict[str, float]] = {}
    for name, said_N, truth_N in zip(task.labels, said_NL.T, truth_NL.T, strict=True):
        known = ~np.isnan(truth_N)
        said, truth = said_N[known], truth_N[known]
        own = scores[name] = {"rows": float(len(truth))}
        if not len(truth):
            continue
        if isinstance(task, MultiTarget):
            error = said - truth
            own |= {
                "rmse": float(np.sqrt(np.square(error).mean())),
                "mae": float(np.abs(error).mean()),
            }
            if truth.std() > 0:
                own["r2"] = float(1 - np.square(error).mean() / truth.var())
            continue
        own |= {
            "positive": float(truth.mean()),
            "log_loss": float(log_losses(np.where(truth == 1, said, 1 - said)).mean()),
            "brier": float(np.square(said - truth).mean()),
        }
        if 0 < truth.mean() < 1:
            own["auc"] = roc_auc(said, truth == 1)
            own["average_precision"] = average_precision(said, truth == 1)
    return scores


def score(task: Several, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Means over the labels that have the score."""
    each = of_each(task, outputs, labels)
    scores = {
        mean: float(np.mean(values))
        for name, mean in _MEANS.items()
        if (values := [own[name] for own in each.values() if name in own])
    }
    if isinstance(task, MultiTarget):
        errors = [
            own["rmse"] / scale
            for own, scale in zip(each.values(), task.scales, strict=True)
            if "rmse" in own
        ]
        scores["rmse_labels"] = float(np.mean(errors))
    return scores


def all_scores(task: Several, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Those, and of yes and no how each row's labels are ordered, of rows that have all labels."""
    from sklearn import metrics

    scores = score(task, outputs, labels)
    if isinstance(task, MultiTarget):
        return scores
    whole = (~labels.isnan()).all(dim=1).numpy()
    if not whole.any():
        return scores
    truth_NL = labels.numpy()[whole].astype(int)
    said_NL = outputs.double().numpy()[whole]
    return scores | {
        "lrap": float(metrics.label_ranking_average_precision_score(truth_NL, said_NL)),
        "coverage_error": float(metrics.coverage_error(truth_NL, said_NL)),
        "ranking_loss": float(metrics.label_ranking_loss(truth_NL, said_NL)),
    }


def details(task: Several, outputs: Tensor, labels: Tensor) -> dict[str, Any]:
    """Scores of each label by itself."""
    return {"labels": of_each(task, outputs, labels)}


def measure(
    task: Several, outputs: Tensor, labels: Tensor
) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """Of (B, N) weights of the rows: the score that tables show first -> (B,)."""
    said_LN, truth_LN = outputs.double().numpy().T, labels.double().numpy().T
    name = headline(task)
    single = name.removesuffix("_labels")
    measures = []
    for said_N, truth_N in zip(said_LN, truth_LN, strict=True):
        known = ~np.isnan(truth_N)
        said, truth = said_N[known], truth_N[known]
        one = areas(said, truth == 1) if isinstance(task, MultiLabel) else _explained(said, truth)
        measures.append((known, one))

    def measured(weights_BN: np.ndarray) -> dict[str, np.ndarray]:
        with np.errstate(invalid="ignore", divide="ignore"):
            each = [one(weights_BN[:, known])[single] for known, one in measures if known.any()]
            values_LB = np.stack(each)
            there = np.isfinite(values_LB)
            return {name: np.where(there, values_LB, 0).sum(axis=0) / there.sum(axis=0)}

    return measured


def _explained(said: np.ndarray, truth: np.ndarray) -> Callable[..., dict[str, np.ndarray]]:
    def measured(weights_BN: np.ndarray) -> dict[str, np.ndarray]:
        totals = weights_BN.sum(axis=1)
        variance = weights_BN @ truth**2 / totals - (weights_BN @ truth / totals) ** 2
        return {"r2": 1 - weights_BN @ (said - truth) ** 2 / totals / variance}

    return measured
