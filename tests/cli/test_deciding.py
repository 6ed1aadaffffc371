"""What people decide by, of every method: scores, warnings, baselines, weights, thresholds."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ordinary_files import RUNS, write_sites

NUM_ROWS = 160


def table(name: str, seed: int, *, shared: bool) -> dict[str, list[str]]:
    """Rows of which a sixth are sick, as two columns tell."""
    draw = np.random.default_rng(seed)
    age, dose = draw.normal(size=(2, NUM_ROWS)).round(3)
    return {
        "id": [f"{'p' if shared else name}{row}" for row in range(NUM_ROWS)],
        "age": [str(value) for value in age],
        "smokes": [str(value) for value in draw.choice(["true", "false"], NUM_ROWS)],
        "city": [str(value) for value in draw.choice(["Oslo", "Rome"], NUM_ROWS)],
        "seen": [str(value) for value in dose],
        "sick": ["yes" if value > 1 else "no" for value in age + dose / 4],
    }


@pytest.mark.trained
@pytest.mark.slow
@pytest.mark.usefixtures("brief_learners")
@pytest.mark.parametrize("method", RUNS)
def test_every_method_tells_what_people_decide_by(
    dovetail: Any, tmp_path: Path, method: str
) -> None:
    # From party files FedOptimus has no rows to choose a threshold on.
    threshold = "" if method == "fedoptimus" else 'threshold = "f1"\n'
    keys = (
        f'{threshold}class_weights = "balanced"\n'
        'baselines = ["best-alone", "linear", "majority"]\nevaluate_every = 0\n'
    )
    write_sites(tmp_path, method, table, keys=keys)
    done = dovetail("train", "run.toml", "--json", "-q")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert {"best-alone", "linear", "majority"} <= result["baselines"].keys()
    assert result["baselines"]["linear"]["auc"] > 0.8  # the columns tell nearly all
    scores = result["parties"]["north"]
    for name in ("macro_f1", "balanced_accuracy", "average_precision", "brier", "ece"):
        assert 0 <= scores[name] <= 1
    details = result["variants"][method]["details"][method]["north"]
    assert sum(map(sum, details["confusion"])) == details["rows"]
    low, high = details["intervals"]["accuracy"]
    assert low <= scores["accuracy"] <= high
    if scores["auc"] < result["variants"]["best-alone"]["scores"]["best-alone"]["north"]["auc"]:
        assert any("'north'" in each and "local model" in each for each in result["warnings"])
    done = dovetail("report", "out/run", "--out", "page.html")
    assert done.code == 0, done.err
    page = (tmp_path / "page.html").read_text()
    assert "Where the model is wrong" in page
    assert "Confusion matrix" in page
    assert "(ROC)" in page
    if not threshold:
        return
    model = tmp_path / "out" / "run" / "models" / "north"
    decision = json.loads((model / "model.json").read_text())["decision"]
    assert details["threshold"] == decision["threshold"]
    done = dovetail("predict", model, "north.csv", "--id", "id", "--out", "said.csv")
    assert done.code == 0, done.err
    assert "'yes' is said from a probability of" in done.err
    for row in csv.DictReader((tmp_path / "said.csv").read_text().splitlines()):
        assert (row["sick"] == "yes") == (float(row["p(yes)"]) >= decision["threshold"] - 1e-6)


def costs(name: str, seed: int, *, shared: bool) -> dict[str, list[str]]:
    """Rows whose label is what their care costs, in thousands."""
    rows = table(name, seed, shared=shared)
    cost = [
        1000 + 200 * float(age) + 50 * float(dose)
        for age, dose in zip(rows["age"], rows["seen"], strict=True)
    ]
    return {**rows, "sick": [f"{value:.2f}" for value in cost]}


@pytest.mark.trained
@pytest.mark.slow
@pytest.mark.parametrize("method", RUNS)
def test_every_method_predicts_numbers_from_party_files(
    dovetail: Any, tmp_path: Path, method: str
) -> None:
    keys = 'baselines = ["linear", "majority"]\nevaluate_every = 0\n'
    write_sites(tmp_path, method, costs, task="regression", keys=keys)
    done = dovetail("train", "run.toml", "--json", "-q")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    scores = result["parties"]["north"]
    assert scores.keys() >= {"rmse", "mae", "r2"}
    assert result["baselines"]["linear"]["r2"] > 0.9
    assert result["baselines"]["linear"]["rmse"] < 100  # in the label's own unit
    assert result["baselines"]["majority"]["r2"] < 0.1
    low, high = result["variants"][method]["details"][method]["north"]["intervals"]["rmse"]
    assert low <= scores["rmse"] <= high
    if method == "fedoptimus":  # its label owners predict with the data owners
        return
    model = tmp_path / "out" / "run" / "models" / "north"
    done = dovetail("predict", model, "north.csv", "--id", "id", "--out", "said.csv", "-q")
    assert done.code == 0, done.err
    predictions = list(csv.DictReader((tmp_path / "said.csv").read_text().splitlines()))
    assert 500 < np.mean([float(row["sick"]) for row in predictions]) < 1500
    for name in ("north", "south"):  # who forgot to say so is told
        path = tmp_path / f"{name}.toml"
        path.write_text(path.read_text().replace('task = "regression"\n', ""))
    done = dovetail("train", "run.toml", "-q", "--out", "out/again")
    assert done.code == 2
    assert 'give task = "regression"' in done.err
