"""Every method learns from party files with text, dates, booleans and missing values."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ordinary_files import RUNS, write_sites

NUM_ROWS = 120


def columns(name: str, seed: int, *, shared: bool) -> dict[str, list[str]]:
    """A table as people have them; ids are its own, or of the same people everywhere."""
    draw = np.random.default_rng(seed)

    def one_of(*values: str) -> list[str]:
        return [str(value) for value in draw.choice(values, NUM_ROWS)]

    return {
        "id": [f"{'p' if shared else name}{row}" for row in range(NUM_ROWS)],
        "age": [str(age) if age > 25 else "" for age in draw.integers(20, 80, NUM_ROWS)],
        "city": one_of("Oslo", "Rome", "Bonn", ""),
        "smokes": one_of("true", "false", ""),
        "seen": [f"2024-{month:02d}-11" for month in draw.integers(1, 13, NUM_ROWS)],
        "sick": ["true" if row % 3 else "false" for row in range(NUM_ROWS)],
    }


@pytest.mark.slow
@pytest.mark.parametrize("method", RUNS)
def test_text_dates_booleans_and_missing_values_are_learned_from(
    dovetail: Any, tmp_path: Path, method: str
) -> None:
    write_sites(tmp_path, method, columns)
    done = dovetail("train", "run.toml", "--json", "-q")
    assert done.code == 0, done.err
    assert 0 <= json.loads(done.out)["parties"]["north"]["accuracy"] <= 1
    if method == "fedoptimus":  # its label owners predict with the data owners
        return
    model = tmp_path / "out" / "run" / "models" / "north"
    done = dovetail("predict", model, "north.csv", "--id", "id", "--out", "said.csv", "-q")
    assert done.code == 0, done.err
    predictions = list(csv.DictReader((tmp_path / "said.csv").read_text().splitlines()))
    assert len(predictions) == NUM_ROWS
    assert {row["sick"] for row in predictions} <= {"true", "false"}
