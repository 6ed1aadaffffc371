"""Several labels of which a party's rows have some never: its head keeps what others taught it.

No gradient comes from a label that no row has, but weight decay moves its weights all the same (and
Adam as fast as any other), and a party would send on average what it knows nothing of.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dovetail.data import MultiLabel, MultiTarget, Task
from dovetail.models.learners.stacked import Stack


def known_counts(task: Task, labels: Tensor) -> Tensor | None:
    """(L,) how many rows have each of several labels; None of other tasks."""
    if isinstance(task, (MultiLabel, MultiTarget)):
        return (~labels.isnan()).sum(dim=0)
    return None


class Untaught:
    """Rows of output layers, of labels that no training row has.

    Args:
        layers: each gives an output for each label.
        task, labels: of the training rows.

    Attributes:
        places: (A,) of the labels that no row has; none of other tasks.
    """

    def __init__(self, layers: Iterable[nn.Module], task: Task, labels: Tensor) -> None:
        counts = known_counts(task, labels)
        known = torch.ones(0) if counts is None else counts.cpu()
        self.places = (known == 0).nonzero().flatten()
        self._layers = list(layers)
        self._rows: list[Tensor] = []

    @property
    def _weights(self) -> list[Tensor]:
        """(outputs, ...) each; those of members' ``Stack`` have outputs last."""
        return [
            each.movedim(-1, 0) if isinstance(layer, Stack) else each
            for layer in self._layers
            for each in layer.parameters()
        ]

    @torch.no_grad()
    def keep(self) -> None:
        """Remember them as they are."""
        if len(self.places):
            self._rows = [each.detach()[self.places] for each in self._weights]

    @torch.no_grad()
    def put_back(self) -> None:
        """Make them what they were."""
        for each, rows in zip(self._weights, self._rows, strict=False):
            each[self.places] = rows

    @torch.no_grad()
    def silence(self) -> None:
        """Make them 0: what they say of rows is nothing."""
        if len(self.places):
            for each in self._weights:
                each[self.places] = 0.0
