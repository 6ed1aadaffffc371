"""Scores agree with numbers redone by hand and with scikit-learn's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics

from dovetail.data import Classification, Regression
from dovetail.errors import DataError
from dovetail.experiment import headline, mean_and_spread, score

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
    said = outputs.double().softmax(dim=1).numpy()
    assert score(TWO, outputs, labels) == {
        "accuracy": pytest.approx(metrics.accuracy_score(labels, said.argmax(axis=1))),
        "log_loss": pytest.approx(metrics.log_loss(labels, said)),
        "auc": pytest.approx(metrics.roc_auc_score(labels, said[:, 1])),
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


@pytest.mark.parametrize("task", [TWO, Regression()])
def test_no_row_is_no_score(task: Any) -> None:
    with pytest.raises(DataError, match="no test row"):
        score(task, torch.empty(0, task.num_outputs), torch.empty(0))


def test_the_headline_is_the_score_that_tells_most() -> None:
    assert [headline(task) for task in (TWO, THREE, Regression())] == ["auc", "accuracy", "rmse"]


def test_mean_and_spread_are_those_of_the_sample() -> None:
    scores = [{"accuracy": 0.5, "auc": 0.7}, {"accuracy": 0.7}, {"accuracy": 0.9}]
    spread = mean_and_spread(scores)
    assert spread == {"accuracy": {"mean": pytest.approx(0.7), "std": pytest.approx(0.2)}}
    assert spread["accuracy"]["std"] == pytest.approx(np.std([0.5, 0.7, 0.9], ddof=1))
    assert mean_and_spread([{"accuracy": 0.5}]) == {"accuracy": {"mean": 0.5, "std": 0.0}}
