"""A joint teacher from what partners' smoothers say: a few numbers z a row, beside the own model.

    outputs_k = W_k [s own, z] + b_k      for each fold k, by labelled rows of the other folds

Gradient-assisted learning (Diao et al. 2022, arXiv:2106.01425) adds a partner's fit of the residual
to the own model's outputs with a searched step. Two teachers are candidates here:

    "step"    the own outputs and one z, times the step with the least loss
    "ridge"   logistic or ridge regression on the own outputs and every z

Own outputs of a labelled row come from models that did not see it, its z from targets of other
folds; so both are judged on labelled rows as they come.

Letters: R rows, L labelled rows, C outputs, Z numbers of all smoothers, K folds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dovetail.models.learners.distil import Owner
from dovetail.models.learners.linear import Linear
from dovetail.models.learners.rows import NO_FOLD, Rows, fitting_temperature
from dovetail.models.learners.specs import Fitted

#: Steps that are tried, in spreads of z over spreads of the own outputs.
STEPS = (0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def num_targets(num_outputs: int, *, regression: bool) -> int:
    """Columns of targets that say all: of classes the last is the others' sum, less."""
    return num_outputs if regression else num_outputs - 1


def targets(owner: Owner, rows_L: Tensor) -> Tensor:
    """(L, C - 1) labels less the shares of the classes, or (L, S) what else is left of targets."""
    return owner.loss.residuals(owner.targets_RC[rows_L])


def all_columns(z_RT: Tensor, *, regression: bool) -> Tensor:
    """(R, C) of one smoother, from what came of ``targets``."""
    if regression:
        return z_RT
    last = -z_RT.sum(dim=1, keepdim=True)
    whole: Tensor = torch.cat([z_RT, last], dim=1)
    return whole


@dataclass(frozen=True, eq=False)
class Assisted:
    """Teacher of APFed-S.

    Attributes:
        weights_KCF: of [own outputs, z], as ``inputs`` has them.
        biases_KC: beside them.
    """

    weights_KCF: Tensor
    biases_KC: Tensor

    def outputs(self, inputs_RF: Tensor) -> Tensor:
        """(K, R, C); inputs may be of each fold, (K, R, F)."""
        return inputs_RF @ self.weights_KCF.transpose(1, 2) + self.biases_KC[:, None]


@dataclass(frozen=True, eq=False)
class Inputs:
    """Scales of own outputs and z, and what replaces a z that is not there.

    Attributes:
        spread: spread of the own outputs.
        z_Z: spread of each smoother's numbers.
        fill_FZ: (C + 1, Z) what own outputs say of each z, by ridge regression; the last is added.
    """

    spread: float
    z_Z: Tensor
    fill_FZ: Tensor
    regression: bool

    @classmethod
    def fit(cls, local_LC: Tensor, z_LZ: Tensor, num_outputs: int, *, regression: bool) -> Inputs:
        """Scales fitted on labelled rows; a z that is NaN is missing."""
        centred = local_LC if regression else local_LC - local_LC.mean(dim=1, keepdim=True)
        scale = max(float(centred.std()), 1e-9)
        spreads, fills = [], []
        for z_LC in z_LZ.split(num_outputs, dim=1):
            there = ~z_LC.isnan().any(dim=1)
            spread = z_LC[there].std(dim=0).mean().nan_to_num(1.0).clamp(min=1e-9)
            spreads.append(spread.expand(num_outputs))
            fills.append(_said_by(centred[there] / scale, z_LC[there] / spread))
        return cls(scale, torch.cat(spreads), torch.cat(fills, dim=1), regression)

    def of(self, local_RC: Tensor, z_RZ: Tensor) -> Tensor:
        """(R, C + Z); a z that is not there is what own outputs say of it."""
        if not self.regression:
            local_RC = local_RC - local_RC.mean(dim=1, keepdim=True)
        local_RC = local_RC / self.spread
        filled_RZ = local_RC @ self.fill_FZ[:-1] + self.fill_FZ[-1]
        z_RZ = torch.where(z_RZ.isnan(), filled_RZ, z_RZ / self.z_Z)
        inputs: Tensor = torch.cat([local_RC, z_RZ], dim=1)
        return inputs


def _said_by(local_LC: Tensor, z_LC: Tensor) -> Tensor:
    """(C + 1, C) ridge regression of z on the own outputs; zeros of too few rows."""
    num = local_LC.shape[1]
    if len(local_LC) < 2 * num + 2:
        return torch.zeros(num + 1, z_LC.shape[1])
    x, y = local_LC.double(), z_LC.double()
    x_C, y_C = x.mean(dim=0), y.mean(dim=0)
    x, y = x - x_C, y - y_C
    weights = torch.linalg.solve(x.T @ x + torch.eye(num, dtype=torch.float64), x.T @ y)
    return torch.cat([weights, (y_C - x_C @ weights)[None]]).float()


def fit_assisted(inputs_RF: Tensor, owner: Owner, judged: Tensor) -> Mapping[str, Assisted]:
    """Name -> teacher.

    Args:
        inputs_RF: of ``Inputs``.
        owner: whose labels are learnt from.
        judged: (R,) bool, rows whose inputs their labels had no part in.
    """
    return {
        "step": _step(inputs_RF, owner, judged),
        "ridge": _ridge(inputs_RF, owner, judged),
    }


def _others(owner: Owner, judged: Tensor, fold: int) -> Tensor:
    """(R,) rows that fold's members learn from; where one fold is all that is judged, those."""
    others = judged & (owner.folds_R != fold)
    return others if int(others.sum()) > 1 else judged


def _step(inputs_RF: Tensor, owner: Owner, judged: Tensor) -> Assisted:
    num, rows = owner.num_outputs, judged.nonzero().flatten()
    targets_NC = owner.targets_RC[rows]
    local_NC, *blocks = inputs_RF[rows].split(num, dim=1)
    tried: list[tuple[int, float]] = []
    losses: list[Tensor] = []
    for index, z_NC in enumerate(blocks):
        for step in STEPS:
            outputs = local_NC + step * z_NC
            temperature = fitting_temperature(outputs, targets_NC, regression=owner.regression)
            tried.append((index, step))
            losses.append(owner.loss.each(outputs / temperature, targets_NC))
    losses_TNL = torch.stack(losses)
    weights_KCF = torch.zeros(owner.num_folds, num, inputs_RF.shape[1])
    biases_KC = torch.zeros(owner.num_folds, num)
    for fold in range(owner.num_folds):
        among = _others(owner, judged, fold)[rows]
        best_L = losses_TNL[:, among].mean(dim=1).argmin(dim=0).tolist()
        scale = 1.0
        if not owner.regression:
            index, step = tried[best_L[0]]
            outputs = local_NC[among] + step * blocks[index][among]
            scale = 1 / fitting_temperature(outputs, targets_NC[among])
        weights_KCF[fold, :, :num] = scale * torch.eye(num)
        for output in range(num):
            index, step = tried[best_L[output if owner.loss.separate else 0]]
            weights_KCF[fold, output, num * (1 + index) + output] = scale * step
    return Assisted(weights_KCF, biases_KC)


def _ridge(inputs_RF: Tensor, owner: Owner, judged: Tensor) -> Assisted:
    rows = judged.nonzero().flatten()
    x_NF, targets_NC, folds_N = inputs_RF[rows], owner.targets_RC[rows], owner.folds_R[rows]
    learner = Linear()
    present = folds_N.unique(return_inverse=True)[1]
    folds = present if int(present.max()) else torch.arange(len(rows)) % 4
    whole = Rows(x_NF, targets_NC, folds, owner.weights(rows, targets_NC), loss=owner.loss)
    narrowed = learner.narrowed(learner.fit(whole, seed=0))
    members: list[Fitted] = []
    for fold in range(owner.num_folds):
        out = ~_others(owner, judged, fold)[rows]
        if not out.any():
            out = folds == 0
        each = Rows(
            x_NF,
            targets_NC,
            torch.where(out, 0, NO_FOLD),
            owner.weights(rows, targets_NC),
            loss=owner.loss,
        )
        members.append(narrowed.fit(each, seed=0, refit=False))
    weights, biases = [], []
    for member in members:
        state = member.network.state_dict()
        temperature = 1.0 if owner.regression else member.spec.temperature
        weights.append(state["members.0.weight"] / temperature)
        biases.append(state["members.0.bias"] / temperature)
    return Assisted(torch.stack(weights), torch.stack(biases))
