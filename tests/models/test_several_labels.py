"""Several labels and rates: what is known of them holds of ours, with labels that rows lack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics
from sklearn.linear_model import LogisticRegression, PoissonRegressor

from dovetail.data import Counts, MultiTarget, Task, encode_labels, fit_task, task_from_json
from dovetail.errors import DataError, ModelError
from dovetail.models.learners import Boosting, Learner, Linear, Network, Rows, best_of, fit_all
from dovetail.models.learners.assisted_teacher import fit_teacher
from dovetail.models.learners.distil import Owner, StudentConfig, Teacher, distil
from dovetail.models.losses import Binaries, Loss, Rates, SquaredErrors, loss_of, targets_of
from dovetail.models.metrics import all_scores, details, drawn_headline, headline, headline_score
from dovetail.settings.labels import Kind, composed

KINDS: list[Kind] = ["multilabel", "multitarget"]


def drawn(kind: Kind, rows: int = 600) -> tuple[torch.Tensor, np.ndarray]:
    """Three labels; a third of the rows lacks the first."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    scores = np.stack([2 * x[:, 0], 2 * x[:, 1] - 1, 2 * x[:, 0] - x[:, 2]], axis=1)
    y = scores * [1, 10, 100] + rng.normal(size=scores.shape) * [1, 10, 100]
    if kind == "multilabel":
        y = (rng.random(scores.shape) < 1 / (1 + np.exp(-scores))).astype(float)
    y[rng.random(rows) < 0.33, 0] = np.nan
    return torch.from_numpy(x), y


def posed(kind: Kind, y: np.ndarray) -> tuple[Task, torch.Tensor]:
    missing = np.isnan(y).all(axis=1)
    task = fit_task(y, missing, kind=kind, label="cbind(a, b, c)")
    return task, encode_labels(task, y, missing, label="y")


def rows_of(task: Task, x: torch.Tensor, labels: torch.Tensor, folds: int = 4) -> Rows:
    return Rows(x, targets_of(task, labels), torch.arange(len(x)) % folds, loss=loss_of(task))


@pytest.mark.parametrize("learner", [Linear(), Boosting(), Network()], ids=lambda each: each.name)
@pytest.mark.parametrize("kind", KINDS)
def test_every_learner_learns_every_label(kind: Kind, learner: Learner) -> None:
    x, y = drawn(kind)
    task, labels = posed(kind, y)
    outputs = learner.fit(rows_of(task, x[:400], labels[:400]), seed=0).outputs(x[400:])
    assert outputs.shape == (200, 3)
    each = details(task, outputs, labels[400:], draws=10)["labels"]
    assert list(each) == ["a", "b", "c"]
    assert each["a"]["rows"] == float((~labels[400:, 0].isnan()).sum())
    least = {"auc": 0.7} if kind == "multilabel" else {"r2": 0.3}
    for name, value in least.items():
        assert all(own[name] > value for own in each.values()), each


def test_a_label_is_learnt_as_if_it_were_alone_on_the_rows_that_have_it() -> None:
    x, y = drawn("multilabel")
    task, labels = posed("multilabel", y)
    learner = Linear(penalties=(0.01,))
    together = learner.fit(rows_of(task, x, labels), seed=0).outputs(x)
    for label in range(3):
        known = ~np.isnan(y[:, label])
        # Its loss is a sum over its own rows; with weights a mean over all.
        strength = 0.01 * len(y)
        alone = LogisticRegression(C=1 / strength, tol=1e-8).fit(x[known], y[known, label])
        expected = alone.decision_function(x)
        np.testing.assert_allclose(together[:, label], expected, atol=2e-2)


@pytest.mark.parametrize(
    "loss", [Binaries(), SquaredErrors(), Rates()], ids=lambda each: type(each).__name__
)
def test_derivatives_are_the_slopes_of_the_loss(loss: Loss) -> None:
    w = torch.tensor([[1.0, 0.0], [0.5, 1.0], [1.0, 1.0]], dtype=torch.float64)
    t = torch.rand(3, 2, dtype=torch.float64)
    targets = torch.cat([w * t, w], dim=1)
    if isinstance(loss, Rates):
        targets = torch.rand(3, 2, dtype=torch.float64) + 0.1
    width = loss.num_outputs(targets.shape[1])
    outputs = torch.randn(3, width, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss.rows(outputs, targets).sum(), outputs)
    torch.testing.assert_close(loss.derivatives(outputs.detach(), targets)[0], slope)


def test_a_row_without_a_label_has_no_part_in_it() -> None:
    y = drawn("multitarget")[1]
    task, labels = posed("multitarget", y)
    loss, targets = loss_of(task), targets_of(task, labels)
    missing = labels[:, 0].isnan()
    each = loss.each(torch.randn(len(y), 3), targets)
    assert (each[missing, 0] == 0).all()
    assert (each[missing, 1] > 0).all()
    left = loss.residuals(targets)
    assert left.shape == (len(y), 3)
    assert (left[missing, 0] == 0).all()
    torch.testing.assert_close(left.sum(dim=0), torch.zeros(3), atol=1e-3, rtol=0)


def test_scores_are_scikit_learns() -> None:
    y = drawn("multilabel")[1]
    task, labels = posed("multilabel", y)
    outputs = torch.randn(len(y), 3, generator=torch.Generator().manual_seed(0))
    found = all_scores(task, outputs, labels)
    known = [~np.isnan(column) for column in y.T]
    aucs = [metrics.roc_auc_score(y[k, i], outputs[k, i]) for i, k in enumerate(known)]
    assert found["auc_labels"] == pytest.approx(np.mean(aucs))
    assert headline_score(task, outputs, labels) == pytest.approx(np.mean(aucs))
    whole = np.logical_and.reduce(known)
    truth, said = y[whole], outputs.numpy()[whole]
    assert found["lrap"] == metrics.label_ranking_average_precision_score(truth, said)
    assert found["coverage_error"] == metrics.coverage_error(truth, said)
    assert found["ranking_loss"] == metrics.label_ranking_loss(truth, said)
    y = drawn("multitarget")[1]
    task, labels = posed("multitarget", y)
    assert isinstance(task, MultiTarget)
    found = all_scores(task, outputs, labels)
    said = task.values(outputs.double().numpy())
    known = [~np.isnan(column) for column in y.T]
    r2s = [metrics.r2_score(y[k, i], said[k, i]) for i, k in enumerate(known)]
    assert found["r2_labels"] == pytest.approx(np.mean(r2s), rel=1e-4)
    assert headline_score(task, outputs, labels) == pytest.approx(np.mean(r2s), rel=1e-4)
    drawn_twice = drawn_headline(task, outputs, labels, np.full((1, len(y)), 2.0))
    assert drawn_twice[0] == pytest.approx(np.mean(r2s), rel=1e-4)
    assert headline(task) == "r2_labels"


def test_each_label_has_learners_weighed_for_itself() -> None:
    """The first label is a line, the second a size that no line can learn."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(900, 2)).astype(np.float32)
    y = np.stack([x[:, 0] + 0.2 * rng.normal(size=900) > 0, np.abs(x[:, 1]) > 0.7], axis=1)
    missing = np.zeros(900, bool)
    task = fit_task(y.astype(float), missing, kind="multilabel", label="cbind(a, b)")
    labels = encode_labels(task, y.astype(float), missing, label="y")
    rows = rows_of(task, torch.from_numpy(x), labels)
    fitted = fit_all([Linear(), Boosting()], rows, seed=0)
    best = best_of(fitted, rows)
    linear, boosting = best.spec.weights or ()
    assert linear[0] > 0.5 > 0.2 > linear[1]  # type: ignore[index]
    assert boosting[1] > 0.8  # type: ignore[index]
    again = best.spec.from_json(best.spec.to_json()).around(list(best.network.members))  # type: ignore[arg-type]
    torch.testing.assert_close(again(rows.x_NF), best.network(rows.x_NF))
    with pytest.raises(ModelError, match="1 in all"):
        type(best.spec)(best.spec.members, 2, True, weights=((0.5, 0.5), (0.6, 0.5)))


def helped(rows: int = 500) -> tuple[Owner, torch.Tensor]:
    """A label owner that sees noise, of two labels; the partner's column says the first of them."""
    rng = np.random.default_rng(2)
    theirs, x = rng.normal(size=rows), rng.normal(size=(rows, 3)).astype(np.float32)
    y = np.stack([theirs > 0, rng.random(rows) < 0.5], axis=1).astype(float)
    x[:, 0] = theirs + 2 * rng.normal(size=rows)
    y[200:] = np.nan
    task = fit_task(y[:200], np.zeros(200, bool), kind="multilabel", label="cbind(a, b)")
    labels = encode_labels(task, y, np.isnan(y).all(axis=1), label="y")
    folds = torch.where(torch.arange(rows) < 200, torch.arange(rows) % 4, -1)
    targets = targets_of(task, labels)
    return Owner(torch.from_numpy(x), targets, folds, loss_of(task)), torch.from_numpy(theirs)


def test_help_is_kept_for_the_labels_that_it_helps() -> None:
    owner, theirs = helped()
    alone = Linear().fit(owner.labelled_rows(), seed=0)
    outputs = torch.stack([4 * theirs, torch.full_like(theirs, 6.0)], dim=1).float()
    teacher = Teacher("joint", outputs.expand(4, -1, -1))
    config = StudentConfig(students=("linear",), gate=1.0)
    done = distil(owner, teacher, alone, config, seed=0)
    assert [each.choice != "alone" for each in done.gates] == [True, False]
    report = done.report(teacher, owner, ("a", "b"))["labels"]
    assert (report["a"]["pays"], report["b"]["pays"]) == (True, False)
    own, solo = alone.outputs(owner.x_RF), done.solo.outputs(owner.x_RF)
    torch.testing.assert_close(solo[:, 1], own[:, 1])
    assert not torch.allclose(solo[:, 0], own[:, 0])


def test_the_joint_teacher_is_the_best_of_each_label() -> None:
    owner, theirs = helped()
    alone = Linear().fit(owner.labelled_rows(), seed=0)
    noise = torch.randn(len(theirs), generator=torch.Generator().manual_seed(0))
    z = torch.stack([theirs, noise], dim=1).float()
    joint = fit_teacher(z, owner, alone)
    assert joint is not None
    assert joint.teacher.name == "best of each label"
    said = joint.joint.held_out(owner.folds_R)[:200]
    truth = owner.targets_RC[:200]
    ours, own = owner.loss.each(said, truth).mean(dim=0), alone.held_out_NC
    before = owner.loss.each(own, truth).mean(dim=0)
    assert ours[0] < 0.7 * before[0]
    assert ours[1] < 1.05 * before[1]


def test_a_rate_is_scikit_learns_with_the_exposure_as_weight() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, 2)).astype(np.float32)
    years = rng.uniform(0.1, 3, size=800)
    counts = rng.poisson(years * np.exp(0.5 + 0.7 * x[:, 0])).astype(float)
    values, missing = np.stack([counts, years], axis=1), np.zeros(800, bool)
    task = fit_task(values, missing, kind="counts", label="Rate(claims, years)")
    assert task == Counts(counts.sum() / years.sum(), "years", exposed=years.mean())
    labels = encode_labels(task, values, missing, label="y")
    rows = rows_of(task, torch.from_numpy(x), labels)
    # Ours is a mean over rows of exposures over their mean: scikit-learn's, over exposure.
    said = Linear(penalties=(0.01,)).fit(rows, seed=0).outputs(rows.x_NF).numpy()
    reference = PoissonRegressor(alpha=0.01, max_iter=1000, tol=1e-9).fit(
        x, counts / years / task.unit, sample_weight=years
    )
    np.testing.assert_allclose(task.values(said)[:, 0], reference.predict(x) * task.unit, rtol=5e-3)
    found = all_scores(task, torch.from_numpy(said), labels)
    rates = task.values(said)[:, 0]
    expected = metrics.mean_poisson_deviance(counts, rates * years)
    assert found["poisson_deviance"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_task_is_saved_as_it_was(kind: Kind) -> None:
    task, _ = posed(kind, drawn(kind)[1])
    stored = task.to_json()
    assert task_from_json(stored) == task
    damaged: list[dict[str, Any]] = [{**stored, "labels": ["a"]}, {**stored, "labels": ["a", 1]}]
    if kind == "multitarget":
        damaged += [{**stored, "scales": [1.0, 0.0, 1.0]}, {**stored, "means": [1.0]}]
    for each in damaged:
        with pytest.raises(ModelError, match="save the model again"):
            task_from_json(each)


def test_labels_that_cannot_be_are_refused() -> None:
    for values, kind, words in (
        ([[1.0, 0.0], [0.0, 0.0]], "multilabel", "'b' is no in all 2 training rows"),
        ([[1.0, 0.0], [0.0, 3.0]], "multilabel", "'b' has 3: several labels are 1 or 0"),
        ([[1.0, np.nan], [0.0, np.nan]], "multitarget", "'b' has no value"),
    ):
        with pytest.raises(DataError, match=words):
            fit_task(np.array(values), np.zeros(2, bool), kind=kind, label="cbind(a, b)")  # type: ignore[arg-type]


def test_names_of_labels_are_read_as_they_are_written() -> None:
    for name in ("Surv(days, died)", "Surv(days, died, 5)", "cbind(a, b)", "Rate(claims, years)"):
        assert str(composed(name)) == name
    for name in ("died", "Rate(a)", "Surv(a, b, c)", "sum(a, b)"):
        assert composed(name) is None
