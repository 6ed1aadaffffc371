"""A row that cannot be used costs its own prediction, where that is asked for, and no other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dovetail.cli.main import app
from dovetail.errors import DataError
from dovetail.models import Model, load
from dovetail.sklearn import SoloClassifier, SoloRegressor


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.integers(18, 90, 60).astype(float)
    return pd.DataFrame({"age": age, "job": ["cook", "clerk", "nurse"] * 20})


@pytest.fixture(scope="module")
def model(rows: pd.DataFrame) -> Model:
    return SoloClassifier(learners=["linear"]).fit(rows, rows["age"] > 50).model_


def test_one_unseen_category_leaves_the_other_rows_predicted(
    model: Model, rows: pd.DataFrame
) -> None:
    odd = rows.assign(job=["wizard", *rows["job"][1:]])
    with pytest.raises(DataError, match=r"\(--partial\) predicts the other rows"):
        model.predict(odd)
    whole, report = model.predictions(rows), model.predictions(odd, partial=True)
    assert report.errors is not None
    assert report.probabilities is not None
    assert report.errors.tolist() == [
        "column 'job': 'wizard' was not seen in training",
        *[""] * 59,
    ]
    assert report.values[0] is None
    assert np.isnan(report.probabilities[0]).all()
    assert (report.values[1:] == whole.values[1:]).all()
    assert np.allclose(report.probabilities[1:], whole.probabilities[1:])
    series = model.predict(odd.set_index(odd.index + 100), partial=True)
    assert series.index[0] == 100
    assert series.isna().tolist() == [True, *[False] * 59]


def test_rows_that_can_all_be_used_have_no_error(model: Model, rows: pd.DataFrame) -> None:
    report = model.predictions(rows, partial=True)
    assert report.errors is not None
    assert (report.errors == "").all()
    assert (report.values == model.predict(rows)).all()


def test_text_and_infinite_numbers_are_errors_of_their_rows(rows: pd.DataFrame) -> None:
    model = SoloRegressor(learners=["linear"]).fit(rows, rows["age"] * 2).model_
    age = [*map(str, rows["age"])]
    report = model.predictions(rows.assign(age=["old", *age[1:]]), partial=True)
    assert report.errors is not None
    assert report.errors[0] == "column 'age': 'old' is not a number"
    assert np.isnan(report.values[0])
    assert np.isfinite(report.values[1:].astype(float)).all()
    report = model.predictions(rows.assign(age=[np.inf, *rows["age"][1:]]), partial=True)
    assert report.errors is not None
    assert report.errors[0] == "column 'age': the value is infinite"


def test_a_table_of_which_no_row_can_be_used_is_refused(model: Model, rows: pd.DataFrame) -> None:
    with pytest.raises(DataError, match=r"none of the 60 rows can be used; row 0, column 'job'"):
        model.predict(rows.assign(job="wizard"), partial=True)


def test_a_column_that_is_not_there_is_told_as_ever(model: Model, rows: pd.DataFrame) -> None:
    with pytest.raises(DataError, match=r"lacks the columns \['job'\]"):
        model.predict(rows[["age"]], partial=True)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_command_writes_each_reason_beside_the_rows(
    model: Model,
    rows: pd.DataFrame,
    suffix: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model.save(tmp_path / "m")
    odd = rows.assign(who=range(100, 160), job=["cook", "wizard", *rows["job"][2:]], y=1)
    odd.to_csv(tmp_path / "new.csv", index=False)
    out = tmp_path / f"out.{suffix}"
    given = [str(tmp_path / "m"), str(tmp_path / "new.csv"), "--id", "who", "--partial"]
    app(["predict", *given, "--out", str(out)], standalone_mode=False)
    report = capsys.readouterr().err
    assert "1 of 60 rows cannot be used (row 1: column 'job': 'wizard' was not seen" in report
    assert "(59 of 60 rows have it)" in report
    read = pd.read_csv(out) if suffix == "csv" else _parquet(out)
    assert read["who"].tolist() == [*range(100, 160)]
    assert (read["error"].fillna("") != "").tolist() == [False, True, *[False] * 58]
    assert read["p(1)"].isna().tolist() == [False, True, *[False] * 58]
    app(["predict", *given, "--json"], standalone_mode=False)
    columns = json.loads(capsys.readouterr().out)["columns"]
    assert columns["p(1)"][1] is None
    assert columns["y"][1] is None


def _parquet(path: Path) -> pd.DataFrame:
    import duckdb

    return duckdb.connect().execute("SELECT * FROM read_parquet(?)", [str(path)]).df()


def test_a_saved_model_does_the_same(model: Model, rows: pd.DataFrame, tmp_path: Path) -> None:
    model.save(tmp_path / "m")
    report = load(tmp_path / "m").predictions(
        rows.assign(job=["?", *rows["job"][1:]]), partial=True
    )
    assert len(report) == 60
