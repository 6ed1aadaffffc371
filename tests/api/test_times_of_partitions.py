"""Times to an event of one table that a partition splits: CHFL and HyFEM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tables import people
from typer.testing import CliRunner

import dovetail as dt
from dovetail.cli.main import app

LABEL = {"time": "days", "event": "died"}
CHFL = dt.CHFL(widths=(8,), rounds=3, local_epochs=2, learning_rate=0.02, batch_size=32)
HYFEM = dt.HyFEM(rounds=4, local_steps=8, learning_rate=0.1, batch_size=32)


def patients() -> pd.DataFrame:
    """By wards."""
    wards = np.array(["north", "south", "west"])[np.arange(480) % 3]
    return people(480).drop(columns="patient").assign(ward=wards)


@pytest.mark.trained
def test_chfl_learns_times_of_a_table_split_into_common_and_unique_columns() -> None:
    data = dt.simulate(patients().drop(columns="ward"), dt.CommonUnique(3, common=0.5), label=LABEL)
    run = dt.fit(CHFL, data, baselines=["common", "local", "pooled"], quiet=True)
    assert set(run.result["baselines"]) == {"common", "local", "pooled"}
    assert run.result["baselines"]["pooled"]["c_index"] > 0.6
    tasks = [run.models[f"party-{each}"].task for each in (1, 2, 3)]
    assert len({task.cuts for task in tasks}) == 1  # agreed
    assert len({task.base for task in tasks}) == 3  # each has its own


@pytest.mark.trained
@pytest.mark.parametrize("method", [CHFL, HYFEM], ids=["chfl", "hyfem"])
def test_a_column_that_names_hospitals_splits_times(method: dt.Method) -> None:
    frame = patients()
    frame.loc[frame["ward"] == "south", "blood"] = np.nan
    data = dt.simulate(frame, dt.ByColumn("ward", ["north", "south", "west"]), label=LABEL)
    run = dt.fit(method, data, quiet=True)
    assert run.result["mean"]["c_index"] > 0.6
    assert run.models["north"].score(frame)["c_index"] > 0.6


def test_a_run_file_splits_times(tmp_path: Path) -> None:
    patients().drop(columns="ward").to_csv(tmp_path / "all.csv", index=False)
    (tmp_path / "run.toml").write_text(
        'method = "chfl"\n[data]\nsource = "all.csv"\n'
        'label = { time = "days", event = "died" }\ntest = 0.25\n'
        '[data.partition]\nkind = "common-unique"\nparties = 3\ncommon = 0.5\n'
        "[chfl]\nwidths = [8]\nrounds = 2\nbatch_size = 32\n"
    )
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["train", str(tmp_path / "run.toml"), "--out", str(out), "-q"])
    assert done.exit_code == 0, done.output
    assert (out / "models" / "party-1").is_dir()
