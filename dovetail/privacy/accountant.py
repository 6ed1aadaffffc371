"""Epsilon and delta of Gaussian releases, counted from what was really sent.

Mironov, "Renyi Differential Privacy", CSF 2017 (arXiv:1702.07476): a release of sensitivity 1 under
Gaussian noise of deviation z has Renyi divergence a / (2 z^2) at order a, and releases add up.
Canonne, Kamath, Steinke 2020 (arXiv:2004.00010), Proposition 12, turns that into (epsilon, delta):

    epsilon = min over a of  r(a) + log((a - 1) / a) - (log delta + log a) / (a - 1)

What is counted is one row: two runs in which every release of one sample's row may be any other
vector within the clip. The receiver knows which samples a message names, so that drawing batches at
random amplifies nothing and is not counted. Not covered is what a network that learned from a row
says of it in the releases of other rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Orders at which the divergence is taken; the best of them counts.
ORDERS = np.concatenate(
    [1 + np.logspace(-3, 1, 200), np.arange(11.5, 64, 0.5), np.logspace(6, 12, 25, base=2)]
)


def epsilon(releases: float, noise: float, delta: float) -> float:
    """Epsilon of so many releases of sensitivity 1 under noise of this deviation.

    >>> round(epsilon(1, 1.0, 1e-5), 2), round(epsilon(100, 10.0, 1e-5), 2), epsilon(0, 1.0, 1e-5)
    (4.73, 4.73, 0.0)
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1), got {delta}")
    if releases <= 0:
        return 0.0
    if noise <= 0:
        return math.inf
    divergence = releases * ORDERS / (2 * noise**2)
    told = divergence + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(0.0, float(told.min()))


def most_releases(budget: float, noise: float, delta: float) -> int:
    """The most releases whose epsilon is within a budget.

    >>> most_releases(8.0, 10.0, 1e-5), most_releases(1.0, 1.0, 1e-5)
    (245, 0)
    """
    low, high = 0, 1
    while epsilon(high, noise, delta) <= budget:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if epsilon(middle, noise, delta) <= budget:
            low = middle
        else:
            high = middle
    return low


@dataclass
class Account:
    """How often each sample was released to one receiver, in units of one row's sensitivity.

    Attributes:
        noise: deviation of the noise over the sensitivity of one row.
        delta: of the guarantee.
        count_S: releases of each sample.
        least: of every sample, counted or not: what is known of it at least.
    """

    noise: float
    delta: float
    count_S: Tensor
    least: int = 0

    def add(self, samples_B: Tensor, times: int = 1) -> None:
        """One more release of each of these, of one that is named twice two; ``times``: rows that
        one sample moves in it."""
        if len(samples_B) and int(samples_B.max()) >= len(self.count_S):
            grown = torch.full((int(samples_B.max()) + 1,), self.least)
            grown[: len(self.count_S)] = self.count_S
            self.count_S = grown
        self.count_S.index_add_(0, samples_B, torch.full_like(samples_B, times))

    def after(self, samples_B: Tensor, times: int = 1) -> int:
        """The most releases of one of these, once they are added.

        >>> account = Account(1.0, 1e-5, torch.tensor([0, 2]))
        >>> account.after(torch.tensor([0, 0, 0])), account.after(torch.tensor([1, 5]))
        (3, 3)
        """
        different, num = samples_B.unique(return_counts=True)
        if not len(different):
            return 0
        held = different < len(self.count_S)
        num = num * times
        before = torch.full_like(num, self.least)
        before[held] = self.count_S[different[held]]
        return int((num + before).max())

    def largest(self, samples_B: Tensor | None = None) -> int:
        """The most releases of a sample; of these, or of all."""
        counts = self.count_S
        if samples_B is not None:
            held = samples_B[samples_B < len(counts)]
            counts = counts[held]
        return max(self.least, int(counts.max()) if len(counts) else 0)

    def epsilon(self) -> float:
        """Of the sample that was released most often."""
        return epsilon(self.largest(), self.noise, self.delta)

    def told(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"epsilon": self.epsilon(), "delta": self.delta, "releases": self.largest()}

    def state(self) -> dict[str, Any]:
        return {"count": self.count_S}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.count_S = state["count"].clamp(min=self.least)

    def at_least(self, releases: int) -> None:
        """Every sample was released so often, or more: how often which, is not known."""
        self.least = max(self.least, releases)
        self.count_S = self.count_S.clamp(min=self.least)
