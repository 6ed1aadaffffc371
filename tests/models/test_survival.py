"""Times to an event: what is known of them holds of ours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sksurv.datasets import load_gbsg2, load_veterans_lung_cancer, load_whas500
from sksurv.metrics import concordance_index_censored
from sksurv.nonparametric import kaplan_meier_estimator

from dovetail.data import Survival, task_from_json
from dovetail.data.survival import fit_survival
from dovetail.errors import ConfigError, DataError, ModelError
from dovetail.models import survival
from dovetail.models.learners import Boosting, Learner, Linear, Network, Rows
from dovetail.models.losses import Hazards, loss_of, targets_of


def signed(time: np.ndarray, event: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.where(event, time, -time).astype(np.float32))


def gbsg2() -> tuple[np.ndarray, np.ndarray, torch.Tensor]:
    x, y = load_gbsg2()
    numbers = x.select_dtypes("number").to_numpy(np.float32)
    numbers = (numbers - numbers.mean(axis=0)) / numbers.std(axis=0)
    return y["time"].astype(float), y["cens"], torch.from_numpy(numbers)


def test_the_loss_of_one_interval_is_logistic_regression() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3)).astype(np.float32)
    died = rng.random(300) < 1 / (1 + np.exp(-x[:, 0]))
    labels = signed(np.where(died, 1.0, 3.0), died)  # the others are seen beyond the interval
    task = fit_survival(labels.numpy(), label="y", intervals=1)
    features, targets = torch.from_numpy(x), task.targets(labels)
    rows = Rows(features, targets, torch.arange(300) % 3, loss=loss_of(task))
    fitted = Linear(penalties=(0.01,)).fit(rows, seed=0)
    reference = LogisticRegression(C=1 / (0.01 * 300)).fit(x, died)
    hazards = 1 - task.survival(fitted.outputs(torch.from_numpy(x)).numpy())[:, 0]
    np.testing.assert_allclose(hazards, reference.predict_proba(x)[:, 1], atol=2e-3)


@pytest.mark.parametrize("learner", [Linear(), Boosting(), Network()], ids=lambda each: each.name)
def test_many_intervals_without_censoring_rank_as_the_times_do(learner: Learner) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 2)).astype(np.float32)
    time = np.exp(x[:, 0] + 0.1 * rng.normal(size=600)) * 100
    labels = signed(time, np.ones(600, bool))
    task = fit_survival(labels.numpy()[:400], label="y", intervals=40)
    features = torch.from_numpy(x)
    targets = targets_of(task, labels)[:400]
    rows = Rows(features[:400], targets, torch.arange(400) % 4, loss=loss_of(task))
    outputs = learner.fit(rows, seed=0).outputs(features[400:]).numpy()
    medians = task.median(task.survival(outputs))
    assert spearmanr(task.risk(task.survival(outputs)), -time[400:])[0] > 0.95
    known = ~np.isnan(medians)
    assert spearmanr(medians[known], time[400:][known])[0] > 0.95


def test_our_c_is_that_of_scikit_survival_with_ties() -> None:
    time, event, x = gbsg2()
    risk = np.round(x[:, 2].numpy(), 1).astype(float)
    time = np.round(time / 100)
    expected = concordance_index_censored(event, time, risk)[0]
    assert survival.c_index(time, event, risk) == pytest.approx(expected, abs=1e-12)
    once = np.ones((1, len(time)))
    assert survival.Concordance(time, event, risk)(once)[0] == pytest.approx(expected, abs=1e-6)


def test_rows_that_count_twice_are_rows_that_are_there_twice() -> None:
    time, event, x = gbsg2()
    time, event, risk = time[:80], event[:80], x[:80, 2].numpy()
    counts = np.random.default_rng(0).multinomial(80, [1 / 80] * 80)
    rows = np.repeat(np.arange(80), counts)
    weighed = survival.Concordance(time, event, risk)(counts[None].astype(float))[0]
    # A row and its copy have one risk and one time, and cannot be compared if both had the event.
    assert weighed == pytest.approx(survival.c_index(time[rows], event[rows], risk[rows]), abs=1e-6)


def test_our_kaplan_meier_is_that_of_scikit_survival() -> None:
    _, y = load_whas500()
    event, time = y["fstat"], y["lenfol"].astype(float)
    times, shares = kaplan_meier_estimator(event, time)
    np.testing.assert_allclose(survival.kaplan_meier(time, event, times), shares, atol=1e-12)


def test_hazards_of_nobody_known_follow_kaplan_meier() -> None:
    time, event, _ = gbsg2()
    labels = signed(time, event)
    task = fit_survival(labels.numpy(), label="y", intervals=30)
    baseline = task.survival(np.zeros((1, 1)))[0]
    shares = survival.kaplan_meier(time, event, np.array(task.cuts))
    np.testing.assert_allclose(baseline[:-3], shares[:-3], atol=0.02)


def test_derivatives_are_the_slopes_of_the_loss() -> None:
    loss = Hazards((-1.0, -0.5, 0.2))
    task = Survival((1.0, 2.0, 4.0), loss.base)
    targets = task.targets(torch.tensor([0.5, -1.7, 3.0, -9.0, -1.2])).double()
    outputs = torch.randn(5, 1, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss.rows(outputs, targets).sum(), outputs, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), outputs)
    first, second = loss.derivatives(outputs.detach(), targets)
    torch.testing.assert_close(first, slope.detach())
    torch.testing.assert_close(second, bend)


def test_a_row_counts_as_long_as_it_was_seen() -> None:
    task = Survival((1.0, 2.0, 4.0), (0.0, 0.0, 0.0))
    # An event in the second; censored before and after the middle of the third; unlabelled.
    events, at_risk = task.targets(torch.tensor([1.5, -2.5, -3.5, torch.nan])).chunk(2, dim=1)
    assert events.tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert at_risk.tolist() == [[1, 1, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0]]


def test_what_a_model_says_is_a_target_whose_loss_it_makes_least() -> None:
    loss = Hazards((-1.0, -0.5, 0.2))
    outputs = torch.tensor([[0.7]], dtype=torch.float64)
    targets = loss.targets(outputs)
    first, _ = loss.derivatives(outputs, targets)
    assert first.abs().max() < 1e-12


def test_medians_lie_where_half_are_left() -> None:
    task = Survival((10.0, 20.0, 30.0), (0.0, 0.0, 0.0))
    share = np.array([[0.8, 0.5, 0.2], [0.9, 0.8, 0.7], [0.25, 0.1, 0.1]])
    assert task.median(share) == pytest.approx([20.0, np.nan, 5.0], nan_ok=True)
    assert task.at(share, np.array([0, 10, 40]))[0] == pytest.approx([1.0, 0.8, 0.2])


def test_the_task_is_saved_as_it_was() -> None:
    task = fit_survival(np.array([3.0, -4.0, 5.0, 9.0]), label="y", intervals=3)
    assert task_from_json(task.to_json()) == task
    for cuts, base in (([2.0, 1.0], [0.0, 0.0]), ([1.0], [0.0, 0.0]), ([], []), ([1.0], ["0"])):
        with pytest.raises(ModelError, match="save the model again"):
            task_from_json({"kind": "survival", "cuts": cuts, "base": base})


def test_labels_without_an_event_are_refused() -> None:
    with pytest.raises(DataError, match="no event in the 2 training rows"):
        fit_survival(np.array([-1.0, -2.0]), label="y")


def test_scores_need_scikit_survival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'dovetail-fl\[survival\]'"):
        fit_survival(np.array([1.0, 2.0]), label="y")


@pytest.mark.trained
def test_few_events_of_a_small_clinic_order_the_rows_of_others() -> None:
    """In one interval alone nearly all rows would have their event."""
    frame, y = load_veterans_lung_cancer()
    x = torch.from_numpy(frame[["Karnofsky_score"]].to_numpy(np.float32) / 20 - 3)
    labels = signed(y["Survival_in_days"], y["Status"])
    clinic, others = np.arange(0, 137, 4), np.flatnonzero(np.arange(137) % 4)
    task = fit_survival(labels[clinic].numpy(), label="y")
    targets = targets_of(task, labels)[clinic]
    rows = Rows(x[clinic], targets, torch.arange(len(clinic)) % 4, loss=loss_of(task))
    outputs = Linear().fit(rows, seed=0).outputs(x[others])
    assert survival.score(task, outputs, labels[others])["c_index"] > 0.6
