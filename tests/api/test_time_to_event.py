"""A label of two columns, from a run file or Python to a model that predicts alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import dovetail as dt
from dovetail.api.party import keep
from dovetail.cli.main import app
from dovetail.errors import ConfigError, DataError
from dovetail.models.survival import kaplan_meier
from dovetail.runs.runfile import load_run
from dovetail.runs.splitting import deal

LABEL = {"time": "days", "event": "died"}
SIMULATED = """
method = "apfed"
seeds = [0]
baselines = ["best-alone"]
[data]
source = "all.csv"
id = "patient"
label = { time = "days", event = "died", intervals = 5 }
test = 0.25
[data.partition]
kind = "columns"
active = "clinic"
parties = { clinic = ["age"], lab = ["blood"] }
"""
ALLOWED = ("apfed-mixed", "apfed-d", "apfed")


def people(rows: int = 240, seed: int = 0) -> pd.DataFrame:
    """Two parties' columns; the event comes sooner the higher both are."""
    rng = np.random.default_rng(seed)
    here, there = rng.normal(size=rows), rng.normal(size=rows)
    days = np.exp(5 - here - there) * rng.exponential(size=rows)
    end = rng.uniform(50, 600, size=rows)
    return pd.DataFrame(
        {
            "patient": np.arange(rows),
            "age": here,
            "blood": there,
            "days": np.minimum(days, end).round(2) + 0.01,
            "died": (days <= end).astype(int),
        }
    )


def parties(frame: pd.DataFrame) -> list[dt.Party]:
    own = frame[["patient", "age", "days", "died"]]
    lab = frame[["patient", "blood"]]
    return [
        dt.Party("clinic", own, id="patient", label=LABEL),
        dt.Party(
            "lab",
            lab,
            id="patient",
            policy={"algorithms": ["align", "apfed-mixed", "apfed-d", "apfed"]},
        ),
    ]


@pytest.mark.trained
@pytest.mark.parametrize("method", ["apfed", "apfed-d", "apfed-r"])
@pytest.mark.usefixtures("brief_learners")
def test_a_run_of_times_gives_a_model_that_says_when(method: str, tmp_path: Path) -> None:
    frame = people()
    short = {"epochs": 2} if method == "apfed-r" else {}
    run = dt.fit(
        dt.Method(method, **short), parties(frame), test=0.25, baselines=["best-alone"], quiet=True
    )
    model = run.models["clinic"]
    said = model.predictions(frame)
    assert said.values.shape == (240,)
    shares = np.stack([v for name, v in said.named.items() if name.startswith("S(")], axis=1)
    assert ((shares >= 0) & (shares <= 1)).all()
    assert (np.diff(shares, axis=1) <= 0).all()
    found = model.score(frame)
    assert found["c_index"] > 0.6
    assert {"c_uno", "brier_integrated", "calibration_at_times"} <= set(found)
    again = dt.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))


@pytest.mark.trained
def test_a_run_file_a_table_and_an_export(tmp_path: Path, brief_learners: None) -> None:
    frame = people()
    frame["died"] = frame["died"].map({0: "no", 1: "yes"})
    frame.to_csv(tmp_path / "all.csv", index=False)
    (tmp_path / "run.toml").write_text(SIMULATED.replace("all.csv", str(tmp_path / "all.csv")))
    invoke = CliRunner().invoke
    out = tmp_path / "out"
    done = invoke(app, ["train", str(tmp_path / "run.toml"), "--out", str(out), "--quiet"])
    assert done.exit_code == 0, done.output
    (result,) = [json.loads(path.read_text()) for path in out.rglob("result.json")]
    assert result["baselines"]["joint"]["c_index"] > result["baselines"]["best-alone"]["c_index"]
    model = str(out / "models" / "clinic")
    written = tmp_path / "said.csv"
    done = invoke(app, ["predict", model, str(tmp_path / "all.csv"), "--out", str(written)])
    assert done.exit_code == 0, done.output
    said = pd.read_csv(written)
    assert [name[:2] for name in said.columns[3:]] == ["S("] * 5
    assert list(said.columns[:3]) == ["row", "median(days)", "risk"]
    done = invoke(app, ["export", model, "--out", str(tmp_path / "model.onnx")])
    assert done.exit_code == 0, done.output
    exported = dt.load(tmp_path / "model.onnx")
    expected = dt.load(model).predictions(frame)
    for name, values in exported.predictions(frame).named.items():
        np.testing.assert_allclose(values, expected.named[name], atol=1e-4)
    done = invoke(app, ["report", str(out)])
    assert done.exit_code == 0, done.output
    page = next(out.rglob("report.html")).read_text()
    assert "Kaplan and Meier" in page
    assert "how many have no event by then" in page
    done = invoke(app, ["card", model, str(tmp_path / "all.csv")])
    assert done.exit_code == 0, done.output
    assert "when an event comes, up to" in done.output
    held = json.loads((Path(model) / "card.json").read_text())["scores"]["survival"]
    cuts = dt.load(model).task.cuts
    assert [each["time"] for each in held["curve"]] == list(cuts)
    days = frame["days"].to_numpy(np.float32).astype(float)  # as labels are kept
    was = kaplan_meier(days, frame["died"].to_numpy() == "yes", np.array(cuts))
    np.testing.assert_allclose([each["was"] for each in held["curve"]], was)
    assert sum(each["rows"] for each in held["calibration"][0]["groups"]) == len(frame)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"died": 2}, "'died' says whether the event came, as 1 or 0"),
        ({"days": -1.0}, "'days' has values below 0"),
        ({"days": "soon"}, "'days' is text"),
    ],
)
def test_columns_that_are_no_times_are_refused(changes: dict[str, object], words: str) -> None:
    frame = people().assign(**changes)
    with pytest.raises(DataError, match=words):
        dt.Party("clinic", frame, id="patient", label=LABEL)


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ({"time": "days"}, "a label is a column, or"),
        ({"time": "days", "event": "died", "intervals": 0}, "1 or more, got 0"),
        ({"time": "days", "event": "died(1)"}, "no comma or bracket"),
    ],
)
def test_labels_that_are_none_are_refused(label: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        dt.Party("clinic", people(), id="patient", label=label)


def test_a_party_of_a_frame_is_kept_with_both_columns(tmp_path: Path) -> None:
    clinic, _ = parties(people())
    keep(clinic.site, clinic.rows, tmp_path)
    kept = dt.Party.read(tmp_path / "clinic.toml").site
    assert kept.party.task == "survival"
    assert kept.table.blocks == {"columns": ("age",)}
    before = clinic.site.table.required_labels.values
    np.testing.assert_array_equal(kept.table.required_labels.values, before)


def test_a_simulation_makes_party_files_that_have_the_times(tmp_path: Path) -> None:
    people().to_csv(tmp_path / "all.csv", index=False)
    (tmp_path / "sim.toml").write_text(SIMULATED.replace("all.csv", str(tmp_path / "all.csv")))
    run = load_run(tmp_path / "sim.toml")
    folder = tmp_path / "parties"
    folder.mkdir()
    deal(run, folder, where="here")
    table = dt.Party.read(folder / "clinic.toml").site.table
    assert table.label == "Surv(days, died, 5)"
    assert (table.required_labels.values < 0).sum() == (people()["died"] == 0).sum()
    assert table.blocks == {"columns": ("age",)}
