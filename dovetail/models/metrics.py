"""How good a model's outputs are, and the mean and spread of that over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from dovetail.data import Classification, Task
from dovetail.errors import DataError


def score(task: Task, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Scores of a model's outputs on labelled rows.

    Args:
        task: what was predicted.
        outputs: (N, C) logits or (N, 1) standardised values.
        labels: (N,) class indices or standardised values, none missing.

    Returns:
        accuracy (0..1) and log_loss (nats), and for two classes auc (0..1; absent where the rows
        have one class only); or rmse, mae (in the label's own unit) and r2 for a regression.

    Raises:
        DataError: no row.
    """
    # Imported where it is used: scikit-learn takes as long to import as torch.
    from sklearn import metrics

    if not len(labels):
        raise DataError("there is no test row to score on")
    if isinstance(task, Classification):
        probabilities = outputs.double().softmax(dim=1).numpy()
        truth = labels.numpy()
        scores = {
            "accuracy": float((probabilities.argmax(axis=1) == truth).mean()),
            "log_loss": float(
                metrics.log_loss(truth, probabilities, labels=range(task.num_outputs))
            ),
        }
        if task.num_outputs == 2 and len(np.unique(truth)) == 2:
            scores["auc"] = float(metrics.roc_auc_score(truth, probabilities[:, 1]))
        return scores
    predicted = outputs[:, 0].double().numpy() * task.scale + task.mean
    wanted = labels.double().numpy() * task.scale + task.mean
    return {
        "rmse": float(metrics.root_mean_squared_error(wanted, predicted)),
        "mae": float(metrics.mean_absolute_error(wanted, predicted)),
        "r2": float(metrics.r2_score(wanted, predicted)),
    }


def headline(task: Task) -> str:
    """The score that tables show first."""
    if isinstance(task, Classification):
        return "auc" if task.num_outputs == 2 else "accuracy"
    return "rmse"


def mean_and_spread(scores: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Score name -> its mean and sample standard deviation ("std", 0 for one seed) over seeds."""
    return {
        name: {
            "mean": statistics.fmean(values),
            "std": statistics.stdev(values) if len(values) > 1 else 0.0,
        }
        for name in scores[0]
        if len(values := [each[name] for each in scores if name in each]) == len(scores)
    }
