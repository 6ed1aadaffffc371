"""Runs that calibrate: fitted on rows that trained nobody, kept with the model, as scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dovetail as dt
from dovetail.errors import ConfigError, DovetailError

NUM_ROWS = 3000
COLUMNS = ("a", "b", "c", "d")


def table(num_rows: int, seed: int) -> pd.DataFrame:
    """Two thirds are "no", as four columns tell for the most part; and what it costs."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(draw.normal(size=(num_rows, 4)).round(3), columns=list(COLUMNS))
    risk = frame.a + 0.7 * frame.b + 0.5 * frame.c + 0.3 * frame.d
    frame["sick"] = np.where(risk + draw.normal(size=num_rows) > 0.6, "yes", "no")
    frame["cost"] = (100 * risk + 50 * draw.normal(size=num_rows)).round(2)
    return frame


BLOCKS = [
    {"party": name, "blocks": ["left", "right"], "classes": [1, 2], "rows": 0.5}
    for name in ("north", "south")
]
HALVES = dt.Columns({"north": ["a", "b"], "south": ["c", "d"]})
RUNS: dict[str, tuple[Any, Any]] = {
    "apfed-mixed": (dt.APFed("partners", epochs=3), HALVES),
    "apfed-d": (
        dt.APFed(
            "distil",
            distil={"folds": 2, "teachers": ["linear"], "students": ["linear"], "max_steps": 60},
        ),
        HALVES,
    ),
    "chfl": (dt.CHFL(rounds=2, widths=[8]), dt.CommonUnique(["north", "south"], common=0.5)),
    "hyfem": (
        dt.HyFEM(rounds=2, local_steps=8),
        dt.Blocks({"left": ["a", "b"], "right": ["c", "d"]}, assignment=BLOCKS),
    ),
    "fedoptimus": (
        dt.FedOptimus(rounds=3),
        dt.Owners(
            {"north": ["a", "b"], "south": ["c", "d"]}, label_owners=["east"], validation=0.2
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_calibrates_keeps_it_with_models_that_cover_what_they_promise(
    name: str, tmp_path: Path
) -> None:
    """Sets of fresh rows hold the truth in 90 %, within 4 standard errors; scores are as kept."""
    method, partition = RUNS[name]
    train, fresh = table(NUM_ROWS, 1), table(2000, 2)
    sides = dt.simulate(
        train.drop(columns="cost"), partition, label="sick", test_source=fresh.drop(columns="cost")
    )
    run = dt.fit(
        method,
        sides,
        test=None,
        out=tmp_path / "run",
        calibrate="temperature",
        threshold="f1",
        evaluate_every=0,
        quiet=True,
    )
    assert len(run.models)
    for party in run.models:
        if party in ("joint", "server"):  # which answers with others, and which has no rows
            continue
        model = run.models[party]
        assert model.about["calibration"]["kind"] == "temperature"
        assert model.decision is not None
        scores = model.score(fresh)
        for score in ("log_loss", "ece", "f1"):
            if score in scores:
                assert run.result["parties"][party][score] == pytest.approx(scores[score], abs=1e-4)
        prediction = model.predictions(fresh, coverage=0.9)
        assert prediction.within is not None
        truth = (fresh.sick == "yes").to_numpy().astype(int)
        held = prediction.within[np.arange(len(fresh)), truth].mean()
        kept = model.about["conformal"]["rows"]
        assert abs(held - 0.9) < 4 * np.sqrt(0.09 * (1 / kept + 1 / len(fresh)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["apfed-mixed", "apfed-d", "fedoptimus"])
def test_intervals_of_numbers_cover_what_they_promise(name: str, tmp_path: Path) -> None:
    method, partition = RUNS[name]
    train, fresh = (table(NUM_ROWS, seed).drop(columns="sick") for seed in (1, 2))
    sides = dt.simulate(train, partition, label="cost", task="regression", test_source=fresh)
    run = dt.fit(
        method,
        sides,
        test=None,
        out=tmp_path / "run",
        calibrate="conformal",
        evaluate_every=0,
        quiet=True,
    )
    model = run.models[next(iter(run.result["parties"]))]
    prediction = model.predictions(fresh, coverage=0.9)
    held = ((prediction.low <= fresh.cost) & (fresh.cost <= prediction.high)).mean()
    kept = model.about["conformal"]["rows"]
    assert abs(held - 0.9) < 4 * np.sqrt(0.09 * (1 / kept + 1 / len(fresh)))


def test_a_calibration_that_does_not_fit_is_refused_in_a_sentence() -> None:
    few = dt.simulate(table(60, 1).drop(columns="cost"), HALVES, label="sick")
    settings: dict[str, Any] = {"test": 0.2, "evaluate_every": 0, "quiet": True}
    with pytest.raises(ConfigError, match="fitted on validation rows: calibrating needs 40"):
        dt.fit(dt.APFed("partners", epochs=1), few, calibrate="temperature", **settings)
    numbers = dt.simulate(
        table(400, 1).drop(columns="sick"), HALVES, label="cost", task="regression"
    )
    with pytest.raises(ConfigError, match="temperature is for classes"):
        dt.fit(dt.APFed("partners", epochs=1), numbers, calibrate="temperature", **settings)
    with pytest.raises(DovetailError, match="calibrate"):
        dt.fit(dt.APFed("partners", epochs=1), few, calibrate="platt", **settings)  # type: ignore[arg-type]
