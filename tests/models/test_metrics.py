"""Scores agree with numbers redone by hand and with scikit-learn's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics

from dovetail.data import UNSEEN, Classification, Regression
from dovetail.errors import DataError
from dovetail.models import orders
from dovetail.models.metrics import all_scores, details, headline_score
from dovetail.runs import headline, mean_and_spread, score

TWO = Classification(("no", "yes"))
THREE = Classification(("a", "b", "c"))


def logits(*probabilities: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(probabilities).log()


def test_two_classes_are_scored_by_hand() -> None:
    outputs = logits((0.9, 0.1), (0.4, 0.6), (0.3, 0.7), (0.8, 0.2))
    scores = score(TWO, outputs, torch.tensor([0, 1, 0, 1]))
    assert scores["accuracy"] == 2 / 4
    by_hand = -math.log(0.9 * 0.6 * 0.3 * 0.2) / 4
    assert scores["log_loss"] == pytest.approx(by_hand, rel=1e-6)
    # Of the four pairs (yes, no), 0.6 > 0.1 and 0.2 > 0.1 are in order; 0.6 and 0.2 < 0.7 are not.
    assert scores["auc"] == 2 / 4


def test_more_classes_have_no_auc() -> None:
    outputs = logits((0.5, 0.3, 0.2), (0.1, 0.2, 0.7))
    scores = score(THREE, outputs, torch.tensor([0, 1]))
    assert scores.keys() == {"accuracy", "log_loss"}
    assert scores["accuracy"] == 1 / 2
    assert scores["log_loss"] == pytest.approx(-(math.log(0.5) + math.log(0.2)) / 2, rel=1e-6)


def test_rows_of_one_class_have_no_auc() -> None:
    assert "auc" not in score(TWO, logits((0.9, 0.1), (0.4, 0.6)), torch.tensor([1, 1]))


def test_classes_are_scored_as_scikit_learn_does() -> None:
    rng = torch.Generator().manual_seed(0)
    outputs, labels = torch.randn(50, 2, generator=rng), torch.randint(2, (50,), generator=rng)
    probabilities = outputs.double().softmax(dim=1).numpy()
    assert score(TWO, outputs, labels) == {
        "accuracy": pytest.approx(metrics.accuracy_score(labels, probabilities.argmax(axis=1))),
        "log_loss": pytest.approx(metrics.log_loss(labels, probabilities)),
        "auc": pytest.approx(metrics.roc_auc_score(labels, probabilities[:, 1])),
    }


def test_numbers_are_scored_in_the_labels_unit() -> None:
    # Predicted 10, 14 and 6; the truth is 12, 14 and 10.
    scores = score(
        Regression(mean=10.0, scale=2.0),
        torch.tensor([[0.0], [2], [-2]]),
        torch.tensor([1.0, 2, 0]),
    )
    assert scores["rmse"] == pytest.approx(math.sqrt((2**2 + 0 + 4**2) / 3))
    assert scores["mae"] == pytest.approx((2 + 0 + 4) / 3)
    assert scores["r2"] == pytest.approx(1 - 20 / 8)  # the truth's mean is 12


def test_scores_fit_in_json() -> None:
    assert {
        type(value) for value in score(TWO, torch.randn(4, 2), torch.tensor([0, 1, 0, 1])).values()
    } == {float}


@pytest.mark.parametrize("task", [TWO, Regression(0.0, 1.0)])
def test_no_row_is_no_score(task: Any) -> None:
    with pytest.raises(DataError, match="no test row"):
        score(task, torch.empty(0, task.num_outputs), torch.empty(0))


def test_the_headline_is_the_score_that_tells_most() -> None:
    assert [headline(task) for task in (TWO, THREE, Regression(0.0, 1.0))] == [
        "auc",
        "accuracy",
        "rmse",
    ]


def test_the_headline_alone_is_that_of_all_scores() -> None:
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(-1, 2, (200,), generator=draw)  # some of a class that training lacked
    outputs = torch.randn(200, 2, generator=draw).round(decimals=1)  # some alike
    assert headline_score(TWO, outputs, labels) == pytest.approx(score(TWO, outputs, labels)["auc"])
    assert headline_score(TWO, outputs[labels == 1], labels[labels == 1]) is None
    outputs = torch.randn(200, 3, generator=draw)
    accuracy = score(THREE, outputs, labels)["accuracy"]
    assert headline_score(THREE, outputs, labels) == pytest.approx(accuracy)
    number = Regression(mean=3.0, scale=2.0)
    values, wanted = torch.randn(2, 200, 1, generator=draw)
    rmse = score(number, values, wanted[:, 0])["rmse"]
    assert headline_score(number, values, wanted[:, 0]) == pytest.approx(rmse)


def test_mean_and_spread_are_those_of_the_sample() -> None:
    scores = [{"accuracy": 0.5, "auc": 0.7}, {"accuracy": 0.7}, {"accuracy": 0.9}]
    spread = mean_and_spread(scores)
    assert spread == {"accuracy": {"mean": pytest.approx(0.7), "std": pytest.approx(0.2)}}
    assert spread["accuracy"]["std"] == pytest.approx(np.std([0.5, 0.7, 0.9], ddof=1))
    assert mean_and_spread([{"accuracy": 0.5}]) == {"accuracy": {"mean": 0.5, "std": 0.0}}


def random_outputs(num_classes: int, num_rows: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(num_classes)
    labels = torch.randint(num_classes, (num_rows,), generator=rng)
    outputs = torch.randn(num_rows, num_classes, generator=rng)
    return outputs + torch.nn.functional.one_hot(labels, num_classes), labels


def test_all_scores_of_two_classes_are_scikit_learns() -> None:
    outputs, labels = random_outputs(2)
    second = outputs.double().softmax(dim=1)[:, 1].numpy()
    predicted = (second >= 0.3).astype(int)
    scores = all_scores(TWO, outputs, labels, threshold=0.3)
    assert scores["accuracy"] == pytest.approx(metrics.accuracy_score(labels, predicted))
    assert scores["macro_f1"] == pytest.approx(metrics.f1_score(labels, predicted, average="macro"))
    assert scores["balanced_accuracy"] == pytest.approx(
        metrics.balanced_accuracy_score(labels, predicted)
    )
    assert scores["brier"] == pytest.approx(metrics.brier_score_loss(labels, second))
    assert scores["average_precision"] == pytest.approx(
        metrics.average_precision_score(labels, second)
    )
    assert scores["auc"] == score(TWO, outputs, labels)["auc"]  # which no threshold changes
    report = details(TWO, outputs, labels, threshold=0.3)
    assert report["confusion"] == metrics.confusion_matrix(labels, predicted).tolist()
    assert report["threshold"] == 0.3
    assert report["roc"][0] == [0, 0]
    assert report["roc"][-1] == [1, 1]
    false, true = zip(*report["roc"], strict=True)
    assert np.trapezoid(true, false) == pytest.approx(scores["auc"], abs=0.01)


@pytest.mark.parametrize("rows", [2, 3, 40, 300])
def test_curves_and_areas_are_scikit_learns_where_values_are_equal_too(rows: int) -> None:
    rng = np.random.default_rng(rows)
    second, labels = rng.integers(0, 12, rows) / 12, rng.permutation(np.arange(rows) % 2)
    false, true, _ = metrics.roc_curve(labels, second)
    assert np.array_equal(orders.roc(second, labels == 1), [false, true])
    precision, recall, _ = metrics.precision_recall_curve(labels, second)
    assert np.array_equal(
        orders.precision_recall(second, labels == 1), [precision[::-1], recall[::-1]]
    )
    assert orders.roc_auc(second, labels == 1) == metrics.roc_auc_score(labels, second)
    assert orders.average_precision(second, labels == 1) == pytest.approx(
        metrics.average_precision_score(labels, second), rel=1e-12
    )
    certain = np.eye(2)[labels]  # and a probability of 0 is no infinite loss
    assert orders.log_losses(certain[:, 1]).mean() == pytest.approx(
        metrics.log_loss(np.ones(rows), certain, labels=[0, 1]), rel=1e-12
    )


def test_numbers_that_are_all_alike_have_the_r2_of_scikit_learn() -> None:
    task = Regression(mean=0.0, scale=1.0)
    labels = torch.tensor([2.0, 2.0, 2.0])
    for guessed in (torch.tensor([2.0, 2.0, 2.0]), torch.tensor([2.0, 2.0, 1.0])):
        scored = score(task, guessed[:, None], labels)
        assert scored["r2"] == metrics.r2_score(labels, guessed)


def test_a_curve_that_rises_at_one_place_is_drawn_so() -> None:
    outputs = torch.stack([torch.zeros(7), torch.tensor([4.0, 3, 2, 1, 0, -1, -2])], dim=1)
    report = details(TWO, outputs, torch.tensor([1, 1, 1, 0, 1, 0, 0]))
    assert [0.0, 0.75] in report["roc"]
    assert [0.333333, 1.0] in report["roc"]


def test_all_scores_of_more_classes_are_means_of_each_against_the_rest() -> None:
    outputs, labels = random_outputs(3)
    probabilities = outputs.double().softmax(dim=1).numpy()
    scores = all_scores(THREE, outputs, labels)
    assert scores["auc_macro"] == pytest.approx(
        metrics.roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
    )
    one_hot = np.eye(3)[labels.numpy()]
    assert scores["brier"] == pytest.approx(((probabilities - one_hot) ** 2).sum(axis=1).mean())
    assert "auc" not in scores
    report = details(THREE, outputs, labels)
    assert sum(map(sum, report["confusion"])) == len(labels) == report["rows"]
    assert report["commonest"] == pytest.approx(np.bincount(labels).max() / len(labels))


def test_the_calibration_error_is_the_mean_distance_of_said_and_was() -> None:
    # Ten rows at 0.8, of which six are so; ten at 0.3, of which three are.
    outputs = logits(*[(0.2, 0.8)] * 10, *[(0.7, 0.3)] * 10)
    labels = torch.tensor([1] * 6 + [0] * 4 + [1] * 3 + [0] * 7)
    assert all_scores(TWO, outputs, labels)["ece"] == pytest.approx(0.1, abs=1e-6)
    high, low = details(TWO, outputs, labels)["reliability"][::-1]
    assert (high["rows"], high["was"], low["rows"], low["was"]) == (10, 0.6, 10, 0.3)


def test_intervals_are_those_of_rows_drawn_anew() -> None:
    outputs, labels = random_outputs(2, 400)
    intervals = details(TWO, outputs, labels)["intervals"]
    scores = all_scores(TWO, outputs, labels)
    for name in ("accuracy", "auc", "average_precision", "macro_f1", "brier", "log_loss"):
        low, high = intervals[name]
        assert low < scores[name] < high
    low, high = intervals["accuracy"]
    spread = math.sqrt(scores["accuracy"] * (1 - scores["accuracy"]) / 400)
    assert (high - low) / (2 * 1.96) == pytest.approx(spread, rel=0.15)
    assert details(TWO, outputs, labels)["intervals"] == intervals  # the draws are seeded


@pytest.mark.slow
def test_the_interval_of_the_auc_counts_equal_values_half() -> None:
    outputs, labels = random_outputs(2, 300)
    outputs = outputs.round()
    rng = np.random.default_rng(0)
    second = (outputs[:, 1] - outputs[:, 0]).numpy()
    drawn = [rng.integers(0, 300, 300) for _ in range(400)]
    drawn_scores = [metrics.roc_auc_score(labels.numpy()[rows], second[rows]) for rows in drawn]
    interval = details(TWO, outputs, labels)["intervals"]["auc"]
    assert interval == pytest.approx(np.quantile(drawn_scores, [0.025, 0.975]).tolist(), abs=0.02)


def test_rows_of_a_class_that_training_had_not_count_as_wrong() -> None:
    outputs = logits((0.9, 0.1), (0.1, 0.9), (0.2, 0.8), (0.6, 0.4))
    scores = all_scores(TWO, outputs, torch.tensor([0, 1, UNSEEN, 0]))
    assert scores["accuracy"] == 3 / 4
    assert scores["unseen_rows"] == 1
    assert scores["log_loss"] == pytest.approx(-math.log(0.9 * 0.9 * 0.6) / 3, rel=1e-6)
    assert scores["balanced_accuracy"] == pytest.approx((1 + 1 + 0) / 3)


def test_a_regression_is_compared_with_the_mean() -> None:
    task = Regression(mean=10.0, scale=2.0)
    report = details(task, torch.zeros(4, 1), torch.tensor([1.0, -1, 1, -1]))
    assert report["mean"] == {"rmse": 2.0}


def test_rows_that_tell_of_no_interval_have_none() -> None:
    outputs = logits(*[(0.9, 0.1)] * 20, *[(0.1, 0.9)] * 5)
    right = torch.tensor([0] * 20 + [1] * 5)
    assert details(TWO, outputs[:2], right[:2])["intervals"] == {}
    assert "accuracy" not in details(TWO, outputs, right)["intervals"]  # all are right
    one_of_a_class = torch.tensor([0] * 24 + [1])
    assert set(details(TWO, outputs, one_of_a_class)["intervals"]) == {
        "accuracy",
        "brier",
        "log_loss",
    }
