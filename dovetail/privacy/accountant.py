"""Epsilon and delta of Gaussian releases, counted from what was really sent.

n releases of sensitivity 1 under Gaussian noise of deviation z are one of sensitivity
mu = sqrt(n) / z under noise of deviation 1 (Dong, Roth, Su 2019, arXiv:1905.02383, Cor. 3.3), whose
exact curve is known (Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy",
ICML 2018, arXiv:1805.06530, Theorem 8):

    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - exp(epsilon) Phi(-mu / 2 - epsilon / mu)

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

import torch
from torch import Tensor


def _log_delta(epsilon: float, releases: float, noise: float) -> float:
    """Log of the delta that so many releases have at this epsilon: Theorem 8."""
    from scipy.special import log_ndtr  # for runs with noise alone, as below

    mu = math.sqrt(releases) / noise
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return first + math.log1p(-math.exp(second - first)) if second < first else -math.inf


def epsilon(releases: float, noise: float, delta: float) -> float:
    """Epsilon of so many releases of sensitivity 1 under noise of this deviation.

    >>> round(epsilon(1, 1.0, 1e-5), 2), round(epsilon(100, 10.0, 1e-5), 2), epsilon(0, 1.0, 1e-5)
    (4.38, 4.38, 0.0)
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1), got {delta}")
    if releases <= 0:
        return 0.0
    if noise <= 0:
        return math.inf
    wanted = math.log(delta)
    if _log_delta(0.0, releases, noise) <= wanted:
        return 0.0
    mu = math.sqrt(releases) / noise
    # Above the exact one: its first term alone is delta there, by the tail of a Gaussian.
    most = mu**2 / 2 + mu * math.sqrt(-2 * wanted)
    from scipy.optimize import brentq  # a third of a second, for runs with noise alone

    return float(brentq(lambda each: _log_delta(each, releases, noise) - wanted, 0.0, most))


def most_releases(budget: float, noise: float, delta: float) -> int:
    """The most releases whose epsilon is within a budget.

    >>> most_releases(8.0, 10.0, 1e-5), most_releases(1.0, 1.0, 1e-5)
    (277, 0)
    >>> most_releases(epsilon(3, 2.0, 1e-5), 2.0, 1e-5)
    3
    """
    wanted, low, high = math.log(delta), 0, 1
    while _log_delta(budget, high, noise) <= wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _log_delta(budget, middle, noise) <= wanted:
            low = middle
        else:
            high = middle
    # At the edge ``epsilon`` decides, to the last bit: what it names is a budget for as many.
    while low and epsilon(low, noise, delta) > budget:
        low -= 1
    return high if epsilon(high, noise, delta) <= budget else low


@dataclass
class Accountant:
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
        """Add a release of each of these, of one that is named twice two; ``times``: rows that one
        sample moves in it."""
        if len(samples_B) and int(samples_B.max()) >= len(self.count_S):
            grown = torch.full((int(samples_B.max()) + 1,), self.least)
            grown[: len(self.count_S)] = self.count_S
            self.count_S = grown
        self.count_S.index_add_(0, samples_B, torch.full_like(samples_B, times))

    def after(self, samples_B: Tensor, times: int = 1) -> int:
        """The most releases of one of these, once they are added.

        >>> account = Accountant(1.0, 1e-5, torch.tensor([0, 2]))
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
        """Epsilon of the sample that was released most often."""
        return epsilon(self.largest(), self.noise, self.delta)

    def report(self) -> dict[str, Any]:
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
