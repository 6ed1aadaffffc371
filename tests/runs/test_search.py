"""Settings chosen on validation rows: what judges, what is tried, what is kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail import data as dd
from dovetail.errors import ConfigError
from dovetail.models import generator
from dovetail.report.make import make_report
from dovetail.runs.runfile import RunFile, check_run
from dovetail.runs.samplers import sampler
from dovetail.runs.search import search
from dovetail.runs.setup import load_data, pooled_parts, read_pooled
from dovetail.runs.train import train_seeds

VALUES: dict[str, Any] = {
    "method": "apfed-r",
    "data": {
        "source": "breast-cancer",
        "test": 0.3,
        "partition": {
            "kind": "columns",
            "active": "clinic",
            "parties": {"clinic": ["mean *"], "lab": ["worst *"]},
        },
    },
    "apfed": {"epochs": 2, "encoder": [8], "head": [8]},
    "passive": {"encoder": [8]},
    "search": {"trials": 3, "keys": {"apfed.learning_rate": [1e-6, 0.02], "apfed.head": [[8]]}},
}


def run_of(**changes: Any) -> RunFile:
    return check_run({**VALUES, **changes}, where="test")


def test_the_best_trial_becomes_the_run_and_every_trial_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train_seeds(run_of(), folder, (0,), resume=False)
    search = json.loads((folder / "search.json").read_text())
    assert search["trials"][0]["settings"] == {}
    scores = [trial["score"] for trial in search["trials"]]
    assert len(scores) == 3
    assert search["metric"] == "auc"
    assert scores[search["best"]] == max(scores)
    chosen = search["trials"][search["best"]]["settings"].get("apfed.learning_rate", 2e-3)
    settings = (folder / "run.toml").read_text()
    assert f"learning_rate = {chosen}" in settings.split("[apfed]")[1]
    assert "[search" not in settings
    page = make_report([folder], out=None, data=False).read_text()
    assert "What was tried before" in page
    assert "as the run file says" in page


def test_no_row_that_judges_a_trial_tests_the_run() -> None:
    run = run_of()
    assert run.data is not None
    train, test = pooled_parts(run.data, read_pooled(run.data))
    judged = set(search(run, seed=0).rows["clinic"])
    assert len(judged) == pytest.approx(0.25 * train.num_rows, abs=2)
    assert judged <= set(train.ids.tolist())
    assert not judged & set(test.ids.tolist())


def test_with_few_labels_the_rows_that_judge_are_of_those_labels() -> None:
    run = run_of(data={**VALUES["data"], "labels": 60})
    whole = load_data(run).data
    kept = dd.keep_labels(whole, "clinic", 60, generator(5, "clinic", "kept labels"))
    train = kept.train["clinic"]
    judged = set(search(run, seed=5).rows["clinic"])
    assert len(judged) == 15
    assert judged <= set(train.ids[train.labelled_rows().numpy()].tolist())


def test_what_cannot_be_searched_is_one_sentence() -> None:
    section = {"keys": {"passive.learning_rate": [0.1]}}
    of_sites = run_of(data=None, parties=("bank.toml",), passive={}, search=section)
    with pytest.raises(ConfigError, match="which every party sets in its own file"):
        search(of_sites, seed=0)
    few = run_of(data={**VALUES["data"], "labels": 20})
    with pytest.raises(ConfigError, match="5 of 20 labelled rows would judge"):
        search(few, seed=0)
    unknown = {"keys": {"apfed.learning_rat": [1.0]}}
    with pytest.raises(ConfigError, match=r"learning_rat.*did you mean"):
        search(run_of(search=unknown), seed=0)


def test_optuna_draws_each_setting_once_and_turns_to_what_was_good() -> None:
    pytest.importorskip("optuna")
    keys = {"a": list(range(20)), "b": [[8], [16], [32]]}

    def drawn() -> list[float]:
        drawing = sampler("optuna", keys, 0)
        drawing.tried({}, 0.5)
        drawn: list[dict[str, Any]] = []
        scores: list[float] = []
        for settings in drawing.draw():
            assert settings not in drawn
            drawn.append(settings)
            scores.append(settings["a"] - abs(settings["b"][0] - 16) / 16)
            drawing.tried(settings, scores[-1])
        return scores

    scores = drawn()
    assert len(scores) == 60
    assert sum(scores[10:25]) / 15 > sum(scores[:10]) / 10 + 1  # ten at random come first
    assert scores == drawn()  # of one seed


def test_without_optuna_the_way_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'dovetail-fl\[optuna\]'"):
        search(run_of(search={"sampler": "optuna"}), seed=0)
