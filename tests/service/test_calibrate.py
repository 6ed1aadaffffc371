"""Calibrated probabilities, conformal sets and intervals, drift and cards: what they promise."""

import json

import numpy as np
import pandas as pd
import pytest
from learned import clinic_table, fitted_model

import dovetail as dt
from dovetail.companions.service.calibrating import calibrated
from dovetail.companions.service.export import export
from dovetail.data import TableEncoder
from dovetail.errors import DataError, ModelError
from dovetail.models import load
from dovetail.models.card import card, score_then, write_card
from dovetail.models.learners.boosting import Boosting
from dovetail.models.learners.linear import Linear
from dovetail.models.metrics import calibration_error
from dovetail.models.raw import table_of
from dovetail.models.watching import Watcher, drift, warning


@pytest.fixture(scope="module")
def train():
    return clinic_table(400)


@pytest.fixture(scope="module")
def held_out():
    return clinic_table(2000, seed=1)


def too_sure(model, factor=4.0):
    """A model whose outputs are this many times too large."""
    model.network.temperature /= factor
    model.spec = type(model.spec)(**{**vars(model.spec), "temperature": model.network.temperature})
    return model


@pytest.mark.trained
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["temperature", "isotonic"])
def test_a_model_that_is_too_sure_is_calibrated_on_other_rows(tmp_path, train, held_out, kind):
    too_sure(fitted_model(train, [Linear()])).save(tmp_path / "m")
    before = load(tmp_path / "m")
    report = calibrated(tmp_path / "m", held_out.head(1000), kind=kind)
    after = load(tmp_path / "m")
    judge = held_out.tail(1000)
    truth = (judge.ill == "yes").to_numpy().astype(int)
    errors = [calibration_error(each.predict_proba(judge), truth) for each in (before, after)]
    assert errors[1] < errors[0] / 2
    assert report["calibration"]["after"]["log_loss"] < report["calibration"]["before"]["log_loss"]
    assert after.score(judge)["log_loss"] < before.score(judge)["log_loss"]
    export(after, tmp_path / "m.onnx", check=judge)
    again = calibrated(tmp_path / "m", held_out.head(1000), kind=kind)
    assert again == report  # fitted on what the network says, not on what was calibrated


@pytest.mark.slow
@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_sets_and_intervals_cover_what_they_promise(tmp_path, train, held_out, coverage):
    """Coverage with 1000 calibration rows and 1000 others: within 4 standard errors."""
    judge = held_out.tail(1000)
    for name, regression in (("sets", False), ("intervals", True)):
        fitted_model(train, [Linear()], regression=regression).save(tmp_path / name)
        calibrated(tmp_path / name, held_out.head(1000))
        prediction = load(tmp_path / name).predictions(judge, coverage=coverage)
        if regression:
            held = (prediction.low <= judge.cost) & (judge.cost <= prediction.high)
        else:
            truth = (judge.ill == "yes").to_numpy().astype(int)
            held = prediction.within[np.arange(1000), truth]
        # n calibration rows and m others: variance of about c (1 - c) (1 / n + 1 / m)
        error = np.sqrt(coverage * (1 - coverage) * (1 / 500 + 1 / 1000))
        assert abs(held.mean() - coverage) < 4 * error


def test_coverage_needs_calibration_and_enough_rows(tmp_path, train, held_out):
    model = fitted_model(train, [Linear()])
    with pytest.raises(ModelError, match="has no conformal scores; dovetail calibrate"):
        model.predictions(held_out, coverage=0.9)
    model.save(tmp_path / "m")
    calibrated(tmp_path / "m", held_out.head(60))
    with pytest.raises(ModelError, match="30 rows are too few for a coverage"):
        load(tmp_path / "m").predictions(held_out, coverage=0.99)
    with pytest.raises(DataError, match="lies between 0 and 1"):
        load(tmp_path / "m").predictions(held_out, coverage=90)
    with pytest.raises(DataError, match="needs 40 labelled rows or more, got 30"):
        calibrated(tmp_path / "m", held_out.head(30))
    others = held_out.head(60).assign(ill=["yes", "no", "maybe"] * 20)
    with pytest.raises(DataError, match=r"20 of 60 labelled rows are of classes that the model"):
        calibrated(tmp_path / "m", others)


@pytest.mark.slow
def test_an_unshifted_table_raises_no_alarm_and_a_shifted_one_does(train):
    """Twenty draws of 400 rows each: none alarms unshifted, all do where a column is moved."""
    model = fitted_model(train, [Linear()])
    encoders = [each for each in model.inputs.values() if isinstance(each, TableEncoder)]
    quiet, loud = 0, {"age": 0, "job": 0, "admitted": 0}
    for seed in range(20):
        same = clinic_table(400, seed=100 + seed)
        quiet += warning(drift(encoders, table_of(same))) is None
        moved = same.assign(
            age=same.age + 15,
            job=np.where(same.index % 3 == 0, "pilot", same.job.fillna("pilot")),
            admitted=same.admitted.mask(same.index % 4 == 0),
        )
        for drifted in drift(encoders, table_of(moved)):
            loud[drifted.column] = loud.get(drifted.column, 0) + bool(drifted.alarms)
    assert quiet == 20
    assert loud["age"] == loud["job"] == loud["admitted"] == 20


def test_a_service_warns_once_of_rows_that_differ(train):
    model = fitted_model(train, [Linear()])
    encoder = model.inputs["columns"]
    watcher = Watcher("m", "1", encoder.fitted)
    news = []
    for seed in range(8):
        for shift in (0, 20) if seed > 3 else (0,):
            rows = clinic_table(250, seed=200 + seed)
            raw = encoder.raw(table_of(rows.assign(age=rows.age + shift)))
            drifts = watcher.add({name: values[:, None] for name, values in raw.items()})
            news.append(watcher.news(drifts))
    warnings = [each for each in news if each]
    assert news[:4] == [None] * 4
    assert len(warnings) == 1
    assert "age: its values are distributed otherwise" in warnings[0]


def test_models_without_histograms_still_load_and_say_nothing_of_drift(tmp_path, train):
    model = fitted_model(train, [Linear()])
    model.save(tmp_path / "m")
    path = tmp_path / "m" / "model.json"
    stored = json.loads(path.read_text())
    for column in stored["blocks"]["columns"]["input"]["columns"]:
        del column["seen"]
    path.write_text(json.dumps(stored))
    old = load(tmp_path / "m")
    np.testing.assert_array_equal(old.predict_proba(train), model.predict_proba(train))
    assert drift([old.inputs["columns"]], table_of(train)) == []


@pytest.mark.slow
def test_a_card_tells_columns_scores_and_groups(tmp_path, train, held_out):
    fitted_model(train, [Boosting()]).save(tmp_path / "m")
    card_json = card(tmp_path / "m", rows=held_out.head(500), by=["job"])
    write_card(tmp_path / "m", card_json)
    assert card_json["trained_rows"] == 400
    assert [each["name"] for each in card_json["columns"]] == ["age", "job", "smoker", "admitted"]
    auc = card_json["scores"]["all"]["auc"]
    assert auc["interval"][0] < auc["value"] < auc["interval"][1]
    assert auc["value"] == pytest.approx(load(tmp_path / "m").score(held_out.head(500))["auc"])
    jobs = held_out.head(500).job.fillna("missing").value_counts()
    assert {
        group: entry["rows"] for group, entry in card_json["scores"]["groups"]["job"].items()
    } == {**jobs}
    text = (tmp_path / "m" / "card.md").read_text()
    assert "| job = nurse" in text
    assert "| admitted | date, ISO 8601 | date | 2024-01-0" in text
    assert score_then(tmp_path / "m", "auc") == auc["value"]
    assert isinstance(dt.load(tmp_path / "m"), dt.models.Model)


def test_a_card_tells_of_its_run(tmp_path):
    from pathlib import Path

    card_json = card(Path(__file__).parents[1] / "golden/runs/apfed/models/clinic")
    assert card_json["run"]["ledger"]["sent"]["clinic -> lab"]["bytes"] > 0
    assert card_json["run"]["scores"].keys() >= {"accuracy"}
    assert card_json["trained_rows"] is None  # it was written before models kept histograms


def test_a_table_without_a_row_that_fits_is_refused(tmp_path, train):
    fitted_model(train, [Linear()]).save(tmp_path / "m")
    with pytest.raises(DataError):
        calibrated(tmp_path / "m", pd.DataFrame({"age": [1.0]}))
