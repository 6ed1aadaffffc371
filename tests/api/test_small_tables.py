"""Small tables of any kind train, or are refused in one of our own sentences."""

from __future__ import annotations

import contextlib

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dovetail as dt
from dovetail.errors import DovetailError

COLUMNS = st.sampled_from(["number", "text", "constant", "empty", "far", "date"])


def column(kind: str, rows: int, rng: np.random.Generator) -> list[object]:
    """Values of this kind, some of them missing."""
    made: dict[str, list[object]] = {
        "number": rng.normal(size=rows).tolist(),
        "text": rng.choice(["a", "b", "c"], rows).tolist(),
        "constant": [1.0] * rows,
        "empty": [None] * rows,
        "far": np.where(np.arange(rows) == 0, 1e12, rng.normal(size=rows)).tolist(),
        "date": [f"2026-01-{1 + day:02}" for day in rng.integers(0, 28, rows)],
    }
    values = made[kind]
    if kind in ("number", "text") and rows > 2:
        values[int(rng.integers(rows))] = None
    return values


@pytest.mark.slow
@pytest.mark.usefixtures("brief_learners")
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    rows=st.integers(1, 14),
    labelled=st.integers(0, 14),
    shared=st.integers(0, 14),
    classes=st.integers(1, 3),
    own=st.lists(COLUMNS, max_size=2),
    theirs=st.lists(COLUMNS, min_size=1, max_size=2),
    test=st.sampled_from([0, 0.3]),
    seed=st.integers(0, 3),
)
def test_a_small_table_trains_or_says_why_not(
    rows: int, labelled: int, shared: int, classes: int, own: list[str], theirs: list[str],
    test: float, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    names = list("xyz")
    owner = pd.DataFrame({"id": range(rows)})
    for name, kind in zip(names, own, strict=False):
        owner[name] = column(kind, rows, rng)
    labels = pd.Series([f"c{row % classes}" for row in range(rows)], dtype=object)
    owner["label"] = labels.where(labels.index < labelled, None)
    partner = pd.DataFrame({"id": range(min(rows, shared))})
    for name, kind in zip(names, theirs, strict=False):
        partner[name] = column(kind, len(partner), rng)
    with contextlib.suppress(DovetailError):
        parties = [
            dt.Party("own", owner, id="id", label="label"),
            dt.Party("partner", partner, id="id"),
        ]
        run = dt.fit(dt.APFed(distil={"students": ["linear"]}), parties, test=test, quiet=True)
        assert len(run.models["own"].predict(owner)) == rows
