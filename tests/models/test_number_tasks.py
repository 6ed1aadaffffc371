"""Counts, amounts and quantiles: what is known of them holds of ours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import GammaRegressor, PoissonRegressor
from sklearn.metrics import mean_gamma_deviance, mean_pinball_loss, mean_poisson_deviance

from dovetail.data import Quantiles, Task, encode_labels, fit_task, task_from_json
from dovetail.errors import DataError
from dovetail.models.learners import Boosting, Learner, Linear, Network, Rows
from dovetail.models.losses import Gamma, Loss, Pinball, Poisson, loss_of, targets_of
from dovetail.models.metrics import all_scores, headline
from dovetail.settings.labels import Kind

KINDS: list[Kind] = ["counts", "amounts", "quantiles"]


def drawn(kind: Kind, rows: int = 600) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2)).astype(np.float32)
    rate = np.exp(1 + 0.6 * x[:, 0])
    if kind == "counts":
        return torch.from_numpy(x), rng.poisson(rate).astype(float)
    if kind == "amounts":
        return torch.from_numpy(x), rng.gamma(4, rate / 4)
    return torch.from_numpy(x), x[:, 0] + np.exp(0.5 * x[:, 1]) * rng.normal(size=rows)


def learnt(kind: Kind, learner: Learner) -> tuple[Task, torch.Tensor, torch.Tensor, np.ndarray]:
    x, y = drawn(kind)
    task = fit_task(y[:400], np.zeros(400, bool), kind=kind, label="y")
    labels = encode_labels(task, y, np.zeros(len(y), bool), label="y")
    targets = targets_of(task, labels)[:400]
    rows = Rows(x[:400], targets, torch.arange(400) % 4, loss=loss_of(task))
    return task, learner.fit(rows, seed=0).outputs(x[400:]), labels[400:], y


@pytest.mark.trained
@pytest.mark.parametrize("learner", [Linear(), Boosting(), Network()], ids=lambda each: each.name)
@pytest.mark.parametrize("kind", KINDS)
def test_every_learner_does_better_than_the_mean(kind: Kind, learner: Learner) -> None:
    task, outputs, labels, _ = learnt(kind, learner)
    name = headline(task)
    same = loss_of(task).start(targets_of(task, labels).mean(dim=0)).expand_as(outputs)
    assert all_scores(task, outputs, labels)[name] < 0.9 * all_scores(task, same, labels)[name]


@pytest.mark.parametrize(
    ("kind", "kin"), [("counts", PoissonRegressor), ("amounts", GammaRegressor)]
)
def test_a_linear_model_is_scikit_learns(kind: Kind, kin: type) -> None:
    x, y = drawn(kind)
    task = fit_task(y, np.zeros(len(y), bool), kind=kind, label="y")
    labels = encode_labels(task, y, np.zeros(len(y), bool), label="y")
    rows = Rows(x, targets_of(task, labels), torch.arange(len(y)) % 3, loss=loss_of(task))
    outputs = Linear(penalties=(0.01,)).fit(rows, seed=0).outputs(x).numpy()
    reference = kin(alpha=0.01, max_iter=1000, tol=1e-8).fit(x.numpy(), y / y.mean())
    said = task.values(outputs)[:, 0]
    np.testing.assert_allclose(said, reference.predict(x.numpy()) * y.mean(), rtol=5e-3)


def test_scores_are_scikit_learns() -> None:
    for kind, deviance in (("counts", mean_poisson_deviance), ("amounts", mean_gamma_deviance)):
        task, outputs, labels, y = learnt(kind, Linear())
        said = task.values(outputs.double().numpy())[:, 0]
        found = all_scores(task, outputs, labels)
        assert found[headline(task)] == pytest.approx(deviance(y[400:], said), rel=1e-4)
    task, outputs, labels, y = learnt("quantiles", Linear())
    assert isinstance(task, Quantiles)
    said = task.values(outputs.double().numpy())
    each = [mean_pinball_loss(y[400:], said[:, s], alpha=q) for s, q in enumerate(task.shares)]
    found = all_scores(task, outputs, labels)
    assert found["pinball"] == pytest.approx(np.mean(each), rel=1e-4)
    assert found["coverage"] == pytest.approx(0.8, abs=0.1)


@pytest.mark.parametrize("loss", [Poisson(), Gamma(), Pinball((0.1, 0.5, 0.9))], ids=repr)
def test_derivatives_are_the_slopes_of_the_loss(loss: Loss) -> None:
    width = 3 if isinstance(loss, Pinball) else 1
    targets = torch.rand(5, 1, dtype=torch.float64).expand(-1, width) + 0.1
    outputs = torch.randn(5, width, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss.rows(outputs, targets).sum(), outputs)
    torch.testing.assert_close(loss.derivatives(outputs.detach(), targets)[0], slope)


def test_a_constant_of_quantiles_is_these_of_the_targets() -> None:
    targets = torch.arange(101.0)[:, None]
    assert Pinball((0.1, 0.5, 0.9)).constant(targets).tolist() == pytest.approx([10, 50, 90])
    assert Poisson().constant(targets).exp().tolist() == pytest.approx([50])


@pytest.mark.parametrize("kind", KINDS)
def test_the_task_is_saved_as_it_was(kind: Kind) -> None:
    _, y = drawn(kind)
    task = fit_task(y, np.zeros(len(y), bool), kind=kind, label="y")
    assert task_from_json(task.to_json()) == task


def test_numbers_that_cannot_be_are_refused() -> None:
    for kind, values in (("counts", [1.0, -1.0]), ("amounts", [1.0, 0.0])):
        with pytest.raises(DataError, match="counts are 0 or more, amounts above 0"):
            fit_task(np.array(values), np.zeros(2, bool), kind=kind, label="y")
