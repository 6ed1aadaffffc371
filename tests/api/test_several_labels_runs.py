"""Several labels at once, from a table to a model that predicts alone, exported and served."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import dovetail as dt
from dovetail.cli.main import app
from dovetail.companions.service.export import export
from dovetail.errors import ConfigError, DataError

LABELS = ["relapse", "sepsis", "pain"]
ALLOWED = {"algorithms": ["align", "apfed-mixed", "apfed-d", "apfed"]}
SIMULATED = """
method = "apfed"
seeds = [0]
baselines = ["best-alone"]
[data]
source = "all.csv"
id = "patient"
label = ["relapse", "sepsis", "pain"]
test = 0.25
[data.partition]
kind = "columns"
active = "clinic"
parties = { clinic = ["age", "weight"], lab = ["blood"] }
"""


def people(rows: int = 320) -> pd.DataFrame:
    """Blood says much of sepsis, nothing of pain; a third of the rows lacks relapse."""
    rng = np.random.default_rng(0)
    age, weight, blood = rng.normal(size=(3, rows))
    scores = np.stack([age + blood, 2 * blood, weight], axis=1)
    so = rng.random((rows, 3)) < 1 / (1 + np.exp(-2 * scores))
    frame = pd.DataFrame({"patient": np.arange(rows), "age": age, "weight": weight, "blood": blood})
    frame["relapse"] = np.where(rng.random(rows) < 0.33, np.nan, so[:, 0])
    frame["sepsis"] = np.where(so[:, 1], "yes", "no")
    frame["pain"] = so[:, 2].astype(int)
    return frame


def parties(frame: pd.DataFrame, **more: object) -> list[dt.Party]:
    columns = ["patient", "age", "weight", *LABELS]
    return [
        dt.Party("clinic", frame[columns], id="patient", label=LABELS, **more),  # type: ignore[arg-type]
        dt.Party("lab", frame[["patient", "blood"]], id="patient", policy=ALLOWED),
    ]


@pytest.mark.trained
@pytest.mark.slow
@pytest.mark.usefixtures("brief_learners")
def test_a_run_file_a_report_a_table_and_an_export(tmp_path: Path) -> None:
    frame, source = people(), str(tmp_path / "all.csv")
    frame.to_csv(source, index=False)
    (tmp_path / "run.toml").write_text(SIMULATED.replace("all.csv", source))
    invoke, out = CliRunner().invoke, tmp_path / "out"
    done = invoke(app, ["inspect", str(tmp_path / "run.toml")])
    assert done.exit_code == 0, done.output
    done = invoke(app, ["train", str(tmp_path / "run.toml"), "--out", str(out), "--quiet"])
    assert done.exit_code == 0, done.output
    (result,) = [json.loads(path.read_text()) for path in out.rglob("result.json")]
    joint, local = (result["baselines"][name] for name in ("joint", "best-alone"))
    assert joint["auc_labels"] > local["auc_labels"] + 0.05
    assert {"lrap", "coverage_error", "ranking_loss", "average_precision_labels"} <= set(joint)
    assert result["recovered"]["score"] == "auc_labels"
    gates = result["distilled"]["labels"]
    assert list(gates) == LABELS
    assert result["distilled"]["numbers_per_row"] in (3, 12)
    each = result["variants"]["apfed"]["details"]
    assert each["joint"]["clinic"]["labels"]["sepsis"]["auc"] > 0.75
    assert each["best-alone"]["clinic"]["labels"]["sepsis"]["auc"] < 0.65
    model, written = str(out / "models" / "clinic"), tmp_path / "said.csv"
    done = invoke(app, ["predict", model, source, "--out", str(written)])
    assert done.exit_code == 0, done.output
    assert "auc_labels" in done.output
    said = pd.read_csv(written)
    assert list(said.columns) == ["row", *LABELS, *(f"p({name})" for name in LABELS)]
    assert set(said["pain"]) == {0, 1}
    done = invoke(app, ["export", model, "--out", str(tmp_path / "model.onnx")])
    assert done.exit_code == 0, done.output
    exported, kept = dt.load(tmp_path / "model.onnx"), dt.load(model)
    ours, theirs = kept.predictions(frame), exported.predictions(frame)
    np.testing.assert_allclose(theirs.probabilities, ours.probabilities, atol=1e-5)  # type: ignore[arg-type]
    assert exported.score(frame)["auc_labels"] == pytest.approx(kept.score(frame)["auc_labels"])
    done = invoke(app, ["report", str(out)])
    assert done.exit_code == 0, done.output
    page = next(out.rglob("report.html")).read_text()
    assert "AUC of each label, on the test rows that have it" in page
    done = invoke(app, ["card", model, source])
    assert done.exit_code == 0, done.output
    assert "3 labels at once: relapse, sepsis, pain" in (out / "models/clinic/card.md").read_text()
    done = invoke(app, ["explain", model, source, "--label", "pain", "--rows", "20"])
    assert done.exit_code == 0, done.output
    assert done.output.index("weight") < done.output.index("age")
    done = invoke(app, ["explain", model, source])
    assert "give label as one of relapse, sepsis, pain" in str(done.exception)


@pytest.mark.trained
@pytest.mark.parametrize("method", ["apfed", "apfed-d", "apfed-r", "apfed-c"])
@pytest.mark.usefixtures("brief_learners")
def test_numbers_by_every_method_of_apfed(method: str, tmp_path: Path) -> None:
    frame = people()
    noise = np.random.default_rng(1).normal(size=(2, len(frame)))
    frame["cost"] = np.where(frame["age"] > 1, np.nan, 100 * (frame["blood"] + noise[0]))
    frame["days"] = 5 + frame["age"] + 0.5 * noise[1]
    label = ["cost", "days"]
    clinic = dt.Party(
        "clinic",
        frame[["patient", "age", "weight", *label]],
        id="patient",
        label=label,
        task="regression",
    )
    lab = dt.Party("lab", frame[["patient", "blood"]], id="patient", policy=ALLOWED)
    short = {"epochs": 3, "learning_rate": 0.05} if method in ("apfed-r", "apfed-c") else {}
    run = dt.fit(
        dt.Method(method, **short), [clinic, lab], test=0.25, baselines=["majority"], quiet=True
    )
    model = run.models["clinic"]
    said = model.predict(frame)
    assert list(said.columns) == label
    assert np.corrcoef(said["days"], frame["days"])[0, 1] > 0.5
    assert model.score(frame)["r2_labels"] > run.result["baselines"]["majority"]["r2_labels"]
    again = dt.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict(frame), said)
    export(model, tmp_path / "model.onnx")
    np.testing.assert_allclose(dt.load(tmp_path / "model.onnx").predict(frame), said, rtol=1e-3)


def test_fedoptimus_refuses_to_choose_owners_by_several_in_a_sentence() -> None:
    clinic, _ = parties(people())
    lab = dt.Party("lab", people()[["patient", "blood"]], id="patient")
    with pytest.raises(ConfigError, match="information with one class or number, and its label is"):
        dt.fit(dt.FedOptimus(variant="paper"), [clinic, lab], quiet=True)


def test_a_column_that_is_one_of_the_labels_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    frame = people()
    frame["stay"] = frame["pain"]
    clinic, _ = parties(frame)
    lab = dt.Party("lab", frame[["patient", "blood", "stay"]], id="patient")
    dt.inspect([clinic, lab])
    assert "its column 'stay' equals the label 'pain'" in caplog.text


@pytest.mark.parametrize(
    ("label", "task", "words"),
    [
        ([], "classification", "several labels are columns, each once"),
        (["relapse", "relapse"], "classification", "each once"),
        (LABELS, "counts", 'leave task out, or say "regression" of numbers'),
        (["relapse", "age"], "classification", "'age' has .*: several labels are 1 or 0"),
    ],
)
def test_labels_that_are_none_are_refused(label: list[str], task: str, words: str) -> None:
    def trained() -> None:
        clinic = dt.Party("clinic", people(), id="patient", label=label, task=task)  # type: ignore[arg-type]
        dt.fit(dt.APFed(), [clinic, parties(people())[1]], quiet=True)

    with pytest.raises((ConfigError, DataError), match=words):
        trained()


@pytest.mark.parametrize("method", ["apfed", "apfed-r"])
@pytest.mark.parametrize("setting", [{"threshold": "f1"}, {"calibrate": "temperature"}])
def test_what_is_decided_of_one_label_is_refused_before_training(
    method: str, setting: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match=r"is for (labels|a class)"):
        dt.fit(dt.Method(method), parties(people()), quiet=True, test=0.25, **setting)  # type: ignore[arg-type]
