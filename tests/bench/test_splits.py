"""Splits of tables: what the owner knows, and what the partner lacks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import splits
from benchmarks.tables.registry import WORTH_LABELS
from dovetail.methods.base import Loaded
from dovetail.runs.runfile import load_run
from dovetail.runs.setup import load_data, with_labels


def test_chosen_settings_are_the_25_of_bench_worth() -> None:
    assert len(splits.CHOSEN) == sum(len(counts) for _, counts in WORTH_LABELS.values()) == 25
    assert sorted(map(str, splits.cheapest(splits.CHOSEN))) == sorted(map(str, splits.CHOSEN))


@pytest.mark.slow
def test_a_chosen_split_has_the_rows_and_labels_of_the_run() -> None:
    split = splits.of_chosen("digits", 100, 2)
    path = Path(f"{splits.ROOT / 'runs' / 'apfed' / 'worth.toml'}:digits")
    loaded: Loaded = with_labels(load_data(load_run(path, recipe="sealed")), 100, 2)
    owner = loaded.data.train["owner"]
    assert np.array_equal(np.flatnonzero(split.taught["y"].notna()), owner.labelled_rows().numpy())
    assert loaded.data.test is not None
    assert len(split.test) == loaded.data.test["owner"].num_rows
    assert len(split.columns) == len(split.others) == 32
    assert not len(split.lacking())


@pytest.mark.slow
def test_a_partner_of_the_first_draw_lacks_half_of_the_rows() -> None:
    split = splits.of_papers("breast cancer", 100, 0)
    assert split is not None
    assert len(split.lacking()) == pytest.approx(len(split.train) / 2, abs=1)
    assert split.taught["y"].notna().sum() == 100
    assert not set(split.test["id"]) & set(split.train["id"])
    assert not set(split.columns) & set(split.others)
    assert splits.of_papers("breast cancer", 300, 0) is None


def test_a_rare_class_has_as_many_labels_as_asked_and_no_more_rows_than_its_share() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(600, 6)), columns=[f"c{at}" for at in range(6)])
    frame["y"] = np.where(rng.random(600) < 0.4, "class 1", "class 0")
    split = splits.thinned(frame, 5, 0)
    assert split is not None
    assert split.taught["y"].value_counts().to_dict() == {"class 0": 95, "class 1": 5}
    assert (split.train["y"] == "class 1").mean() == pytest.approx(0.05, abs=0.01)
    assert (split.test["y"] == "class 1").mean() == pytest.approx(0.4, abs=0.1)
    assert not set(split.test["id"]) & set(split.train["id"])
    known = split.taught["y"].dropna()
    assert known.equals(split.train["y"].loc[known.index])
    frame.loc[::3, "y"] = "class 2"
    assert splits.thinned(frame, 5, 0) is None
