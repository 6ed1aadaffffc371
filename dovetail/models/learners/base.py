"""Result of every learner, and the one method that makes it a learner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from dovetail.models.learners.rows import Rows
from dovetail.models.learners.specs import EnsembleSpec


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
