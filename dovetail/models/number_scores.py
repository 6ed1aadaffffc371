"""Scores of counts, amounts and quantiles: means over rows of what each row costs.

    poisson_deviance   2 (y log(y / p) - y + p)                 counts
    gamma_deviance     2 (log(p / y) + y / p - 1)               amounts
    pinball            mean over q of (q - [y < p_q]) (y - p_q) quantiles, in the label's own unit
    coverage           whether y lies between the lowest and the highest quantile

Letters: N rows, B draws of them, S outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from dovetail.data import Amounts, Counts, Quantiles

Numbers = Counts | Amounts | Quantiles


def headline(task: Numbers) -> str:
    """The score that tables show first."""
    if isinstance(task, Quantiles):
        return "pinball"
    return "gamma_deviance" if isinstance(task, Amounts) else "poisson_deviance"


def _each(task: Numbers, outputs: Tensor, labels: Tensor) -> dict[str, np.ndarray]:
    """Score -> (N,) of each row."""
    said_NS = task.values(outputs.double().numpy())
    if isinstance(task, Quantiles):
        truth_N = labels.double().numpy() * task.scale + task.mean
        left_NS = truth_N[:, None] - said_NS
        costs_NS = left_NS * (np.array(task.shares) - (left_NS < 0))
        inside_N = (said_NS[:, 0] <= truth_N) & (truth_N <= said_NS[:, -1])
        return {"pinball": costs_NS.mean(axis=1), "coverage": inside_N.astype(float)}
    if task.exposure is not None:
        labels, exposure_N = labels[:, 0] * task.exposed, labels[:, 1].double().numpy()
        said_NS = said_NS * exposure_N[:, None] * task.exposed
    truth_N, said_N = labels.double().numpy() * task.unit, said_NS[:, 0]
    if isinstance(task, Amounts):
        deviance_N = 2 * (np.log(said_N / truth_N) + truth_N / said_N - 1)
    else:
        logs_N = np.log(np.where(truth_N > 0, truth_N / said_N, 1.0))
        deviance_N = 2 * (truth_N * logs_N - truth_N + said_N)
    return {headline(task): deviance_N, "mae": np.abs(truth_N - said_N)}


def score(task: Numbers, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Means over the rows."""
    return {name: float(own.mean()) for name, own in _each(task, outputs, labels).items()}


def all_scores(task: Numbers, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Scores of ``score``: there are no others."""
    return score(task, outputs, labels)


def details(task: Numbers, outputs: Tensor, labels: Tensor) -> dict[str, Any]:
    """Nothing that a report draws."""
    return {}


def measure(
    task: Numbers, outputs: Tensor, labels: Tensor
) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """Of (B, N) weights of the rows: score -> (B,)."""
    each = _each(task, outputs, labels)
    return lambda w: {name: w @ own / w.sum(axis=1) for name, own in each.items()}
