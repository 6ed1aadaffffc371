"""Small tables of any kind train, or are refused in one of our own sentences."""

from __future__ import annotations

import contextlib
import math
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dovetail as dt
from dovetail.errors import DovetailError


def columns(rows: int, rng: np.random.Generator) -> dict[str, Any]:
    """Kind -> values of it."""
    each = range(rows)
    days = [f"2026-01-{1 + day:02}" for day in rng.integers(0, 28, rows)]
    return {
        "number": rng.normal(size=rows).tolist(),
        "text": rng.choice(["a", "b", "c"], rows).tolist(),
        "constant": [1.0] * rows,
        "empty": [None] * rows,
        "far": np.where(np.arange(rows) == 0, 1e12, rng.normal(size=rows)).tolist(),
        "huge": [1e308 * (-1) ** row for row in each],
        "tiny": [1e-320 * row for row in each],
        "inf": [math.inf if row % 3 == 0 else 1.0 * row for row in each],
        "hugeint": [10**30 + row for row in each],
        "int64": [2**63 - 1 if row % 2 else -(2**63) for row in each],
        "date": days,
        "dates": pd.to_datetime(days),
        "zoned": pd.to_datetime(days).tz_localize("Europe/Oslo"),
        "nat": [pd.NaT] * rows,
        "pydate": [date(1 + 300 * row, 1, 1) for row in each],
        "delta": pd.to_timedelta(each, unit="h"),
        "bool": [bool(row % 2) for row in each],
        "category": pd.Categorical(rng.choice(["x", "y"], rows)),
        "bytes": [b"\xff\x00"] * rows,
        "lists": [[1, row] for row in each],
        "dicts": [{"a": row} for row in each],
        "decimal": [Decimal(row) / 3 for row in each],
        "complex": [complex(row, 1) for row in each],
        "mixed": [row if row % 2 else "x" for row in each],
        "nullable": pd.array([None if row % 2 else row for row in each], dtype="Int64"),
        "nul": [f"\x00é{row % 3}" for row in each],
        "surrogate": ["\ud800"] * rows,
        "words": [f"ape {row} cat {row * 7} dog eel" for row in each],
        "thousands": [f"{row + 1},234.5" for row in each],
    }


def column(kind: str, rows: int, rng: np.random.Generator) -> Any:
    """Values of this kind, some of them missing."""
    values = columns(rows, rng)[kind]
    if kind in ("number", "text") and rows > 2:
        values[int(rng.integers(rows))] = None
    return values


def ids(rows: int) -> dict[str, Any]:
    texts: list[Any] = [f"C{row}" for row in range(rows)]
    return {
        "int": range(rows),
        "text": texts,
        "missing": [None, *texts[1:]] if rows else [],
        "repeated": [f"C{row // 2}" for row in range(rows)],
        "float": [row + 0.5 for row in range(rows)],
        "big": [10**25 + row for row in range(rows)],
        "zeros": [f"{row:05}" for row in range(rows)],
        "dates": pd.to_datetime(["2026-01-01"] * rows),
        "none": [None] * rows,
    }


def labels(rows: int, classes: int) -> dict[str, list[Any]]:
    each = range(rows)
    return {
        "classes": [f"c{row % classes}" for row in each],
        "numbers": [row * 0.7 % 3 for row in each],
        "bools": [bool(row % 2) for row in each],
        "one": ["c"] * rows,
        "rare": ["b" if row == 0 else "a" for row in each],
        "none": [None] * rows,
        "inf": [math.inf if row == 0 else float(row) for row in each],
        "lists": [[row] for row in each],
        "dates": [date(2026, 1, 1 + row) for row in each],
        "big": [10**300 * (row % 7) for row in each],
    }


#: Mostly what can be learned from, so that most cases go on to the end.
COLUMNS = st.one_of(
    *[st.sampled_from(["number", "text", "date"])] * 3,
    st.sampled_from([*columns(1, np.random.default_rng(0))]),
)
#: What is odd of a table besides its columns; of most, nothing.
ODD: dict[str, list[Any]] = {
    "": [None],
    "names": ["xxy", " éz", "\x00ab", "lab"],
    "ids": [*ids(1)],
    "labels": [*labels(1, 1)],
    "rows": [1, 2, 3],
    "labelled": [0, 1, 2, 3],
    "shared": [0, 1, 2],
}
TWISTS = st.one_of(st.just(""), st.sampled_from([*ODD])).flatmap(
    lambda what: st.tuples(st.just(what), st.sampled_from(ODD[what]))
)


def frame(named: str, kinds: list[str], id: str, rows: int, seed: int) -> pd.DataFrame:
    """A table whose columns may have one name."""
    rng = np.random.default_rng(seed)
    odd = ("hugeint", "lists", "dicts", "bytes", "mixed", "surrogate")
    columns = [
        pd.Series(column(kind, rows, rng), dtype=object if kind in odd else None) for kind in kinds
    ]
    table = pd.concat(columns, axis=1) if columns else pd.DataFrame(index=range(rows))
    table.columns = pd.Index(list(named)[: len(kinds)])
    table.insert(0, "id", pd.Series(ids(rows)[id], dtype=object if id == "big" else None))
    return table


@pytest.mark.slow
@pytest.mark.usefixtures("brief_learners", "brief_expectation")
@pytest.mark.filterwarnings("ignore")
@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    twist=TWISTS,
    rows=st.integers(4, 24),
    classes=st.integers(2, 3),
    own=st.lists(COLUMNS, max_size=3),
    theirs=st.lists(COLUMNS, min_size=1, max_size=3),
    task=st.sampled_from(["classification", "classification", "regression", "counts"]),
    kernel=st.sampled_from(["linear", "radial", "trees", "mean"]),
    test=st.sampled_from([0, 0.3, None]),
    method=st.sampled_from(["apfed", "apfed", "apfed-d", "best-alone"]),
    seed=st.integers(0, 3),
)
def test_a_small_table_trains_or_says_why_not(
    tmp_path_factory: pytest.TempPathFactory,
    twist: tuple[str, Any], rows: int, classes: int, own: list[str], theirs: list[str],
    task: str, kernel: str, test: float | None, method: str,
    seed: int,
) -> None:  # fmt: skip
    odd = dict([twist])
    rows, id, named = odd.get("rows", rows), odd.get("ids", "text"), odd.get("names", "xyz")
    owner = frame(named, own, id, rows, seed)
    usual = "classes" if task == "classification" else "numbers"
    values = pd.Series(labels(rows, classes)[odd.get("labels", usual)], dtype=object)
    owner["label"] = values.where(values.index < odd.get("labelled", rows - 1), None)
    partner = frame("xyz", theirs, id, min(rows, odd.get("shared", rows)), seed + 9)
    policy = {
        "algorithms": ["align", "apfed", "apfed-d"],
        "sealed": {"kernel": kernel, "least_rows": 2},
    }
    home = tmp_path_factory.mktemp("home")
    with contextlib.suppress(DovetailError):
        parties = [
            dt.Party("own", owner, id="id", label="label", task=task, folder=home),
            dt.Party("partner", partner, id="id", policy=policy, folder=home),
        ]
        for act in (dt.inspect, dt.align):
            with contextlib.suppress(DovetailError):
                act(parties, quiet=True)
        of_apfed = dt.APFed(distil={"students": ["linear"]})
        method_of = of_apfed if method == "apfed" else dt.Method(method)
        run = dt.fit(method_of, parties, test=test, quiet=True)
        assert str(run.scores)
        assert len(run.models["own"].predict(owner)) == rows
        loaded = dt.load(run.models["own"].save(tmp_path_factory.mktemp("model") / "m"))
        for other in (owner.drop(columns="label"), frame(named, theirs, "text", 2, seed)):
            with contextlib.suppress(DovetailError):
                assert len(loaded.predict(other)) == len(other)
