"""What a run of APFed-S comes to at the label owner: alone, teacher, student, joint scores.

Everything here is the label owner's own work, when partners have answered. Nothing is chosen on
test rows: their numbers are read when all is chosen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dovetail.federated import Epoch, Federation, ending_announced
from dovetail.methods.apfed import second_question
from dovetail.methods.apfed.distilling import Distilling, joint_decision
from dovetail.methods.baselines import features, held_out_decision, judged_rows, majority_of
from dovetail.methods.outcome import Observer, Outcome, about_decision, numbers
from dovetail.models import derive_seed
from dovetail.models.learners import LEARNERS, Fitted, best_of, fit_all
from dovetail.models.learners.assisted import num_targets
from dovetail.models.learners.assisted_joint import Answers, AssistedJoint, AssistedSpec
from dovetail.models.learners.assisted_teacher import JointTeacher, fit_teacher
from dovetail.models.learners.distil import Distilled, Owner, Teacher, distil
from dovetail.models.recovered import recovered_share
from dovetail.network import Checkpoint, Engine

#: Standard errors of held-out rows that the first numbers gain where more are asked for.
_AHEAD = 2.0


class _Nobody(Federation):
    """The run's ledger, without its parties: they have nothing to save once they have answered."""

    @property
    def parties(self) -> tuple[str, ...]:
        return ()


def rounds(
    active: second_question.Active,
    network: Engine,
    checkpoint: Checkpoint | None = None,
    *,
    pays: Callable[[], bool] = lambda: False,
) -> Iterator[Epoch]:
    """Asks every partner once, and once more where that pays; a run that is resumed asks nobody.

    Args:
        active: the label owner.
        network: reaches the partners.
        checkpoint: saves what they answered.
        pays: whether more numbers are worth it; looked at where there are more to ask for.
    """
    checkpoint, alone = checkpoint or Checkpoint.none(), _Nobody(network)
    with ending_announced(network):
        if not checkpoint.resume(active, alone, tolerate_missing=True):
            started = time.perf_counter()
            asked = active.ask_all(network)
            if active.more and active.numbers and pays():
                active.ask_more(network)
            yield Epoch(
                number=1,
                seconds=time.perf_counter() - started,
                num_steps=1,
                missed=asked.missed,
                reasons=asked.reasons,
            )
            checkpoint.save(1, active, alone)


def joint_of(active: second_question.Active, owner: Owner, alone: Fitted) -> JointTeacher | None:
    """The teacher from every partner's numbers; None where no row is labelled and answered."""
    if not active.numbers:
        return None
    num = owner.num_outputs
    first = [torch.ones(num, dtype=torch.bool)]
    for z_RZ in active.numbers.values():
        first.append(torch.arange(z_RZ.shape[1]) < num)
    z_RZ = torch.cat(list(active.numbers.values()), dim=1)
    first_F = torch.cat(first) if active.asked_more else None
    return fit_teacher(z_RZ, owner, alone, first_F, fill=active.fill)


def pays(work: Distilling, active: second_question.Active) -> bool:
    """Whether first numbers put the teacher so far ahead on held-out rows that more may pay."""
    owner = work.owner()
    alone = _alone(work, active, owner)[1]
    joint = joint_of(active, owner, alone)
    if joint is None:
        return False
    said_RC = owner.no_outputs()
    said_RC[owner.labelled] = alone.held_out_NC
    taught_RC = joint.joint.held_out(owner.folds_R)
    both = ~(said_RC + taught_RC).isnan().any(dim=1)
    losses = [
        owner.loss.rows(each[both], owner.targets_RC[both]).double()
        for each in (said_RC, taught_RC)
    ]
    gains = losses[0] - losses[1]
    error = float(gains.std()) / math.sqrt(max(1, len(gains)))
    return float(gains.mean()) > _AHEAD * error


def _alone(
    work: Distilling, active: second_question.Active, owner: Owner
) -> tuple[dict[str, Fitted], Fitted]:
    """Every learner of own columns, and the best; trained once a run."""
    if active.alone is None:
        rows = judged_rows(owner.labelled_rows())
        fitted = fit_all(list(LEARNERS.values()), rows, seed=work.seed, encode_on=owner.x_RF)
        active.alone = fitted, best_of(fitted, rows)
    return active.alone


def network_of(
    work: Distilling,
    active: second_question.Active,
    joint: JointTeacher,
    alone: Fitted,
    solo: Fitted,
) -> AssistedJoint:
    """The joint model as the label owner keeps it; the keys are kept apart."""
    spec = AssistedSpec(
        block=work.block,
        num_features=work.train.joined()[0].numel(),
        partners=active.partners,
        partial=len(active.partners) > 1,  # own outputs stand in for a number
        regression=work.regression,
        solo=solo.spec,
        alone=alone.spec,
        own=joint.inputs.spread,
        numbers=tuple(each.shape[1] for each in active.numbers.values()),
        answers=tuple(Answers.from_json(active.answers[name]) for name in active.partners),
        teachers=len(joint.members),
        folds=len(joint.members[0].weights_KCF),
        temperature=joint.joint.temperature,
    )
    return AssistedJoint.of(spec, alone.network, solo.network, joint.inputs, joint.members)


def finish(
    work: Distilling, active: second_question.Active, engine: Engine, observe: Observer
) -> Outcome:
    """When partners have answered, all that the label owner does by itself."""
    owner, name = work.owner(), work.name
    started = time.perf_counter()
    rows = judged_rows(owner.labelled_rows())
    fitted, alone = _alone(work, active, owner)
    joint = joint_of(active, owner, alone)
    done = None
    if joint is not None:
        done = distil(owner, joint.teacher, alone, work.students, seed=work.seed)
    solo = alone if done is None else done.solo
    outcome = Outcome(ledger=engine.ledger)
    outcome.about["distilled"] = _about(active, owner, joint, alone, done, work.labels)
    run = {"run": engine.run} if engine.run else {}
    choice = done.choice if done is not None and done.pays else "alone"
    decision = held_out_decision(work.decision_settings, work.task, solo, rows)
    outcome.models[name] = work.model(
        solo.network, solo.spec, "apfed-s", learner=choice, **run, **about_decision(decision)
    )
    together = None
    if joint is not None:
        together = network_of(work, active, joint, alone, solo)
        kept = about_decision(joint_decision(work, owner, joint.joint))
        outcome.joint = work.joint_model(together, together.spec, "apfed-s", **run, **kept)
        outcome.keys = dict(active.keys)
    if work.test is not None:
        _score(
            work,
            outcome,
            owner,
            active,
            together,
            None if joint is None else joint.joint,
            solo=solo,
            alone=alone,
            fitted=fitted,
        )
    line: dict[str, Any] = {
        "epoch": 2,
        "seconds": time.perf_counter() - started,
        "steps": 1,
        **numbers(outcome.scores.get("apfed-s", {}).get(name, {})),
    }
    if active.lost and not active.numbers:
        line |= {"missed": dict.fromkeys(active.lost, 1), "reasons": dict(active.lost)}
    observe("apfed-s", 2, line)
    return outcome


def _about(
    active: second_question.Active,
    owner: Owner,
    joint: JointTeacher | None,
    alone: Fitted,
    done: Distilled | None,
    labels: Sequence[str],
) -> dict[str, Any]:
    """What a report says of how it went; JSON-ready."""
    about: dict[str, Any] = {
        "alone": alone.learner,
        "choice": "alone",
        "pays": False,
        "partners": list(active.partners),
        "lost": dict(active.lost),
        "asked_more": list(active.asked_more),
        "numbers_per_row": max(
            (len(each["exponents"]) for each in active.answers.values()),
            default=len(active.smoothers),
        )
        * num_targets(owner.num_outputs, regression=owner.regression),
    }
    if joint is None or done is None:
        why = "too few rows are both labelled and shared"
        return {**about, "why": why if active.partners else "no partner answered"}
    return about | done.report(joint.joint, owner, labels)


def _score(
    work: Distilling,
    outcome: Outcome,
    owner: Owner,
    active: second_question.Active,
    joint: AssistedJoint | None,
    teacher: Teacher | None,
    *,
    solo: Fitted,
    alone: Fitted,
    fitted: Mapping[str, Fitted],
) -> None:
    """Everything's scores on the same test rows, and the recovered share."""
    x, rows = features(work.tested.joined()), judged_rows(owner.labelled_rows())
    models = {"apfed-s": solo, "best-alone": alone, **fitted}
    outputs = {what: each.outputs(x) for what, each in models.items()}
    outputs["majority"] = majority_of(owner.labelled_rows()).expand(len(x), -1)
    for what, each in outputs.items():
        model = models.get(what)
        decision = (
            None
            if model is None
            else held_out_decision(work.decision_settings, work.task, model, rows)
        )
        outcome.scores[what] = {work.name: work.scored(what, each, decision=decision)}
    if joint is None or teacher is None or not active.tested:
        return
    z_RZ = torch.cat(list(active.tested.values()), dim=1)
    tested = (~z_RZ.isnan()).any(dim=1).nonzero().flatten()
    if not len(tested):
        return
    with torch.no_grad():
        together = joint.from_numbers(outputs["best-alone"][tested], z_RZ[tested])
    decision = joint_decision(work, owner, teacher)
    scored = work.scored("joint", together, tested, decision=decision)
    if len(tested) < len(x):
        scored["rows"] = float(len(tested))
    outcome.scores["joint"] = {work.name: scored}
    outcome.about["recovered"] = recovered_share(
        work.task,
        work.tested.required_labels[tested],
        solo=outputs["apfed-s"][tested],
        alone=outputs["best-alone"][tested],
        joint=together,
        seed=derive_seed(work.seed, "recovered"),
    )
