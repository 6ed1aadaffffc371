"""The estimators keep scikit-learn's contract, and partners' rows follow by id."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import dovetail as dt
from dovetail.sklearn import SoloClassifier, SoloRegressor

#: As of scikit-learn's own estimators that hold rows out of training to choose by.
WEIGHTS = "a row of weight 2 is in one fold, two rows may be in two"


def expected(estimator: Any) -> dict[str, str]:
    return {
        "check_sample_weight_equivalence_on_dense_data": WEIGHTS,
        "check_sample_weight_equivalence_on_sparse_data": WEIGHTS,
    }


@pytest.mark.slow
@parametrize_with_checks(
    [SoloClassifier(learners=["linear"]), SoloRegressor(learners=["linear"])],
    expected_failed_checks=expected,
)
def test_scikit_learn_finds_nothing_wrong(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.usefixtures("brief_learners")
@parametrize_with_checks([SoloClassifier(), SoloRegressor()], expected_failed_checks=expected)
def test_scikit_learn_finds_nothing_wrong_with_all_learners(estimator: Any, check: Any) -> None:
    check(estimator)


def clinic_and_lab() -> tuple[pd.DataFrame, pd.Series, pd.DataFrame, dt.Party]:
    """120 labelled patients, their diagnoses, 60 more without, and a laboratory that knows all."""
    frame = load_breast_cancer(as_frame=True).frame
    frame = frame.iloc[:180].set_axis([f"p{each}" for each in range(180)], axis=0)
    frame = frame.rename_axis("patient")
    labels = frame["target"].map({0: "malignant", 1: "benign"})
    mean, worst = frame.filter(regex="^mean"), frame.filter(regex="^worst")
    lab = dt.Party("lab", worst.reset_index(), id="patient")
    return mean.iloc[:120], labels.iloc[:120], mean.iloc[120:], lab


@pytest.mark.trained
@pytest.mark.slow
@pytest.mark.usefixtures("brief_learners")
def test_partners_train_and_are_not_needed_to_predict(tmp_path) -> None:
    X, y, unlabelled, lab = clinic_and_lab()
    model = SoloClassifier([lab], unlabelled=unlabelled, settings={"distil": {"max_steps": 40}})
    copy = clone(model)
    model.fit(X, y)
    assert model.classes_.tolist() == ["benign", "malignant"]
    assert model.feature_names_in_.tolist() == list(X.columns)
    assert model.run_.result["distilled"]["shared"] == 180
    assert model.run_.result["distilled"]["labelled_and_shared"] == 120
    assert {*model.run_.result["bytes"]} == {"owner", "lab"}
    assert model.score(X, y) > 0.9
    proba = model.predict_proba(X)
    assert proba.shape == (120, 2)
    # The same again by a copy, and from a file.
    again = copy.fit(X, y, partners=[lab]).predict_proba(X)
    np.testing.assert_array_equal(again, proba)
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    np.testing.assert_array_equal(joblib.load(file).predict_proba(X), proba)
    # Saved as any model is.
    np.testing.assert_allclose(
        dt.load(model.model_.save(tmp_path / "m")).predict_proba(X), proba, atol=1e-6
    )


@pytest.mark.trained
@pytest.mark.slow
@pytest.mark.usefixtures("brief_learners")
def test_in_a_cross_validation_partners_rows_follow_by_id() -> None:
    X, y, _, lab = clinic_and_lab()
    seen: list[int] = []

    class Watched(SoloClassifier):
        def fit(self, X: Any, y: Any, sample_weight: Any = None, **more: Any) -> Watched:
            super().fit(X, y, sample_weight, **more)
            seen.append(self.run_.result["distilled"]["shared"])
            return self

    shuffled = X.sample(frac=1, random_state=0)
    model = Watched([lab], settings={"distil": {"max_steps": 20}})
    # Scaled rows are a DataFrame whose index is still the id.
    pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), model)
    scores = cross_val_score(pipeline, shuffled, y[shuffled.index], cv=3)
    assert seen == [80, 80, 80]
    assert scores.mean() > 0.85
    named = shuffled.reset_index()
    by_column = clone(model).set_params(id="patient").fit(named, y[shuffled.index])
    assert by_column.predict(named).tolist() == (
        clone(model).fit(shuffled, y[shuffled.index]).predict(shuffled).tolist()
    )


@pytest.mark.trained
@pytest.mark.slow
def test_a_grid_search_tries_settings_in_processes() -> None:
    X, y, _, _ = clinic_and_lab()
    grid = {"learners": [["linear"], ["boosting"]]}
    search = GridSearchCV(SoloClassifier(), grid, cv=2, n_jobs=2).fit(X, y)
    assert search.best_params_["learners"] in grid["learners"]
    assert search.best_score_ > 0.85


def test_output_is_of_the_kind_that_was_set() -> None:
    X, y, _, _ = clinic_and_lab()
    model = SoloClassifier(learners=["linear"]).fit(X, y)
    array = model.predict_proba(X)
    assert isinstance(array, np.ndarray)
    clone_of = clone(model.set_output(transform="pandas")).fit(X, y)
    frame = clone_of.predict_proba(X)
    assert frame.columns.tolist() == ["benign", "malignant"]
    assert frame.index.equals(X.index)
    np.testing.assert_array_equal(frame.to_numpy(), array)
    assert clone_of.predict(X).index.equals(X.index)
    polars = model.set_output(transform="polars").predict_proba(X)
    assert isinstance(polars, pl.DataFrame)
    with pytest.raises(ValueError, match="transform is default, pandas or polars"):
        model.set_output(transform="numpy")  # type: ignore[arg-type]


@pytest.mark.trained
def test_rows_of_weight_0_teach_nothing() -> None:
    X, y, _, _ = clinic_and_lab()
    wrong = y.sample(frac=1, random_state=0).set_axis(y.index)
    weights = np.r_[np.ones(60), np.zeros(60)]
    mixed = pd.concat([y.iloc[:60], wrong.iloc[60:]])
    weighed = SoloClassifier(learners=["linear"]).fit(X, mixed, sample_weight=weights)
    few = SoloClassifier(learners=["linear"]).fit(X.iloc[:60], y.iloc[:60])
    np.testing.assert_allclose(
        weighed.predict_proba(X), few.predict_proba(X), atol=0.1
    )  # features are scaled by all rows
    assert weighed.score(X, y) > 0.8  # 0.883, of a linear learner


@pytest.mark.trained
@pytest.mark.slow
@pytest.mark.usefixtures("brief_learners")
def test_rows_of_weight_0_count_for_nothing_beside_partners_either() -> None:
    X, y, _, lab = clinic_and_lab()
    wrong = y.map({"benign": "malignant", "malignant": "benign"})
    mixed = pd.concat([y.iloc[:60], wrong.iloc[60:]])
    weights = np.r_[np.ones(60), np.zeros(60)]
    model = SoloClassifier([lab], settings={"distil": {"max_steps": 20}})
    weighed = clone(model).fit(X, mixed, sample_weight=weights)
    assert weighed.score(X, y) > clone(model).fit(X, mixed).score(X, y) + 0.05


@pytest.mark.trained
@pytest.mark.slow
@pytest.mark.usefixtures("brief_learners")
def test_a_regressor_with_a_partner_predicts_numbers() -> None:
    frame = load_diabetes(as_frame=True).frame.rename_axis("index")
    X, y = frame[["age", "sex", "bmi", "bp"]], frame["target"]
    blood = dt.Party("blood", frame.filter(regex="^s").reset_index(), id="index")
    settings = {"distil": {"max_steps": 20}}
    model = SoloRegressor([blood], settings=settings).fit(X, y)
    assert model.score(X, y) > 0.3
    assert model.predict(X).shape == (442,)


#: What is done with (X, y, the lab) -> the sentence.
MISTAKES: dict[str, tuple[Callable[..., Any], str]] = {
    "no id in an array": (
        lambda X, y, lab: SoloClassifier([lab]).fit(X.to_numpy(), y),
        "partners' rows are found by id",
    ),
    "an id, and an array": (
        lambda X, y, lab: SoloClassifier([lab], id="patient").fit(X.to_numpy(), y),
        r"X has no column 'patient', .*set_output\(transform=\"pandas\"\)",
    ),
    "text in an array": (
        lambda X, y, lab: SoloClassifier().fit(X.assign(town="Bonn").to_numpy(), y),
        r"X has text and no names of columns \(.*'Bonn'\): .*set_output\(transform=\"pandas\"\)",
    ),
    "a wrong id": (
        lambda X, y, lab: SoloClassifier([lab], id="patint").fit(X.reset_index(), y),
        "id = 'patint' is no column of X; did you mean 'patient'",
    ),
    "row numbers for ids": (
        lambda X, y, lab: SoloClassifier([lab]).fit(X.reset_index(drop=True), y),
        "count rows and name nobody: say which column is the id",
    ),
    "row numbers of a fold for ids": (
        lambda X, y, lab: SoloClassifier([lab]).fit(X.reset_index(drop=True).iloc[::2], y[::2]),
        "count rows and name nobody",
    ),
    "ids of others": (
        lambda X, y, lab: SoloClassifier([lab]).fit(X.reset_index(drop=True).rename(index=str), y),
        "shares no sample",
    ),
    "two rows of one id": (
        lambda X, y, lab: SoloClassifier([lab], id="who").fit(X.assign(who="one"), y),
        "column 'who' of the DataFrame",
    ),
    "a DataFrame for a partner": (
        lambda X, y, lab: SoloClassifier(X).fit(X, y),
        r"partners are dovetail.Party\(name, df, id=...\), one or a list, .*; got DataFrame",
    ),
    "settings that are no dict": (
        lambda X, y, lab: SoloClassifier(lab, settings=dt.APFed()).fit(X, y),
        r"settings is a dict of the keys of \[apfed\], .*; got APFed: give its arguments as such",
    ),
    "settings of a grid that are no dict": (
        lambda X, y, lab: SoloClassifier(lab, settings=dt.APFed()).set_params(
            settings__distil__folds=3
        ),
        r"settings is a dict of the keys of \[apfed\], .*; got APFed: give its arguments as such",
    ),
    "a wrong key of settings": (
        lambda X, y, lab: SoloClassifier(lab).set_params(settings__distil__max_step=9).fit(X, y),
        "unknown key 'distil.max_step'; did you mean 'max_steps'",
    ),
    "a learner that is none": (
        lambda X, y, lab: SoloClassifier(learners=["forest"]).fit(X, y),
        "learners are one or more of linear, boosting, network",
    ),
    "one class": (lambda X, y, lab: SoloClassifier().fit(X, ["a"] * len(X)), "only one class"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_a_value_error_in_a_sentence(mistake: str) -> None:
    X, y, _, lab = clinic_and_lab()
    act, words = MISTAKES[mistake]
    with pytest.raises(ValueError, match=words):
        act(X, y, lab)


def test_a_key_of_settings_is_a_parameter_of_a_grid() -> None:
    model = SoloClassifier(settings={"distil": {"folds": 2}})
    model.set_params(settings__distil__max_steps=20, name="clinic")
    assert model.settings == {"distil": {"folds": 2, "max_steps": 20}}
    assert clone(model).get_params()["settings"] == model.settings
    assert model.name == "clinic"


def test_a_column_that_is_the_label_is_told() -> None:
    X, y, _, _ = clinic_and_lab()
    with pytest.warns(UserWarning, match="column 'sick' of X says the same as y"):
        SoloClassifier(learners=["linear"]).fit(X.assign(sick=y == "malignant"), y)
    with pytest.warns(UserWarning, match="column 'seen' of X says the same as y"):
        SoloRegressor(learners=["linear"]).fit(X.assign(seen=range(len(X))), np.arange(len(X)))


def test_categories_never_seen_are_refused_unless_they_are_allowed() -> None:
    X, y, _, _ = clinic_and_lab()
    X = X.assign(town=["Bonn", "Ulm"] * 60)
    model = SoloClassifier(learners=["linear"]).fit(X, y)
    elsewhere = X.assign(town="Oslo")
    with pytest.raises(ValueError, match="'Oslo'"):
        model.predict(elsewhere)
    assert len(model.set_params(allow_unseen=True).predict(elsewhere)) == 120


@pytest.mark.slow
@pytest.mark.usefixtures("brief_learners")
def test_prediction_needs_no_id_and_one_partner_needs_no_list() -> None:
    X, y, _, lab = clinic_and_lab()
    settings = {"distil": {"max_steps": 20, "gate": 9}}
    model = SoloClassifier(lab, id="patient", settings=settings)
    with pytest.warns(UserWarning, match="partners changed nothing"):
        model.fit(X.reset_index(), y)
    assert not model.helped_
    assert model.feature_names_in_.tolist() == list(X.columns)
    assert model.predict(X).tolist() == model.predict(X.reset_index()).tolist()


def several_labels() -> tuple[pd.DataFrame, np.ndarray, dt.Party]:
    """90 patients with two labels, and a laboratory that knows what says the second."""
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(size=(90, 2)), rng.normal(size=90)
    X = pd.DataFrame(ours, columns=["age", "weight"], index=[f"p{each}" for each in range(90)])
    y = np.stack([ours[:, 0], theirs], axis=1) + 0.3 * rng.normal(size=(90, 2))
    lab = pd.DataFrame({"patient": X.index, "blood": theirs})
    return X, y, dt.Party("lab", lab, id="patient")


@pytest.mark.trained
def test_several_labels_by_scikit_learns_contract() -> None:
    X, y, _ = several_labels()
    answers = (y > 0).astype(int)
    model = SoloClassifier(learners=["linear"]).fit(X, answers)
    said, shares = model.predict(X), model.predict_proba(X)
    assert said.shape == answers.shape
    assert isinstance(shares, list)
    assert [each.shape for each in shares] == [(90, 2), (90, 2)]
    assert [list(each) for each in model.classes_] == [[0, 1], [0, 1]]
    for label, each in enumerate(shares):
        np.testing.assert_allclose(each.sum(axis=1), 1)
        np.testing.assert_array_equal(said[:, label], each[:, 1] >= 0.5)
    assert (said[:, 0] == answers[:, 0]).mean() > 0.8
    assert model.score(X, answers) == (said == answers).all(axis=1).mean()
    words = np.where(y > 0, "ill", "well")
    assert set(np.unique(clone(model).fit(X, words).predict(X))) == {"ill", "well"}
    numbers = SoloRegressor(learners=["linear"]).fit(X, y)
    assert numbers.predict(X).shape == y.shape
    assert numbers.score(X, y) > 0.3  # the mean of the labels' R2: of one nothing is known
    frame = clone(numbers).set_output(transform="pandas").fit(X, y).predict(X)
    assert list(frame.index) == list(X.index)


@pytest.mark.trained
def test_several_labels_in_pipelines_and_searches() -> None:
    X, y, _ = several_labels()
    pipeline = make_pipeline(StandardScaler(), SoloRegressor(learners=["linear"]))
    search = GridSearchCV(pipeline, {"soloregressor__random_state": [0, 1]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.3
    assert search.predict(X).shape == y.shape
    pipeline = make_pipeline(StandardScaler(), SoloClassifier(learners=["linear"]))
    folds = cross_val_score(pipeline, X, (y > 0).astype(int), cv=2, scoring="f1_macro")
    assert folds.min() > 0.4


def test_a_row_may_lack_a_label_and_one_of_three_classes_is_refused() -> None:
    X, y, _ = several_labels()
    y[::3, 0] = np.nan
    assert np.isfinite(SoloRegressor(learners=["linear"]).fit(X, y).predict(X)).all()
    with pytest.raises(ValueError, match="several labels have two classes each, and column 1"):
        SoloClassifier().fit(X, np.stack([np.arange(90) % 2, np.arange(90) % 3], axis=1))


@pytest.mark.usefixtures("brief_learners")
def test_partners_help_with_several_labels() -> None:
    X, y, lab = several_labels()
    model = SoloClassifier(partners=[lab]).fit(X, (y > 0).astype(int))
    assert model.predict(X).shape == y.shape
    result = model.run_.result
    assert list(result["distilled"]["labels"]) == ["y0", "y1"]
    ledger = (model.run_.folder / "ledger.jsonl").read_text().splitlines()
    assert [each["count"] for each in map(json.loads, ledger) if "Begin" in each["message"]] == [1]
