"""DP-SGD of APFed's model: with partners, alone, at its budget, and where it cannot be."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dovetail.errors import ConfigError
from dovetail.federated import Local
from dovetail.methods import apfed
from dovetail.methods.apfed.variants import active_config, label_owner_data
from dovetail.models import Head
from dovetail.privacy import epsilon
from dovetail.runs.runfile import check_run
from dovetail.runs.setup import load_data, setup

PARTITION = {
    "kind": "columns",
    "parties": {"clinic": ["mean *"], "lab": ["worst *"]},
    "active": "clinic",
}

NEARLY_NONE = {"clip": 1e6, "noise": 1e-15}


def made(method: str = "apfed-r", passive: Any = None, data: Any = None, **apfed_: Any) -> Any:
    run = check_run(
        {
            "method": method,
            "data": {
                "source": "breast-cancer",
                "test": 0.4,
                "partition": PARTITION,
                **(data or {}),
            },
            "apfed": {"encoder": [8], "head": [], "dropout": 0.0, "epochs": 3, **apfed_},
            "passive": {"encoder": [8], **(passive or {})},
        },
        where="test",
    )
    return setup(run, 0, load_data(run))


NEARLY_NONE = {"clip": 1e6, "noise": 1e-15}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "labels", "projection"),
    [("apfed-r", None, None), ("apfed-r", 60, None), ("apfed-c", None, 4), ("apfed-c", 60, 4)],
)
def test_uncut_and_hardly_noised_steps_are_those_of_plain_training(
    method: str, labels: int | None, projection: int | None
) -> None:
    data = {} if labels is None else {"labels": labels}
    codes = {"clip": 1e3, "noise": 1e-12}
    plain = {"validation": 0.0, "projection": projection, "codes": codes, "clip": None}
    weights = []
    for more in ({}, {"private": NEARLY_NONE}):
        task = made(method, data=data, **plain, **more)
        outcome = task.train(method, 0, lambda *_: None)
        weights.append(outcome.models["clinic"].network.state_dict())
    for name, expected in weights[0].items():
        torch.testing.assert_close(weights[1][name], expected, rtol=1e-2, atol=2e-4)


def test_a_run_ends_at_its_budget_with_a_model_and_epsilon_of_weights_and_codes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    weights_of, codes_of = 2.0, 1.0  # noise over the sensitivity of a row
    # Of each row two visits of its weights, and two releases of its code.
    paid = epsilon(2 / weights_of**2 + 2 / codes_of**2, 1.0, 1e-5)
    task = made(
        private={"clip": 1.0, "noise": 2 * weights_of, "epsilon": paid},
        codes={"clip": 1.0, "noise": 2 * codes_of},
    )
    lines: list[dict[str, Any]] = []
    outcome = task.train("apfed-r", 0, lambda *account: lines.append(account[2]))
    assert len(lines) == 2
    spent = {each["what"]: each for each in outcome.about["epsilon"]}
    account = spent["the solo model"]
    assert (account["releases"], account["stopped"]) == (2, True)
    assert account["epsilon"] == pytest.approx(paid)
    assert spent["codes"]["epsilon"] == pytest.approx(epsilon(2, codes_of, 1e-5))
    assert outcome.models["clinic"].about["private"]["epsilon"] == pytest.approx(paid)
    assert math.isfinite(outcome.scores["apfed-r"]["clinic"]["log_loss"])
    assert "training ends here" in caplog.text


def test_alone_the_weights_are_all_that_is_counted() -> None:
    outcome = made("alone", private={"noise": 3.0}).train("alone", 0, lambda *_: None)
    (account,) = outcome.about["epsilon"]
    assert account["what"] == "the solo model"
    assert account["releases"] == 3
    assert account["epsilon"] == pytest.approx(epsilon(3, 1.5, 1e-5))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "boosting"}, "boosted trees"),
        ({"method": "apfed-d"}, "no epsilon could be told of it"),
        ({"decorrelate": 1.0}, "decorrelate makes it depend on the other rows"),
        ({"private": {"noise": 1.0, "epsilon": 0.1}, "method": "alone"}, "the first epoch alone"),
        ({}, "set codes = "),
    ],
)
def test_where_nothing_could_be_guaranteed_it_is_refused(
    settings: dict[str, Any], words: str
) -> None:
    method = settings.pop("method", "apfed-r")
    settings = {"private": {"noise": 1.0}, **settings}
    with pytest.raises(ConfigError, match=words):
        made(method, **settings).train(method, 0, lambda *_: None)


def test_a_network_that_normalises_over_a_batch_is_refused() -> None:
    task = made("alone", private={"noise": 1.0})
    owner = label_owner_data(task)
    with pytest.raises(ConfigError, match="normalises over a batch"):
        apfed.Active(
            owner.train, None, owner.task, active_config(task), Local(owner.train.name), seed=0,
            encoder=torch.nn.Sequential(torch.nn.Linear(10, 4), torch.nn.BatchNorm1d(4)),
            head=Head((4,)),
        )  # fmt: skip


def test_labels_in_stages_and_codes_pushed_apart_are_settings_of_the_label_owner() -> None:
    models = []
    for settings in ({}, {"label_epsilon": 3.0, "label_stages": 2}, {"spread": 1.0}):
        outcome = made("apfed-c", **settings).train("apfed-c", 0, lambda *_: None)
        models.append(outcome.models["clinic"].network.state_dict()["encoder.1.weight"])
        assert math.isfinite(outcome.scores["apfed-c"]["clinic"]["log_loss"])
    assert not torch.equal(models[0], models[1])
    assert not torch.equal(models[0], models[2])
