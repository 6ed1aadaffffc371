"""Noise on what classic vertical learning and FedOptimus send, and epsilon in a party's book."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.errors import ConfigError
from dovetail.methods import vertical
from dovetail.network import LedgerFile, noted
from dovetail.network.ledger import verify
from dovetail.privacy import epsilon
from dovetail.runs.runfile import check_run
from dovetail.runs.setup import load_data, setup

COLUMNS = {
    "kind": "columns",
    "active": "clinic",
    "parties": {"clinic": ["mean *"], "lab": ["worst *"]},
}
OWNERS = {
    "kind": "owners",
    "data_owners": {"clinic": ["mean *"], "lab": ["worst *"]},
    "label_owners": 2,
}


def trained(method: str, partition: Any, **sections: Any) -> tuple[Any, list[dict[str, Any]]]:
    values = {
        "method": method,
        "data": {"source": "breast-cancer", "test": 0.4, "partition": partition},
        **sections,
    }
    run = check_run(values, where="test")
    lines: list[dict[str, Any]] = []
    outcome = setup(run, 0, load_data(run)).train(
        method, 0, lambda *arguments: lines.append(arguments[2])
    )
    return outcome, lines


def test_classic_vertical_learning_counts_what_either_side_noises_and_goes_on_at_the_budget(
    caplog: pytest.LogCaptureFixture,
) -> None:
    paid = epsilon(2, 1.0, 1e-5)
    outcome, lines = trained(
        "tvfl",
        COLUMNS,
        apfed={
            "encoder": [8],
            "epochs": 4,
            "gradients": {"clip": 0.01, "noise": 2.0, "epsilon": paid},
        },
        passive={"codes": {"clip": 1.0, "noise": 3.0}},
    )
    # Rows of the test table are other people's: their releases are counted apart.
    spent = {
        each["what"]: each
        for each in outcome.about["epsilon"]
        if each["to"] != "the label owner, of test rows"
    }
    account = spent["codes"]
    assert (account["from"], account["to"]) == ("lab", "the label owner")
    assert account["releases"] == 4
    assert account["epsilon"] == pytest.approx(epsilon(4, 1.5, 1e-5))
    account = spent["gradients"]
    assert (account["from"], account["to"], account["stopped"]) == ("clinic", "lab", True)
    assert account["epsilon"] == pytest.approx(paid)
    assert "is spent after 2 releases" in caplog.text
    assert len(lines) == 4
    assert lines[0]["epsilon"] < lines[-1]["epsilon"]
    assert math.isfinite(outcome.scores["tvfl"]["clinic"]["log_loss"])


def test_fedoptimus_counts_embeddings_and_gradients_and_goes_on_at_the_budget(
    caplog: pytest.LogCaptureFixture,
) -> None:
    paid = epsilon(3, 2.0, 1e-5)
    outcome, lines = trained(
        "fedoptimus",
        OWNERS,
        fedoptimus={
            "epochs": 5,
            "embedding": 4,
            "top": [8],
            "bottom": [8],
            "batch_size": 32,
            "embeddings": {"clip": 1.0, "noise": 4.0, "epsilon": paid},
            "gradients": {"clip": 0.01, "noise": 1.0},
        },
    )
    spent = outcome.about["epsilon"]
    embeddings = [each for each in spent if each["what"] == "embeddings"]
    gradients = [each for each in spent if each["what"] == "gradients"]
    assert {each["from"] for each in embeddings} == {"clinic", "lab"}
    assert len(gradients) == 2
    for each in embeddings:
        assert each["stopped"]
        assert each["epsilon"] <= paid
    for each in gradients:
        assert each["releases"] >= 4
        assert each["epsilon"] == pytest.approx(epsilon(each["releases"], 0.5, 1e-5))
    assert "is spent after" in caplog.text
    spent_each = [line["epsilon"] for line in lines]
    assert spent_each == sorted(spent_each)
    for scores in outcome.scores["fedoptimus"].values():
        assert math.isfinite(scores["log_loss"])


def test_defences_of_messages_that_a_run_does_not_send_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"\[passive\] codes is how messages of classic"):
        trained("apfed-r", COLUMNS, passive={"codes": {"clip": 1.0, "noise": 1.0}})
    with pytest.raises(ConfigError, match="sends none of them"):
        trained("apfed-r", COLUMNS, apfed={"gradients": {"clip": 1.0}})


@pytest.mark.slow
def test_labels_that_are_randomised_say_nothing_to_a_partner_of_classic_vertical_learning() -> None:
    kept = []
    for settings in ({}, {"label_epsilon": 0.01}, {"spread": 1.0}):
        outcome, _ = trained("tvfl", COLUMNS, apfed={"encoder": [8], "epochs": 3, **settings})
        kept.append(outcome.scores["tvfl"]["clinic"]["accuracy"])
    assert kept[0] > 0.9
    assert kept[1] < 0.8
    assert kept[2] > 0.6


def test_a_partys_own_book_has_the_epsilon_of_each_receiver(tmp_path: Path) -> None:
    with LedgerFile(tmp_path / "ledger.jsonl", "shop") as ledger:
        for times in (1, 2):
            answer = vertical.CodeGradient(torch.zeros(2, 3))
            cost = {"epsilon": epsilon(times, 2.0, 1e-5), "delta": 1e-5}
            ledger.record("bank", noted(answer, cost))
        ledger.record("mill", vertical.CodeGradient(torch.zeros(2, 3)))
    lines = [json.loads(each) for each in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    of_bank = [line["epsilon"] for line in lines if line.get("to") == "bank"]
    assert of_bank == pytest.approx([epsilon(1, 2.0, 1e-5), epsilon(2, 2.0, 1e-5)])
    assert all("epsilon" not in line for line in lines if line.get("to") != "bank")
    by_receiver = {line["to"]: line for line in verify(tmp_path / "ledger.jsonl").lines()}
    assert by_receiver["bank"]["epsilon"] == pytest.approx(of_bank[-1])
    assert "epsilon" not in by_receiver["mill"]
