"""The run files that ship, and the demo."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import data as dd
from dovetail.files import grid_cells, run_name
from dovetail.runs.runfile import load_run

# Read before a test changes the environment.
DATA = os.environ.get("DOVETAIL_DATA", "nowhere")

RUNS = Path(__file__).parents[2] / "runs" / "apfed"
TABLE_2 = RUNS / "table2.toml"
FILES = [
    each
    for path in sorted(RUNS.glob("*.toml"))
    for each in ([Path(f"{path}:{cell}") for cell in grid_cells(path)] or [path])
]


@pytest.mark.parametrize("path", FILES, ids=run_name)
def test_a_run_file_that_ships_is_valid_with_each_recipe(path: Path) -> None:
    for name in load_run(path).recipes:
        load_run(path, recipe=name)


def test_table_2_is_four_sets_by_five_settings_by_four_methods() -> None:
    assert len(grid_cells(TABLE_2)) == 4 * 5 * 4


def test_a_cell_trains_on_its_real_data(
    dovetail: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (Path(DATA) / "mnist.npz").exists():
        pytest.skip("needs mnist.npz in the folder that DOVETAIL_DATA names")
    with np.load(Path(DATA) / "mnist.npz") as whole:  # scoring its 10,000 test rows takes long
        np.savez(tmp_path / "mnist.npz", **{name: whole[name][:1000] for name in whole.files})
    monkeypatch.setenv("DOVETAIL_DATA", str(tmp_path))
    done = dovetail(
        "train", f"{TABLE_2}:mnist-2-1-apfed-c", "--recipe", "subset", "--seed", 0, "--json",
        "--set", "data.rows=200", "--set", "apfed.epochs=1", "--set", "evaluate_every=0",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert 0 < json.loads(done.out)["parties"]["view-1"]["accuracy"] < 1


@pytest.mark.slow
def test_the_demo_tells_the_whole_story(dovetail: Any, tmp_path: Path) -> None:
    done = dovetail("demo", "--seeds", 1, "--out", "demo")
    assert done.code == 0, done.err
    for title in (
        "APFed-S, predicts alone",
        "the best local model",
        "joint model, partners present",
        "Share of the gain kept:",
        "APFed-C, predicts alone",
        "APFed-R, predicts alone",
        "learned alone",
        "classic vertical, partners present",
        "classic vertical, partners gone: zeros",
        "classic vertical, partners gone: average",
        "classic vertical, partners gone: random",
    ):
        assert title in done.out
    assert "apfed.clip" not in done.out + done.err  # its helper is honest
    names = {path.name for path in (tmp_path / "demo").iterdir()}
    files = {"run.toml", "metrics.jsonl", "result.json", "ledger.jsonl", "models"}
    assert names == {*files, "new-patients.csv", ".lock"}
    first, *names, last = dd.read_table(tmp_path / "demo" / "new-patients.csv").names
    assert (first, last) == ("id", "diagnosis")
    assert len(names) == 10
    assert all(name.endswith(" error") for name in names)

    # The command that it ends with works, and finds what the demo measured.
    command = done.out.strip().splitlines()[-1].split()
    assert command[:2] == ["dovetail", "predict"]
    predicted = dovetail(*command[1:], "--json")
    assert predicted.code == 0, predicted.err
    report = json.loads(predicted.out)
    result = json.loads((tmp_path / "demo" / "result.json").read_text())
    assert report["rows"] == 228  # 40 % of 569
    assert report["scores"]["accuracy"] == pytest.approx(result["parties"]["clinic"]["accuracy"])
    assert result["bytes"].keys() == {"clinic", "lab"}
