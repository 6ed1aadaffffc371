"""Every method learns from party files with text, dates, booleans and missing values."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

NUM_ROWS = 120


def write(path: Path, columns: dict[str, list[str]]) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        rows.writerows(zip(*columns.values(), strict=True))


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
    }


PARTY = """
[party]
name = "{name}"
table = "{name}.csv"
id = "id"
{label}
{blocks}
[policy]
algorithms = ["align", "apfed", "chfl", "hyfem", "fedoptimus"]
[chfl]
common = ["age", "city", "smokes"]
"""

BLOCKS = 'blocks.body = ["age", "smokes"]\nblocks.place = ["city", "seen"]'

RUNS = {
    "apfed": "[apfed]\nepochs = 2\nbatch_size = 16\n",
    "chfl": "[chfl]\nrounds = 2\nwidths = [8]\nbatch_size = 16\n",
    "hyfem": "[hyfem]\nrounds = 2\nlocal_steps = 4\nbatch_size = 16\n",
    "fedoptimus": "[fedoptimus]\nrounds = 2\nbatch_size = 16\n",
}


@pytest.mark.parametrize("method", RUNS)
def test_text_dates_booleans_and_missing_values_are_learned_from(
    dovetail: Any, tmp_path: Path, method: str
) -> None:
    shared = method in ("apfed", "fedoptimus")
    for seed, name in enumerate(("north", "south")):
        table = columns(name, seed, shared=shared)
        has_label = not shared or name == "north"
        if has_label:
            table["sick"] = ["true" if row % 3 else "false" for row in range(NUM_ROWS)]
        write(tmp_path / f"{name}.csv", table)
        text = PARTY.format(
            name=name,
            label='label = "sick"' if has_label else "",
            blocks=BLOCKS if method == "hyfem" else "",
        )
        (tmp_path / f"{name}.toml").write_text(text)
    test = "test = 0.25\n" if method == "apfed" else ""
    (tmp_path / "run.toml").write_text(
        f'method = "{method}"\nparties = ["north.toml", "south.toml"]\n{test}{RUNS[method]}'
    )
    done = dovetail("train", "run.toml", "--json", "-q")
    assert done.code == 0, done.err
    assert 0 <= json.loads(done.out)["parties"]["north"]["accuracy"] <= 1
    if method == "fedoptimus":  # its label owners predict with the data owners
        return
    model = tmp_path / "out" / "run" / "models" / "north"
    done = dovetail("predict", model, "north.csv", "--id", "id", "--out", "said.csv", "-q")
    assert done.code == 0, done.err
    said = list(csv.DictReader((tmp_path / "said.csv").read_text().splitlines()))
    assert len(said) == NUM_ROWS
    assert {row["sick"] for row in said} <= {"true", "false"}
