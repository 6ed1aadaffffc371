"""APFed-S at the label owner: its rounds, and the joint model of what partners answered."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from dovetail.federated import Epoch, Federation, ending_announced
from dovetail.methods.apfed import sealed
from dovetail.methods.apfed.distilling import Distilling, Help, own_models
from dovetail.models.learners import Fitted
from dovetail.models.learners.assisted import num_targets
from dovetail.models.learners.assisted_joint import Answers, AssistedJoint, AssistedSpec
from dovetail.models.learners.assisted_teacher import JointTeacher, fit_teacher
from dovetail.models.learners.distil import Owner
from dovetail.models.learners.joint import JointSpec, WithPartners
from dovetail.network import Checkpoint, Engine


class _Nobody(Federation):
    """The run's ledger, without its parties: they have nothing to save once they have answered."""

    @property
    def parties(self) -> tuple[str, ...]:
        return ()


def rounds(
    active: sealed.Active,
    network: Engine,
    checkpoint: Checkpoint | None = None,
) -> Iterator[Epoch]:
    """Asks every partner once; a run that is resumed asks nobody.

    Args:
        active: the label owner.
        network: reaches the partners.
        checkpoint: saves what they answered.
    """
    network = network.patient()  # one question is the whole run
    checkpoint, alone = checkpoint or Checkpoint.none(), _Nobody(network)
    with ending_announced(network):
        if not checkpoint.resume(active, alone, tolerate_missing=True):
            checkpoint.begin_anew(active, network)
            started = time.perf_counter()
            asked = active.ask_all(network)
            yield replace(asked, number=1, seconds=time.perf_counter() - started)
            checkpoint.save(1, active, alone)


def joint_of(active: sealed.Active, owner: Owner, alone: Fitted) -> JointTeacher | None:
    """The teacher from every partner's numbers; None where no row is labelled and answered."""
    if not active.numbers:
        return None
    z_RZ = torch.cat(list(active.numbers.values()), dim=1)
    return fit_teacher(z_RZ, owner, alone, fill=active.fill, party=active.name)


def _alone(
    work: Distilling, active: sealed.Active, owner: Owner
) -> tuple[dict[str, Fitted], Fitted]:
    """Every learner of own columns, and the best; trained once a run."""
    if active.alone is None:
        active.alone = own_models(work, owner)
    return active.alone


def network_of(
    work: Distilling,
    active: sealed.Active,
    joint: JointTeacher,
    alone: Fitted,
    solo: Fitted,
    halved: bool,
) -> tuple[WithPartners, JointSpec]:
    """The joint model as the label owner keeps it; the keys are kept apart."""
    spec = AssistedSpec(
        block=work.block,
        num_features=work.train.joined()[0].numel(),
        partners=active.partners,
        partial=len(active.partners) > 1,  # own outputs stand in for a number
        regression=work.regression,
        solo=solo.spec,
        halved=halved,
        alone=alone.spec,
        own=joint.inputs.spread,
        numbers=tuple(each.shape[1] for each in active.numbers.values()),
        answers=tuple(Answers.from_json(active.answers[name]) for name in active.partners),
        teachers=len(joint.members),
        folds=len(joint.members[0].weights_KCF),
        temperature=joint.joint.temperature,
    )
    kept = AssistedJoint.of(spec, alone.network, solo.network, joint.inputs, joint.members)
    return kept, spec


def help_of(work: Distilling, active: sealed.Active, owner: Owner) -> Help:
    """Help that came of partners' answers."""
    fitted, alone = _alone(work, active, owner)
    joint = joint_of(active, owner, alone)
    why = "too few rows are both labelled and shared"
    return Help(
        variant="apfed",
        fitted=fitted,
        alone=alone,
        teacher=None if joint is None else joint.joint,
        students_teacher=None if joint is None else joint.teacher,
        joint=None if joint is None else partial(network_of, work, active, joint, alone),
        tested=partial(_of_test_rows, active) if active.tested else None,
        answered=active.tested,
        report={
            "partners": list(active.partners),
            "lost": dict(active.lost),
            "numbers_per_row": num_targets(owner.num_outputs, regression=owner.regression),
            "bits": dict(active.bits),
        },
        why=why if active.partners else "no partner answered",
        lost={} if active.numbers else active.lost,
        epoch=2,
        keys=active.keys,
    )


def _of_test_rows(active: sealed.Active, joint: WithPartners | None, alone_RC: Tensor) -> Tensor:
    """(R, C) what the joint model says of test rows, NaN where no partner answered."""
    assert isinstance(joint, AssistedJoint)
    z_RZ = torch.cat(list(active.tested.values()), dim=1)
    tested, outputs_RC = (~z_RZ.isnan()).any(dim=1), torch.full_like(alone_RC, torch.nan)
    with torch.no_grad():
        outputs_RC[tested] = joint.from_numbers(alone_RC[tested], z_RZ[tested])
    return outputs_RC
