"""Probabilities that mean what they say, and sets and intervals that hold what they promise.

    temperature   p = softmax(outputs / T)                     Guo et al. 2017, Sec. 4.2
    isotonic      p of the second of two classes is a rising   Zadrozny and Elkan 2002
                  function of what the model says
    conformal     classes with p >= 1 - q, or value +- q       Vovk et al. 2005; Angelopoulos and
                  with q the ceil((n + 1) coverage)-th least   Bates 2021, Sec. 1
                  score of n rows

All are fitted on labelled rows that the model was not trained on, and kept with it: what it says
afterwards is calibrated wherever it is used. The rows of the conformal scores are others than
those of the calibration, so that the promise holds for new rows that are drawn as they were.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dovetail.data import Classification, Regression, Task
from dovetail.errors import DataError, ModelError
from dovetail.models.metrics import calibration_error
from dovetail.settings.models import Calibrate

Kind = Literal["temperature", "isotonic"]

#: What a model keeps them under, in ``about``.
CALIBRATION, CONFORMAL = "calibration", "conformal"

#: Rows of each half; fewer say too little.
LEAST_ROWS = 20
#: A probability of 0 or 1 is never said.
_EDGE = 1e-4
#: Conformal scores that are kept.
_MOST_SCORES = 5000


@dataclass(frozen=True, eq=False)
class Calibration:
    """How outputs become those that are shown.

    Attributes:
        kind: which.
        temperature: T.
        x, y: of an isotonic one, knots of the rising function: probability said, and meant.
    """

    kind: Kind
    temperature: float = 1.0
    x: np.ndarray | None = None
    y: np.ndarray | None = None

    def applied(self, outputs_NC: Tensor) -> Tensor:
        """(N, C) calibrated logits."""
        if self.kind == "temperature":
            return outputs_NC / self.temperature
        assert self.x is not None
        assert self.y is not None
        outputs_N = outputs_NC.double().softmax(dim=1)[:, 1].numpy()
        calibrated_N = torch.from_numpy(np.interp(outputs_N, self.x, self.y))
        score_N = (calibrated_N / (1 - calibrated_N)).log().float()
        return torch.stack([torch.zeros_like(score_N), score_N], dim=1)


def calibration_of(about: Mapping[str, Any]) -> Calibration | None:
    """The calibration that a model was saved with; None where it has none.

    Raises:
        ModelError: one that cannot be.
    """
    stored = about.get(CALIBRATION)
    if stored is None:
        return None
    try:
        if stored["kind"] == "temperature":
            temperature = float(stored["temperature"])
            if 0 < temperature < math.inf:
                return Calibration("temperature", temperature)
        elif stored["kind"] == "isotonic":
            x, y = (np.array(stored[name], dtype=float) for name in ("x", "y"))
            if (
                len(x) == len(y) > 1
                and (np.diff(x) > 0).all()
                and (np.diff(y) >= 0).all()
                and 0 < y[0] <= y[-1] < 1
            ):
                return Calibration("isotonic", x=x, y=y)
    except (KeyError, TypeError, ValueError):
        pass
    raise ModelError(f"its calibration cannot be read ({stored!r:.100}); calibrate it again")


def radius_of(about: Mapping[str, Any], coverage: float, *, party: str) -> float:
    """q: see the top of this file.

    Raises:
        ModelError: a model without conformal scores, or with too few for this coverage.
        DataError: a coverage that is none.
    """
    if not 0 < coverage < 1:
        raise DataError(f"a coverage lies between 0 and 1, such as 0.9; got {coverage:g}")
    stored = about.get(CONFORMAL)
    if not isinstance(stored, Mapping):
        raise ModelError(
            f"the model of party {party!r} has no conformal scores; dovetail calibrate MODEL DATA "
            "fits them on labelled rows that it was not trained on"
        )
    rows, scores = int(stored["rows"]), np.array(stored["scores"], dtype=float)
    rank = math.ceil((rows + 1) * coverage)  # among all rows
    if rank > rows:
        raise ModelError(
            f"{rows} rows are too few for a coverage of {coverage:g}; calibrate the model of party "
            f"{party!r} on {math.ceil(coverage / (1 - coverage))} rows or more"
        )
    # Where not all scores are kept, the next one above.
    return float(scores[min(math.ceil(rank / rows * len(scores)), len(scores)) - 1])


def fit(
    task: Task,
    outputs_NC: Tensor,
    labels_N: Tensor,
    *,
    kind: Calibrate | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Calibration that a model is to keep in ``about``, fitted on rows that it was not trained on.

    Args:
        task: what is predicted.
        outputs_NC: of these rows, not calibrated.
        labels_N: theirs.
        kind: of the calibration; None: temperature. A regression has none, nor has "conformal".
        seed: which half of the rows each is fitted on.

    Raises:
        DataError: too few rows, or a kind that does not fit the task.
    """
    if len(labels_N) < 2 * LEAST_ROWS:
        raise DataError(
            f"calibrating needs {2 * LEAST_ROWS} labelled rows or more, got {len(labels_N)}"
        )
    if isinstance(task, Classification) and (unseen := int((labels_N < 0).sum())):
        raise DataError(
            f"{unseen} of {len(labels_N)} labelled rows are of classes that the model does not "
            f"know (it knows {list(task.classes)[:20]}); leave them out"
        )
    order = np.random.default_rng(seed).permutation(len(labels_N))
    first, second = (torch.from_numpy(half) for half in np.array_split(order, 2))
    if not isinstance(task, Classification):
        if not isinstance(task, Regression):
            raise DataError(
                "calibrating is for classes and numbers; what the model says of other labels is "
                "checked by dovetail card MODEL DATA"
            )
        if kind not in (None, "conformal"):
            raise DataError(
                f"{kind} is for classes, and the label is a number, which has intervals only "
                "(conformal)"
            )
        values = outputs_NC[:, 0].double()
        scores = ((values - labels_N.double()).abs() * task.scale).numpy()
        return {CONFORMAL: _kept(scores)}  # nothing is calibrated, so all rows may judge
    if kind == "conformal":
        predicted = outputs_NC.double().softmax(dim=1)
        scores = (1 - predicted.gather(1, labels_N[:, None].long())[:, 0]).numpy()
        return {CONFORMAL: _kept(scores)}
    fitted = _fitted(kind or "temperature", task, outputs_NC[first], labels_N[first])
    calibration = calibration_of({CALIBRATION: fitted})
    assert calibration is not None
    predicted = calibration.applied(outputs_NC[second]).double().softmax(dim=1)
    truth = labels_N[second]
    before = outputs_NC[second].double().softmax(dim=1)
    fitted["judged_on"] = len(truth)
    for name, probabilities in (("before", before), ("after", predicted)):
        fitted[name] = {
            "log_loss": float(_log_loss(probabilities, truth)),
            "ece": calibration_error(probabilities.numpy(), truth.numpy()),
        }
    scores = (1 - predicted.gather(1, truth[:, None].long())[:, 0]).numpy()
    return {CALIBRATION: fitted, CONFORMAL: _kept(scores)}


def _fitted(
    kind: Kind, task: Classification, outputs_NC: Tensor, labels_N: Tensor
) -> dict[str, Any]:
    report: dict[str, Any] = {"kind": kind, "rows": len(labels_N)}
    if kind == "temperature":
        grid = np.exp(np.linspace(math.log(0.1), math.log(10), 201))
        wide = outputs_NC.double()
        losses = [float(_log_loss((wide / t).softmax(dim=1), labels_N)) for t in grid]
        return {**report, "temperature": float(grid[int(np.argmin(losses))])}
    if task.num_outputs != 2:
        raise DataError(
            f"isotonic calibration is for two classes, and the label has {task.num_outputs}; use "
            "temperature"
        )
    from sklearn.isotonic import IsotonicRegression

    probabilities = outputs_NC.double().softmax(dim=1)[:, 1].numpy()
    isotonic = IsotonicRegression(y_min=_EDGE, y_max=1 - _EDGE).fit(probabilities, labels_N.numpy())
    x, y = isotonic.X_thresholds_, isotonic.y_thresholds_
    x, indices = np.unique(x, return_index=True)
    if len(x) < 2:
        raise DataError("isotonic calibration needs rows of both classes; use temperature")
    return {**report, "x": x.tolist(), "y": np.maximum.accumulate(y[indices]).tolist()}


def _log_loss(probabilities_NC: Tensor, labels_N: Tensor) -> Tensor:
    return -probabilities_NC.gather(1, labels_N[:, None].long()).clamp(min=1e-12).log().mean()


def _kept(scores: np.ndarray) -> dict[str, Any]:
    scores = np.sort(scores)
    rows = len(scores)
    if rows > _MOST_SCORES:
        at = np.ceil(np.arange(1, _MOST_SCORES + 1) / _MOST_SCORES * rows).astype(int) - 1
        scores = scores[at]
    return {"rows": rows, "scores": scores.tolist()}
