"""Optimizers, by the settings that every config shares."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from dovetail.settings.models import HeadConfig, OptimizerConfig


def pull(weights: Iterable[nn.Parameter], targets: Iterable[Tensor], strength: float) -> None:
    """Add the gradient of strength/2 |weights - targets|^2 to theirs, of those that are trained."""
    if not strength:
        return
    for weight, target in zip(weights, targets, strict=True):
        if weight.grad is not None:
            weight.grad.add_(weight.detach() - target, alpha=strength)


def follow_back(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor], *, retain_graph: bool = False
) -> None:
    """Add to every weight's gradient what these gradients of outputs mean for it.

    As ``torch.autograd.backward(outputs, gradients)``, to the bit, by way of the sum of their
    products: given gradients, PyTorch reads sympy first, half a second of a process that trains.

    Args:
        outputs: what was computed, of any shapes.
        gradients: of each, in its shape.
        retain_graph: whether the outputs can be followed back again.
    """
    torch.stack(
        [(output * gradient).sum() for output, gradient in zip(outputs, gradients, strict=True)]
    ).sum().backward(retain_graph=retain_graph)


def gradient_of(leaf: Tensor) -> Tensor:
    """Gradient after a backward pass; zeros if nothing came back."""
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


class Optimizer:
    """``torch.optim``'s SGD, Adam and AdamW, fused, by their functional forms: the same bits.

    Fused is one pass over each parameter, 7 x faster on a CPU than the loop. The classes' first use
    imports PyTorch's compiler, more than a second of processor time in every process that trains,
    and their bookkeeping is a third of a step of networks as small as the learners'.

    Args:
        parameters: of one dtype and device.
        kind: "sgd", "adam" or "adamw".
        learning_rate, weight_decay: as there.
        momentum: of SGD.
        fused: False: not fused, for the bits of the classes' default.

    Attributes:
        kind, learning_rate, weight_decay, momentum: as given.
        state: parameter -> what its next step depends on, by PyTorch's names.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        kind: Literal["sgd", "adam", "adamw"],
        learning_rate: float,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        fused: bool = True,
    ) -> None:
        self.parameters = list(parameters)
        self.state: defaultdict[nn.Parameter, dict[str, Any]] = defaultdict(dict)
        self.kind = kind
        self.learning_rate, self.weight_decay, self.momentum = learning_rate, weight_decay, momentum
        self._fused = fused or None  # None: as PyTorch chooses

    @classmethod
    def of(cls, config: OptimizerConfig, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Optimizer of these parameters, as a config says."""
        return cls(
            parameters,
            kind=config.optimizer,
            learning_rate=config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for each in self.parameters:
            each.grad = None

    def reset(self) -> None:
        """Begin again: forget all steps so far."""
        self.state.clear()

    @torch.no_grad()
    def step(self) -> None:
        """Follow the gradients of those parameters that have one."""
        moved = [each for each in self.parameters if each.grad is not None]
        if not moved:
            return
        gradients = [each.grad for each in moved if each.grad is not None]
        values = [each.detach() for each in moved]
        states = [self._state_of(each) for each in moved]

        def memory(name: str) -> list[Any]:
            return [state[name] for state in states if name in state]

        usual: dict[str, Any] = {
            "fused": self._fused,
            "lr": self.learning_rate,
            "weight_decay": self.weight_decay,
            "maximize": False,
        }
        if self.kind == "sgd":
            buffers = memory("momentum_buffer") or [None] * len(moved)
            momentum: dict[str, Any] = {
                "momentum": self.momentum,
                "dampening": 0.0,
                "nesterov": False,
            }
            sgd(values, gradients, buffers, **momentum, **usual)
            return
        follow = adamw if self.kind == "adamw" else adam
        betas: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False}
        first, second, steps = memory("exp_avg"), memory("exp_avg_sq"), memory("step")
        follow(values, gradients, first, second, [], steps, **betas, **usual)

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Any]:
        """State that its next step depends on; at first zeros."""
        remembered: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
        if self.kind == "sgd":
            remembered = ("momentum_buffer",) if self.momentum else ()
        if remembered and not self.state[parameter]:
            self.state[parameter] = {name: torch.zeros_like(parameter) for name in remembered}
            if self.kind != "sgd":
                counted = torch.zeros((), dtype=torch.float32, device=parameter.device)
                self.state[parameter]["step"] = counted
        return self.state.get(parameter, {})

    def state_dict(self) -> dict[str, Any]:
        """State that its next step depends on, without gradients: place of a parameter -> its
        state."""
        kept = (self.state.get(each) for each in self.parameters)
        return {"state": {index: dict(buffers) for index, buffers in enumerate(kept) if buffers}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.state.clear()
        for index, kept in state["state"].items():
            each = self.parameters[index]
            self.state[each] = {
                name: value.detach().clone().to(each.device) if isinstance(value, Tensor) else value
                for name, value in kept.items()
            }


class OptimizerGroup:
    """Several optimizers, of parameters of their own, that step together.

    Args:
        parts: each with a rate and a decay of its own.
    """

    def __init__(self, *parts: Optimizer) -> None:
        self.parts = parts

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        """Follow the gradients of those parameters that have one."""
        for part in self.parts:
            part.step()

    def state(self) -> dict[str, Any]:
        """State that the next step depends on."""
        return {str(index): part.state_dict() for index, part in enumerate(self.parts)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        for index, part in enumerate(self.parts):
            part.load_state_dict(state[str(index)])


def head_apart(
    config: HeadConfig, rest: Iterable[nn.Parameter], head: Iterable[nn.Parameter]
) -> Optimizer | OptimizerGroup:
    """Optimizer of a network's head and of the rest of it."""
    given = {"learning_rate": config.head_learning_rate, "weight_decay": config.head_weight_decay}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return Optimizer.of(config, [*rest, *head])
    return OptimizerGroup(
        Optimizer.of(config, rest), Optimizer.of(config.model_copy(update=given), head)
    )
