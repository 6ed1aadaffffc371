"""A search where every party has a file of its own, in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ordinary_files import RUNS, write_sites
from test_ordinary_tables import columns

from dovetail import load
from dovetail.runs.runfile import SearchSection, load_run
from dovetail.runs.setup import NOTHING, load_data
from dovetail.runs.trials import judging

#: Method -> a key and its values; the first does not learn.
KEYS = {
    "apfed-mixed": '{ "apfed.learning_rate" = [1e-9, 0.02] }',
    "chfl": '{ "chfl.learning_rate" = [1e-9, 0.01] }',
    "hyfem": '{ "hyfem.learning_rate" = [1e-9, 0.2] }',
    "fedoptimus": '{ "fedoptimus.learning_rate" = [1e-9, 0.01] }',
}


def add_search(folder: Path, keys: str, trials: int = 3) -> None:
    with (folder / "run.toml").open("a") as file:
        file.write(f"[search]\ntrials = {trials}\nkeys = {keys}\n")


def search_of(out: Path) -> Any:
    return json.loads((out / "search.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("method", RUNS)
def test_settings_are_chosen_on_validation_rows_of_the_parties(
    dovetail: Any, tmp_path: Path, method: str
) -> None:
    write_sites(tmp_path, method, columns)
    add_search(tmp_path, KEYS[method])
    done = dovetail("train", "run.toml", "--out", "run")
    assert done.code == 0, done.err
    search = search_of(tmp_path / "run")
    scores = [trial["score"] for trial in search["trials"]]
    assert len(scores) == 3
    assert search["ended"]
    assert scores[search["best"]] == max(scores)
    assert all(trial["bytes"] > 0 for trial in search["trials"])
    rate = search["trials"][search["best"]]["settings"].get(f"{method}.learning_rate")
    if rate is not None:
        settings = (tmp_path / "run" / "run.toml").read_text()
        assert f"learning_rate = {rate}" in settings.split(f"[{method}]")[1]
    again = dovetail("train", "run.toml", "--out", "run", "--resume")
    assert again.code == 0, again.err
    assert search_of(tmp_path / "run") == search


def test_the_rows_that_judge_neither_train_a_trial_nor_test_the_run(tmp_path: Path) -> None:
    write_sites(tmp_path, "apfed-mixed", columns)
    run = load_run(tmp_path / "run.toml")
    whole = load_data(run)
    assert whole.data.test is not None
    judge = judging(run, SearchSection(), NOTHING, 0, whole, None)
    judged = set(judge.rows["north"])
    assert len(judged) == pytest.approx(0.25 * 90, abs=1)  # of 120 rows 30 test
    assert not judged & set(judge.loaded.data.train["north"].ids)
    assert not judged & set(whole.data.test["north"].ids)
    shared = judge.loaded.alignment
    assert shared is not None
    assert int((shared.rows["north"] >= 0).sum()) == 90 - len(judged)


@pytest.mark.slow
def test_a_search_that_was_stopped_goes_on_after_the_last_trial(
    dovetail: Any, tmp_path: Path
) -> None:
    write_sites(tmp_path, "chfl", columns)
    add_search(tmp_path, KEYS["chfl"])
    assert dovetail("train", "run.toml", "--out", "whole", "-q").code == 0
    whole = search_of(tmp_path / "whole")
    stopped = {**whole, "trials": whole["trials"][:2], "ended": False}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "search.json").write_text(json.dumps(stopped))
    done = dovetail("train", "run.toml", "--out", "run", "--resume")
    assert done.code == 0, done.err
    assert "trial 3" in done.err
    assert "trial 2" not in done.err
    trials = search_of(tmp_path / "run")["trials"]
    assert trials[:2] == whole["trials"][:2]  # seconds, too
    assert trials[2]["score"] == whole["trials"][2]["score"]
    other = dovetail("train", "run.toml", "--out", "run", "--resume", "--set", "chfl.rounds=3")
    assert other.code != 0
    assert "of another run file or search" in other.err


@pytest.mark.slow
def test_a_policy_caps_the_trials(dovetail: Any, tmp_path: Path) -> None:
    write_sites(tmp_path, "apfed-mixed", columns)
    add_search(tmp_path, KEYS["apfed-mixed"])
    path = tmp_path / "south.toml"
    path.write_text(path.read_text().replace("[policy]", "[policy]\nmax_runs_per_day = 3"))
    done = dovetail("train", "run.toml")
    assert done.code != 0
    assert "party 'south' answers 3 runs a day" in done.err
    assert "set search.trials to less than 3" in done.err
    assert dovetail("train", "run.toml", "--set", "search.trials=2", "-q").code == 0
    assert load(tmp_path / "out" / "run").party == "north"  # a run's only model


def test_what_stands_in_partys_own_files_is_not_searched(dovetail: Any, tmp_path: Path) -> None:
    write_sites(tmp_path, "apfed-mixed", columns)
    add_search(tmp_path, '{ "passive.learning_rate" = [0.1] }')
    done = dovetail("train", "run.toml")
    assert "which every party sets in its own file" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("method", ["chfl", "hyfem", "fedoptimus"])
def test_a_threshold_is_chosen_on_rows_that_did_not_train_and_kept(
    dovetail: Any, tmp_path: Path, method: str
) -> None:
    write_sites(tmp_path, method, columns, keys='threshold = "f1"\n')
    done = dovetail("train", "run.toml", "--out", "run", "-q")
    assert done.code == 0, done.err
    decision = load(tmp_path / "run" / "models" / "north").about["decision"]
    assert decision["goal"] == {"goal": "f1"}
    assert 0 < decision["rows"] < 40
