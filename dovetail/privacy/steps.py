"""Training whose weights say little of each row: DP-SGD, counted by visits.

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016 (arXiv:1607.00133): of a batch
each row's gradient is cut to a length, and what is summed is noised,

    g = (sum over rows of clip(g_row) + noise clip N(0, 1)) / B.

Rows' gradients are those of ``torch.func``. What is counted is one row (``accountant.py``): another
row in its place moves a sum by at most 2 clip, and every visit of a row is a release. Batches are
passes in random order, not independent draws, and are not counted as amplifying (Chua et al. 2024,
arXiv:2403.17673): epsilon is larger than the figure of who counts them so, and true.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from dovetail.models.randomness import generator
from dovetail.privacy.accountant import Accountant, most_releases
from dovetail.settings.privacy import PrivateSteps

_log = logging.getLogger(__name__)

#: A batch's loss as (network, its inputs and targets of one row with a batch of one) -> a number.
RowLoss = Callable[..., Tensor]


class Stepping:
    """Gradients of one party's training, and what its rows have spent.

    Args:
        steps: the setting.
        name: whose they are.
        num_rows: of its training.
        rng: draws the noise of a simulation, which repeats; None, at a site: the system does, so
            that no noise is drawn twice, whatever state the site goes back to.
    """

    def __init__(
        self, steps: PrivateSteps, name: str, num_rows: int, rng: torch.Generator | None
    ) -> None:
        self.steps = steps
        self._name = name
        self._repeats = rng is not None
        if rng is None:
            rng = generator(0, name, secret=secrets.token_bytes(32))
        self._rng = rng
        self._stopped = False
        zeros = torch.zeros(num_rows, dtype=torch.int64)
        self._account = Accountant(steps.noise / 2, steps.delta, zeros)

    def allowed(self, visits: int) -> bool:
        """Whether every row may be visited so often once more."""
        steps = self.steps
        if steps.epsilon is None or self._account.largest() + visits <= most_releases(
            steps.epsilon, steps.noise / 2, steps.delta
        ):
            return True
        if not self._stopped:
            self._stopped = True
            _log.warning(
                "party %r: its budget of epsilon = %g (delta = %g) is spent after %d visits of a "
                "row; it goes on with the others' weights and trains these no more",
                self._name, steps.epsilon, steps.delta, self._account.largest(),
            )  # fmt: skip
        return False

    def gradient(self, network: nn.Module, loss: RowLoss, rows_B: Tensor, *batch: Any) -> Tensor:
        """The mean loss of a batch; its noised gradient stands at the network's parameters.

        Args:
            network: whose trained parameters get gradients.
            loss: (call, one row's part of each of ``batch``, of one row each) -> its loss; ``call``
                is the network.
            rows_B: the rows, to be counted.
            batch: tensors, or dicts of them, whose first axis is the batch.
        """
        trained = {n: w for n, w in network.named_parameters() if w.requires_grad}
        fixed = {n: w.detach() for n, w in network.named_parameters() if not w.requires_grad}
        fixed |= dict(network.named_buffers())

        def of_row(weights: Mapping[str, Tensor], *row: Any) -> Tensor:
            one = [_batch_of_one(each) for each in row]

            def call(*inputs: Any) -> Any:
                return functional_call(network, {**weights, **fixed}, inputs)

            return loss(call, *one)

        weights = {name: weight.detach() for name, weight in trained.items()}
        axes = (None, *(0 for _ in batch))
        found = vmap(grad_and_value(of_row), in_dims=axes, randomness="different")(weights, *batch)
        gradients, losses_B = found
        squared_B = sum(each.flatten(1).square().sum(dim=1) for each in gradients.values())
        scale_B = (self.steps.clip / squared_B.sqrt().clamp(min=1e-12)).clamp(max=1.0)
        # A row without a gradient moves nothing: whoever sent the weights may have made it so.
        scale_B = torch.where(squared_B.isfinite(), scale_B, 0.0)
        deviation, num_rows = self.steps.noise * self.steps.clip, len(rows_B)
        for name, weight in trained.items():
            total = torch.einsum("b,b...->...", scale_B, gradients[name].nan_to_num(0.0, 0.0, 0.0))
            drawn = torch.randn(total.shape, generator=self._rng).to(total.device)
            weight.grad = (total + deviation * drawn) / num_rows
        self._account.add(rows_B)
        return torch.as_tensor(losses_B.mean())

    def report(self) -> dict[str, Any]:
        """Epsilon, delta, releases, whether it is stopped; JSON-ready."""
        return {**self._account.report(), "stopped": self._stopped}

    def at_least(self, releases: int) -> None:
        """Every row was visited so often, or more: its state is older."""
        self._account.at_least(releases)

    def state(self) -> dict[str, Any]:
        return {
            "random": self._rng.get_state() if self._repeats else None,
            "account": self._account.state(),
            "stopped": self._stopped,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there; visits since then stay counted, and their noise is not drawn again."""
        spent = self._account.largest()
        counted = int(state["account"]["count"].max()) if len(state["account"]["count"]) else 0
        if counted >= spent:
            self._account.restore(state["account"])
            if self._repeats and state["random"] is not None:
                self._rng.set_state(state["random"])
        self._stopped |= state["stopped"]


def _batch_of_one(row: Any) -> Any:
    if isinstance(row, Mapping):
        return {name: each.unsqueeze(0) for name, each in row.items()}
    return row.unsqueeze(0)
