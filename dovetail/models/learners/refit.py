"""The solo model once more, on all labelled rows: what was chosen stays, test rows are learnt, too.

What a model scores is known when test rows have scored it. Their labels are then as good as any:
the model that is kept learns from them. Nothing is asked of a partner: its numbers of the test
rows, which the joint model was scored by, are here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dovetail.data.stored import zeros
from dovetail.models.learners.choice import best_of, fit_all
from dovetail.models.learners.distil import Distilled, Owner, StudentConfig, Teacher, distil
from dovetail.models.learners.rows import Rows, make_folds
from dovetail.models.learners.specs import Fitted, Learner


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Labelled rows that scored a model, and that nothing has learnt from.

    Attributes:
        x_NF: their features.
        targets_NC: their labels, as a network learns them.
        labels_N: the labels, by which folds are split.
        said_NC: what the joint model says of them, NaN where no partner answered.
        weights_N: how much each counts; None: all alike.
    """

    x_NF: Tensor
    targets_NC: Tensor
    labels_N: Tensor
    said_NC: Tensor
    weights_N: Tensor | None = None


def with_scored(owner: Owner, rows: ScoredRows, *, seed: int, party: str) -> Owner:
    """The owner with these rows after its own; a fold that was given stays."""
    folds_N = make_folds(
        rows.labels_N,
        min(owner.num_folds, len(rows.labels_N)),
        seed=seed,
        regression=owner.regression,
    )
    weights_R = owner.weights_R
    if weights_R is not None or rows.weights_N is not None:
        old = torch.ones(len(owner.folds_R)) if weights_R is None else weights_R
        new = torch.ones(len(folds_N)) if rows.weights_N is None else rows.weights_N
        weights_R = torch.cat([old, new])
    return replace(
        owner,
        x_RF=_joined(owner.x_RF, rows.x_NF, party),
        targets_RC=_joined(owner.targets_RC, rows.targets_NC, party),
        folds_R=torch.cat([owner.folds_R, folds_N]),
        weights_R=weights_R,
    )


def teacher_with_scored(teacher: Teacher, rows: ScoredRows, party: str) -> Teacher:
    """The teacher with what it says of these rows, whose labels no fold's members saw."""
    said_KNC = (rows.said_NC * teacher.temperature).expand(len(teacher.outputs_KRC), -1, -1)
    return replace(teacher, outputs_KRC=_joined(teacher.outputs_KRC, said_KNC, party))


def own_model(fitted: dict[str, Fitted], learners: dict[str, Learner], rows: Rows, *, seed: int,
              encode_on: Tensor) -> Fitted:  # fmt: skip
    """The own model of all rows: the learners that count in it, with the settings they chose.

    Args:
        fitted: name -> what counted on fewer rows.
        learners: name -> learner.
        rows: all labelled ones.
        seed: of all that is drawn.
        encode_on: as of ``Learner.fit``.
    """
    narrowed = [learners[name].narrowed(each) for name, each in fitted.items()]
    return best_of(fit_all(narrowed, rows, seed=seed, encode_on=encode_on), rows)


def solo_model(
    owner: Owner,
    teacher: Teacher | None,
    alone: Fitted,
    done: Distilled | None,
    config: StudentConfig,
    *,
    seed: int,
) -> Fitted:
    """The solo model of all rows: distilled as ``done`` was, where that paid; else the own model.

    Args:
        owner, teacher: with the scored rows.
        alone: of ``own_model``.
        done: what came of fewer rows.
        config: how it was distilled.
        seed: of all that is drawn.
    """
    if teacher is None or done is None or not done.pays:
        return alone
    return distil(owner, teacher, alone, config, seed=seed, kept=done).solo


def _joined(first: Tensor, more: Tensor, party: str) -> Tensor:
    """(..., R + N, C) rows after rows, of many in a file of the party's."""
    shape = (*first.shape[:-2], first.shape[-2] + more.shape[-2], first.shape[-1])
    joined = torch.from_numpy(zeros(shape, first.numpy().dtype, party))
    joined[..., : first.shape[-2], :] = first
    joined[..., first.shape[-2] :, :] = more.to(first.dtype)
    return joined
