"""How outputs are read and what a row loses: one class for each kind of label.

Learners, teachers and students know nothing of a label but these: a new task is a new ``Loss``.

    Classes      -sum_c t_c log softmax(o)_c                 t: the classes' shares
    Values       sum_c (o_c - t_c)^2                          t: standardised values
    Hazards      sum_k r_k log(1 + e^l_k) - d_k l_k           t = (d, r), l_k = base_k + o
    Poisson      e^o - t o                                    t: a rate over the mean rate
    Gamma        o + t e^-o                                   t: an amount over the mean
    Pinball      sum_q (q - [t < o_q]) (t - o_q), rounded     t: a standardised value, once a q
    Rates        w e^o - m o                                  t = (m, w): count, exposure
    Binaries     sum_l w_l log(1 + e^o_l) - m_l o_l           t = (m, w), m = w [label l is so]
    Numbers      sum_l w_l (o_l - m_l / w_l)^2 / 2            t = (m, w), m = w times the value

Hazards are those of discrete times (Gensheimer & Narasimhan 2019, PeerJ 7:e6257, Eq. 3): d says
that the event came in interval k, r that the row was at risk in it, so a row that is censored
counts as long as it was seen. One output moves the log odds of all intervals alike, as in their
proportional variant: an output for each had less C on held-out rows (docs/survival.md).

Of several labels w_l is 0 where a row lacks label l: it learns from those that it has. They are
judged one by one (``separate``).

Letters: N rows, T numbers of a target, S outputs, K intervals, Z numbers for a partner, L labels
that are judged by themselves: S of several, else 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dovetail import data as dd

#: Of a standardised value: how far around a quantile its loss is rounded, so that it has slopes.
_ROUNDING = 0.05
#: Outputs of rates and amounts are followed no further: e^30.
_FURTHEST = 30.0


@dataclass(frozen=True)
class Loss:
    """Loss of a label, and what learners know of it.

    Attributes:
        regression: members' outputs are averaged as they are; else as probabilities.
        separate: each output is of a label of its own, and what is chosen is chosen for each.
    """

    regression: ClassVar[bool] = True
    separate: ClassVar[bool] = False

    def num_outputs(self, num_targets: int) -> int:
        """S, of T numbers of a target."""
        return num_targets

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(...,) what each row of (..., S) outputs loses against (..., T) targets."""
        raise NotImplementedError

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(..., L) the same of each label by itself."""
        return self.rows(outputs, targets)[..., None]

    def known(self, targets: Tensor) -> Tensor:
        """(..., L) bool, which labels a row has."""
        return torch.ones_like(targets[..., :1], dtype=torch.bool)

    def derivatives(self, outputs_NS: Tensor, targets_NT: Tensor) -> tuple[Tensor, Tensor]:
        """(N, S) first and (positive) second derivatives of the loss, up to a common factor."""
        raise NotImplementedError

    def targets(self, outputs_NS: Tensor) -> Tensor:
        """(N, T) what a model says, as targets for another."""
        raise NotImplementedError

    def start(self, mean_T: Tensor) -> Tensor:
        """(S,) the outputs that fit a mean target."""
        raise NotImplementedError

    def constant(self, targets_LT: Tensor) -> Tensor:
        """(S,) the outputs that fit these targets best, of a model that knows no columns."""
        return self.start(targets_LT.mean(dim=0))

    def residuals(self, targets_LT: Tensor) -> Tensor:
        """(L, Z) what is left of targets beside a model that knows no columns; of mean 0."""
        return targets_LT - targets_LT.mean(dim=0)

    def num_scores(self, num_outputs: int) -> int:
        """How many numbers a model has for S outputs."""
        return num_outputs

    def summed(
        self, outputs: np.ndarray, targets: np.ndarray, shares: np.ndarray
    ) -> tuple[float, np.ndarray]:
        """The loss of rows that have these shares, and (N, S) each row's first derivative."""
        outputs_NS, targets_NT = torch.from_numpy(outputs), torch.from_numpy(targets)
        loss = float(self.rows(outputs_NS, targets_NT) @ torch.from_numpy(shares))
        return loss, self.derivatives(outputs_NS, targets_NT)[0].numpy()


@dataclass(frozen=True)
class Classes(Loss):
    """Loss of one of several classes; outputs are logits."""

    regression: ClassVar[bool] = False

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return -(targets * outputs.log_softmax(dim=-1)).sum(dim=-1)

    def derivatives(self, outputs_NS: Tensor, targets_NT: Tensor) -> tuple[Tensor, Tensor]:
        # A row's targets may sum to another number than 1: then they weigh it.
        totals_N1 = targets_NT.sum(dim=1, keepdim=True)
        p_NC = outputs_NS.softmax(dim=1)
        return p_NC * totals_N1 - targets_NT, p_NC * (1 - p_NC) * totals_N1

    def targets(self, outputs_NS: Tensor) -> Tensor:
        return outputs_NS.softmax(dim=1)

    def start(self, mean_T: Tensor) -> Tensor:
        return (mean_T + 1e-6).log()

    def residuals(self, targets_LT: Tensor) -> Tensor:
        # Of classes the last is the others' sum, less.
        centred: Tensor = targets_LT - targets_LT.mean(dim=0)
        return centred[:, :-1]

    def num_scores(self, num_outputs: int) -> int:
        return 1 if num_outputs == 2 else num_outputs

    def summed(
        self, outputs: np.ndarray, targets: np.ndarray, shares: np.ndarray
    ) -> tuple[float, np.ndarray]:
        outputs -= outputs.max(axis=1, keepdims=True)
        exponents = np.exp(outputs)
        totals = exponents.sum(axis=1, keepdims=True)
        first = exponents / totals * targets.sum(axis=1, keepdims=True) - targets
        return float((shares[:, None] * targets * (np.log(totals) - outputs)).sum()), first


CLASSES = Classes()


@dataclass(frozen=True)
class SquaredError(Loss):
    """A standardised value, or several."""

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().sum(dim=-1)

    def derivatives(self, outputs_NS: Tensor, targets_NT: Tensor) -> tuple[Tensor, Tensor]:
        return outputs_NS - targets_NT, torch.ones_like(outputs_NS)

    def targets(self, outputs_NS: Tensor) -> Tensor:
        return outputs_NS

    def start(self, mean_T: Tensor) -> Tensor:
        return mean_T

    def summed(
        self, outputs: np.ndarray, targets: np.ndarray, shares: np.ndarray
    ) -> tuple[float, np.ndarray]:
        error = outputs - targets
        return 0.5 * float((shares[:, None] * error**2).sum()), error


@dataclass(frozen=True)
class Hazards(Loss):
    """Time to event; the output moves the log odds of every interval alike.

    Attributes:
        base: (K,) log odds of the event in each interval, of those at risk in it.
    """

    base: tuple[float, ...]

    def num_outputs(self, num_targets: int) -> int:
        return 1

    def logits(self, outputs: Tensor) -> Tensor:
        """(..., K) log odds of the event in each interval, of rows that came so far."""
        return outputs + outputs.new_tensor(self.base)

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        logits, (events, at_risk) = self.logits(outputs), targets.chunk(2, dim=-1)
        return (at_risk * F.softplus(logits) - events * logits).sum(dim=-1)

    def derivatives(self, outputs_NS: Tensor, targets_NT: Tensor) -> tuple[Tensor, Tensor]:
        hazards, (events, at_risk) = self.logits(outputs_NS).sigmoid(), targets_NT.chunk(2, dim=1)
        expected = at_risk * hazards
        first, second = expected - events, expected * (1 - hazards)
        return first.sum(dim=1, keepdim=True), second.sum(dim=1, keepdim=True)

    def targets(self, outputs_NS: Tensor) -> Tensor:
        hazards = self.logits(outputs_NS).sigmoid()
        alive = (1 - hazards).cumprod(dim=1)
        at_risk = torch.cat([torch.ones_like(alive[:, :1]), alive[:, :-1]], dim=1)
        return torch.cat([at_risk * hazards, at_risk], dim=1)

    def start(self, mean_T: Tensor) -> Tensor:
        return mean_T.new_zeros(1)

    def residuals(self, targets_LT: Tensor) -> Tensor:
        # The martingale residual: events less those expected while the row was at risk.
        left: Tensor = -self.derivatives(targets_LT.new_zeros(len(targets_LT), 1), targets_LT)[0]
        return left - left.mean(dim=0)


@dataclass(frozen=True)
class Poisson(Loss):
    """A rate, 0 or more, over the mean rate; outputs are its logarithm."""

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs = outputs.clamp(max=_FURTHEST)
        return (outputs.exp() - targets * outputs).sum(dim=-1)

    def derivatives(self, outputs_NS: Tensor, targets_NT: Tensor) -> tuple[Tensor, Tensor]:
        rates = outputs_NS.clamp(max=_FURTHEST).exp()
        return rates - targets_NT, rates

    def targets(self, outputs_NS: Tensor) -> Tensor:
        return outputs_NS.clamp(max=_FURTHEST).exp()

    def start(self, mean_T: Tensor) -> Tensor:
        return mean_T.clamp(min=1e-6).log()


@dataclass(frozen=True)
class Rates(Poisson):
    """A count of an exposure; outputs are the logarithm of the rate over the mean rate."""

    def num_outputs(self, num_targets: int) -> int:
        return 1

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs, (counts, exposures) = outputs.clamp(max=_FURTHEST), targets.chunk(2, dim=-1)
        return (exposures * outputs.exp() - counts * outputs).sum(dim=-1)

    def derivatives(self, outputs_NS: Tensor, targets_NT: Tensor) -> tuple[Tensor, Tensor]:
        counts_N1, exposures_N1 = targets_NT.chunk(2, dim=1)
        expected = exposures_N1 * outputs_NS.clamp(max=_FURTHEST).exp()
        return expected - counts_N1, expected

    def targets(self, outputs_NS: Tensor) -> Tensor:
        rates = super().targets(outputs_NS)
        return torch.cat([rates, torch.ones_like(rates)], dim=1)

    def start(self, mean_T: Tensor) -> Tensor:
        return super().start(mean_T[:1] / mean_T[1:].clamp(min=1e-9))

    def residuals(self, targets_LT: Tensor) -> Tensor:
        counts, exposures = targets_LT.chunk(2, dim=1)
        return super().residuals(counts - exposures * counts.sum() / exposures.sum())


@dataclass(frozen=True)
class Gamma(Poisson):
    """An amount above 0, over the mean; outputs are its logarithm."""

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs = outputs.clamp(-_FURTHEST, _FURTHEST)
        return (outputs + targets * (-outputs).exp()).sum(dim=-1)

    def derivatives(self, outputs_NS: Tensor, targets_NT: Tensor) -> tuple[Tensor, Tensor]:
        over = targets_NT * (-outputs_NS.clamp(-_FURTHEST, _FURTHEST)).exp()
        return 1 - over, over


@dataclass(frozen=True)
class Pinball(Loss):
    """Quantiles of a standardised value.

    Attributes:
        shares: which, each between 0 and 1.
    """

    shares: tuple[float, ...]

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        left = targets - outputs
        return (left * outputs.new_tensor(self.shares) + self._below(left)).sum(dim=-1)

    def derivatives(self, outputs_NS: Tensor, targets_NT: Tensor) -> tuple[Tensor, Tensor]:
        below = ((outputs_NS - targets_NT) / _ROUNDING).sigmoid()
        return below - outputs_NS.new_tensor(self.shares), torch.ones_like(outputs_NS)

    def targets(self, outputs_NS: Tensor) -> Tensor:
        return outputs_NS

    def start(self, mean_T: Tensor) -> Tensor:
        return mean_T

    def constant(self, targets_LT: Tensor) -> Tensor:
        return targets_LT[:, 0].quantile(targets_LT.new_tensor(self.shares))

    def residuals(self, targets_LT: Tensor) -> Tensor:
        below = targets_LT <= self.constant(targets_LT)
        return super().residuals(-below.to(targets_LT.dtype))

    def _below(self, left: Tensor) -> Tensor:
        return _ROUNDING * F.softplus(-left / _ROUNDING)


@dataclass(frozen=True)
class _Several(Loss):
    """Several labels, (m, w) of each; w is 0 where a row lacks it."""

    separate: ClassVar[bool] = True

    def num_outputs(self, num_targets: int) -> int:
        return num_targets // 2

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.each(outputs, targets).sum(dim=-1)

    def known(self, targets: Tensor) -> Tensor:
        return targets.chunk(2, dim=-1)[1] > 0

    def targets(self, outputs_NS: Tensor) -> Tensor:
        said = self._said(outputs_NS)
        return torch.cat([said, torch.ones_like(said)], dim=1)

    def residuals(self, targets_LT: Tensor) -> Tensor:
        m_LS, w_LS = targets_LT.chunk(2, dim=1)
        return m_LS - w_LS * (m_LS.sum(dim=0) / w_LS.sum(dim=0).clamp(min=1e-9))

    def _said(self, outputs: Tensor) -> Tensor:
        return outputs


@dataclass(frozen=True)
class Binaries(_Several):
    """Several labels that are yes or no; outputs are their log odds."""

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        m, w = targets.chunk(2, dim=-1)
        return w * F.softplus(outputs) - m * outputs

    def derivatives(self, outputs_NS: Tensor, targets_NT: Tensor) -> tuple[Tensor, Tensor]:
        m_NS, w_NS = targets_NT.chunk(2, dim=1)
        p_NS = outputs_NS.sigmoid()
        return w_NS * p_NS - m_NS, w_NS * p_NS * (1 - p_NS)

    def start(self, mean_T: Tensor) -> Tensor:
        m_S, w_S = mean_T.chunk(2)
        return (m_S / w_S.clamp(min=1e-9)).clamp(1e-4, 1 - 1e-4).logit()

    def _said(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()


@dataclass(frozen=True)
class SquaredErrors(_Several):
    """Several standardised values."""

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        m, w = targets.chunk(2, dim=-1)
        return 0.5 * w * (outputs - m / w.clamp(min=1e-9)).square()

    def derivatives(self, outputs_NS: Tensor, targets_NT: Tensor) -> tuple[Tensor, Tensor]:
        m_NS, w_NS = targets_NT.chunk(2, dim=1)
        return w_NS * outputs_NS - m_NS, w_NS

    def start(self, mean_T: Tensor) -> Tensor:
        m_S, w_S = mean_T.chunk(2)
        return m_S / w_S.clamp(min=1e-9)


def loss_of(task: dd.Task) -> Loss:
    """How learners learn what a task poses."""
    if isinstance(task, dd.Classification):
        return CLASSES
    if isinstance(task, dd.Survival):
        return Hazards(task.base)
    if isinstance(task, dd.Counts):
        if task.exposure is not None:
            return Rates()
        return Gamma() if isinstance(task, dd.Amounts) else Poisson()
    if isinstance(task, (dd.MultiLabel, dd.MultiTarget)):
        return Binaries() if isinstance(task, dd.MultiLabel) else SquaredErrors()
    return Pinball(task.shares) if isinstance(task, dd.Quantiles) else SquaredError()


def targets_of(task: dd.Task, labels_N: Tensor) -> Tensor:
    """(N, T) what learners learn of labels; anything, but no NaN, of rows without one."""
    if isinstance(task, dd.Classification):
        return F.one_hot(labels_N.clamp(min=0).long(), task.num_outputs).float()
    if isinstance(task, dd.Survival):
        return task.targets(labels_N)
    if isinstance(task, dd.Quantiles):
        return labels_N.nan_to_num().float()[:, None].expand(-1, task.num_outputs).contiguous()
    if isinstance(task, (dd.MultiLabel, dd.MultiTarget)):
        return torch.cat([labels_N.nan_to_num(), ~labels_N.isnan()], dim=1).float()
    return labels_N.nan_to_num().float().reshape(len(labels_N), -1)
