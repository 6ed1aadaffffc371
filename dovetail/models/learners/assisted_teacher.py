"""The joint teacher of APFed-S: learnt from partners' numbers, and chosen on held-out labels.

A held-out row must be judged by what its label had no part in. So fold k's teacher reads, of every
row, the outputs of own models that did not see fold k's labels; its students, which learn what it
says, did not either. Only the numbers of rows without a label know a little of all labels: a
partner smooths them by every labelled row.

Where partners share few of the labelled rows, the teacher would learn from few. So own columns say
what the numbers of the others are likely to be: a map, learnt on all shared rows, labelled or not,
as VFedTrans has one to a partner's representations (Huang et al. 2023, arXiv:2302.05675).

Letters: R rows, C outputs, Z numbers of all smoothers, K folds, F inputs (C of the own model, Z).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dovetail.models.learners.assisted import (
    Assisted,
    Inputs,
    all_columns,
    fit_assisted,
    num_targets,
)
from dovetail.models.learners.base import Fitted
from dovetail.models.learners.choice import LEARNERS, best_of, fit_all
from dovetail.models.learners.distil import MOST_ROWS_ALIGNED, Owner, Teacher, choose_teacher
from dovetail.models.learners.rows import Rows, first_fold_only, make_folds
from dovetail.models.randomness import derive_seed

#: Rows that a map to numbers is learnt from at the least; of more than these one fold chooses.
_LEAST_ROWS, _MANY_ROWS = 40, 2000


@dataclass(frozen=True, eq=False)
class JointTeacher:
    """What partners' numbers and the own model say together.

    Attributes:
        teacher: of the rows that it teaches: those of which a partner said something, and labelled
            ones whose numbers own columns say.
        known: (R,) bool, rows of which a partner said something.
        inputs: what own outputs and numbers are divided by.
        members: the teachers whose mean it is.
    """

    teacher: Teacher
    known: Tensor
    inputs: Inputs
    members: tuple[Assisted, ...]

    @property
    def joint(self) -> Teacher:
        """What it says of rows of which a partner said something, as the joint model does."""
        outputs_KRC = self.teacher.outputs_KRC.masked_fill(~self.known[:, None], torch.nan)
        return replace(self.teacher, outputs_KRC=outputs_KRC)


def own_outputs(alone: Fitted, owner: Owner) -> Tensor:
    """(K, R, C) what own models say of every row; fold k's did not see its labels.

    Where one fold alone was held out, of many labels, the others' are those of all models.
    """
    with torch.no_grad():
        by_fold_KRC = alone.by_fold(owner.x_RF)
    others = owner.num_folds - len(by_fold_KRC)
    if not others:
        return by_fold_KRC
    return torch.cat([by_fold_KRC, alone.outputs(owner.x_RF).expand(others, -1, -1)])


def said_by_own_columns(z_RZ: Tensor, owner: Owner, *, seed: int) -> Tensor:
    """(R, Z) the numbers, and of labelled rows that no partner has what own columns say of them.

    The labels of such rows were no part of any number.
    """
    num_outputs, filled_RZ = owner.targets_RC.shape[1], z_RZ.clone()
    num = num_targets(num_outputs, regression=owner.regression)
    wanted = owner.labelled & z_RZ.isnan().all(dim=1)
    seed = derive_seed(seed, "numbers")
    for z_RC in filled_RZ.split(num_outputs, dim=1):  # of one smoother each
        held = ~z_RC.isnan().any(dim=1)
        z_NT = z_RC[held, :num]
        spread_T = z_NT.std(dim=0).clamp(min=1e-9)
        folds_N = make_folds(z_NT, 4, seed=seed, regression=True)
        if len(folds_N) > _MANY_ROWS:
            folds_N = first_fold_only(folds_N)
        rows = Rows(owner.x_RF[held], z_NT / spread_T, folds_N, regression=True)
        fitted = fit_all(tuple(LEARNERS.values()), rows, seed=seed, encode_on=owner.x_RF)
        said_NT = best_of(fitted, rows).outputs(owner.x_RF[wanted]) * spread_T
        z_RC[wanted] = all_columns(said_NT, regression=owner.regression)
    return filled_RZ


def fit_teacher(
    z_RZ: Tensor,
    owner: Owner,
    alone: Fitted,
    first_F: Tensor | None = None,
    *,
    fill: bool = True,
    seed: int = 0,
) -> JointTeacher | None:
    """The teacher; None where fewer than two rows are labelled and answered.

    Args:
        z_RZ: every partner's numbers, NaN where one said nothing.
        owner: labels and folds.
        alone: the own model.
        first_F: (F,) bool, inputs that first answers gave, where partners were asked twice.
        fill: whether own columns say the numbers of labelled rows that no partner has, where these
            are many.
        seed: of the map that says them.
    """
    num, regression = owner.targets_RC.shape[1], owner.regression
    known = (~z_RZ.isnan()).any(dim=1)
    judged = torch.zeros(len(known), dtype=torch.bool)
    judged[owner.labelled] = ~alone.held_out_NC.isnan().any(dim=1)
    if int((judged & known).sum()) < 2:
        return None
    taught = known
    if fill and _is_few(known, owner):
        taught = known | owner.labelled
        z_RZ = said_by_own_columns(z_RZ, owner, seed=seed)
    judged &= taught
    own_KRC = own_outputs(alone, owner)
    held_out_RC = own_KRC[owner.folds_R.clamp(min=0), torch.arange(len(known))]
    both = judged & known
    inputs = Inputs.fit(held_out_RC[both], z_RZ[both], num, regression=regression)
    inputs_RF = inputs.of(held_out_RC, z_RZ)
    fitted = dict(fit_assisted(inputs_RF, owner, judged))
    if first_F is not None:  # what the first numbers alone say is a candidate, too
        for name, each in fit_assisted(inputs_RF[:, first_F], owner, judged).items():
            weights_KCF = torch.zeros(*each.biases_KC.shape, inputs_RF.shape[1])
            weights_KCF[:, :, first_F] = each.weights_KCF
            fitted[f"{name} of first numbers"] = Assisted(weights_KCF, each.biases_KC)
    inputs_KRF = torch.stack([inputs.of(own_RC, z_RZ) for own_RC in own_KRC])
    said = {
        name: each.outputs(inputs_KRF).masked_fill(~taught[:, None], torch.nan)
        for name, each in fitted.items()
    }
    teacher = choose_teacher(said, owner)
    members = tuple(fitted.values()) if teacher.name == "mean" else (fitted[teacher.name],)
    return JointTeacher(teacher, known, inputs, members)


def _is_few(known: Tensor, owner: Owner) -> bool:
    """Whether partners have few of the labelled rows, and enough rows to learn a map from."""
    return (
        int((known & owner.labelled).sum()) < MOST_ROWS_ALIGNED * int(owner.labelled.sum())
        and int(known.sum()) >= _LEAST_ROWS
    )
