"""Spec of a learner's model: members, and the (weighted) mean of their outputs; and every learner's
result, with the one method that makes it a learner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.errors import ModelError
from dovetail.models.learners.member import MemberSpec
from dovetail.models.learners.rows import Rows
from dovetail.models.learners.stacked import Weights, weighted_outputs


class Ensemble(nn.Module):
    """(B, ...) -> (B, C) the logarithm of the mean probability over T, or the mean value."""

    def __init__(
        self,
        members: Sequence[nn.Module],
        *,
        temperature: float,
        regression: bool,
        weights: Weights | None = None,
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.temperature = temperature
        self.regression = regression
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        x_BF = x.flatten(1)  # images, too
        return weighted_outputs(
            torch.stack([member(x_BF) for member in self.members]),
            self.weights,
            regression=self.regression,
        ) / (1.0 if self.regression else self.temperature)


@dataclass(frozen=True)
class EnsembleSpec(MemberSpec):
    """Members of any kind, and their mean; by weights that sum to 1, if there are any.

    Attributes:
        weights: of each member; of several labels of each member and output, where a member may
            count nothing.
    """

    kind: ClassVar[str] = "ensemble"
    unsaid: ClassVar[tuple[str, ...]] = ("weights",)

    members: tuple[MemberSpec, ...]
    num_outputs: int
    regression: bool = False
    temperature: float = 1.0
    weights: Weights | None = None

    def __post_init__(self) -> None:
        if not self.members:
            raise ModelError("an ensemble has one member or more; copy the whole folder again")
        if not (0 < self.temperature < math.inf):
            raise ModelError(
                f"an ensemble's temperature is above 0, got {self.temperature}; copy the whole "
                "folder again"
            )
        if self.weights is not None and not _sum_to_one(
            self.weights, len(self.members), self.num_outputs
        ):
            raise ModelError(
                f"an ensemble has a weight for each of its {len(self.members)} members, above 0 "
                f"and 1 in all, got {self.weights}; copy the whole folder again"
            )

    def build(self) -> Ensemble:
        return self.around([member.build() for member in self.members])

    def around(self, members: Sequence[nn.Module]) -> Ensemble:
        """The ensemble of these members, which are built already."""
        return Ensemble(
            members,
            temperature=self.temperature,
            regression=self.regression,
            weights=self.weights,
        )


def _sum_to_one(weights: Weights, members: int, outputs: int) -> bool:
    given = np.array(weights, dtype=np.float64)
    by_output = given.shape == (members, outputs)
    if not by_output and given.shape != (members,):
        return False
    least = (given >= 0) if by_output else (given > 0)
    return bool(
        least.all() and (given <= 1).all() and (np.abs(given.sum(axis=0) - 1) <= 1e-3).all()
    )


def _all_saw_all(_x_NF: Tensor) -> Tensor:
    raise TypeError("this model is of no folds")


@dataclass(frozen=True, eq=False)
class Fitted:
    """A learner that has learnt.

    Attributes:
        learner: its name.
        spec: what ``network`` is rebuilt from.
        network: (B, F) -> (B, C) logits, calibrated on held-out rows, or standardised values.
        held_out_NC: such outputs of each row by models that did not see it; NaN for a row of no
            fold.
        settings: what was chosen, JSON-ready.
        by_fold: (N, F) -> (K, N, C) such outputs, fold k's by models that did not see its labels;
            K is 1 where one fold was held out.
    """

    learner: str
    spec: EnsembleSpec
    network: nn.Module
    held_out_NC: Tensor
    settings: dict[str, Any] = field(default_factory=dict)
    by_fold: Callable[[Tensor], Tensor] = _all_saw_all

    def outputs(self, x_NF: Tensor) -> Tensor:
        """(N, C) logits or standardised values."""
        self.network.eval()
        with torch.inference_mode():
            parts = [
                self.network(x_NF[start : start + 4096]) for start in range(0, len(x_NF), 4096)
            ]
        return torch.cat(parts) if parts else torch.empty(0, self.spec.num_outputs)

    def probabilities(self, x_NF: Tensor) -> Tensor:
        """(N, C), or the values of a regression."""
        outputs = self.outputs(x_NF)
        return outputs if self.spec.regression else outputs.softmax(dim=1)


class Learner(Protocol):
    """Learner: a way to learn from a party's own columns."""

    name: ClassVar[str]

    def fit(
        self, rows: Rows, *, seed: int, encode_on: Tensor | None = None, refit: bool = True
    ) -> Fitted:
        """A model of these rows.

        Args:
            rows: what is learnt from.
            seed: of all that is drawn.
            encode_on: (M, F) more rows of the same columns, which need no label, to place the bins
                of numbers by.
            refit: of one fold, train once more on all rows; else its model is the result.
        """

    def narrowed(self, fitted: Fitted) -> Learner:
        """The learner that need not choose again what this one of its models chose."""


class Chosen(Learner, Protocol):
    """A learner that files name."""
