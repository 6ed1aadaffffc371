"""Counts, amounts and quantiles from a call to a model that predicts alone, and to its export."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import dovetail as dt
from dovetail.cli.main import app
from dovetail.companions.service.export import export
from dovetail.errors import ConfigError, DataError
from dovetail.settings.labels import Kind


def people(kind: Kind) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    here, there = rng.normal(size=(2, 240))
    rate = np.exp(1 + 0.5 * here + 0.5 * there)
    y = rng.poisson(rate) if kind == "counts" else rng.gamma(4, rate / 4)
    return pd.DataFrame({"patient": np.arange(240), "age": here, "blood": there, "y": y})


@pytest.mark.trained
@pytest.mark.usefixtures("brief_learners")
@pytest.mark.parametrize(
    ("kind", "score"),
    [("counts", "poisson_deviance"), ("amounts", "gamma_deviance"), ("quantiles", "pinball")],
)
def test_a_run_gives_a_model_of_its_kind(kind: Kind, score: str, tmp_path: Path) -> None:
    frame = people(kind)
    clinic = dt.Party("clinic", frame[["patient", "age", "y"]], id="patient", label="y", task=kind)
    lab = dt.Party("lab", frame[["patient", "blood"]], id="patient")
    run = dt.fit(dt.APFed(), [clinic, lab], test=0.25, baselines=["majority"], quiet=True)
    result = run.result
    assert result["baselines"]["joint"][score] < result["baselines"]["majority"][score]
    assert result["recovered"]["score"] == score
    model = run.models["clinic"]
    said = model.predictions(frame)
    assert np.corrcoef(said.values, frame["y"])[0, 1] > 0.2
    if kind == "quantiles":
        assert list(said.named) == ["q0.1", "q0.5", "q0.9"]
        assert (said.named["q0.1"] <= said.named["q0.9"]).all()
    else:
        assert (said.values > 0).all()
    assert set(model.score(frame)) >= {score}
    export(model, tmp_path / "model.onnx")
    exported = dt.load(tmp_path / "model.onnx")
    np.testing.assert_allclose(exported.predict(frame), model.predict(frame), rtol=1e-4)
    assert exported.score(frame)[score] == pytest.approx(model.score(frame)[score], rel=1e-3)
    run.report(tmp_path / "report.html")


@pytest.mark.usefixtures("brief_learners")
def test_a_rate_is_said_for_the_exposure_that_a_table_has(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    here, there = rng.normal(size=(2, 320))
    years = rng.uniform(0.1, 3, size=320)
    frame = pd.DataFrame({"holder": np.arange(320), "age": here, "miles": there, "years": years})
    frame["claims"] = rng.poisson(years * np.exp(0.6 * here + 0.9 * there))
    label = {"count": "claims", "exposure": "years"}
    insurer = dt.Party(
        "insurer", frame[["holder", "age", "claims", "years"]], id="holder", label=label
    )
    garage = dt.Party("garage", frame[["holder", "miles"]], id="holder")
    run = dt.fit(dt.APFed(), [insurer, garage], test=0.25, baselines=["best-alone"], quiet=True)
    baselines = run.result["baselines"]
    assert baselines["joint"]["poisson_deviance"] < baselines["best-alone"]["poisson_deviance"]
    model = run.models["insurer"]
    assert model.predictions(frame).columns("claims").keys() == {"claims"}
    counts, rates = model.predict(frame), model.predict(frame.drop(columns=["years", "claims"]))
    np.testing.assert_allclose(counts, rates * years, rtol=1e-6)
    assert counts.sum() == pytest.approx(frame["claims"].sum(), rel=0.2)
    assert model.score(frame)["poisson_deviance"] > 0
    frame.to_csv(tmp_path / "new.csv", index=False)
    out = tmp_path / "said.csv"
    folder = str(model.save(tmp_path / "model"))
    done = CliRunner().invoke(
        app, ["predict", folder, str(tmp_path / "new.csv"), "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    np.testing.assert_allclose(pd.read_csv(out)["claims"], counts, rtol=1e-5)
    export(model, tmp_path / "model.onnx")
    np.testing.assert_allclose(dt.load(tmp_path / "model.onnx").predict(frame), counts, rtol=1e-4)
    with pytest.raises(DataError, match="the exposure 'years' is a number above 0 in every row"):
        model.predict(frame.drop(columns="claims").assign(years=0.0))


def test_exposures_that_cannot_be_are_refused() -> None:
    frame = pd.DataFrame({"id": [1, 2], "claims": [0, 1], "years": [0.0, 1.0], "x": [1.0, 2.0]})
    with pytest.raises(DataError, match="'years' is 0 in a row; an exposure is above 0"):
        dt.Party("a", frame, id="id", label={"count": "claims", "exposure": "years"})
    with pytest.raises(ConfigError, match="a label of claims and years is a task"):
        dt.Party(
            "a", frame, id="id", label={"count": "claims", "exposure": "years"}, task="regression"
        )
