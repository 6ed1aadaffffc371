"""What training says where a class has few rows."""

from __future__ import annotations

import torch

from dovetail.api.scores import notes
from dovetail.data import Classification, Regression
from dovetail.data.wording import FEW_OF_CLASS
from dovetail.methods.apfed.distilling import few_of
from dovetail.models.learners import NO_FOLD, hard_targets
from dovetail.models.learners.distil import Owner
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
