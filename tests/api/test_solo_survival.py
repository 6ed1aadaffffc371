"""``SoloSurvival`` keeps scikit-survival's contract."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sksurv.datasets import load_whas500
from sksurv.metrics import concordance_index_censored
from sksurv.util import Surv

import dovetail as dt
from dovetail.sklearn import SoloSurvival


@pytest.fixture(scope="module")
def heart() -> tuple[pd.DataFrame, np.ndarray]:
    x, y = load_whas500()
    return x.astype(float), y


@pytest.mark.trained
def test_it_fits_where_scikit_survivals_do(heart: tuple[pd.DataFrame, np.ndarray]) -> None:
    x, y = heart
    steps = make_pipeline(StandardScaler(), SoloSurvival(learners=["linear"]))
    found = GridSearchCV(steps, {"solosurvival__random_state": [0]}, cv=3).fit(x, y)
    assert found.best_score_ > 0.7
    model = found.best_estimator_[-1]
    assert clone(model).get_params() == model.get_params()


def test_risk_score_and_curves_are_those_of_the_contract(
    heart: tuple[pd.DataFrame, np.ndarray],
) -> None:
    x, y = heart
    model = SoloSurvival(learners=["linear"]).fit(x, y)
    risk = model.predict(x)
    expected = concordance_index_censored(y["fstat"], y["lenfol"], risk)[0]
    assert model.score(x, y) == pytest.approx(expected, abs=1e-9)
    shares = model.predict_survival_function(x, return_array=True)
    assert shares.shape == (500, len(model.unique_times_))
    steps = model.predict_survival_function(x)
    assert steps[3](model.unique_times_[2]) == shares[3, 2]
    assert np.corrcoef(risk, -shares.mean(axis=1))[0, 1] > 0.8


@pytest.mark.trained
def test_a_partner_that_knows_more_helps(heart: tuple[pd.DataFrame, np.ndarray]) -> None:
    rng = np.random.default_rng(0)
    here, there = rng.normal(size=(2, 300))
    time = np.exp(-there) * rng.exponential(size=300)
    y = Surv.from_arrays(np.ones(300, bool), time)
    x = pd.DataFrame({"a": here, "b": there + rng.normal(size=300)}).rename_axis("id")
    lab = dt.Party("lab", pd.DataFrame({"id": x.index, "z": there}), id="id")
    model = SoloSurvival([lab], learners=["linear"]).fit(x, y)
    assert model.run_.result["distilled"]["partners"] == ["lab"]
    assert model.score(x, y) > 0.6


def test_labels_of_another_form_are_refused(heart: tuple[pd.DataFrame, np.ndarray]) -> None:
    x, y = heart
    with pytest.raises(ValueError, match="y is structured, of whether the event came"):
        SoloSurvival().fit(x, y["lenfol"])
    with pytest.raises(ValueError, match="times of y are above 0"):
        SoloSurvival().fit(x, Surv.from_arrays(y["fstat"], y["lenfol"] - 2.0))
