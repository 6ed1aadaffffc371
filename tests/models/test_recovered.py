"""How much of a partner's help stays, by hand; and what is warned of."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import roc_auc_score

from dovetail.data import Classification, Regression
from dovetail.models.recovered import over_seeds, recovered_share, recovered_text, warnings_of

TWO = Classification(("no", "yes"))
THREE = Classification(("a", "b", "c"))


def right_on(labels: torch.Tensor, num: int, classes: int) -> torch.Tensor:
    """Outputs that are right on the first ``num`` rows and wrong on the others."""
    predicted = labels.clone()
    predicted[num:] = (predicted[num:] + 1) % classes
    return torch.nn.functional.one_hot(predicted, classes).float()


def test_the_share_is_the_solo_models_gain_over_the_joint_ones() -> None:
    labels = torch.arange(400) % 3
    gain = recovered_share(
        THREE,
        labels,
        solo=right_on(labels, 240, 3),
        alone=right_on(labels, 200, 3),
        joint=right_on(labels, 360, 3),
        seed=0,
    )
    assert gain["score"] == "accuracy"
    assert (gain["alone"], gain["solo"], gain["joint"]) == (0.5, 0.6, 0.9)
    assert gain["share"] == pytest.approx(0.25)
    low, high = gain["interval"]
    assert 0.15 < low < 0.25 < high < 0.36
    assert "Share of the gain kept: 25 %" in recovered_text(gain)


def test_there_is_no_share_of_help_that_is_not_sure() -> None:
    labels = torch.arange(60) % 3
    gain = recovered_share(
        THREE,
        labels,
        solo=right_on(labels, 33, 3),
        alone=right_on(labels, 30, 3),
        joint=right_on(labels, 31, 3),
        seed=0,
    )
    assert gain["share"] is None
    assert gain["help"] == pytest.approx(1 / 60)
    assert "cannot be estimated" in recovered_text(gain)


def test_the_auc_is_scikit_learns_with_ties_too() -> None:
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (300,), generator=rng)
    outputs = torch.randn(300, 2, generator=rng).round(decimals=1)
    gain = recovered_share(TWO, labels, solo=outputs, alone=-outputs, joint=outputs, seed=0)
    expected = roc_auc_score(labels.numpy(), outputs.double().softmax(dim=1)[:, 1].numpy())
    assert gain["solo"] == pytest.approx(expected)
    assert gain["alone"] == pytest.approx(1 - expected)


def test_of_values_less_error_is_more_help() -> None:
    truth = torch.linspace(-1, 1, 200)
    gain = recovered_share(
        Regression(mean=5.0, scale=2.0),
        truth,
        solo=truth[:, None] + 0.5,
        alone=truth[:, None] + 1.0,
        joint=truth[:, None] + 0.0,
        seed=0,
    )
    assert gain["alone"] == pytest.approx(2.0)
    assert gain["share"] == pytest.approx(0.5)


def test_over_seeds_means_are_compared() -> None:
    seeds = [
        {"score": "auc", "rows": 10, "alone": 0.6, "solo": 0.7, "joint": 0.8},
        {"score": "auc", "rows": 10, "alone": 0.5, "solo": 0.7, "joint": 0.9},
    ]
    gain = over_seeds(seeds)
    assert gain["share"] == pytest.approx(0.15 / 0.3)
    assert gain["seeds"] == 2


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ({"accuracy": 0.9, "auc": 0.45}, "worse than a coin"),
        ({"accuracy": 0.8, "auc": 0.9}, "no better than always saying the commonest class"),
        ({"accuracy": 0.9, "auc": 0.6}, "worse than the best local model"),
        ({"rmse": 2.0}, "no better than the mean"),
    ],
)
def test_a_model_that_nobody_should_use_is_warned_of(scores: dict[str, float], words: str) -> None:
    sentences = warnings_of(
        "the model",
        scores,
        alone={"accuracy": 0.85, "auc": 0.7, "rmse": 3.0},
        majority={"accuracy": 0.8, "auc": 0.5, "rmse": 2.0},
    )
    assert any(words in each for each in sentences)


@pytest.mark.parametrize(("high", "within"), [(0.72, True), (0.68, False)])
def test_a_loss_that_the_rows_cannot_tell_is_said_to_be_one(high: float, within: bool) -> None:
    (sentence,) = warnings_of(
        "the model", {"auc": 0.6}, alone={"auc": 0.7}, majority=None, intervals={"auc": [0.5, high]}
    )
    assert (
        sentence.endswith("(0.700), by less than these test rows can tell (0.500 to 0.720)")
        is within
    )


def test_a_model_that_is_printed_as_good_as_the_local_one_is_not_called_worse() -> None:
    assert not warnings_of("the model", {"auc": 0.73362}, alone={"auc": 0.73411}, majority=None)


@pytest.mark.parametrize(
    ("joint", "alone", "rows", "said"),
    [
        (1.0, 0.756, 108, True),
        (0.99, 0.756, 108, False),
        (1.0, 1.0, 108, False),
        (1.0, 0.7, 57, False),
    ],
)
def test_a_perfect_joint_model_is_remarked(
    joint: float, alone: float, rows: int, said: bool
) -> None:
    gain = {"score": "auc", "alone": alone, "solo": alone, "joint": joint, "rows": rows}
    text = recovered_text({**gain, "share": None, "interval": None})
    assert ("ask the partners whether a column" in text) is said


def test_a_good_model_is_not_warned_of() -> None:
    scores = {"accuracy": 0.9, "auc": 0.8}
    alone, majority = {"accuracy": 0.95, "auc": 0.7}, {"accuracy": 0.8, "auc": 0.5}
    assert not warnings_of("the model", scores, alone=alone, majority=majority)
