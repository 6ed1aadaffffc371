"""A run file that sets nothing but what is required learns: a small ``benchmarks/defaults.py``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from dovetail.methods.outcome import mean_over
from dovetail.runs.one_seed import run
from dovetail.runs.runfile import check_run
from dovetail.runs.setup import load_data, setup

PARTIES = {"clinic": ["mean *"], "lab": ["worst *"]}
COLUMNS = {"kind": "columns", "parties": PARTIES, "active": "clinic"}
MEMBERS = {"kind": "common-unique", "parties": 2, "common": 0.5}
OWNERS = {"kind": "owners", "data_owners": PARTIES, "label_owners": 2}
BLOCKS = {
    "kind": "blocks",
    "blocks": PARTIES,
    "disjoint": True,
    "assignment": [
        {"party": "one", "blocks": ["clinic", "lab"], "classes": [1, 2], "rows": 0.5},
        {"party": "two", "blocks": ["lab"], "classes": [1, 2], "rows": 0.5},
    ],
}


def learned(method: str, data: dict[str, Any]) -> float:
    """Test accuracy of a run that sets nothing but these data."""
    file = check_run({"method": method, "evaluate_every": 0, "data": data}, where="test")
    outcomes = dict(run(setup(file, 0, load_data(file)), 0, lambda *_: None))
    return mean_over(outcomes[method].scores[method])["accuracy"]


def ruled(data: dict[str, Any], party: str) -> tuple[Tensor, Tensor, float]:
    """A party's labels that train and that test, and what logistic regression gets right there."""
    whole = load_data(check_run({"method": "alone", "data": data}, where="test")).data
    assert whole.test is not None
    train, tested = whole.train[party], whole.test[party]
    assert train.labels is not None
    assert tested.labels is not None
    plain = LogisticRegression(max_iter=2000).fit(train.joined(), train.labels)
    return train.labels, tested.labels, plain.score(tested.joined(), tested.labels)


@pytest.mark.parametrize(
    ("method", "partition"),
    [
        ("apfed-r", COLUMNS),
        ("apfed-c", COLUMNS),
        ("fedoptimus", OWNERS),
        pytest.param("apfed-d", COLUMNS, marks=pytest.mark.slow),
        pytest.param("chfl", MEMBERS, marks=pytest.mark.slow),
        pytest.param("hyfem", BLOCKS, marks=pytest.mark.slow),
    ],
)
def test_the_defaults_learn_what_logistic_regression_learns(
    method: str, partition: dict[str, Any]
) -> None:
    data = {"source": "breast-cancer", "test": 0.3}
    accuracy = learned(method, {**data, "partition": partition})
    # The clinic's columns stand for those of any party: they are easy.
    labels, tested, baseline = ruled({**data, "partition": COLUMNS}, "clinic")
    majority = float((tested == torch.mode(labels).values).double().mean())
    assert majority < 0.7 < baseline
    assert accuracy > baseline - 0.05  # 171 test rows: nine of them
    assert accuracy > majority + 0.2


@pytest.mark.slow
def test_fedoptimus_is_near_logistic_regression_on_everybodys_columns_in_one_place() -> None:
    """Ten classes, numbers at two owners, 450 rows to train on, 150 that judge."""
    parties = {"upper": ["pixel_[0-3]_*"], "lower": ["pixel_[4-7]_*"]}
    data = {"source": "digits", "rows": 600, "test": 0.25}
    owners = {"kind": "owners", "data_owners": parties, "label_owners": 2}
    accuracy = learned("fedoptimus", {**data, "partition": owners})
    whole = {"kind": "columns", "parties": {"all": ["pixel_*"]}, "active": "all"}
    _, _, baseline = ruled({**data, "partition": whole}, "all")
    assert baseline > 0.85
    assert accuracy > baseline - 0.03
