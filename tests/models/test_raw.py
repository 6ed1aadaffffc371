"""A model predicts from raw columns, of a file or a DataFrame, and says how right it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import accuracy_score

import dovetail
from dovetail import apfed, data, models
from dovetail.errors import DataError, ModelError
from dovetail.federated import Local
from dovetail.models import Model


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """569 rows of four numbers and what is to be predicted."""
    bunch = load_breast_cancer(as_frame=True)
    frame = bunch.frame.iloc[:, :4].copy()
    frame["diagnosis"] = bunch.target_names[bunch.target]
    return frame


@pytest.fixture(scope="module")
def model(frame: pd.DataFrame) -> Model:
    """Trained on them by the algorithm itself, from a DataFrame."""
    train, test = data.split(
        data.load(frame, label="diagnosis")[0], test=0.25, seed=0, stratify=True
    )
    parts = data.columns(train, test, parties={"clinic": ["*"]}, active="clinic")
    clinic = apfed.Active(
        parts.train["clinic"],
        None,
        parts.task,
        apfed.Config(epochs=6, learning_rate=0.05),
        Local("clinic"),
        seed=0,
        encoder=models.Perceptron((8,)),
        head=models.Head((8,)),
    )
    for _ in apfed.train(clinic):
        pass
    return clinic.model()


def test_a_model_of_the_algorithm_itself_predicts_raw_columns(
    model: Model, frame: pd.DataFrame, tmp_path: Path
) -> None:
    of_frame = model.predict_proba(frame)
    assert of_frame.shape == (569, 2)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    np.testing.assert_allclose(model.predict_proba(tmp_path / "rows.csv"), of_frame, atol=1e-6)
    np.testing.assert_array_equal(model.predict_proba(pl.from_pandas(frame)), of_frame)
    loaded = dovetail.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.predict_proba(frame), of_frame)


@pytest.mark.trained
def test_predictions_are_a_series_like_the_input_with_its_index(
    model: Model, frame: pd.DataFrame
) -> None:
    shuffled = frame.sample(frac=1, random_state=0)
    expected = model.predictions(shuffled).values
    predicted = model.predict(shuffled)
    assert model.classes == ("benign", "malignant")
    assert isinstance(predicted, pd.Series)
    assert predicted.name == "diagnosis"
    assert predicted.index.equals(shuffled.index)
    assert predicted.tolist() == expected.tolist()
    # Assigned to rows in another order, each row has its own.
    assert frame.assign(p=predicted).loc[shuffled.index, "p"].tolist() == expected.tolist()
    accuracy = (predicted == shuffled["diagnosis"]).mean()
    assert accuracy > 0.7
    assert accuracy_score(shuffled["diagnosis"], predicted) == accuracy
    assert model.score(shuffled)["accuracy"] == pytest.approx(accuracy)


def test_predictions_of_polars_are_a_column_of_polars_and_of_others_an_array(
    model: Model, frame: pd.DataFrame, tmp_path: Path
) -> None:
    expected = model.predict(frame).tolist()
    polars = pl.from_pandas(frame)
    for given in (polars, polars.lazy()):
        column = model.predict(given)
        assert isinstance(column, pl.Series)
        assert column.to_list() == expected
    assert polars.with_columns(column.alias("p"))["p"].to_list() == expected
    frame.to_csv(tmp_path / "rows.csv", index=False)
    for given in (polars.to_arrow(), tmp_path / "rows.csv", data.read_table(tmp_path / "rows.csv")):
        array = model.predict(given)
        assert isinstance(array, np.ndarray)
        assert array.tolist() == expected


def test_predictions_have_probabilities_and_columns_by_name(
    model: Model, frame: pd.DataFrame
) -> None:
    prediction = model.predictions(frame)
    assert repr(prediction) == ("<predictions for 569 rows: values, p(benign), p(malignant)>")
    table = frame.assign(**prediction.columns("p"))
    assert table["p"].tolist() == model.predict(frame).tolist()
    np.testing.assert_allclose(
        table[["p(benign)", "p(malignant)"]], model.predict_proba(frame), atol=1e-6
    )


def test_rows_without_a_label_are_not_scored(model: Model, frame: pd.DataFrame) -> None:
    holes = frame.astype({"diagnosis": object})
    holes.loc[holes.index[100:], "diagnosis"] = None
    assert model.score(holes) == pytest.approx(model.score(frame.head(100)))
    renamed = frame.rename(columns={"diagnosis": "said"})
    assert model.score(renamed, label="said") == model.score(frame)


def test_rows_that_do_not_fit_are_told_in_a_sentence(model: Model, frame: pd.DataFrame) -> None:
    with pytest.raises(DataError, match="the DataFrame lacks the columns"):
        model.predict(frame.drop(columns="mean area"))
    with pytest.raises(DataError, match="no column 'diagnosis' in the DataFrame"):
        model.score(frame.drop(columns="diagnosis"))
    with pytest.raises(DataError, match="has no value in any row"):
        model.score(frame.assign(diagnosis=None))
    with pytest.raises(DataError, match="expected a path, a SELECT or a DataFrame"):
        model.predict(3)  # type: ignore[arg-type]


def test_a_model_of_numbers_has_no_probabilities(frame: pd.DataFrame) -> None:
    pooled, _ = data.load(frame.drop(columns="diagnosis"), label="mean area")
    parts = data.columns(
        pooled, None, parties={"clinic": ["*"]}, active="clinic", kind="regression"
    )
    clinic = apfed.Active(
        parts.train["clinic"],
        None,
        parts.task,
        apfed.Config(epochs=1),
        Local("clinic"),
        seed=0,
        encoder=models.Perceptron((4,)),
        head=models.Head((4,)),
    )
    for _ in apfed.train(clinic):
        pass
    assert clinic.model().score(frame).keys() == {"rmse", "mae", "r2"}
    with pytest.raises(ModelError, match="which have no probabilities; use predict"):
        clinic.model().predict_proba(frame)
