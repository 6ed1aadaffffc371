"""Thresholds that serve a goal, and weights of classes, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail.data import Classification, Regression
from dovetail.errors import ConfigError
from dovetail.models.decisions import Decision, choose, class_weights, decision_of
from dovetail.settings.models import CostGoal, RecallGoal

TWO = Classification(("no", "yes"))

#: What is said of six rows, and what they are: yes, yes, no, yes, no, no.
SECOND = (0.9, 0.8, 0.6, 0.4, 0.3, 0.1)
LABELS = torch.tensor([1, 1, 0, 1, 0, 0])


def chosen(goal: Any) -> Decision:
    outputs = torch.tensor([(1 - p, p) for p in SECOND]).log()
    return choose(goal, TWO, outputs, LABELS)


def test_the_best_f1_is_halfway_between_the_rows_that_it_parts() -> None:
    # Of 4 said, 3 are: 2 * 3 / (4 + 3) = 6/7; of the first 2, 2 are: 4/5.
    decision = chosen("f1")
    assert decision.value == pytest.approx(6 / 7)
    assert decision.threshold == pytest.approx((0.4 + 0.3) / 2)
    assert decision.rows == 6
    assert "'yes' is said from a probability of 0.35 on" in decision.text("yes")


def test_a_false_alarm_that_is_dear_moves_the_threshold_up() -> None:
    dear = chosen(CostGoal(goal="cost", false_positive=5))
    assert dear.threshold == pytest.approx((0.8 + 0.6) / 2)
    assert dear.value == pytest.approx(1 / 6)  # one of them is missed
    cheap = chosen(CostGoal(goal="cost", false_negative=5))
    assert cheap.threshold == pytest.approx((0.4 + 0.3) / 2)


def test_recall_is_sought_among_those_of_a_precision() -> None:
    assert chosen(RecallGoal(goal="recall", precision=1)).value == pytest.approx(2 / 3)
    assert chosen(RecallGoal(goal="recall", precision=0.7)).value == 1
    outputs = torch.tensor([(0.1, 0.9), (0.9, 0.1)]).log()
    with pytest.raises(ConfigError, match=r"no threshold has a precision of 0\.9"):
        choose(RecallGoal(goal="recall", precision=0.9), TWO, outputs, torch.tensor([0, 1]))


def test_a_decision_is_what_was_kept_of_it() -> None:
    decision = chosen("cost")
    assert decision_of({"decision": decision.to_json()}) == decision
    assert decision_of({}) is None


@pytest.mark.parametrize(
    ("task", "labels", "words"),
    [
        (Regression(0.0, 1.0), [0.0, 1], "two classes"),
        (Classification(("a", "b", "c")), [0, 1], "two classes"),
        (TWO, [1, 1], "do not have both classes"),
    ],
)
def test_a_threshold_needs_two_classes(task: Any, labels: list[float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        choose("f1", task, torch.zeros(2, task.num_outputs), torch.tensor(labels))


def test_balanced_classes_count_as_much_each() -> None:
    labels = torch.tensor([0, 0, 0, 1, -1])
    weights = class_weights("balanced", TWO, labels)
    assert weights is not None
    assert weights.tolist() == pytest.approx([4 / 6, 4 / 2])
    named = class_weights({"yes": 3}, TWO, labels)
    assert named is not None
    assert named.tolist() == [1, 3]
    assert class_weights(None, TWO, labels) is None


@pytest.mark.parametrize(
    ("how", "task", "words"),
    [
        ({"perhaps": 1.0}, TWO, "'perhaps', which is no class"),
        ("balanced", Regression(0.0, 1.0), "number"),
    ],
)
def test_weights_are_of_classes_there_are(how: Any, task: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        class_weights(how, task, torch.tensor([0, 1]))
