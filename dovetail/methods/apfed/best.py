"""The best epoch, by labelled rows that train nothing."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from dovetail.network import State

#: Fewer validation rows than this cannot tell one epoch from another.
MIN_VALIDATION = 30


class BestEpoch:
    """Keeps the networks of the epoch with the least loss on validation rows.

    Args:
        labelled: (L,) labelled rows.
        share: of them to hold out.
        patience: epochs without a better one, after which training ends; None: never.
        rng: draws the rows.

    Attributes:
        rows: held out, in order; none if they would be fewer than ``MIN_VALIDATION``.
        epoch: the best so far; 0 if there is none.
        loss, weights: its own.
    """

    def __init__(
        self, labelled: Tensor, share: float, patience: int | None, rng: torch.Generator
    ) -> None:
        num_rows = round(share * len(labelled))
        enough = MIN_VALIDATION <= num_rows < len(labelled)
        chosen = torch.randperm(len(labelled), generator=rng)[: num_rows if enough else 0]
        self.rows = labelled[chosen].sort().values
        self._patience = patience
        self.loss, self.epoch = math.inf, 0
        self.weights: Mapping[str, Tensor] = {}

    @torch.no_grad()
    def judge(self, number: int, networks: nn.Module, loss: Callable[[Tensor], Tensor]) -> None:
        """Keep these networks if no epoch before did better.

        Args:
            number: of the epoch.
            networks: to be kept.
            loss: mean loss of rows.
        """
        if not len(self.rows):
            return
        networks.eval()
        losses = [loss(rows) * len(rows) for rows in self.rows.split(4096)]
        networks.train()
        mean = float(torch.stack(losses).sum()) / len(self.rows)
        if mean < self.loss:
            self.loss, self.epoch = mean, number
            self.weights = {n: w.detach().clone() for n, w in networks.state_dict().items()}

    def ended(self, number: int) -> bool:
        """Whether epoch ``number`` comes too long after the best."""
        return bool(self._patience and self.epoch and number - self.epoch > self._patience)

    def of(self, networks: nn.ModuleDict) -> nn.ModuleDict:
        """The networks of the best epoch; as they are now if there is none."""
        if not self.epoch:
            return networks
        kept = copy.deepcopy(networks)
        kept.load_state_dict(self.weights)
        return kept

    def state(self) -> State:
        return {"loss": self.loss, "epoch": self.epoch, "weights": dict(self.weights)}

    def restore(self, state: State) -> None:
        """Go on from there."""
        self.loss, self.epoch, self.weights = state["loss"], state["epoch"], state["weights"]
