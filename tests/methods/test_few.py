"""What training says where a class has few rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import dovetail as dt
from dovetail.api.scores import notes
from dovetail.data import Classification, Regression
from dovetail.data.wording import FEW_OF_CLASS
from dovetail.methods.apfed.distilling import few_of, second_class
from dovetail.models.learners import NO_FOLD, hard_targets
from dovetail.models.learners.distil import Owner, Teacher
from dovetail.models.losses import CLASSES


def test_classes_of_few_labelled_rows_are_counted_and_told() -> None:
    labels = torch.tensor([0] * 40 + [1] * (FEW_OF_CLASS - 1))
    folds = torch.arange(len(labels)) % 3
    folds[0] = NO_FOLD  # no label
    targets = hard_targets(labels, 2, regression=False)
    owner = Owner(torch.zeros(len(labels), 1), targets, folds, CLASSES)
    few = few_of(Classification(("well", "ill")), owner)
    assert few == {"ill": FEW_OF_CLASS - 1}
    assert few_of(Regression(0.0, 1.0), owner) == {}
    distilled = {"lost": {}, "pays": True, "few": few}
    (text,) = notes({"distilled": distilled})
    assert text.startswith("Only 19 rows of ill trained: which model is best")
    assert list(notes({"distilled": {**distilled, "few": {}}})) == []
    both = {"0": distilled, "1": distilled}
    assert list(notes({"distilled": both})) == [text]  # once


def test_shared_rows_but_for_the_majority_class_are_counted() -> None:
    labels = torch.tensor([0] * 10 + [1] * 6 + [2] * 4)
    folds = torch.arange(20) % 5
    folds[10] = NO_FOLD
    owner = Owner(torch.zeros(20, 1), hard_targets(labels, 3, regression=False), folds, CLASSES)
    outputs = torch.zeros(5, 20, 3)
    outputs[:, 18:] = torch.nan  # no partner has them
    teacher = Teacher("t", outputs)
    assert second_class(Classification(("a", "b", "c")), owner, teacher) == 5 + 2
    assert second_class(Regression(0.0, 1.0), owner, teacher) is None


@pytest.mark.slow
@pytest.mark.parametrize(("ill", "joint"), [(4, False), (5, True)])
def test_a_joint_model_needs_five_rows_of_a_second_class(ill: int, joint: bool) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(240, 4)), columns=list("abcd"))
    table["y"] = np.where(np.arange(240) % 40 < 20, "well", "ill")
    rows = table[:160].copy()
    known = [*np.flatnonzero(rows["y"] == "well")[:40], *np.flatnonzero(rows["y"] == "ill")[:ill]]
    rows["y"] = rows["y"].where(rows.index.isin(known), None)
    deal = dt.Columns(active="own", parties={"own": ["a", "b"], "partner": ["c", "d"]})
    simulated = dt.simulate(rows, deal, label="y", test_source=table[160:])
    run = dt.fit("apfed", simulated, quiet=True)
    assert ("joint model, partners present" in list(run.scores)) == joint
    assert run.result["distilled"].get("no_joint") == (None if joint else ill)
    warned = "No joint model: of the labelled rows that partners share, 4 are not of the majority"
    assert (warned in str(run)) == (not joint)
    assert len(run.models["own"].predict(table)) == 240
