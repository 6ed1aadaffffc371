"""How the gradients of the task and of partners become those of the weights: Eq. (9), and layers in
its place.

The page adds them up. ``Balanced`` makes them comparable in each step, and takes away what undoes
the task's own step (Yu et al. 2020, "Gradient surgery for multi-task learning",
arXiv:2001.06782): lambda is one number for all steps, though gradients of partners and of the task
shrink at different times. ``private.py`` has DP-SGD.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.errors import ConfigError
from dovetail.models import follow_back
from dovetail.network import State

#: One for all, or by party.
TradeOff = float | Mapping[str, float]


def weight_of(trade_off: TradeOff, party: str) -> float:
    """lambda_p of a party.

    Raises:
        ConfigError: trade-offs by party that leave this one out.
    """
    if not isinstance(trade_off, Mapping):
        return trade_off
    if party not in trade_off:
        raise ConfigError(
            f"trade_off names {sorted(trade_off)} but not party {party!r}; add its weight"
        )
    return trade_off[party]


@dataclass(frozen=True, eq=False)
class Help:
    """Help that a partner returned.

    Attributes:
        weight: lambda_p.
        rows_B: rows of the label owner that it was asked about.
        code_BD: what left, with its graph.
        gradient_BD: dL_p/dh of it.
        projected: whether it is of a projection.
    """

    weight: float
    rows_B: Tensor
    code_BD: Tensor
    gradient_BD: Tensor
    projected: bool


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of Eq. (9).

    Attributes:
        rows_B: the labelled batch.
        code_BD: its codes, with their graph.
        task_BD: dL_A/dh.
        helps: of every partner that answered.
    """

    rows_B: Tensor
    code_BD: Tensor
    task_BD: Tensor
    helps: Sequence[Help]


class Unify:
    """Replacement of Eq. (9) that has nothing to save."""

    def follow(self, step: Gradients) -> None:
        """Gradients stand at the networks' parameters; those of the head are there already."""
        raise NotImplementedError

    def open(self, parties: Sequence[str], trade_off: TradeOff) -> None:
        """Refuse partners that it cannot do with.

        Raises:
            ConfigError: one of them, or trade-offs by party that leave one out.
        """
        for party in parties:
            weight_of(trade_off, party)

    def pays(self, visits: int, sent: int) -> bool:
        """Whether another epoch is within the budget; so many visits and releases of a row."""
        return True

    def report(self) -> dict[str, Any]:
        """Report on what the weights reveal of a row, JSON-ready; {} if not counted."""
        return {}

    def spent(self) -> list[dict[str, Any]]:
        """Privacy cost of the solo model, as a run reports it."""
        report = self.report()
        return [{"to": "who has it", "what": "the solo model", **report}] if report else []

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """Go on from there."""


class Balanced(Unify):
    """Each partner's part is rho times as long as the task's, times lambda_p.

    Args:
        rho: ``Config.balance``.
        encoder: whose gradient is balanced.
        projection: follows partners alone.
    """

    def __init__(self, rho: float, encoder: nn.Module, projection: nn.Module | None) -> None:
        self._rho = rho
        self._encoder = [w for w in encoder.parameters() if w.requires_grad]
        more = [] if projection is None else projection.parameters()
        self._every = [*self._encoder, *(w for w in more if w.requires_grad)]

    def follow(self, step: Gradients) -> None:
        follow_back([step.code_BD], [step.task_BD], retain_graph=bool(step.helps))
        self.add([(each.weight, each.code_BD, each.gradient_BD) for each in step.helps])

    def add(self, helps: Sequence[tuple[float, Tensor, Tensor]]) -> None:
        """Add the partners' parts to the encoder's gradient, each rho times as long as it is.

        A part whose product with the task's gradient is negative loses what points against it.
        """
        weights = self._encoder
        task_gradients = [
            torch.zeros_like(w) if w.grad is None else w.grad.clone() for w in weights
        ]
        task_norm = _norm(task_gradients)
        for weight, code_BD, gradient_BD in helps:
            if not weight:
                continue
            gradients = torch.autograd.grad(
                code_BD,
                self._every,
                gradient_BD,
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
            part = gradients[: len(task_gradients)]
            norm = _norm(part)
            if not norm or not task_norm:
                continue
            products = [(a * b).sum() for a, b in zip(part, task_gradients, strict=True)]
            against = sum(products, torch.zeros_like(norm)) / task_norm**2
            scale = weight * self._rho * task_norm / norm
            for w, gradient in zip(self._every, gradients, strict=True):
                _add(w, gradient * scale)
            if against < 0:
                for w, gradient in zip(weights, task_gradients, strict=True):
                    _add(w, -gradient * (against * scale))


def _norm(gradients: Sequence[Tensor]) -> Tensor:
    norms: Tensor = torch.stack([each.norm() for each in gradients]).norm()
    return norms


def _add(weight: nn.Parameter, gradient: Tensor) -> None:
    weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
