"""How models are built, trained, calibrated and decide."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field

from dovetail.errors import ConfigError
from dovetail.settings.section import Section

#: In which numbers products of layers are computed; see ``models/computing.py``.
Compute = Literal["float32", "bf16"]

#: Names of the learners, as files write them.
LearnerName = Literal["linear", "boosting", "network"]

#: Learner -> what a table calls it.
LEARNER_TITLES: Mapping[str, str] = {
    "linear": "linear, local",
    "boosting": "boosted trees, local",
    "network": "network, local",
}

#: What kernels see of pictures.
Pictures = Literal["patches", "flat"]

#: What two rows have in common, as a linear smoother weighs it; see ``models/smoothers.py``.
Kernel = Literal["linear", "radial", "trees", "mean"]

#: Which round's parameters are kept; see ``federated/best.py``.
Choose = Literal["mean", "loss", "each", "last"]

# --- Encoders ------------------------------------------------------------------------------------


def check_widths(widths: Sequence[int]) -> None:
    """Refuse widths that no perceptron has.

    Raises:
        ConfigError: none, or one below 1.
    """
    if not widths or min(widths) < 1:
        raise ConfigError(f"an encoder needs one or more positive widths, got {widths}")


def check_convolutions(
    channels: Sequence[int], kernels: Sequence[int], strides: Sequence[int], padding: int
) -> None:
    """Refuse layers that no convolutional encoder has.

    Raises:
        ConfigError: of other numbers than one a layer, or below 1.
    """
    if not channels or not len(channels) == len(kernels) == len(strides):
        raise ConfigError(
            "a convolutional encoder needs one channel, kernel and stride a layer, got "
            f"{channels}, {kernels}, {strides}"
        )
    if min(*channels, *kernels, *strides) < 1 or padding < 0:
        raise ConfigError(
            "a convolutional encoder needs positive channels, kernels and strides, got "
            f"{channels}, {kernels}, {strides} and padding {padding}"
        )


# --- Training ------------------------------------------------------------------------------------


class OptimizerConfig(Section):
    """How a party follows its gradients."""

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"  # what follows the gradients
    learning_rate: float = Field(default=1e-3, gt=0, allow_inf_nan=False)  # alpha, Eq. (10)
    momentum: float = Field(default=0.9, ge=0, lt=1)  # of SGD
    weight_decay: float = Field(
        default=1e-4, ge=0, allow_inf_nan=False
    )  # w_A, w_a, w_p: the L2 terms of Eq. (6), (7)


class HeadConfig(OptimizerConfig):
    """Optimizer settings if the head of a network may have a rate and a decay of its own."""

    # alpha_T, Eq. (10) of APFed; none: learning_rate
    head_learning_rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    # w_a, Eq. (6); none: weight_decay
    head_weight_decay: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class ScheduledConfig(OptimizerConfig):
    """How a party follows its gradients, round after round."""

    # How the rate goes over the rounds: as it is, or towards 0 along half a cosine.
    schedule: Literal["constant", "cosine"] = "constant"
    rounds: int = Field(default=128, ge=1)  # how many

    def of_round(self, number: int) -> Self:
        """With what round ``number``, from 1, is trained; one beyond the last, as the last.

        Raises:
            ConfigError: there is no such round.
        """
        if number < 1:
            raise ConfigError(f"there is no round {number}")
        if self.schedule == "constant":
            return self
        passed = (min(number, self.rounds) - 1) / self.rounds
        share = 0.5 * (1 + math.cos(math.pi * passed))
        return self.model_copy(update={"learning_rate": share * self.learning_rate})


@dataclass(frozen=True)
class Pfnm:
    """The Beta-Bernoulli process' cost, of rows of incoming weights."""

    sigma: float = 1.0  # of a party's weight about the server's
    sigma_0: float = 1.0  # of the server's weight about mu_0
    mu_0: float = 0.0
    gamma: float = 7.0  # how readily neurons are new


@dataclass(frozen=True)
class Distance:
    """Squared distance, of rows of incoming and outgoing weights."""


Cost = Pfnm | Distance

#: The server's hidden widths: numbers, as the widest party's, or as many as neurons ask for.
Width = int | tuple[int, ...] | Literal["widest", "free"]


class MatchingConfig(Section):
    """Settings of Algorithm 3."""

    cost: Literal["pfnm", "distance"] = "pfnm"  # Eq. (20); distance: squared, plain
    sigma: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # of the noise of a party's neuron
    sigma_0: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # of a neuron before it is seen
    mu_0: float = Field(default=0.0, allow_inf_nan=False)  # a neuron's mean before it is seen
    # how easily the server gets a new neuron
    gamma: float = Field(default=7.0, gt=0, allow_inf_nan=False)
    sweeps: int = Field(default=1, ge=1)  # P / M: of the matching over all parties
    # of the server's layers: the widest party's, a number, or "free": they grow
    width: Width = "widest"

    def matching_cost(self) -> Cost:
        """Eq. (20)."""
        if self.cost == "distance":
            return Distance()
        return Pfnm(self.sigma, self.sigma_0, self.mu_0, self.gamma)

    def server_widths(self, parties: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
        """The server's hidden widths, of parties with these; None: as many as neurons ask for.

        Raises:
            ConfigError: widths for another depth.
        """
        depth = len(parties[0])
        match self.width:
            case "free":
                return None
            case "widest":
                return tuple(map(max, zip(*parties, strict=True)))
            case int(width):
                return (width,) * depth
        if len(self.width) != depth:
            raise ConfigError(
                f"width names {len(self.width)} hidden layers, the parties' classifiers have "
                f"{depth}; give one width for each"
            )
        return self.width


# --- Decisions -----------------------------------------------------------------------------------

#: What a run can ask for: a calibration with conformal scores, or these alone.
Calibrate = Literal["temperature", "isotonic", "conformal"]

#: "balanced": as much for each class, however many rows it has; or class -> weight, 1 for a class
#: that is not named.
ClassWeights = Literal["balanced"] | dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]


class CostGoal(Section):
    """The threshold with the least cost."""

    goal: Literal["cost"]  # least cost of all mistakes
    # cost of predicting the positive class for a row of the other
    false_positive: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # cost of predicting the other class for a row of the positive
    false_negative: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class RecallGoal(Section):
    """The threshold with the highest recall at this precision."""

    goal: Literal["recall"]  # highest recall of the positive class
    precision: float = Field(gt=0, le=1)  # at least this precision


class F1Goal(Section):
    """The threshold of the best F1."""

    goal: Literal["f1"] = "f1"  # the best F1 of the positive class


Goal = Annotated[CostGoal | RecallGoal | F1Goal, Field(discriminator="goal")]

#: What a run file says: a goal, or its name where it needs nothing more.
Threshold = Literal["f1", "cost"] | Goal


class ThresholdSettings(Section):
    """Choices of a party on rows that it keeps out of training."""

    threshold: Threshold | None = None  # for two classes: a goal, such as "f1"
    calibrate: Calibrate | None = None  # how probabilities are calibrated
