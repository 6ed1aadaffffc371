"""The breast cancer set at two label owners and two data owners, as files of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dovetail import data as dd

LABEL_OWNERS = ("north", "south")
NAMES = (*LABEL_OWNERS, "clinic", "lab")

#: Party -> rows of the set, in any order, and columns; label owners share no row.
HELD = {
    "north": (np.arange(0, 150), ()),
    "south": (np.arange(150, 330), ()),
    "clinic": (np.arange(10, 400), ("mean *",)),
    "lab": (np.arange(0, 320), ("worst *",)),
}

PARTY = """
[party]
name = "{name}"
table = "{name}.csv"
id = "person"
{label}
[policy]
algorithms = ["align", "fedoptimus"]
{policy}
[fedoptimus]
{own}
"""

#: The head of a run file that names them all in one place; [fedoptimus] follows.
HERE = """
method = "fedoptimus"
evaluate_every = 0
parties = ["north.toml", "south.toml", "clinic.toml", "lab.toml"]
"""


def people(rows: np.ndarray) -> np.ndarray:
    """Their ids."""
    return np.array([f"P-{row:03d}" for row in rows], dtype=object)


def write_table(path: Path, rows: np.ndarray, *globs: str, label: bool = False) -> None:
    """These rows' ids and columns, and the label."""
    pooled, _ = dd.load("breast-cancer")
    assert isinstance(pooled.x, dd.Table)
    names = pooled.x.select(list(globs)) if globs else []
    columns = {each: pooled.x.column(each).values[rows] for each in names}
    if label:
        columns["diagnosis"] = pooled.labels.values[rows]
    dd.write_table(path, {"person": people(rows), **columns})


def write_owners(folder: Path, *, policy: str = "") -> None:
    """A table and a party file for each, with these lines in its policy."""
    for index, (name, (rows, globs)) in enumerate(HELD.items()):
        rows = np.random.default_rng(index).permutation(rows)
        write_table(folder / f"{name}.csv", rows, *globs, label=not globs)
        label = "" if globs else 'label = "diagnosis"'
        settings = "bottom = [8]" if globs else ""
        text = PARTY.format(name=name, label=label, policy=policy, own=settings)
        (folder / f"{name}.toml").write_text(text)
