"""Steps on averages: the K-step mean (line 8), FedAvgM (lines 11, 12) and SlowMo (line 13).

One vector of weights w from round to round, given the weighted mean of its copies:

    w_bar = sum_n (n_n / n) w_n                                    FedAvg
    m' = beta m + (1 - beta) (w_t - w_bar),  w_hat = w_t - eta m'  FedAvgM, "damped": the text
    eta / (1 - beta) for eta                                       FedAvgM, "undamped": its source
    eta / (1 - beta^(t+1)) for eta                                 FedAvgM, "corrected": ours
    w_(t+1) = (1 - alpha) w_t + alpha w_hat                        SlowMo, "interpolate": the text
    w_(t+1) = (1 - alpha) w_0 + alpha w_hat                        SlowMo, "initial": line 13
    u' = b u + (w_t - w_hat),  w_(t+1) = w_t - a u'                SlowMo, "momentum": its source

The source of FedAvgM is Hsu et al. 2019 (the paper's reference 11): v' = beta v + (w_t - w_bar) and
w_hat = w_t - eta v', which is the text's with m = (1 - beta) v. "corrected" divides the text's m by
1 - beta^t as Adam does (Kingma and Ba 2015), so that the first rounds step the whole way.

Letters: N copies, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dovetail.federated.party import SavedAttributes
from dovetail.methods.settings.fedoptimus import Config
from dovetail.models.vectors import vector_of
from dovetail.network import State


def fedavgm(
    w: Tensor, average: Tensor, m: Tensor, *, beta: float, eta: float
) -> tuple[Tensor, Tensor]:
    """Lines 11 and 12: the new weights and momentum."""
    delta = w - average
    m = beta * m + (1 - beta) * delta
    return w - eta * m, m


def interpolate(w: Tensor, w_hat: Tensor, *, alpha: float) -> Tensor:
    """SlowMo as the text displays it; at alpha 1 there is nothing left of ``w``."""
    return w_hat if alpha == 1 else (1 - alpha) * w + alpha * w_hat


def pull_to_initial(w_0: Tensor, w_hat: Tensor, *, alpha: float) -> Tensor:
    """SlowMo(w_(t+1), w_0, gamma) of line 13, with gamma = 1 - alpha."""
    return interpolate(w_0, w_hat, alpha=alpha)


def slow_momentum(
    w: Tensor, w_hat: Tensor, u: Tensor, *, beta: float, alpha: float
) -> tuple[Tensor, Tensor]:
    """Wang et al. 2019, Algorithm 1, lines 7 and 8: the new weights and slow momentum.

    Their 1/gamma_t and gamma_t are one learning rate here, and cancel out.
    """
    u = beta * u + (w - w_hat)
    return w - alpha * u, u


class ServerOptimizer:
    """Lines 11 to 13 on one vector of weights, from round to round.

    Args:
        config: which steps, and their constants.
        w_P: w_0.
    """

    def __init__(self, config: Config, w_P: Tensor) -> None:
        self.config = config
        self.w_P = w_P.clone()
        self.initial_P = w_P.clone() if config.slowmo == "initial" else w_P.new_empty(0)
        self.m_P = torch.zeros_like(w_P) if config.server == "fedavgm" else w_P.new_empty(0)
        self.u_P = torch.zeros_like(w_P) if config.slowmo == "momentum" else w_P.new_empty(0)
        self.num_steps = 0

    def step(self, average_P: Tensor) -> Tensor:
        """w_(t+1), from w_t and the average of the round's weights."""
        config, w_P, w_hat_P = self.config, self.w_P, average_P
        self.num_steps += 1
        if config.server == "fedavgm":
            w_hat_P, self.m_P = fedavgm(w_P, average_P, self.m_P, beta=config.beta, eta=self.rate)
        match config.slowmo:
            case "interpolate":
                w_hat_P = interpolate(w_P, w_hat_P, alpha=config.alpha)
            case "initial":
                w_hat_P = pull_to_initial(self.initial_P, w_hat_P, alpha=config.alpha)
            case "momentum":
                beta, alpha = config.slow_momentum, config.slow_learning_rate
                w_hat_P, self.u_P = slow_momentum(w_P, w_hat_P, self.u_P, beta=beta, alpha=alpha)
        self.w_P = w_hat_P
        return w_hat_P

    @property
    def rate(self) -> float:
        """eta of the step at hand, by the form of momentum."""
        config = self.config
        match config.server_momentum:
            case "damped":
                return config.server_learning_rate
            case "undamped":
                return config.server_learning_rate / (1 - config.beta)
            case "corrected":
                return config.server_learning_rate / (1 - config.beta**self.num_steps)

    def state(self) -> State:
        weights = {"w": self.w_P, "initial": self.initial_P, "m": self.m_P, "u": self.u_P}
        return {**weights, "num_steps": self.num_steps}

    def restore(self, state: State) -> None:
        device = self.w_P.device
        self.num_steps = state["num_steps"]
        self.w_P, self.initial_P = state["w"].to(device), state["initial"].to(device)
        self.m_P, self.u_P = state["m"].to(device), state["u"].to(device)


class Iterates(SavedAttributes):
    """The last K iterates of some weights (line 8); keeps nothing if K is 1."""

    saved = ("kept",)

    def __init__(self, num: int) -> None:
        self.num = num
        self.kept: list[Tensor] = []

    def add(self, weights: Tensor | nn.Module) -> None:
        """Keep a copy of the weights, or of a network's, after a step."""
        if self.num > 1:
            self.kept = [*self.kept[-(self.num - 1) :], _vector(weights).detach().clone()]

    def mean(self, weights: Tensor | nn.Module) -> Tensor:
        """Mean of the iterates that are kept; the weights themselves if there are none."""
        if not self.kept:
            return _vector(weights).detach()
        total = torch.zeros_like(self.kept[0])
        for iterate in self.kept:
            total += iterate
        return total / len(self.kept)


def _vector(weights: Tensor | nn.Module) -> Tensor:
    return vector_of(weights) if isinstance(weights, nn.Module) else weights


def weighted_mean(rows_NP: Tensor, weights_N: Sequence[float]) -> Tensor:
    """sum_n (n_n / n) w_n, first to last."""
    total = sum(weights_N)
    mean_P = torch.zeros_like(rows_NP[0])
    for row_P, weight in zip(rows_NP, weights_N, strict=True):
        mean_P.add_(row_P, alpha=weight / total)
    return mean_P
