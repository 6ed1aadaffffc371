"""Results of APFed-D or -S at the label owner: local model, student, joint model, scores.

Everything here is the label owner's own work; messages are sent by ``teaching`` alone. Nothing is
chosen on test rows: they are asked about when all is chosen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from dovetail.data import Classification, MultiLabel, MultiTarget, Task
from dovetail.data.wording import FEW_OF_CLASS
from dovetail.errors import ConfigError
from dovetail.federated import Local
from dovetail.methods.apfed import distil
from dovetail.methods.apfed.local_data import LabelOwnerData
from dovetail.methods.baselines import (
    CONSTANTS,
    NOTHING_ELSE,
    features,
    held_out_decision,
    judged_rows,
    majority_of,
)
from dovetail.methods.outcome import (
    DecisionSettings,
    Observer,
    Outcome,
    about_decision,
    numbers,
    score_party,
)
from dovetail.methods.settings.apfed import ApfedSection, DistilSection
from dovetail.methods.settings.shared import BASELINES as TITLES
from dovetail.models import Model, derive_seed, generator, key_of
from dovetail.models.decisions import FittedThreshold
from dovetail.models.learners import NO_FOLD, Fitted, best_of, fit_all, make_folds
from dovetail.models.learners.distil import Distilled, Owner, StudentConfig, Teacher
from dovetail.models.learners.distil import distil as distilled
from dovetail.models.learners.joint import JointSpec, WithPartners, blended
from dovetail.models.learners.refit import (
    ScoredRows,
    own_model,
    solo_model,
    teacher_with_scored,
    with_scored,
)
from dovetail.models.learners.rows import Rows
from dovetail.models.losses import loss_of, targets_of
from dovetail.models.metrics import KNOWN_OF_CLASS
from dovetail.models.recovered import recovered_share
from dovetail.models.relied import relied as relied_on
from dovetail.network import Engine
from dovetail.privacy import randomised

_log = logging.getLogger(__name__)

#: What is learned from the label owner's own columns; "best-alone" is the best of the learners by
#: held-out rows.
ALONE = tuple(TITLES)


#: Of more labelled rows than this, so many are drawn.
MOST_LEARNT = 500_000


@cache
def _tell_of_draw(party: str, num: int) -> None:
    _log.warning(
        "party %r: of %s rows with a label, %s are drawn, from which boosted trees, linear models, "
        "networks and teachers learn; the others count as rows without one",
        party,
        f"{num:,}",
        f"{MOST_LEARNT:,}",
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Distilling(LabelOwnerData):
    """The label owner's site, and what a run of one seed is a function of beside it.

    Attributes:
        section: its settings. Labels are randomised before partners are taught; the student's are
            not.
        seed: of everything random here.
        decision_settings: what mistakes cost.
        refit: whether the kept model learns from test rows, too, once they have scored it.
        reported: whether the columns that its models rely on are found, too.
    """

    section: ApfedSection
    seed: int
    decision_settings: DecisionSettings = NOTHING_ELSE
    refit: bool = False
    reported: bool = False

    @property
    def config(self) -> DistilSection:
        """Of the teacher, of the student and of the gate."""
        return self.section.distil

    @property
    def students(self) -> StudentConfig:
        """How the student is trained and chosen."""
        config = self.config
        return StudentConfig(
            students=config.students,
            label_share=config.label_share,
            blend=config.blend,
            gate=config.gate,
        )

    @property
    def regression(self) -> bool:
        return not isinstance(self.task, Classification)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of several labels; () of one."""
        return self.task.labels if isinstance(self.task, (MultiLabel, MultiTarget)) else ()

    @property
    def block(self) -> str:
        """Name of its columns in a model."""
        return next(iter(self.train.blocks)) if len(self.train.blocks) == 1 else "joined"

    def owner(self) -> Owner:
        """Rows of the label owner, with folds over the labelled ones.

        Partners see folds. They are split class by class in an order that a seed gives: who knew it
        would read labels off them, so the seed is the site's secret. How many rows of a class each
        fold has is an equation of labels, and those of many splits solve for all: so a site splits
        once for all seeds. Labels that are randomised for partners have no part in them at all.

        Raises:
            ConfigError: fewer than three labelled rows: without one, a student stops by the second.
        """
        labels, labelled = self.train.labels, self.train.labelled_rows()
        if labels is None or len(labelled) < 3:
            raise ConfigError(
                f"party {self.train.name!r} has {len(labelled)} labelled rows; the label owner "
                "needs three or more to learn from; label more, or test fewer (test = 0)"
            )
        labelled = self._learnt_from(labelled)
        folds = torch.full((self.train.num_rows,), NO_FOLD)
        key = key_of(self.secret)
        seed = self.seed if key is None else 0
        folds[labelled] = make_folds(
            labels[labelled],
            min(self.config.folds, len(labelled)),
            seed=derive_seed(seed, self.train.name, "folds", secret=key),
            regression=self.regression or self.section.label_epsilon is not None,
        )
        targets = targets_of(self.task, labels)
        targets[folds < 0] = 0
        weights_C = self.decision_settings.weights(self.task, labels)
        x_RF, weights_R = features(self.train.joined()), self.train.weights
        return Owner(x_RF, targets, folds, loss_of(self.task), weights_C, weights_R)

    def _learnt_from(self, labelled: Tensor) -> Tensor:
        """These labelled rows; of many a draw, told once: boosted trees copy their rows."""
        num = len(labelled)
        if num <= MOST_LEARNT:
            return labelled
        rng = generator(self.seed, self.train.name, "learnt", secret=key_of(self.secret))
        _tell_of_draw(self.train.name, num)
        return labelled[torch.randperm(num, generator=rng)[:MOST_LEARNT]].sort().values

    def teaching(self, owner: Owner) -> Owner:
        """The owner as partners are shown its labels: by randomised response where that is set.

        Raises:
            ConfigError: labels that are numbers.
        """
        section = self.section
        if section.label_epsilon is None:
            return owner
        if self.regression:
            raise ConfigError(
                f"party {self.train.name!r}: label_epsilon is for classes, its label is a number; "
                "leave it out"
            )
        key = key_of(self.secret)
        rng = generator(self.seed, self.train.name, "randomised labels", secret=key)
        num = self.task.num_outputs
        classes = torch.where(owner.labelled, owner.targets_RC.argmax(dim=1), -1)
        labels = randomised(
            classes, owner.x_RF, num, section.label_epsilon, rng, stages=section.label_stages
        )
        targets_RC = targets_of(self.task, labels.clamp(min=0))
        targets_RC[~owner.labelled] = 0
        weights_C = self.decision_settings.weights(self.task, labels)
        return replace(owner, targets_RC=targets_RC, weights_C=weights_C)

    def teacher(self) -> distil.Active:
        """The label owner while the teacher is trained."""
        tested = None
        if self.test is not None and self.test_alignment is not None:
            tested = distil.AlignedRows.of(self.test.joined(), self.name, self.test_alignment)
        return distil.Active(
            self.teaching(self.owner()),
            distil.AlignedRows.of(self.train.joined(), self.name, self.alignment),
            tested,
            self.config,
            Local(self.name, secret=self.secret),
            seed=self.seed,
        )

    def model(self, network: torch.nn.Module, spec: Any, method: str, **about: Any) -> Model:
        """A model on the label owner's own columns."""
        return Model(
            party=self.train.name,
            task=self.task,
            network=network,
            spec=spec,
            shapes={self.block: tuple(self.train.joined().shape[1:])},
            inputs={} if self.input is None else {self.block: self.input},
            about={"method": method, "seed": self.seed, "label": self.label, **about},
        )

    def joint_model(
        self, network: torch.nn.Module, spec: JointSpec, method: str, **about: Any
    ) -> Model:
        """A model on its own columns and what partners answer."""
        joint = self.model(network, spec, method, **about)
        widths = {partner: (width,) for partner, width in spec.widths.items()}
        joint.shapes = {**joint.shapes, **widths}
        return joint

    def scored(
        self,
        what: str,
        outputs: Tensor,
        rows: Tensor | None = None,
        *,
        decision: FittedThreshold | None = None,
        model: Model | None = None,
        answered: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Any]:
        """Scores on test rows.

        Args:
            what: is scored.
            outputs: of it.
            rows: which of the test rows these are of; None: all.
            decision: its threshold.
            model: whose most important columns are reported, too; None: they are not.
            answered: partner -> what it answered of all test rows.
        """
        labels = self.tested.required_labels
        chosen = slice(None) if rows is None else rows
        labels, relied = labels[chosen], None
        if model is not None:
            answered = answered or {}
            blocks = {self.block: self.tested.joined(), **answered}
            x = {name: each[chosen] for name, each in blocks.items()}
            seed = derive_seed(self.seed, "relied")
            relied = partial(relied_on, model, x, labels, partners=[*answered], seed=seed)
        return score_party(
            self.train.name,
            what,
            self.task,
            outputs,
            labels,
            learning_rate=self.config.learning_rate,
            last=True,
            decision=decision,
            relied=relied,
        )


def train_alone(work: Distilling, variant: str, observe: Observer) -> Outcome:
    """Train and score one of ``ALONE``."""
    started = time.perf_counter()
    owner = work.owner()
    rows = judged_rows(owner.labelled_rows())
    outcome, decision = Outcome(), None
    names = tuple(work.learners) if variant == "best-alone" else (variant,)
    if variant in CONSTANTS:
        constant = CONSTANTS[variant](rows)
        outputs = None if work.test is None else constant.expand(work.test.num_rows, -1)
    else:
        learners = [work.learners[name] for name in names]
        fitted = fit_all(learners, rows, seed=work.seed, encode_on=owner.x_RF)
        best = best_of(fitted, rows)
        decision = held_out_decision(work.decision_settings, work.task, best, rows)
        model = work.model(
            best.network, best.spec, variant, learner=best.learner, **about_decision(decision)
        )
        outcome.models[work.train.name] = model
        outputs = None if work.test is None else best.outputs(features(work.test.joined()))
    if outputs is not None:
        scored = work.scored(variant, outputs, decision=decision)
        outcome.scores[variant] = {work.train.name: scored}
    line = {"epoch": 1, "seconds": time.perf_counter() - started, "steps": 1}
    observe(
        variant, 1, {**line, **numbers(outcome.scores.get(variant, {}).get(work.train.name, {}))}
    )
    return outcome


@dataclass(frozen=True, eq=False, kw_only=True)
class Help:
    """Help of partners in a run, as APFed-D and APFed-S each have it.

    Attributes:
        variant: which of them.
        fitted, alone: every learner of own columns, and the best of them.
        teacher: what the joint model says; None: there is no joint model.
        students_teacher: what students learn from; None: as ``teacher``.
        joint: solo model, and whether the joint one says the mean of both -> what the label owner
            keeps of the joint model; None: nothing.
        tested: the joint model and outputs of ``alone`` for test rows -> (N, C) what it says of
            them, NaN where no partner answered; None: partners were not asked about them.
        answered: partner -> (N, E) what it answered of test rows, where the joint model's network
            takes it as it came.
        report: of who took part.
        why: there is no teacher, or "".
        lost: partner -> why it was left out, if nobody is left.
        epoch: the number of the epoch that is the student's.
        keys: partner -> what reads its answers to the joint model.
    """

    variant: str
    fitted: Mapping[str, Fitted]
    alone: Fitted
    teacher: Teacher | None
    students_teacher: Teacher | None = None
    joint: Callable[[Fitted, bool], tuple[WithPartners, JointSpec]] | None = None
    tested: Callable[[WithPartners | None, Tensor], Tensor] | None = None
    answered: Mapping[str, Tensor] = field(default_factory=dict)
    report: Mapping[str, Any]
    why: str
    lost: Mapping[str, str]
    epoch: int
    keys: Mapping[str, Tensor] = field(default_factory=dict)


def own_models(work: Distilling, owner: Owner) -> tuple[dict[str, Fitted], Fitted]:
    """Every learner of own columns, and the best."""
    rows = judged_rows(owner.labelled_rows())
    fitted = fit_all(list(work.learners.values()), rows, seed=work.seed, encode_on=owner.x_RF)
    return fitted, best_of(fitted, rows)


def finish(
    work: Distilling, owner: Owner, help: Help, engine: Engine, observe: Observer, started: float
) -> Outcome:
    """All that the label owner does by itself, when partners have done their part."""
    variant, teacher, alone = help.variant, help.teacher, help.alone
    report = {"alone": alone.learner, "choice": "alone", "pays": False, **help.report}
    solo, choice, done = alone, "alone", None
    if teacher is None:
        report["why"] = help.why
    else:
        taught_by = help.students_teacher or teacher
        done = distilled(owner, taught_by, alone, work.students, seed=work.seed, joint=teacher)
        solo, choice = done.solo, done.choice if done.pays else "alone"
        report |= done.report(teacher, owner, work.labels)
        second = second_class(work.task, owner, teacher)
        if second is not None and second < KNOWN_OF_CLASS:  # no score shows its worth
            help, report["no_joint"] = replace(help, joint=None, tested=None), second
    if few := few_of(work.task, owner):
        report["few"] = few
    outcome = Outcome(ledger=engine.ledger)
    outcome.about["distilled"] = report
    run = {"run": engine.run} if engine.run else {}
    halved = done is not None and not done.joint_leads
    joint, beside = None, solo if halved else None
    if teacher is not None and help.joint is not None:
        joint = help.joint(solo, halved)
    if work.test is not None:
        _score(work, outcome, owner, help, solo, joint, beside)
    rows = judged_rows(owner.labelled_rows())
    if scored := _scored_rows(work, owner, help, None if joint is None else joint[0]):
        whole = with_scored(owner, scored, seed=derive_seed(work.seed, "refit"), party=work.name)
        rows = judged_rows(whole.labelled_rows())
        solo = _refitted(work, whole, help, done, scored, rows)
        report["refitted"] = {"labelled": len(rows.x_NF), "tested": len(scored.x_NF)}
    kept = about_decision(held_out_decision(work.decision_settings, work.task, solo, rows))
    outcome.models[work.name] = work.model(
        solo.network, solo.spec, variant, learner=choice, **run, **kept
    )
    if teacher is not None and help.joint is not None:
        network, spec = help.joint(solo, halved)
        kept = about_decision(joint_decision(work, owner, teacher, beside))
        outcome.joint = work.joint_model(network, spec, variant, **run, **kept)
        outcome.keys = dict(help.keys)
    line: dict[str, Any] = {
        "epoch": help.epoch,
        "seconds": time.perf_counter() - started,
        "steps": 1,
        **numbers(outcome.scores.get(variant, {}).get(work.name, {})),
    }
    if help.lost:  # nobody is left: this step is without them, too
        line |= {"missed": dict.fromkeys(help.lost, 1), "reasons": dict(help.lost)}
    observe(variant, help.epoch, line)
    return outcome


def few_of(task: Task, owner: Owner) -> dict[str, int]:
    """Class -> its labelled rows that train, where these are fewer than ``FEW_OF_CLASS``."""
    if not isinstance(task, Classification):
        return {}
    counts_C = owner.targets_RC[owner.labelled].sum(dim=0)
    counts = zip(task.classes, counts_C.long().tolist(), strict=True)
    return {str(name): num for name, num in counts if num < FEW_OF_CLASS}


def second_class(task: Task, owner: Owner, teacher: Teacher) -> int | None:
    """Labelled rows that partners share, but for the majority class; None without classes."""
    if not isinstance(task, Classification):
        return None
    counts_C = owner.targets_RC[owner.labelled & teacher.aligned].sum(dim=0)
    return int(counts_C.sum() - counts_C.max())


def _scored_rows(
    work: Distilling, owner: Owner, help: Help, network: WithPartners | None
) -> ScoredRows | None:
    """Test rows that the kept model is to learn from; None: none."""
    test, num_labelled = work.test, int(owner.labelled.sum())
    if not work.refit or test is None or test.labels is None:
        return None
    rows = test.labelled_rows()
    if len(rows) < 2 or num_labelled + len(rows) > MOST_LEARNT:
        return None
    x_NF = features(test.joined())
    said = torch.full((len(x_NF), owner.num_outputs), torch.nan)
    if help.tested is not None:
        said = _said_jointly(help, network, x_NF, help.alone.outputs(x_NF))
    weights = None if test.weights is None else test.weights[rows]
    targets = targets_of(work.task, test.labels[rows])
    return ScoredRows(x_NF[rows], targets, test.labels[rows], said[rows], weights)


def _said_jointly(
    help: Help, network: WithPartners | None, x_NF: Tensor, alone_NC: Tensor
) -> Tensor:
    """(N, C) what the joint model says of test rows, NaN where no partner answered."""
    assert help.tested is not None
    said_NC = help.tested(network, alone_NC)
    if network is None:
        return said_NC
    with torch.no_grad():
        return network.tempered(said_NC, network.solo(x_NF))


def _refitted(
    work: Distilling,
    owner: Owner,
    help: Help,
    done: Distilled | None,
    scored: ScoredRows,
    rows: Rows,
) -> Fitted:
    """The solo model once more, with the owner's rows that scored it."""
    counted = {name: help.fitted[name] for name in help.alone.learner.split("+")}
    learners = dict(work.learners)
    alone = own_model(counted, learners, rows, seed=work.seed, encode_on=owner.x_RF)
    teacher = help.students_teacher or help.teacher
    if teacher is not None:
        teacher = teacher_with_scored(teacher, scored, work.name)
    return solo_model(owner, teacher, alone, done, work.students, seed=work.seed)


def _score(
    work: Distilling,
    outcome: Outcome,
    owner: Owner,
    help: Help,
    solo: Fitted,
    kept: tuple[WithPartners, JointSpec] | None,
    beside: Fitted | None,
) -> None:
    """Everything's scores on the same test rows, and the share of the gain kept."""
    x, rows = features(work.tested.joined()), judged_rows(owner.labelled_rows())
    models = {help.variant: solo, "best-alone": help.alone, **help.fitted}
    outputs = {what: each.outputs(x) for what, each in models.items()}
    for what, each in models.items():
        decision = held_out_decision(work.decision_settings, work.task, each, rows)
        shown = None
        if work.reported and what == help.variant:
            shown = work.model(each.network, each.spec, what)
        scored = work.scored(what, outputs[what], decision=decision, model=shown)
        outcome.scores[what] = {work.name: scored}
    majority = majority_of(owner.labelled_rows()).expand(len(x), -1)
    outcome.scores["majority"] = {work.name: work.scored("majority", majority)}
    if help.teacher is None or help.tested is None:
        return
    joint = _said_jointly(help, None if kept is None else kept[0], x, outputs["best-alone"])
    tested = (~joint.isnan().any(dim=1)).nonzero().flatten()
    if not len(tested):
        return
    decision = joint_decision(work, owner, help.teacher, beside)
    shown = None
    if work.reported and help.answered and kept is not None:
        shown = work.joint_model(*kept, help.variant)
    scored = work.scored(
        "joint", joint[tested], tested, decision=decision, model=shown, answered=help.answered
    )
    if len(tested) < len(x):
        scored["rows"] = float(len(tested))
    outcome.scores["joint"] = {work.name: scored}
    outcome.about["recovered"] = recovered_share(
        work.task,
        work.tested.required_labels[tested],
        solo=outputs[help.variant][tested],
        alone=outputs["best-alone"][tested],
        joint=joint[tested],
        seed=derive_seed(work.seed, "recovered"),
    )


def joint_decision(
    work: Distilling, owner: Owner, teacher: Teacher, beside: Fitted | None
) -> FittedThreshold | None:
    """The joint model's threshold, by labelled rows that its members did not see.

    It is not calibrated: rows that partners do not answer are the solo model's.

    Args:
        beside: whose mean with the teacher it says; None: it says what the teacher does.
    """
    held_out_RC = teacher.held_out(owner.folds_R)
    if beside is not None:
        beside_RC = owner.no_outputs()
        beside_RC[owner.labelled] = beside.held_out_NC
        held_out_RC = blended([held_out_RC, beside_RC], regression=owner.regression)
    judged = ~held_out_RC.isnan().any(dim=1)
    return replace(work.decision_settings, calibrate=None).decision(
        work.task, held_out_RC[judged], owner.targets_RC[judged].argmax(dim=1)
    )
