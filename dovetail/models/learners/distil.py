"""A partner's help, kept in a model that needs no partner (generalised distillation).

Lopez-Paz et al. 2016, arXiv:1511.03643: a teacher that sees the partner's columns too says, for
every aligned row, how likely each class is; a student learns that from the owner's columns alone.

    target_r = label_share y_r + (1 - label_share) teacher_r    a labelled, aligned row
    target_r = teacher_r                                        an aligned row without label
    target_r = y_r                                              a labelled row of the owner alone

Nothing here sends anything: the teacher comes as its outputs. It was trained fold by fold, so that
a labelled row's target comes from members that did not see its label. Teacher and
temperature are chosen on held-out labelled rows; the student, or the mean of the two best, on
held-out soft targets, of which there are more; and whether to distil at all (the gate) on held-out
labelled rows again. A held-out row is judged by a student that saw neither its label nor the
partner's columns of it.

Departures from the paper: temperature 1 on calibrated probabilities, rather than a temperature to
tune: on held-out labels, calibrated ones are the least wrong targets (Guo et al. 2017).

Letters: R the owner's rows, F features, C outputs, K folds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.data.stored import let_go, zeros
from dovetail.errors import ConfigError, DataError
from dovetail.models.learners.choice import LEARNERS, fit_each, held_out_loss
from dovetail.models.learners.network import Network
from dovetail.models.learners.rows import (
    NO_FOLD,
    Rows,
    first_fold_only,
    fitting_temperature,
    mean_loss,
)
from dovetail.models.learners.specs import Ensemble, EnsembleSpec, Fitted, Learner
from dovetail.models.learners.stacked import mean_outputs
from dovetail.models.losses import CLASSES, Loss
from dovetail.models.randomness import derive_seed, generator

ALONE = "alone"
#: Rows of several teachers whose mean is made at once.
_ROWS_AT_ONCE = 1 << 16
_MANY_LABELS = 3000
#: Where the teacher knows fewer of the labelled rows than this share, the own model knows more
#: labels than it: students are kept by half at most.
MOST_ROWS_ALIGNED = 0.75
#: Standard errors by which a joint model must be ahead to speak alone.
_LEADS = 1.0
#: Of fewer labelled shared rows how far ahead it is says nothing.
_FEWEST_SHARED = 90


@dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """How students learn, and which is kept.

    Attributes:
        students: learners to choose from, by name.
        label_share: of a labelled row's target.
        blend: whether the mean of student and own model stands between the two.
        gate: how many standard errors a student must be ahead of the own model on held-out rows,
            or the own model is kept. Below 0 it may fall behind: of a hundred labels, rows cannot
            show it; and each fold's student has a handicap: it is no mean of all folds', and its
            rival was chosen on these very rows.
        whole: how many standard errors it must be ahead, or half of it is own model.
        student_rows: each fold's student learns from at most so many rows without label, drawn
            again for each.
        stop_share: of a student's rows, which end its training and choose its settings.
    """

    students: tuple[str, ...] = tuple(LEARNERS)
    label_share: float = 0.5
    blend: bool = True
    gate: float = -1.0
    whole: float = 1.0
    student_rows: int = 6000
    stop_share: float = 0.15

    def __post_init__(self) -> None:
        unknown = [name for name in self.students if name not in LEARNERS]
        if unknown or not self.students:
            raise ConfigError(
                f"students are one or more of {', '.join(LEARNERS)}, got {list(self.students)}"
            )
        if not 0 <= self.label_share <= 1:
            raise ConfigError(f"label_share lies in 0 to 1, got {self.label_share}")


@dataclass(frozen=True, eq=False)
class Owner:
    """Data of the label owner.

    Attributes:
        x_RF: features of all rows, labelled or not, shared or not.
        targets_RC: (R, T) of labelled rows; not read elsewhere.
        folds_R: the fold of a labelled row, ``NO_FOLD`` where there is no label.
        loss: how outputs are read, and what a row loses.
        weights_C: how much each class counts; None: all alike.
        weights_R: how much each row counts in own models; None: all alike.
    """

    x_RF: Tensor
    targets_RC: Tensor
    folds_R: Tensor
    loss: Loss = CLASSES
    weights_C: Tensor | None = None
    weights_R: Tensor | None = None

    def weights(self, rows: Tensor, targets_NC: Tensor) -> Tensor | None:
        """(N,) how much these rows, which learn these targets, count; None: all alike."""
        weights_N = None if self.weights_C is None else targets_NC @ self.weights_C
        if self.weights_R is None:
            return weights_N
        of_rows_N = self.weights_R[rows].float()
        return of_rows_N if weights_N is None else weights_N * of_rows_N

    @property
    def regression(self) -> bool:
        """Whether outputs are averaged as they are."""
        return self.loss.regression

    @property
    def num_outputs(self) -> int:
        return self.loss.num_outputs(self.targets_RC.shape[1])

    def no_outputs(self) -> Tensor:
        """(R, S) of NaN."""
        return torch.full((len(self.targets_RC), self.num_outputs), torch.nan)

    @property
    def labelled(self) -> Tensor:
        """(R,) bool."""
        return self.folds_R >= 0

    @property
    def num_folds(self) -> int:
        return int(self.folds_R.max()) + 1

    def labelled_rows(self) -> Rows:
        """Rows that a model alone learns from; of many labels, one fold is enough to choose by."""
        chosen = self.labelled
        folds = self.folds_R[chosen]
        return Rows(
            self.x_RF[chosen],
            self.targets_RC[chosen],
            first_fold_only(folds) if len(folds) > _MANY_LABELS else folds,
            self.weights(chosen, self.targets_RC[chosen]),
            loss=self.loss,
        )


@dataclass(frozen=True, eq=False)
class Teacher:
    """Outputs of a joint model for the rows it knows.

    Attributes:
        name: which one.
        outputs_KRC: logits or values of the mean of each fold's members; NaN in rows that are not
            aligned. Fold k's members did not see the labels of fold k.
        temperature: logits are divided by it.
    """

    name: str
    outputs_KRC: Tensor
    temperature: float = 1.0

    @property
    def aligned(self) -> Tensor:
        """(R,) bool."""
        return ~self.outputs_KRC[0].isnan().any(dim=1)

    def held_out(self, folds_R: Tensor) -> Tensor:
        """(R, C) of labelled rows, by members that did not see the label; NaN elsewhere."""
        rows = torch.arange(len(folds_R))
        outputs_RC = self.outputs_KRC[folds_R.clamp(min=0), rows] / self.temperature
        return outputs_RC.masked_fill((folds_R < 0)[:, None], torch.nan)

    def targets(self, folds_R: Tensor, *, fold: int | None, loss: Loss) -> Tensor:
        """(R, C) probabilities or values to learn from.

        Args:
            folds_R: the fold of each labelled row.
            fold: of one fold's members; None for all, where a labelled row's come from the
                members that did not see its label.
            loss: how outputs are read.
        """
        if fold is None:
            everyone = mean_outputs(self.outputs_KRC / self.temperature, regression=loss.regression)
            outputs = torch.where(
                (folds_R >= 0)[:, None], self.held_out(folds_R).nan_to_num(), everyone
            )
            outputs = outputs.masked_fill(~self.aligned[:, None], torch.nan)
        else:
            outputs = self.outputs_KRC[fold] / self.temperature
        return loss.targets(outputs)


@dataclass(frozen=True)
class Gate:
    """Whether help is kept, of one label.

    Attributes:
        choice: ``"alone"``, the students' names, or theirs with ``+alone``: their mean.
        tried: what was considered last.
        gain: by how much it has less loss than the own model on held-out rows.
        error: standard error of the gain.
    """

    choice: str
    tried: str
    gain: float
    error: float


@dataclass(frozen=True, eq=False)
class Distilled:
    """Result of distilling.

    Attributes:
        solo: the model that needs no partner: a student, its mean with the own model, or the own
            model.
        pays: whether it is not the own model.
        choice: ``"alone"``, a student's name, or several with ``+``, of which the last may be
            ``alone``: their mean.
        losses: held-out loss of every candidate.
        gain: by how much the student that was considered last has less loss than the own model
            on held-out rows.
        standard_error: of the gain.
        teacher_gain: by how many standard errors the joint model has less; 0 of fewer than
            ``_FEWEST_SHARED`` labelled shared rows.
        gates: of each label whether it pays; of several labels ``gain`` is their mean.
        settings: JSON-ready, for reports.
    """

    solo: Fitted
    pays: bool
    choice: str
    losses: Mapping[str, float]
    gain: float
    standard_error: float
    teacher_gain: float
    gates: tuple[Gate, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def joint_leads(self) -> bool:
        """Whether the joint model is ahead of the own one by more than chance may do."""
        return self.teacher_gain > _LEADS

    @property
    def chosen(self) -> str:
        """The students that were best of soft targets, with ``+`` between two."""
        return _least(self.settings["students"])

    def report(self, teacher: Teacher, owner: Owner, labels: Sequence[str] = ()) -> dict[str, Any]:
        """Report on how it went; JSON-ready.

        Args:
            teacher: of the joint model, whose rows are counted.
            owner: whose rows.
            labels: where there are several, their names.
        """
        aligned = teacher.aligned
        report: dict[str, Any] = {
            "choice": self.choice,
            "pays": self.pays,
            "teacher": teacher.name,
            "temperature": teacher.temperature,
            "held_out_gain": self.gain,
            "standard_error": self.standard_error,
            "joint_ahead_by_errors": self.teacher_gain,
            "joint_halved": not self.joint_leads,
            "held_out_losses": dict(self.losses),
            "labelled": int(owner.labelled.sum()),
            "shared": int(aligned.sum()),
            "labelled_and_shared": int((aligned & owner.labelled).sum()),
        }
        if labels:
            report["labels"] = {
                name: {
                    "choice": gate.choice,
                    "pays": gate.choice != ALONE,
                    "held_out_gain": gate.gain,
                    "standard_error": gate.error,
                }
                for name, gate in zip(labels, self.gates, strict=True)
            }
        if not self.pays:
            report["why"] = (
                "on held-out rows the distilled model was not better than the model alone, which "
                "is kept"
            )
        return report


def _mean_of(outputs: Sequence[Tensor], *, regression: bool, party: str) -> Tensor:
    """(K, R, C) the mean of teachers' outputs, some rows after others."""
    mean_KRC = torch.from_numpy(zeros(tuple(outputs[0].shape), np.float32, party))
    for start in range(0, mean_KRC.shape[1], _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        part = torch.stack([each[:, rows] for each in outputs])
        mean_KRC[:, rows] = mean_outputs(part, regression=regression)
        let_go()
    return mean_KRC


def choose_teacher(candidates: Mapping[str, Tensor], owner: Owner, party: str = "") -> Teacher:
    """The calibrated teacher with the least held-out loss.

    Args:
        candidates: name -> (K, R, C) outputs, as ``Teacher`` has them. Where there are several,
            their mean is a candidate, too.
        owner: whose labels judge them.
        party: in whose folder outputs of many rows lie.

    Raises:
        DataError: no row is both labelled and aligned.
    """
    pool = dict(candidates)
    if len(pool) > 1:
        pool["mean"] = _mean_of(list(pool.values()), regression=owner.regression, party=party)
    best: tuple[float, Teacher] | None = None
    for name, outputs_KRC in pool.items():
        teacher = Teacher(name, outputs_KRC)
        held_out_RC = teacher.held_out(owner.folds_R)
        judged = ~held_out_RC.isnan().any(dim=1)
        if not judged.any():
            raise DataError("no row is both labelled and shared with a partner; align more rows")
        outputs_NC, targets_NC = held_out_RC[judged], owner.targets_RC[judged]
        temperature = fitting_temperature(outputs_NC, targets_NC, regression=owner.regression)
        loss = mean_loss(outputs_NC / temperature, targets_NC, loss=owner.loss)
        if best is None or loss < best[0]:
            best = loss, Teacher(name, outputs_KRC, temperature)
    assert best is not None
    return best[1]


def student_rows(
    owner: Owner,
    teacher: Teacher,
    config: StudentConfig,
    *,
    seed: int,
    fold: int | None = None,
    most: int | None = None,
) -> Rows:
    """Rows that a student learns from.

    Args:
        owner, teacher, config: see there.
        seed: of the rows that stop it, and of those taken of ``most``.
        fold: leave this fold's labelled rows out, and ask only the teacher that did so too.
        most: rows without label at most.

    Raises:
        DataError: fewer than two rows: one stops it, and others train it.
    """
    outputs_RC = teacher.targets(owner.folds_R, fold=fold, loss=owner.loss)
    aligned, labelled = teacher.aligned, owner.labelled
    mixed = config.label_share * owner.targets_RC + (1 - config.label_share) * outputs_RC
    targets_RC = torch.where(
        labelled[:, None], torch.where(aligned[:, None], mixed, owner.targets_RC), outputs_RC
    )
    rng = generator(seed, "student rows")
    order = torch.randperm(len(labelled), generator=rng)
    extra = order[(aligned & ~labelled)[order]][:most]
    known = order[labelled[order] & (owner.folds_R[order] != (NO_FOLD if fold is None else fold))]
    chosen = torch.cat([known, extra])
    if len(chosen) < 2:
        raise DataError("a student has one row to learn from; label, or share, more rows")
    chosen = chosen[torch.randperm(len(chosen), generator=rng)]
    folds = torch.full((len(chosen),), NO_FOLD)
    folds[: min(4000, max(1, round(config.stop_share * len(chosen))))] = 0
    targets_NC = targets_RC[chosen]
    return Rows(
        owner.x_RF[chosen],
        targets_NC,
        folds,
        owner.weights(chosen, targets_NC),
        loss=owner.loss,
    )


def distil(
    owner: Owner,
    teacher: Teacher,
    alone: Fitted,
    config: StudentConfig,
    *,
    seed: int,
    learners: Mapping[str, Learner] = LEARNERS,
    kept: Distilled | None = None,
    joint: Teacher | None = None,
) -> Distilled:
    """The solo model.

    Args:
        owner: rows and labels.
        teacher: of ``choose_teacher``.
        alone: fitted on ``owner.labelled_rows()``: the rows that it has held out are judged.
        config: how.
        seed: of all that is drawn.
        learners: name -> student.
        kept: what was chosen of fewer rows, which stays; None: it is chosen.
        joint: the joint model, if ``teacher`` is another one.
    """
    if kept is not None:
        config = replace(config, students=tuple(kept.chosen.split("+")))
    local_RC = owner.no_outputs()
    local_RC[owner.labelled] = alone.held_out_NC
    judged = ~local_RC.isnan().any(dim=1)
    folds = sorted(set(owner.folds_R[judged].tolist()))
    students = _Students(owner, teacher, config, seed, dict(learners))
    ranking = students.ranked(folds)
    chosen = _least(ranking) if kept is None else kept.chosen
    names = chosen.split("+")
    students.narrow(names)
    students.train(names, folds)
    candidates = {ALONE: local_RC[judged], chosen: students.held_out(names, folds, judged)}
    blend = f"{chosen}+{ALONE}"
    if config.blend:
        candidates[blend] = students.mean([candidates[chosen], candidates[ALONE]])
    targets = owner.targets_RC[judged]
    losses_of, temperatures = {}, {}
    for name, outputs in candidates.items():
        temperature = fitting_temperature(outputs, targets, regression=owner.regression)
        temperatures[name] = temperature
        losses_of[name] = owner.loss.each(outputs / temperature, targets).double()
    losses = {name: float(each.sum(dim=1).mean()) for name, each in losses_of.items()}
    teacher_gain = _teacher_gain(owner, joint or teacher, losses_of[ALONE].sum(dim=1), judged)
    share_aligned = float((teacher.aligned & judged).sum()) / max(1, int(judged.sum()))
    known_NL = owner.loss.known(targets)
    gates = (
        list(kept.gates)
        if kept is not None
        else [
            _gate(
                {name: each[known_NL[:, label], label] for name, each in losses_of.items()},
                chosen,
                config,
                share_aligned,
            )
            for label in range(known_NL.shape[1])
        ]
    )
    best = max((each.choice for each in gates), key=[ALONE, blend, chosen].index)
    pays = best != ALONE
    gain = sum(each.gain for each in gates) / len(gates)
    error = math.hypot(*(each.error for each in gates)) / len(gates)
    settings: dict[str, Any] = {
        "teacher": teacher.name,
        "teacher_temperature": teacher.temperature,
        "students": ranking,
        "best": gates[0].tried if len(gates) == 1 else best,
    }
    told = losses, gain, error, teacher_gain, tuple(gates), settings
    if not pays:
        return Distilled(alone, False, ALONE, *told)
    # The solo model is the mean of the very students that the gate judged.
    students.train(names, [*folds, *(fold for fold in range(owner.num_folds) if fold not in folds)])
    models = [_folds_together(students.fitted[name]) for name in names]
    if all(each.choice == chosen for each in gates):
        spec, network = _together(models, temperatures[best])
        held_out_NC = candidates[best] / temperatures[best]
    else:  # as much own model as students, or as each label's gate says
        inner, inner_network = _together(models, 1.0)
        shares_L = [{chosen: 1.0, ALONE: 0.0}.get(each.choice, 0.5) for each in gates]
        weights = (tuple(shares_L), tuple(1 - share for share in shares_L))
        spec = replace(
            inner,
            members=(inner, alone.spec),
            temperature=temperatures[best],
            weights=weights if owner.loss.separate else None,
        )
        network = spec.around([inner_network, alone.network])
        held_out_NC = candidates[best] / temperatures[best]
        if owner.loss.separate:
            by_label = [candidates[each.choice][:, label] for label, each in enumerate(gates)]
            held_out_NC = torch.stack(by_label, dim=1)
    held_out_RC = owner.no_outputs()
    held_out_RC[judged] = held_out_NC
    solo = Fitted(
        best,
        spec,
        network,
        held_out_RC[owner.labelled],
        {**settings, **{student.learner: student.settings for student in models}},
    )
    return Distilled(solo, True, best, *told)


class _Students:
    """Students by name, one for each fold that it does not learn from, trained when asked for.

    Args:
        owner, teacher, config, seed: as of ``distil``.
        learners: name -> student; those that are chosen are narrowed.

    Attributes:
        fitted: name -> those that are trained, in the order of the folds.
    """

    def __init__(
        self,
        owner: Owner,
        teacher: Teacher,
        config: StudentConfig,
        seed: int,
        learners: dict[str, Learner],
    ) -> None:
        self.fitted: dict[str, list[Fitted]] = {}
        self._owner, self._teacher, self._config = owner, teacher, config
        self._seed, self._learners = seed, learners
        self._rows: dict[int, Rows] = {}

    def train(self, names: Sequence[str], folds: Sequence[int]) -> None:
        """Train those of these students, one for each of these folds, that are missing."""
        for name in names:
            fitted = self.fitted.setdefault(name, [])
            missing = folds[len(fitted) :]
            if missing:
                seeds = [derive_seed(self._seed, "student", str(fold)) for fold in missing]
                rows = [self._rows_without(fold) for fold in missing]
                learner = self._learners[name]
                fitted += fit_each(learner, rows, seeds=seeds, encode_on=self._owner.x_RF)

    def ranked(self, folds: Sequence[int]) -> dict[str, float]:
        """Name, or "A+B" of the two best -> the loss on held-out soft targets of the first fold.

        All learn from the same rows, so what they say of those that stopped them ranks them:
        thousands of soft targets, where there are few labels. Networks of all folds are trained at
        once, at little more than the cost of the first.
        """
        for name in self._config.students:
            all_at_once = isinstance(self._learners[name], Network)
            self.train([name], folds if all_at_once else folds[:1])
        rows = self._rows_without(folds[0])
        ranking = {name: held_out_loss(each[0], rows) for name, each in self.fitted.items()}
        if len(ranking) > 1:
            two = sorted(ranking, key=lambda name: ranking[name])[:2]
            outputs_NC = self.mean([self.fitted[name][0].held_out_NC for name in two])
            ranking["+".join(two)] = mean_loss(outputs_NC, rows.targets_NC, loss=self._owner.loss)
        return ranking

    def narrow(self, names: Sequence[str]) -> None:
        """Trees and penalty are chosen once; how long to train, each time."""
        for name in names:
            self._learners[name] = self._learners[name].narrowed(self.fitted[name][0])

    def held_out(self, names: Sequence[str], folds: Sequence[int], judged: Tensor) -> Tensor:
        """(N, C) of the judged rows, each by the students that did not learn from its fold."""
        owner = self._owner
        held_out_RC = owner.no_outputs()
        for index, fold in enumerate(folds):
            judged_here = judged & (owner.folds_R == fold)
            x_NF = owner.x_RF[judged_here]
            held_out_RC[judged_here] = self.mean(
                [self.fitted[n][index].outputs(x_NF) for n in names]
            )
        return held_out_RC[judged]

    def mean(self, outputs: Sequence[Tensor]) -> Tensor:
        """Mean of several models' outputs of the same rows."""
        return mean_outputs(torch.stack(list(outputs)), regression=self._owner.regression)

    def _rows_without(self, fold: int) -> Rows:
        if fold not in self._rows:
            fold_seed = derive_seed(self._seed, "student", str(fold))
            self._rows[fold] = student_rows(
                self._owner,
                self._teacher,
                self._config,
                seed=fold_seed,
                fold=fold,
                most=self._config.student_rows,
            )
        return self._rows[fold]


def _least(losses: Mapping[str, float]) -> str:
    return min(losses, key=lambda name: losses[name])


def _gate(
    losses_of: Mapping[str, Tensor], chosen: str, config: StudentConfig, share_aligned: float
) -> Gate:
    """Whether a label's students are kept: whole, half, or not.

    Args:
        losses_of: candidate -> (N,) losses of the held-out rows that have the label.
        chosen: the students.
        config: how.
        share_aligned: of the held-out rows.
    """
    if not len(losses_of[ALONE]):
        return Gate(ALONE, chosen, 0.0, 0.0)
    tried, (gain, error) = chosen, _gain(losses_of[ALONE], losses_of[chosen])
    pays = gain > config.gate * error
    whole = gain > config.whole * error and share_aligned >= MOST_ROWS_ALIGNED
    if config.blend and not whole and (pays or config.gate >= 0):
        tried = f"{chosen}+{ALONE}"
        gain, error = _gain(losses_of[ALONE], losses_of[tried])
        pays = pays or gain > config.gate * error  # no handicap: half of it is the rival
    return Gate(tried if pays else ALONE, tried, gain, error)


def _gain(alone: Tensor, losses: Tensor) -> tuple[float, float]:
    """The mean gain over the own model's losses of the same rows, and its standard error."""
    gains = alone - losses
    error = float(gains.std()) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
    return float(gains.mean()), error


def _teacher_gain(owner: Owner, teacher: Teacher, alone: Tensor, judged: Tensor) -> float:
    """By how many standard errors the joint model is above the own model; 0 for too few rows."""
    held_out_RC = teacher.held_out(owner.folds_R)
    both = judged & ~held_out_RC.isnan().any(dim=1)
    if int(both.sum()) < _FEWEST_SHARED:
        return 0.0
    losses = owner.loss.rows(held_out_RC[both], owner.targets_RC[both])
    gain, error = _gain(alone[both[judged]], losses.double())
    return gain / error if error else 0.0


def _folds_together(students: Sequence[Fitted]) -> Fitted:
    """The mean of all folds' students of one learner; it has held no row out."""
    first = students[0]
    spec, network = _together(students, 1.0)
    return Fitted(first.learner, spec, network, torch.empty(0, spec.num_outputs), first.settings)


def _together(models: Sequence[Fitted], temperature: float) -> tuple[EnsembleSpec, Ensemble]:
    """The mean of several models."""
    first = models[0].spec
    members = tuple(model.spec for model in models)
    spec = replace(first, members=members, temperature=temperature, weights=None)
    return spec, spec.around([model.network for model in models])
