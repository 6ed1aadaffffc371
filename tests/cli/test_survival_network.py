"""Times to an event at three hospitals, each a process of its own that a coordinator reaches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from federations import Federation, coordinated

import dovetail as dt

pytestmark = pytest.mark.network

NAMES = ("north", "south", "west")
PARTY = """
[party]
name = "{name}"
table = "{name}.csv"
id = "patient"
label = {{ time = "days", event = "died" }}
blocks = {{ age = ["age"] }}
[policy]
algorithms = ["chfl", "hyfem", "survival"]
drivers = ["coordinator", "server"]
"""
METHODS = {
    "curves": 'method = "kaplan-meier"\n[survival]\ngroup = "arm"\nleast = 1\n',
    "cox": 'method = "cox"\n[survival]\ncolumns = ["age"]\n',
    "chfl": 'method = "chfl"\n[chfl]\nwidths = [4]\nrounds = 3\nbatch_size = 32\n',
    "hyfem": 'method = "hyfem"\n[hyfem]\nrounds = 3\nlocal_steps = 4\n'
    "[hyfem.extractors]\nage = [4]\n",
}


@pytest.fixture
def federation(dovetail: Any, tmp_path: Path) -> Iterator[Federation]:
    folder = tmp_path
    rng = np.random.default_rng(0)
    for number, name in enumerate(NAMES):
        rows = 90 + 20 * number
        age, arm = rng.normal(size=rows), rng.integers(0, 2, size=rows)
        days = np.exp(4 - age + arm) * rng.exponential(size=rows)
        end = rng.uniform(30, 300, size=rows)
        table = {
            "patient": np.arange(rows), "age": age, "arm": np.where(arm, "new", "old"),
            "days": np.ceil(np.minimum(days, end)), "died": (days <= end).astype(int),
        }  # fmt: skip
        pd.DataFrame(table).to_csv(folder / f"{name}.csv", index=False)
        (folder / f"{name}.toml").write_text(PARTY.format(name=name))
    with coordinated(dovetail, folder, NAMES, METHODS, 'task = "survival"') as made:
        yield made


def test_hospitals_over_sockets_end_with_what_one_process_has(federation: Federation) -> None:
    for method in METHODS:
        command = "survival" if method in ("curves", "cox") else "train"
        for where in ("", "-here"):
            ran = federation.start(command, f"{method}{where}.toml", "--out", f"{method}{where}")
            assert ran.ended() == 0, ran.printed()
    apart, here = (federation.result(out)["survival"] for out in ("curves", "curves-here"))
    assert apart == here
    assert len(apart["rows"]) > 4
    assert federation.result("cox")["cox"] == federation.result("cox-here")["cox"]
    assert (federation.folder / "curves" / "curves.svg").is_file()
    for name in NAMES:
        frame = pd.read_csv(federation.folder / f"{name}.csv")
        sent = (federation.folder / f"{name}.site" / "ledger.jsonl").read_text()
        for method in ("chfl", "hyfem"):
            kept = dt.load(federation.kept_models(name)[method])
            same = dt.load(federation.folder / f"{method}-here" / "models" / name)
            assert kept.task == same.task
            np.testing.assert_allclose(kept.predict(frame), same.predict(frame), rtol=1e-4)
            assert f"{method}.Trained" in sent
