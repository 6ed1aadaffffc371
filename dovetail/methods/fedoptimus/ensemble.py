"""Several networks side by side, which share the embedding, and the best epoch of them.

Each member leaves out some of its label owner's rows, though they are in its batches, so that the
rows it leaves out judge it: how many epochs help is found without rows that train nothing, and
without a message more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.data import Task
from dovetail.methods.settings.fedoptimus import Config
from dovetail.models.decisions import supervised_loss
from dovetail.models.owners import MembersTop

#: A member leaves out one row in so many times the members: each row fewer is missed, and one row
#: in ``_FOLDS`` is enough to judge by.
_FOLDS = 2

#: Of more than two classes: 1.35 points on covertype; of two it costs AUC
#: (benchmarks/results/bench/fedoptimus.md).
_SMOOTHING = 0.1


def drawn_folds(num: int, samples: Tensor, members: int, rng: torch.Generator) -> Tensor:
    """(num,) which member leaves a sample out; -1, or a number beyond the members: nobody."""
    fold_S = torch.full((num,), -1)
    order = torch.randperm(len(samples), generator=rng)
    fold_S[samples[order]] = torch.arange(len(order)) % (_FOLDS * members)
    return fold_S


class MembersLoss:
    """A label owner's loss of its batches.

    Args:
        task: what its labels say.
        config: smoothing, members.
        weights_C: of the classes; None: all count alike.
        fold_S: of ``drawn_folds``; None: nobody leaves a row out.
    """

    def __init__(
        self, task: Task, config: Config, weights_C: Tensor | None, fold_S: Tensor | None
    ) -> None:
        smoothing = config.smoothing
        if smoothing == "classes":
            smoothing = _SMOOTHING if task.num_outputs > 2 else 0.0
        self.task = task
        self._weighed = partial(supervised_loss, weights_C=weights_C, smoothing=smoothing)
        self._members = config.members
        self.fold_S = fold_S

    def _loss(self, outputs_BC: Tensor, labels_B: Tensor, reduction: str = "mean") -> Tensor:
        return self._weighed(self.task, outputs_BC, labels_B, reduction=reduction)

    def __call__(
        self, top: nn.Module, mean_BE: Tensor, labels_B: Tensor, batch: Tensor
    ) -> tuple[Tensor, float]:
        """The batch's loss, and the sum of what its rows lose by the members that leave them out.

        Members learn apart: a sum of their losses moves each as its own would.
        """
        if not isinstance(top, MembersTop) or self._members == 1:
            return self._loss(top(mean_BE), labels_B), 0.0
        losses, held_out = [], 0.0
        for member, outputs_BC in enumerate(top.each(mean_BE)):
            out_B = torch.zeros(len(labels_B), dtype=torch.bool)
            if self.fold_S is not None:
                out_B = self.fold_S[batch] == member
            if bool(out_B.any()):
                left = self._loss(outputs_BC[out_B].detach(), labels_B[out_B], reduction="sum")
                held_out += left.item()
            if not bool(out_B.all()):
                losses.append(self._loss(outputs_BC[~out_B], labels_B[~out_B]))
        return torch.stack(losses).sum(), _FOLDS * held_out


@dataclass
class BestEpoch:
    """The epoch with the least held-out loss so far; the coordinator's.

    Attributes:
        patience: epochs without a better one, after which training ends; None: none is judged.
        total, rows: sum of the held-out losses of this epoch so far, and of how many rows.
        loss, number: of the best epoch, and its last round; 0: none yet.
        epochs_since: epochs after the best.
    """

    patience: int | None
    total: float = 0.0
    rows: int = 0
    loss: float = math.inf
    number: int = 0
    epochs_since: int = 0

    def add(self, held_out: float, rows: int) -> None:
        """Count a batch's held-out losses."""
        if self.patience is not None:
            self.total, self.rows = self.total + held_out, self.rows + rows

    def judge(self, number: int, num_epochs: int) -> tuple[bool, dict[str, float]]:
        """Whether so many epochs ended with this round that the last is the best, and its loss."""
        if not self.rows or not num_epochs:
            return False, {}
        loss = self.total / self.rows
        self.total, self.rows = 0.0, 0
        self.epochs_since += num_epochs
        is_best = loss < self.loss
        if is_best:
            self.loss, self.number, self.epochs_since = loss, number, 0
        return is_best, {"held_out": loss}

    def forget(self) -> None:
        """Others take part now: what was kept knows those before."""
        self.loss, self.number = math.inf, 0

    @property
    def ended(self) -> bool:
        """Whether the best epoch lies too far back."""
        return self.patience is not None and self.number > 0 and self.epochs_since >= self.patience

    def state(self) -> list[Any]:
        return [self.total, self.rows, self.loss, self.number, self.epochs_since]

    def restore(self, state: list[Any]) -> None:
        self.total, self.rows, self.loss, self.number, self.epochs_since = state
