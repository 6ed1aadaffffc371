"""The joint teacher of APFed-S: learnt from partners' numbers, and chosen on held-out labels.

A held-out row must be judged by what its label had no part in. So fold k's teacher reads, of every
row, the outputs of own models that did not see fold k's labels; its students, which learn what it
says, did not either. Only the numbers of rows without a label know a little of all labels: a
partner smooths them by every labelled row.

Where partners share few of the labelled rows, students would learn from few. So what teaches them
may have learnt from the others, too, with what own outputs say in place of a number (``Inputs``),
and speaks of these: held-out rows choose. The joint model learns from shared rows alone: where a
number is made of own outputs, nothing shows what it is worth beside them.

Letters: R rows, C outputs, Z numbers of all smoothers, K folds, F inputs (C of the own model, Z).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dovetail.data.stored import let_go, put_tensor_away, zeros
from dovetail.models.learners.assisted import Assisted, Inputs, fit_assisted
from dovetail.models.learners.distil import MOST_ROWS_ALIGNED, Owner, Teacher, choose_teacher
from dovetail.models.learners.specs import Fitted


@dataclass(frozen=True, eq=False)
class JointTeacher:
    """Joint teacher: partners' numbers and the own model together.

    Attributes:
        joint: of the rows of which a partner said something, as the joint model does.
        teacher: what students learn from; where few labelled rows are shared, of all of these.
        inputs: what own outputs and numbers are divided by.
        members: the teachers whose mean the joint model is.
    """

    joint: Teacher
    teacher: Teacher
    inputs: Inputs
    members: tuple[Assisted, ...]


#: Rows that are worked on at once: many times those that any model computes together.
_ROWS_AT_ONCE = 1 << 16


def own_outputs(alone: Fitted, owner: Owner, party: str = "") -> Tensor:
    """(K, R, C) what own models say of every row; fold k's did not see its labels.

    Where one fold alone was held out, of many labels, the others' are those of all models.
    """
    num_rows = len(owner.x_RF)
    shape = owner.num_folds, num_rows, owner.num_outputs
    own_KRC = torch.from_numpy(zeros(shape, np.float32, party))
    for start in range(0, num_rows, _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        with torch.no_grad():
            by_fold_KBC = alone.by_fold(owner.x_RF[rows])
            own_KRC[: len(by_fold_KBC), rows] = by_fold_KBC
            if len(by_fold_KBC) < owner.num_folds:
                own_KRC[len(by_fold_KBC) :, rows] = alone.outputs(owner.x_RF[rows])
        let_go()
    return own_KRC


def fit_teacher(
    z_RZ: Tensor,
    owner: Owner,
    alone: Fitted,
    *,
    fill: bool = True,
    party: str = "",
) -> JointTeacher | None:
    """The teacher; None where fewer than two rows are labelled and answered.

    Args:
        z_RZ: every partner's numbers, NaN where one said nothing.
        owner: labels and folds.
        alone: the own model.
        fill: whether labelled rows that no partner has are learnt from, where these are many.
        party: in whose folder outputs of many rows lie.
    """
    num, regression = owner.num_outputs, owner.regression
    known = (~z_RZ.isnan()).any(dim=1)
    judged = torch.zeros(len(known), dtype=torch.bool)
    judged[owner.labelled] = ~alone.held_out_NC.isnan().any(dim=1)
    both = judged & known
    if int(both.sum()) < 2:
        return None
    own_KRC = own_outputs(alone, owner, party)
    held_out_RC = own_KRC[owner.folds_R.clamp(min=0), torch.arange(len(known))]
    inputs = Inputs.fit(held_out_RC[both], z_RZ[both], num, regression=regression)
    inputs_RF = inputs.of(held_out_RC, z_RZ)
    fitted = dict(fit_assisted(inputs_RF, owner, both))
    inputs_KRF = put_tensor_away(
        torch.stack([inputs.of(own_RC, z_RZ) for own_RC in own_KRC]), party
    )

    def chosen(candidates: Mapping[str, Assisted], rows_R: Tensor) -> Teacher:
        others = ~rows_R[:, None]
        said = {
            name: put_tensor_away(each.outputs(inputs_KRF).masked_fill_(others, torch.nan), party)
            for name, each in candidates.items()
        }
        return choose_teacher(said, owner, party)

    fitted = _each_label(fitted, owner, inputs_KRF, known)
    joint = teacher = chosen(fitted, known)
    shared = int((known & owner.labelled).sum())
    if fill and shared < MOST_ROWS_ALIGNED * int(owner.labelled.sum()):
        of_all = fit_assisted(inputs_RF, owner, judged)
        more = {f"{name} of all labels": each for name, each in of_all.items()}
        everyone = known | owner.labelled
        teacher = chosen(_each_label({**fitted, **more}, owner, inputs_KRF, everyone), everyone)
    members = tuple(fitted.values()) if joint.name == "mean" else (fitted[joint.name],)
    return JointTeacher(joint, teacher, inputs, members)


def _each_label(
    fitted: Mapping[str, Assisted], owner: Owner, inputs_KRF: Tensor, rows_R: Tensor
) -> dict[str, Assisted]:
    """These teachers, or, of several labels, the one that is the best of them for each label."""
    if not owner.loss.separate:
        return dict(fitted)
    weights_TKCF = torch.stack([each.weights_KCF for each in fitted.values()])
    biases_TKC = torch.stack([each.biases_KC for each in fitted.values()])
    if len(fitted) > 1:  # the mean of them is one, too
        weights_TKCF = torch.cat([weights_TKCF, weights_TKCF.mean(dim=0, keepdim=True)])
        biases_TKC = torch.cat([biases_TKC, biases_TKC.mean(dim=0, keepdim=True)])
    judged = (rows_R & owner.labelled).nonzero().flatten()
    folds_N, targets_NT = owner.folds_R[judged], owner.targets_RC[judged]
    losses = []
    for weights_KCF, biases_KC in zip(weights_TKCF, biases_TKC, strict=True):
        outputs_KNC = Assisted(weights_KCF, biases_KC).outputs(inputs_KRF[:, judged])
        outputs_NC = outputs_KNC[folds_N, torch.arange(len(judged))]
        losses.append(owner.loss.each(outputs_NC, targets_NT).mean(dim=0))
    best_C = torch.stack(losses).argmin(dim=0)
    at_C = torch.arange(len(best_C))
    return {
        "best of each label": Assisted(
            weights_TKCF[best_C, :, at_C].transpose(0, 1), biases_TKC[best_C, :, at_C].T
        )
    }
