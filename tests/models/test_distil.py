"""A student learns what the partner's columns say, and the gate keeps the own model where not."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from dovetail.data import stored
from dovetail.errors import ConfigError, DataError
from dovetail.models.learners import (
    NO_FOLD,
    Fitted,
    Learner,
    Linear,
    Network,
    Rows,
    StackedConfig,
    fit_stacked,
    hard_targets,
    make_folds,
)
from dovetail.models.learners.distil import (
    ALONE,
    Owner,
    StudentConfig,
    Teacher,
    _gate,
    choose_teacher,
    distil,
    student_rows,
)
from dovetail.models.losses import CLASSES, SquaredError

LEARNERS: dict[str, Learner] = {
    "linear": Linear(penalties=(0.1, 0.01)),
    "network": Network(StackedConfig(widths=(32, 16), bins=4, copies=1, max_steps=150)),
}
CONFIG = StudentConfig(students=("linear", "network"))
TEACHER = StackedConfig(bins=4, copies=3, max_steps=300)


def made(rows: int = 400, labels: int = 60, *, folds: int = 3) -> Owner:
    """An owner of four numbers, of which two tell the class a little."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 4, generator=rng)
    noise = torch.randn(rows, generator=rng)
    classes = (x[:, 0] - x[:, 1] + noise > 0).long()
    folds_R = torch.full((rows,), NO_FOLD)
    folds_R[:labels] = make_folds(classes[:labels], folds, seed=0)
    return Owner(x, hard_targets(classes, 2, regression=False), folds_R)


def taught_in_one_place(xs: list[Tensor], owner: Owner, config: StackedConfig) -> Tensor:
    """(K, R, C) of the joint model of all columns, learnt from the labelled rows."""
    chosen = owner.labelled
    rows = Rows(xs[0][chosen], owner.targets_RC[chosen], owner.folds_R[chosen], loss=owner.loss)
    labelled = [x[chosen] for x in xs]
    return fit_stacked(labelled, rows, config, seed=0, encode_on=xs).fold_outputs(xs)


def outputs_of(owner: Owner, probabilities: Tensor) -> Tensor:
    """(K, R, C) logits of a teacher all of whose folds say the same."""
    return probabilities.log().expand(owner.num_folds, *probabilities.shape).clone()


def alone_of(owner: Owner) -> Fitted:
    return LEARNERS["linear"].fit(owner.labelled_rows(), seed=0)


def test_a_labelled_row_is_taught_by_members_that_did_not_see_its_label() -> None:
    owner = made(10, 4, folds=2)
    outputs = torch.zeros(2, 10, 2)
    outputs[0, :, 1], outputs[1, :, 1] = 1.0, 3.0
    teacher = Teacher("t", outputs)
    targets = teacher.targets(owner.folds_R, fold=None, loss=CLASSES)
    for row in range(4):
        expected = outputs[owner.folds_R[row], row].softmax(dim=0)
        assert torch.allclose(targets[row], expected)
    everyone = outputs.softmax(dim=-1).mean(dim=0)
    assert torch.allclose(targets[4:], everyone[4:])


def test_targets_mix_label_and_teacher_as_stated() -> None:
    owner = made(40, 20, folds=2)
    outputs = outputs_of(owner, torch.tensor([0.3, 0.7]).repeat(40, 1))
    outputs[:, 15:20] = torch.nan  # labelled, not shared
    outputs[:, 35:] = torch.nan  # neither
    teacher = Teacher("t", outputs)
    rows = student_rows(owner, teacher, StudentConfig(label_share=0.25), seed=0)
    index = {tuple(x.tolist()): i for i, x in enumerate(owner.x_RF)}
    seen = set()
    for x, target in zip(rows.x_NF, rows.targets_NC, strict=True):
        row = index[tuple(x.tolist())]
        seen.add(row)
        taught, label = torch.tensor([0.3, 0.7]), owner.targets_RC[row]
        expected = 0.25 * label + 0.75 * taught
        if row >= 15:
            expected = label if row < 20 else taught
        assert torch.allclose(target, expected)
    assert seen == set(range(35))


def test_the_gates_student_sees_neither_label_nor_partner_of_the_rows_that_judge_it() -> None:
    owner = made()
    held_out = (owner.folds_R == 1).nonzero().flatten()
    even = torch.full((400, 2), 0.5)
    one = Teacher("t", outputs_of(owner, even))
    other_reported = one.outputs_KRC.clone()
    other_reported[:, held_out] = torch.tensor([5.0, -5.0])  # what the teacher says of those rows
    other_reported[0] += torch.tensor([2.0, 0.0])  # the members that saw their labels
    targets = owner.targets_RC.clone()
    targets[held_out] = targets[held_out].flip(1)
    other = Owner(owner.x_RF, targets, owner.folds_R)
    rows = student_rows(owner, one, CONFIG, seed=0, fold=1)
    same = student_rows(other, Teacher("t", other_reported), CONFIG, seed=0, fold=1)
    assert torch.equal(rows.x_NF, same.x_NF)
    assert torch.equal(rows.targets_NC, same.targets_NC)


def test_a_partner_of_noise_changes_nothing_or_little() -> None:
    """A teacher that is wrong is not followed: the gate keeps the very model."""
    owner = made(400, 120)
    wrong = owner.targets_RC.flip(1) * 0.8 + 0.1
    alone = alone_of(owner)
    done = distil(
        owner,
        Teacher("t", outputs_of(owner, wrong)),
        alone,
        StudentConfig(students=("linear",)),
        seed=0,
        learners=LEARNERS,
    )
    assert not done.pays
    assert done.choice == ALONE
    assert done.solo is alone
    assert done.gain < 0


def test_a_strict_gate_keeps_the_own_model() -> None:
    owner = made(400, 60)
    truth = owner.targets_RC * 0.9 + 0.05
    teacher = Teacher("t", outputs_of(owner, truth))
    config = StudentConfig(students=("linear",), gate=1000.0)
    done = distil(owner, teacher, alone_of(owner), config, seed=0, learners=LEARNERS)
    assert done.gain > 0
    assert done.choice == ALONE


@pytest.mark.parametrize(
    ("ahead", "expected"), [(2.0, "s"), (0.5, f"s+{ALONE}"), (-0.5, f"s+{ALONE}"), (-2.0, ALONE)]
)
def test_students_are_kept_whole_by_half_or_not(ahead: float, expected: str) -> None:
    """``ahead``: by how many standard errors of 100 rows, half of which gain and half lose."""
    spread = torch.tensor([1.0, -1.0]).repeat(50)
    gains = spread + ahead * float(spread.std()) / 10
    losses = {ALONE: torch.ones(100), "s": 1 - gains, f"s+{ALONE}": 1 - gains / 2}
    assert _gate(losses, "s", StudentConfig(), share_aligned=1.0).choice == expected


@pytest.mark.trained
def test_a_teacher_of_few_labelled_rows_does_not_push_the_own_model_aside() -> None:
    owner = made(400, 60)
    outputs = outputs_of(owner, owner.targets_RC * 0.9 + 0.05)
    config = StudentConfig(students=("linear",))
    alone = alone_of(owner)
    done = distil(owner, Teacher("t", outputs), alone, config, seed=0, learners=LEARNERS)
    assert done.choice == "linear"
    outputs[:, 20:60] = torch.nan  # the partner has a third of the labelled rows
    done = distil(owner, Teacher("t", outputs), alone, config, seed=0, learners=LEARNERS)
    assert done.choice == f"linear+{ALONE}"
    assert done.losses[done.choice] < done.losses[ALONE]


@pytest.mark.parametrize(("shared", "leads"), [(89, False), (90, True)])
def test_a_joint_model_leads_by_its_own_shared_rows_and_by_enough(shared: int, leads: bool) -> None:
    owner = made(120, 110)
    right = 0.8 * owner.targets_RC + 0.1
    alone = alone_of(owner)
    level = Teacher("level", outputs_of(owner, torch.full_like(right, 0.5)))
    joint = outputs_of(owner, right)
    joint[:, shared:] = torch.nan
    done = distil(owner, level, alone, CONFIG, seed=0, learners=LEARNERS, joint=Teacher("j", joint))
    assert done.joint_leads == leads
    assert (done.teacher_gain > 1) == leads


def test_teachers_of_many_rows_have_the_mean_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(5)
    classes = torch.randint(2, (333,), generator=rng)
    folds = torch.full((333,), NO_FOLD)
    folds[:80] = torch.arange(80) % 4
    owner = Owner(torch.zeros(333, 1), hard_targets(classes, 2, regression=False), folds)
    # Two that are wrong in turn: their mean is the best.
    said = [torch.randn(4, 333, 2, generator=rng) + 2 * owner.targets_RC for _ in range(2)]
    for outputs_KRC in said:
        outputs_KRC[:, 200:250] = torch.nan
    teachers = dict(zip("ab", said, strict=True))
    whole = choose_teacher(teachers, owner)
    assert whole.name == "mean"
    monkeypatch.setattr("dovetail.data.stored.NUMBERS_BYTES", 0)
    monkeypatch.setattr("dovetail.models.learners.distil._ROWS_AT_ONCE", 50)
    in_parts = choose_teacher(teachers, owner)
    assert stored.in_file(in_parts.outputs_KRC.numpy())
    assert torch.equal(in_parts.outputs_KRC.nan_to_num(9.0), whole.outputs_KRC.nan_to_num(9.0))
    assert in_parts.temperature == whole.temperature


@pytest.mark.trained
@pytest.mark.slow
def test_distilling_the_lower_half_of_digits_beats_the_upper_half_alone() -> None:
    data = load_digits()
    x = torch.from_numpy(data.data).float()
    x = (x - x.mean(dim=0)) / x.std(dim=0).clamp(min=0.1)
    classes = torch.from_numpy(data.target)
    upper, lower = x[:, :32], x[:, 32:]
    train, test = slice(0, 1400), slice(1400, None)
    folds = torch.full((1400,), NO_FOLD)
    folds[:60] = make_folds(classes[:60], 3, seed=0)
    owner = Owner(upper[train], hard_targets(classes[train], 10, regression=False), folds)
    alone = LEARNERS["linear"].fit(owner.labelled_rows(), seed=0, encode_on=owner.x_RF)
    taught = taught_in_one_place([upper[train], lower[train]], owner, TEACHER)
    teacher = choose_teacher({"network": taught}, owner)
    done = distil(owner, teacher, alone, CONFIG, seed=0, learners=LEARNERS)

    def accuracy(fitted: Fitted) -> float:
        predicted = fitted.probabilities(upper[test]).argmax(dim=1)
        return float((predicted == classes[test]).float().mean())

    assert done.pays
    assert accuracy(done.solo) > accuracy(alone) + 0.04
    assert done.solo.held_out_NC.shape == (60, 10)


@pytest.mark.trained
@pytest.mark.slow
def test_values_are_distilled_too() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(600, 3, generator=rng)
    partner = torch.randn(600, 3, generator=rng)
    values = x[:, 0] + 3 * partner[:, 0]
    folds = torch.full((600,), NO_FOLD)
    folds[:40] = make_folds(values[:40], 2, seed=0, regression=True)
    targets = hard_targets(values, 1, regression=True)
    owner = Owner(x, targets, folds, loss=SquaredError())
    alone = LEARNERS["linear"].fit(owner.labelled_rows(), seed=0)
    linear = StackedConfig(widths=(), bins=0, learning_rate=0.05, weight_decay=0.01, max_steps=300)
    taught = taught_in_one_place([x, partner], owner, linear)
    teacher = choose_teacher({"linear": taught}, owner)
    config = StudentConfig(students=("linear",))
    done = distil(owner, teacher, alone, config, seed=0, learners=LEARNERS)

    def error(fitted: Fitted) -> float:
        return float((fitted.outputs(x)[40:, 0] - x[40:, 0]).square().mean())

    assert done.pays
    assert error(done.solo) < 0.5 * error(alone)


def test_the_teacher_is_the_one_with_the_least_held_out_loss_and_calibrated() -> None:
    owner = made(4000, 4000)
    right = (owner.targets_RC[:, 1] * 2 - 1)[:, None] * torch.tensor([-0.5, 0.5])
    generator = torch.Generator().manual_seed(1)
    wrong_way = torch.rand(4000, 1, generator=generator) < 0.2
    log_odds = torch.where(wrong_way, -right, right)  # right in four of five: log odds of log 4
    outputs = {
        "loud": 4 * outputs_of(owner, log_odds.softmax(dim=1)),
        "none": 0 * outputs_of(owner, log_odds.softmax(dim=1)),
    }
    teacher = choose_teacher({"loud": outputs["loud"]}, owner)
    targets = teacher.targets(owner.folds_R, fold=None, loss=CLASSES)
    assert float(targets.max()) == pytest.approx(0.8, abs=0.03)
    assert choose_teacher(outputs, owner).name in {"loud", "mean"}


def test_a_teacher_of_no_labelled_row_is_told() -> None:
    owner = made(40, 10, folds=2)
    outputs = outputs_of(owner, torch.full((40, 2), 0.5))
    outputs[:, :10] = torch.nan
    with pytest.raises(DataError, match="no row is both labelled and shared"):
        choose_teacher({"t": outputs}, owner)


def test_a_student_that_there_is_not_is_told() -> None:
    with pytest.raises(ConfigError, match="students are one or more of linear, boosting, network"):
        StudentConfig(students=("forest",))
