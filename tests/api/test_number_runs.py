"""Counts, amounts and quantiles from a call to a model that predicts alone, and to its export."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dovetail as dt
from dovetail.data import Kind
from dovetail.service.export import export


def people(kind: Kind) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    here, there = rng.normal(size=(2, 240))
    rate = np.exp(1 + 0.5 * here + 0.5 * there)
    y = rng.poisson(rate) if kind == "counts" else rng.gamma(4, rate / 4)
    return pd.DataFrame({"patient": np.arange(240), "age": here, "blood": there, "y": y})


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
