"""How much each class counts in training, and from which probability on one is predicted.

Both answer what mistakes cost: weights change what is learned, a threshold what is made of it. A
threshold is chosen on rows that nothing was trained on, and kept with the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.data import Classification, Regression, Task
from dovetail.errors import ConfigError, DataError
from dovetail.files import did_you_mean
from dovetail.models.calibration import calibration_of, fit
from dovetail.models.losses import loss_of, targets_of
from dovetail.settings.models import (
    Calibrate,
    ClassWeights,
    CostGoal,
    F1Goal,
    RecallGoal,
    Threshold,
    ThresholdSettings,
)

_BY_NAME: Mapping[str, CostGoal | F1Goal] = {"f1": F1Goal(), "cost": CostGoal(goal="cost")}


@dataclass(frozen=True)
class Decision:
    """From which probability on the second of two classes is predicted.

    Attributes:
        threshold: 0 to 1.
        goal: what it was chosen for, JSON-ready.
        rows: it was chosen on.
        value: the F1, the cost a row or the recall there.
    """

    threshold: float
    goal: dict[str, Any]
    rows: int
    value: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self, second: object) -> str:
        """Description of the decision, in words."""
        what = {
            "f1": "the best F1",
            "cost": f"the least cost ({self.goal.get('false_positive', 1):g} for a false "
            f"{second!r}, {self.goal.get('false_negative', 1):g} for a missed one)",
            "recall": f"most recall at a precision of {self.goal.get('precision', 0):g}",
        }[str(self.goal["goal"])]
        return (
            f"{second!r} is said from a probability of {self.threshold:.3g} on: {what} on "
            f"{self.rows} validation rows"
        )


@dataclass(frozen=True)
class FittedThreshold:
    """Threshold that was made of validation rows, and is kept with the model.

    Attributes:
        decision: the threshold, by what the model says before it is calibrated.
        fitted: its calibration and conformal scores, as ``calibration.fit`` gives them.
    """

    decision: Decision | None = None
    fitted: Mapping[str, Any] = field(default_factory=dict)

    @property
    def about(self) -> dict[str, Any]:
        """Description of it that the model keeps."""
        about = {} if self.decision is None else {"decision": self.decision.to_json()}
        return {**about, **self.fitted}

    @property
    def threshold(self) -> float | None:
        """On probabilities as they are shown."""
        decision = decision_after_calibration(self.about)
        return None if decision is None else decision.threshold

    def calibrated(self, outputs_NC: Tensor) -> Tensor:
        """(N, C) outputs as the model will give them."""
        calibration = calibration_of(self.fitted)
        return outputs_NC if calibration is None else calibration.applied(outputs_NC)


def fit_threshold(
    settings: ThresholdSettings, task: Task, outputs_NC: Tensor, labels_N: Tensor
) -> FittedThreshold | None:
    """The threshold that does best on these rows, and the calibration fitted on them; None where
    neither is asked for."""
    if settings.threshold is None and settings.calibrate is None:
        return None
    chosen, fitted = None, {}
    if settings.threshold is not None:
        chosen = choose(settings.threshold, task, outputs_NC, labels_N)
    if settings.calibrate is not None:
        fitted = calibrate(settings.calibrate, task, outputs_NC, labels_N)
    return FittedThreshold(chosen, fitted)


def decision_of(about: Mapping[str, Any]) -> Decision | None:
    """The decision that a model was saved with; None where it has none."""
    stored = about.get("decision")
    if not isinstance(stored, Mapping):
        return None
    return Decision(
        float(stored["threshold"]),
        dict(stored["goal"]),
        int(stored["rows"]),
        float(stored["value"]),
    )


def decision_after_calibration(about: Mapping[str, Any]) -> Decision | None:
    """The decision with its threshold on calibrated probabilities."""
    decision, calibration = decision_of(about), calibration_of(about)
    if decision is None or calibration is None:
        return decision
    # It was chosen by what the model said before it was calibrated.
    log_odds = torch.tensor([[1 - decision.threshold, decision.threshold]]).clamp(min=1e-12).log()
    threshold = float(calibration.applied(log_odds).double().softmax(dim=1)[0, 1])
    return replace(decision, threshold=threshold)


def goal_of(threshold: Threshold) -> CostGoal | RecallGoal | F1Goal:
    """A goal by its name, or as it is."""
    return _BY_NAME[threshold] if isinstance(threshold, str) else threshold


def check_two_classes(task: Task) -> None:
    """Refuse a threshold of another label.

    Raises:
        ConfigError: it does not have two classes.
    """
    if not isinstance(task, Classification) or task.num_outputs != 2:
        raise ConfigError(
            "threshold is for labels of two classes; leave it out, or predict one class against "
            "the rest"
        )


def choose(threshold: Threshold, task: Task, outputs_NC: Tensor, labels_N: Tensor) -> Decision:
    """The threshold that serves the goal best on these rows.

    Args:
        threshold: the goal.
        task: of two classes.
        outputs_NC: of validation rows.
        labels_N: theirs.

    Raises:
        ConfigError: more classes than two, rows of one class only, or a precision that no
            threshold has.
    """
    check_two_classes(task)
    is_second = labels_N.numpy() == 1
    if len(is_second) == 0 or is_second.all() or not is_second.any():
        raise ConfigError(
            f"threshold is chosen on validation rows, and the {len(is_second)} here do not have "
            "both classes; label more rows, or leave threshold out"
        )
    second = outputs_NC.double().softmax(dim=1).numpy()[:, 1]
    order = np.argsort(-second, kind="stable")
    values, hits = second[order], is_second[order].cumsum()
    ends = np.flatnonzero(np.diff(values, append=-np.inf))  # of several of one value, the last
    num_predicted, true = ends + 1, hits[ends]
    total = int(is_second.sum())
    goal = goal_of(threshold)
    match goal:
        case F1Goal():
            worth = 2 * true / (num_predicted + total)
            best = int(worth.argmax())
            value = float(worth[best])
        case CostGoal():
            cost = (num_predicted - true) * goal.false_positive + (
                total - true
            ) * goal.false_negative
            best = int(cost.argmin())
            value = float(cost[best] / len(second))
        case RecallGoal():
            fits = true / num_predicted >= goal.precision
            if not fits.any():
                raise ConfigError(
                    f"threshold: on {len(second)} validation rows no threshold has a precision of "
                    f"{goal.precision:g} (the best is "
                    f"{float((true / num_predicted).max()):.3f}); ask for "
                    "less, or for another goal"
                )
            best = int(np.where(fits, true, -1).argmax())
            value = float(true[best] / total)
    # Halfway to the next row, so that rounding changes nothing.
    below = values[ends[best] + 1] if ends[best] + 1 < len(values) else 0.0
    return Decision(float((values[ends[best]] + below) / 2), goal.model_dump(), len(second), value)


def calibrate(kind: Calibrate, task: Task, outputs_NC: Tensor, labels_N: Tensor) -> dict[str, Any]:
    """Calibration and conformal scores of a run, by validation rows.

    Raises:
        ConfigError: too few rows, or a kind that does not fit the task.
    """
    try:
        return fit(task, outputs_NC, labels_N, kind=kind)
    except DataError as error:
        raise ConfigError(
            f"calibrate = {kind!r} is fitted on validation rows: {error}; label more rows, or "
            "leave calibrate out (dovetail calibrate does it later, on other rows)"
        ) from None


def class_weights(how: ClassWeights | None, task: Task, labels_N: Tensor) -> Tensor | None:
    """(C,) float32 weights of the classes; None where all count alike.

    Args:
        how: what the run says.
        task: what is predicted.
        labels_N: of the training rows; a missing one is below 0.

    Raises:
        ConfigError: a label that is a number, or a class that is none.
    """
    if how is None:
        return None
    if not isinstance(task, Classification):
        raise ConfigError("class_weights are of classes, and the label is a number; leave them out")
    if how == "balanced":
        counts = torch.bincount(labels_N[labels_N >= 0].long().cpu(), minlength=task.num_outputs)
        there = counts > 0
        weights = torch.ones(task.num_outputs)
        weights[there] = int(counts.sum()) / (int(there.sum()) * counts[there].float())
        return weights
    names = [str(name) for name in task.classes]
    for name in how:
        if name not in names:
            raise ConfigError(
                f"class_weights names {name!r}, which is no class of the label; they are {names}"
                f"{did_you_mean(name, names)}"
            )
    return torch.tensor([float(how.get(name, 1.0)) for name in names])


def on(device: torch.device, weights_C: Tensor | None) -> Tensor | None:
    """Class weights on the device where a party computes."""
    return None if weights_C is None else weights_C.to(device)


@dataclass(frozen=True, eq=False)
class Supervised:
    """``supervised_loss`` of what a network says of inputs, as a party's context takes a loss.

    Attributes:
        task: what is predicted.
        weights_C: of the classes; None: all count alike.
    """

    task: Task
    weights_C: Tensor | None = None

    def __call__(
        self, call: Callable[[Any], Tensor], inputs: Any, labels_B: Tensor, *, reduction: str
    ) -> Tensor:
        return supervised_loss(
            self.task, call(inputs), labels_B, self.weights_C, reduction=reduction
        )

    def of(self, outputs: Tensor, labels_B: Tensor) -> Tensor:
        """Mean over a batch, of what the network said."""
        return supervised_loss(self.task, outputs, labels_B, self.weights_C)


def supervised_loss(
    task: Task,
    outputs_BC: Tensor,
    labels_B: Tensor,
    weights_C: Tensor | None = None,
    *,
    reduction: str = "mean",
    smoothing: float = 0.0,
) -> Tensor:
    """Cross entropy of a batch, or of numbers the squared error.

    Args:
        task: what is predicted.
        outputs_BC: logits; of numbers (B, 1).
        labels_B: class indices, or values.
        weights_C: of the classes; None: all count alike.
        reduction: "mean" or "sum" over the batch; a mean over one row would undo its weight.
        smoothing: share of a label that is spread over all classes.
    """
    if isinstance(task, Classification):
        return F.cross_entropy(
            outputs_BC,
            labels_B,
            weight=weights_C,
            reduction=reduction,
            label_smoothing=smoothing,
        )
    if isinstance(task, Regression):
        return F.mse_loss(outputs_BC[:, 0], labels_B.to(outputs_BC.dtype), reduction=reduction)
    losses_B = loss_of(task).rows(outputs_BC, targets_of(task, labels_B))
    return losses_B.mean() if reduction == "mean" else losses_B.sum()
