"""A run whose parties have a model each, and rounds: what the folder says of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from dovetail import runs
from dovetail.data import Regression
from dovetail.federated import is_due
from dovetail.methods.outcome import Observer, mean_over, metrics_of
from dovetail.models import Model, load
from dovetail.network import Checkpoint
from dovetail.runs import Outcome, RunFolder

PARTIES = {"bank": 0.5, "shop": 0.75}


@dataclass(frozen=True)
class Rounds:
    """Two rounds without any training; the shop misses the second."""

    method: str = "ours"
    baselines: tuple[str, ...] = ("alone",)

    def train(
        self, variant: str, seed: int, observe: Observer, checkpoint: Checkpoint | None = None
    ) -> Outcome:
        gain = 0.125 if variant == "ours" else 0.0
        scores = {party: {"accuracy": each + gain} for party, each in PARTIES.items()}
        observe(variant, 2, {"tried": 3, "seconds": 1.0})  # before the first round
        for number in (1, 2):
            line: dict[str, Any] = {"round": number, "seconds": 2.0, **metrics_of(scores)}
            if number == 2:
                line |= {"missed": {"shop": 1}, "reasons": {"shop": "round 2: asleep"}}
            observe(variant, 2, line)
        models = {
            party: Model(
                party, Regression(mean=0.0, scale=1.0), nn.Linear(1, 1), None, {"own": (1,)}
            )
            for party in PARTIES
        }
        return Outcome({variant: scores}, models)


def run(path: Path, seed: int = 0) -> dict[str, Any]:
    with RunFolder(path, {}, seed=seed, method="ours") as folder:
        setup = Rounds()
        lines = runs.run(setup, seed, lambda variant, _, line: folder.epoch(variant, line))
        for variant, outcome in lines:
            folder.keep_variant(variant, outcome)
        return folder.finish()


def test_every_party_has_scores_and_a_model_and_baselines_their_mean(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result["parties"] == {"bank": {"accuracy": 0.625}, "shop": {"accuracy": 0.875}}
    assert result["mean"] == {"accuracy": 0.75}
    assert result["baselines"] == {"alone": {"accuracy": 0.625}}
    alone = {"bank": {"accuracy": 0.5}, "shop": {"accuracy": 0.75}}
    assert result["variants"]["alone"]["scores"] == {"alone": alone}
    for party in PARTIES:
        assert load(tmp_path / "models" / party, network=nn.Linear(1, 1)).party == party


def test_rounds_are_counted_and_lines_have_the_mean_and_each_party(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result["seconds"] == 5.0
    missed = {"rounds": 1, "of": 2, "first": "round 2: asleep"}
    assert result["missed"] == {"shop": missed}
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["variant"], line.get("round")) for line in lines] == [
        (variant, number) for variant in ("ours", "alone") for number in (None, 1, 2)
    ]
    assert lines[1]["accuracy"] == 0.75
    assert lines[1]["parties"] == result["parties"]


def test_a_summary_has_the_spread_of_the_mean_too(tmp_path: Path) -> None:
    results = [run(tmp_path / str(seed), seed) for seed in (0, 1)]
    results[1]["mean"]["accuracy"] = 0.5
    summary = runs.summarise(results)
    spread = {"mean": 0.625, "std": pytest.approx(0.125 * 2**0.5)}
    assert summary["mean"] == {"accuracy": spread}
    assert summary["parties"]["shop"] == {"accuracy": {"mean": 0.875, "std": 0.0}}


def test_stages_that_are_done_are_skipped() -> None:
    variants = runs.run(Rounds(), 0, lambda *_: None, skip=["ours"])
    assert [variant for variant, _ in variants] == ["alone"]


def test_the_mean_is_over_scores_that_all_have() -> None:
    one, two = {"accuracy": 0.5, "auc": 0.5}, {"accuracy": 1.0, "rows": 3.0}
    assert mean_over({"a": one, "b": two}) == {"accuracy": 0.75}
    assert mean_over({"a": two}) == two
    assert metrics_of({"a": two}) == two


def test_scores_are_due_each_so_many_and_after_the_last() -> None:
    assert [number for number in range(1, 8) if is_due(number, 7, 3)] == [3, 6, 7]
    assert [number for number in range(1, 8) if is_due(number, 7, 0)] == [7]
