"""Vertical networks that predict without a partner too: what the literature would pick.

Party-wise dropout (Sun et al. 2024, PlugVFL, arXiv:2303.18178): in a step each partner's code is
zero with probability ``drop``, and so it is when the partner is gone.

    outputs = head(concat_p m_p code_p) + sum_p m_p linear_p,    m_p ~ Bernoulli(1 - drop)

LASER (Valdeira et al. 2024, arXiv:2410.22564): a predictor for every set S of parties that has the
label owner in it; all share the parties' networks and the head, which takes the mean.

    outputs_S = head(mean_{p in S} code_p) + mean_{p in S} linear_p
    loss = mean over sizes s of the mean over sets S of s parties     (Sec. 4.2, task-sampling)

Each is the label owner's side of ``vertical`` with another head; partners' sides do not change.
Rows that a partner lacks train what needs him not: a dropped code, or the sets without him.

Departures: of a size, all sets are taken, up to ``_MOST_SETS``, and the drawn ones beyond (the
paper draws one). Training ends by the same loss of held-out rows. In one place, without messages.

Letters: as in ``vertical``; P parties, the label owner first.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dovetail.errors import ConfigError
from dovetail.models.learners.rows import Rows
from dovetail.models.learners.stacked import Top, mean_outputs
from dovetail.models.learners.vertical import (
    OwnerSide,
    Stacked,
    StackedConfig,
    train_together,
)
from dovetail.models.randomness import generator

#: Of one size; of more, so many are drawn for each step.
_MOST_SETS = 4


@dataclass(frozen=True, eq=False)
class Subsets:
    """Trained members, which predict with any of the partners or none."""

    stacked: Stacked
    laser: bool

    def outputs(self, xs: Sequence[Tensor | None]) -> Tensor:
        """(N, C) of all members' mean; None stands for a partner that is gone."""
        top = partial(_outputs_of, self.stacked.top, laser=self.laser)
        outputs_KNC = self.stacked.member_outputs(xs, top)
        return mean_outputs(outputs_KNC, regression=self.stacked.regression)


def fit_party_dropout(
    xs: Sequence[Tensor],
    rows: Rows,
    config: StackedConfig,
    *,
    seed: int,
    drop: float = 0.5,
    held_PN: Tensor | None = None,
    encode_on: Sequence[Tensor] | None = None,
) -> Subsets:
    """A joint network whose partners may go; with ``drop`` 0, ``fit_stacked``.

    Args:
        xs: (N, F) features of each party, the label owner first.
        rows: targets, weights and folds.
        config: how.
        seed: of weights, batches and who is dropped.
        drop: probability that a partner is, in a step of a member.
        held_PN: bool, who has which row; None: all have all.
        encode_on: rows to place bins by, of each party.

    Raises:
        ConfigError: ``drop`` outside 0 to 1.
    """
    if not 0 <= drop <= 1:
        raise ConfigError(f"drop is a probability, 0 to 1; got {drop}")
    owner = _Dropping(rows, config, parties=len(xs), seed=seed, drop=drop, held_PN=held_PN)
    return Subsets(train_together(owner, xs, config, seed=seed, encode_on=encode_on), laser=False)


def fit_laser(
    xs: Sequence[Tensor],
    rows: Rows,
    config: StackedConfig,
    *,
    seed: int,
    held_PN: Tensor | None = None,
    encode_on: Sequence[Tensor] | None = None,
) -> Subsets:
    """A predictor for every set of parties; of the label owner alone, ``fit_stacked``.

    Args: as ``fit_party_dropout``.
    """
    owner = _Laser(rows, config, parties=len(xs), seed=seed, held_PN=held_PN)
    return Subsets(train_together(owner, xs, config, seed=seed, encode_on=encode_on), laser=True)


def _outputs_of(top: Top, parts: Sequence[Tensor | None], *, laser: bool) -> Tensor:
    """(K, B, C) of the parties that are there."""
    there = [part for part in parts if part is not None]
    if laser:
        return _mean_outputs(top, there)
    zeros = torch.zeros_like(there[0])
    outputs: Tensor = top([zeros if part is None else part for part in parts])
    return outputs


def _mean_outputs(top: Top, parts: Sequence[Tensor]) -> Tensor:
    mean = parts[0] if len(parts) == 1 else torch.stack(list(parts)).mean(dim=0)
    outputs: Tensor = top([mean])
    return outputs


class _Dropping(OwnerSide):
    """The head of party-wise dropout."""

    def __init__(
        self, *given: Any, seed: int, drop: float, held_PN: Tensor | None, parties: int
    ) -> None:
        super().__init__(*given, parties=parties, seed=seed)
        self._drop, self._held_PN = drop, held_PN
        self._rng = generator(seed, "party dropout")

    def losses(self, parts: Sequence[Tensor], rows_KB: Tensor) -> Tensor:
        there = [parts[0]]
        for index, part in enumerate(parts[1:], start=1):
            stays_K = torch.rand(len(part), generator=self._rng) >= self._drop
            if not stays_K.all():
                part = part * stays_K[:, None, None]
            there.append(_where_held(part, self._held_PN, index, rows_KB))
        return super().losses(there, rows_KB)

    def judged(self, parts: Sequence[Tensor], rows_KV: Tensor) -> Tensor:
        together = super().losses(self._held(parts, rows_KV), rows_KV)
        if not self._drop or len(parts) == 1:
            return together
        without_partner = [parts[0], *(torch.zeros_like(part) for part in parts[1:])]
        return (1 - self._drop) * together + self._drop * super().losses(without_partner, rows_KV)

    def outputs(self, parts: Sequence[Tensor], rows_KB: Tensor) -> Tensor:
        return super().outputs(self._held(parts, rows_KB), rows_KB)

    def _held(self, parts: Sequence[Tensor], rows_KB: Tensor) -> list[Tensor]:
        return [
            part if index == 0 else _where_held(part, self._held_PN, index, rows_KB)
            for index, part in enumerate(parts)
        ]


def _where_held(part: Tensor, held_PN: Tensor | None, index: int, rows_KB: Tensor) -> Tensor:
    """Zeros in rows that the party lacks."""
    if held_PN is None or bool(held_PN[index].all()):
        return part
    return part * held_PN[index][rows_KB][..., None]


class _Laser(OwnerSide):
    """The head of LASER: it takes the mean of those that are there."""

    def __init__(self, *given: Any, parties: int, seed: int, held_PN: Tensor | None) -> None:
        super().__init__(*given, parties=1, seed=seed)
        self._rng = generator(seed, "laser")
        self._held_PN = held_PN
        self._by_size = [
            list(itertools.combinations(range(1, parties), size)) for size in range(parties)
        ]

    def outputs(self, parts: Sequence[Tensor], rows_KB: Tensor) -> Tensor:
        if self._held_PN is None:
            return _mean_outputs(self.top, parts)
        held_PKB = self._held_PN[:, rows_KB].float()
        weighted = torch.stack(list(parts)) * held_PKB[..., None]
        outputs: Tensor = self.top([weighted.sum(dim=0) / held_PKB.sum(dim=0)[..., None]])
        return outputs

    def losses(self, parts: Sequence[Tensor], rows_KB: Tensor) -> Tensor:
        """(K, B) the mean over sizes of what sets of parties that have the row lose."""
        targets = self.rows.targets_NC[rows_KB]
        total, counts = torch.zeros(rows_KB.shape), torch.zeros(rows_KB.shape)
        for sets in self._by_size:
            chosen = sets
            if len(sets) > _MOST_SETS:
                order = torch.randperm(len(sets), generator=self._rng)[:_MOST_SETS]
                chosen = [sets[index] for index in order.tolist()]
            of_size, num = torch.zeros(rows_KB.shape), torch.zeros(rows_KB.shape)
            for partners in chosen:
                outputs = _mean_outputs(self.top, [parts[0], *(parts[index] for index in partners)])
                losses = self.rows.loss.rows(outputs, targets)
                held = torch.ones(rows_KB.shape)
                if self._held_PN is not None:
                    for index in partners:
                        held = held * self._held_PN[index][rows_KB]
                of_size, num = of_size + losses * held, num + held
            total = total + of_size / num.clamp(min=1)
            counts = counts + (num > 0)
        return total / counts
