"""The joint model of APFed-D at the label owner, once its teacher is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from torch import Tensor

from dovetail.methods.apfed import distil
from dovetail.methods.apfed.distilling import Distilling, Help, own_models
from dovetail.models.learners import Fitted
from dovetail.models.learners.distil import Owner, Teacher, choose_teacher
from dovetail.models.learners.joint import (
    Bottoms,
    Joint,
    JointSpec,
    Part,
    StacksSpec,
    WithPartners,
    blended,
)
from dovetail.models.learners.stacked import mean_outputs


def help_of(work: Distilling, active: distil.Active, owner: Owner) -> Help:
    """Help that came of a teacher's training."""
    fitted, alone = own_models(work, owner)
    said, teacher, tested = active.teacher_outputs, None, None
    if said is not None:
        teacher = choose_teacher(active.of_folds(said.train), owner, active.name)
        if said.test is not None:
            test = _of_test_rows(active, said.test, teacher)
            tested = lambda _network, _alone: test  # noqa: E731
    joint = None
    if teacher is not None and work.config.exchange == "gradients":
        joint = partial(_joint, work, active, teacher)
    return Help(
        variant="apfed-d",
        fitted=fitted,
        alone=alone,
        teacher=teacher,
        joint=joint,
        tested=tested,
        report={"partners": list(active.partners), "lost": dict(active.lost)},
        why=active.why_not,
        lost={} if active.partners else active.lost,
        epoch=active.number + 1,
    )


def _joint(
    work: Distilling, active: distil.Active, teacher: Teacher, solo: Fitted, halved: bool
) -> tuple[WithPartners, JointSpec]:
    """The label owner's part of the joint model; partners have theirs."""
    stacks = list(work.config.teachers)
    taught = [active.taught[name] for name in stacks]
    parts_here = tuple(each.stack.part() for each in taught)
    parts = tuple(
        tuple(
            Part(
                parts_here[index].members,
                0,
                (width,) if width else (),
                parts_here[index].num_outputs,
            )
            for index, width in enumerate(active.code_widths[partner])
        )
        for partner in active.partners
    )
    used = range(len(stacks)) if teacher.name not in stacks else [stacks.index(teacher.name)]
    held = active.train.held(active.partners)[:, active.rows_N]
    spec = StacksSpec(
        block=work.block,
        num_features=work.train.joined()[0].numel(),
        partners=active.partners,
        partial=not bool(held.all()),
        regression=work.regression,
        solo=solo.spec,
        halved=halved,
        own=parts_here,
        parts=parts,
        copies=active.copies,
        used=tuple(used),
        temperature=teacher.temperature,
    )
    bottoms = Bottoms(
        [each.stack.encoding for each in taught], [each.stack.bottom for each in taught]
    )
    network = Joint(spec, bottoms, [each.head.top for each in taught], solo.network)
    return network.eval(), spec


def _of_test_rows(active: distil.Active, outputs: Mapping[str, Tensor], teacher: Teacher) -> Tensor:
    """(N, C) of rows that nobody learned from, as ``Joint`` says it."""
    regression = active.owner.regression
    used: Sequence[str] = [teacher.name] if teacher.name in outputs else list(outputs)
    folds = active.of_folds({stack: outputs[stack] for stack in used})
    outputs_KNC = blended([*folds.values()], regression=regression) / teacher.temperature
    return mean_outputs(outputs_KNC, regression=regression)
