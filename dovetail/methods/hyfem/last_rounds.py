"""The server's model as the mean over its last rounds (``average_last``)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch

from dovetail.federated import Federation
from dovetail.methods.hyfem.hyfem import Coordinator, Round
from dovetail.methods.settings.hyfem import Settings
from dovetail.models.slices import ServerModel


class AveragingCoordinator(Coordinator):
    """A server that sums its models of the last rounds.

    Attributes:
        sums: of extractors and classifiers.
        summed: of how many rounds.
    """

    saved: ClassVar[tuple[str, ...]] = (*Coordinator.saved, "sums", "summed")
    config: Settings

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sums, self.summed = ServerModel(), 0

    def start(self) -> None:
        super().start()
        self.sums, self.summed = ServerModel(), 0

    def round(self, number: int, federation: Federation) -> Round:
        played = super().round(number, federation)
        if self.config.average_last > 1 and number > self.num_rounds - self.config.average_last:
            self._add()
        return played

    def finish(self, federation: Federation) -> None:
        if self.summed:
            server, sums = self.server, self.sums
            server.extractors = {
                block: (vector / self.summed).float() for block, vector in sums.extractors.items()
            }
            server.classifier = [layer / self.summed for layer in sums.classifier]
            self.summed, self.sums.classifier = 0, []
        super().finish(federation)

    def _add(self) -> None:
        """A server that grew begins again: of neurons that were not there is no mean."""
        server, sums = self.server, self.sums
        shapes = [layer.shape for layer in server.classifier]
        if [layer.shape for layer in sums.classifier] != shapes:
            self.summed = 0
            sums.extractors = {
                block: torch.zeros(vector.shape, dtype=torch.float64)
                for block, vector in server.extractors.items()
            }
            sums.classifier = [np.zeros(shape) for shape in shapes]
        self.summed += 1
        for block, vector in server.extractors.items():
            sums.extractors[block] = sums.extractors[block] + vector
        for i, layer in enumerate(server.classifier):
            sums.classifier[i] = sums.classifier[i] + layer
