"""The model that a Cox regression of several parties leaves with the coordinator."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sksurv.linear_model import CoxPHSurvivalAnalysis
from sksurv.util import Surv
from typer.testing import CliRunner

import dovetail as dt
from dovetail.cli.main import app

COLUMNS = ["age", "dose"]
NAMES = ("north", "south", "west")


def people(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, dose = rng.normal(60, 9, rows), rng.normal(size=rows)
    days = np.ceil(rng.exponential(60 * np.exp(-0.05 * (age - 60) - 0.4 * dose)))
    end = np.ceil(rng.uniform(5, 60, size=rows))
    return pd.DataFrame(
        {
            "patient": np.arange(rows), "age": age, "dose": dose,
            "days": np.minimum(days, end), "died": (days <= end).astype(int),
        }
    )  # fmt: skip


def hospitals(frame: pd.DataFrame) -> list[dt.Party]:
    label = {"time": "days", "event": "died"}
    return [
        dt.Party(name, frame[index::3], id="patient", label=label, survival={"min_events": 0})
        for index, name in enumerate(NAMES)
    ]


@pytest.fixture(scope="module")
def pooled() -> CoxPHSurvivalAnalysis:
    frame = people(300, 1)
    truth = Surv.from_arrays(frame["died"] == 1, frame["days"])
    return CoxPHSurvivalAnalysis(alpha=0, ties="breslow", tol=1e-12).fit(frame[COLUMNS], truth)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dt.Coefficients, Path]:
    frame = people(300, 1)
    out = tmp_path_factory.mktemp("cox") / "out"
    times = np.unique(frame["days"]).tolist()
    return dt.cox(hospitals(frame), COLUMNS, times=times, least=1, out=out), out


def test_the_model_is_that_of_all_rows_in_one_place(
    run: tuple[dt.Coefficients, Path], pooled: CoxPHSurvivalAnalysis
) -> None:
    model, new = run[0].model, people(80, 2)
    assert model is not None
    said = model.predictions(new)
    times = np.array(model.task.cuts)
    ours = np.stack([said.named[f"S({time:g})"] for time in times], axis=1)
    curves = pooled.predict_survival_function(new[COLUMNS])
    theirs = np.stack([curve(times) for curve in curves])
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    truth = Surv.from_arrays(new["died"] == 1, new["days"])
    c_index = pooled.score(new[COLUMNS], truth)
    assert model.score(new)["c_index"] == pytest.approx(c_index, abs=1e-9)
    # The median lies in the interval whose end is the first time at which half have had the event.
    reached = (theirs <= 0.5).any(axis=1)
    assert 0 < reached.sum() < 80
    np.testing.assert_array_equal(np.isfinite(said.values), reached)
    first = (theirs <= 0.5).argmax(axis=1)[reached]
    starts = np.append(0, times)[first]
    assert ((said.values[reached] >= starts) & (said.values[reached] <= times[first])).all()


def test_it_is_saved_like_other_models(run: tuple[dt.Coefficients, Path], tmp_path: Path) -> None:
    folder, new = run[1] / "models" / "coordinator", people(40, 3)
    model = run[0].model
    assert model is not None
    said = model.predictions(new).columns("median(days)")
    new.drop(columns=["died"]).to_csv(tmp_path / "new.csv", index=False)
    words = ["predict", str(folder), str(tmp_path / "new.csv"), "--out", str(tmp_path / "said.csv")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    written = pd.read_csv(tmp_path / "said.csv")
    for name, values in said.items():
        np.testing.assert_allclose(written[name], values, rtol=1e-5)
    card = json.loads((folder / "card.json").read_text())
    assert card["method"] == "cox"
    assert card["label"] == "Surv(days, died)"
    assert {column["name"] for column in card["columns"]} == set(COLUMNS)
    words = ["export", str(folder), "--out", str(tmp_path / "model.onnx")]
    done = CliRunner().invoke(app, words)  # compares what both say
    assert done.exit_code == 0, done.output


def test_the_baseline_has_no_step_of_fewer_events_than_least(
    run: tuple[dt.Coefficients, Path],
) -> None:
    frame = people(300, 1)
    times = np.unique(frame["days"]).tolist()
    found = dt.cox(hospitals(frame), COLUMNS, times=times, least=8)
    ends, came = np.array(found.baseline["times"]), frame["days"][frame["died"] == 1]
    num_events, _ = np.histogram(came, np.append(0, ends) + 0.5)
    assert len(ends) < len(times)
    assert ((num_events == 0) | (num_events >= 8)).all()
    exact = dict(zip(*(run[0].baseline[key] for key in ("times", "hazards")), strict=True))
    assert found.baseline["hazards"] == [exact[end] for end in ends]


def test_a_row_without_a_value_counts_as_one_with_the_mean(
    run: tuple[dt.Coefficients, Path],
) -> None:
    model, means = run[0].model, run[0].baseline["at"]
    assert model is not None
    rows = pd.DataFrame({"age": [means["age"], None], "dose": [1.0, 1.0]})
    risk = model.predictions(rows).named["risk"]
    assert risk[0] == pytest.approx(risk[1], rel=1e-6)
