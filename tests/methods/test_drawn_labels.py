"""Of very many labelled rows, learners of own columns have a draw, and say so."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from dovetail.data import Alignment, Classification, PartyData
from dovetail.methods.apfed import distilling
from dovetail.methods.settings.apfed import ApfedSection


def bank(seed: int) -> distilling.Distilling:
    """A label owner; 240 of its 300 rows have a label."""
    labels = torch.arange(300) % 2
    labels[::5] = -1
    return distilling.Distilling(
        train=PartyData("bank", np.arange(300), {"x": torch.randn(300, 2)}, labels),
        test=None,
        task=Classification(("a", "b")),
        label="late",
        input=None,
        alignment=Alignment({"bank": torch.arange(300)}),
        test_alignment=None,
        section=ApfedSection(),
        seed=seed,
    )


def test_of_many_labelled_rows_a_draw_is_learnt_from(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    everything = bank(0).owner()
    assert int(everything.labelled.sum()) == 240
    monkeypatch.setattr(distilling, "MOST_LEARNT", 60)
    with caplog.at_level(logging.WARNING):
        first, again, other = bank(0).owner(), bank(0).owner(), bank(1).owner()
    (said,) = (each.getMessage() for each in caplog.records)
    assert said.startswith("party 'bank': of 240 rows with a label, 60 are drawn, from which")
    for owner in (first, again, other):
        assert int(owner.labelled.sum()) == len(owner.labelled_rows().x_NF) == 60
        assert not (owner.labelled & ~everything.labelled).any()
        assert owner.folds_R[owner.labelled].unique().tolist() == [0, 1, 2, 3]
    assert torch.equal(first.folds_R, again.folds_R)
    assert not torch.equal(first.labelled, other.labelled)
