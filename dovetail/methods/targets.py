"""The labels that a driver trains with, and the loss of outputs against them.

A layer of every method whose driver has the labels: they may be missing for some rows, be
randomised (``privacy/labels.py``), and count by class.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dovetail.data import Classification, PartyData, Task
from dovetail.data.stored import put_tensor_away
from dovetail.errors import ConfigError
from dovetail.federated import Local
from dovetail.methods.settings.shared import TargetSettings
from dovetail.models import network_input
from dovetail.models.decisions import class_weights, on, supervised_loss
from dovetail.privacy import potential_energy, randomised


class Targets:
    """Labels on the device, and losses against them.

    Args:
        data: the driver's rows and labels.
        task: what the labels say.
        settings: what is done with them.
        local: of the party: its device, and what it draws.

    Attributes:
        task: what the labels say.
        rows: (L,) rows with a label, in order.
        labels: (N,) on the device, randomised if that is set.
        class_weights_C: on the device; None: all classes count alike.

    Raises:
        ConfigError: no labelled row, or settings for classes and a label that is a number.
    """

    def __init__(
        self,
        data: PartyData,
        task: Task,
        settings: TargetSettings,
        local: Local,
    ) -> None:
        self.task, self._spread = task, settings.spread
        self.rows = put_tensor_away(data.labelled_rows(), data.name)
        labels = data.labels
        if labels is None or not len(self.rows):
            raise ConfigError(
                f"party {data.name!r} has no labelled row; the party that drives has labels"
            )
        for name in ("spread", "label_epsilon"):
            if getattr(settings, name) and not isinstance(task, Classification):
                raise ConfigError(
                    f"party {data.name!r}: {name} is for classes, its label is a number; leave it "
                    "out"
                )
        if settings.label_epsilon is not None:
            labels = randomised(
                labels,
                network_input(data.joined()),
                task.num_outputs,
                settings.label_epsilon,
                local.generator("randomised labels"),
                stages=settings.label_stages,
            )
        self.labels = labels.to(local.device)
        self.class_weights_C = on(local.device, class_weights(settings.loss_weights, task, labels))

    def of(self, rows_B: Tensor) -> Tensor:
        """(B,) labels of these rows, on the device."""
        return self.labels[rows_B.to(self.labels.device)]

    def loss(self, outputs_BC: Tensor, rows_B: Tensor) -> Tensor:
        """Mean cross entropy, or squared error, of a batch's outputs."""
        return supervised_loss(self.task, outputs_BC, self.of(rows_B), self.class_weights_C)

    def loss_of(self, outputs_BC: Tensor, labels_B: Tensor) -> Tensor:
        """The loss of a batch of one row; a mean over it would undo the weight of its class."""
        weights_C = self.class_weights_C
        return supervised_loss(self.task, outputs_BC, labels_B, weights_C, reduction="sum")

    def spread(self, loss: Tensor, codes_BD: list[Tensor], rows_B: Tensor) -> Tensor:
        """The loss, with codes of one class pushed apart (``privacy/spread.py``) if that is set."""
        if not self._spread:
            return loss
        labels_B = self.of(rows_B)
        energies = [potential_energy(code_BD, labels_B) for code_BD in codes_BD]
        return loss + self._spread * torch.stack(energies).sum()
