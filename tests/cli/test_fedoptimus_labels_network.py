"""FedOptimus of several labels, times and counts, each owner a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from federations import Federation, coordinated

import dovetail as dt
from dovetail.models.joined import join
from dovetail.models.owners import load_bottom

pytestmark = pytest.mark.network

CLINICS, HOLDERS = ("north", "south"), ("lab", "gp")
PARTY = """
[party]
name = "{name}"
table = "{name}.csv"
id = "patient"
{label}
[policy]
algorithms = ["fedoptimus", "align"]
drivers = ["coordinator"]
"""
RUN = """method = "fedoptimus"
[fedoptimus]
epochs = 12
learning_rate = 0.005
batch_size = 32
embedding = 16
"""
KINDS = {
    "yes or no": 'label = ["relapse", "pain"]',
    "times": 'label = { time = "days", event = "died" }',
    "amounts": 'label = "cost"\ntask = "amounts"',
}


@pytest.fixture(params=KINDS)
def federation(request: pytest.FixtureRequest, dovetail: Any, tmp_path: Path) -> Iterator[Any]:
    """South does not know the second of several labels."""
    rng = np.random.default_rng(0)
    age, blood, noise = rng.normal(size=(3, 240))
    days = np.ceil(rng.exponential(60 * np.exp(-age - blood)))
    frame = pd.DataFrame({
        "patient": np.arange(240), "age": age, "blood": blood,
        "relapse": age + blood + 0.3 * noise > 0, "pain": age - blood + 0.3 * noise > 0,
        "days": np.minimum(days, 200), "died": days <= 200, "cost": np.exp(age + blood + noise),
    })  # fmt: skip
    several = request.param == "yes or no"
    named = [column for column in frame if f'"{column}"' in KINDS[request.param]]
    frame.to_csv(tmp_path / "all.csv", index=False)
    for number, name in enumerate(CLINICS):
        rows = frame.iloc[number::2][["patient", *named]].copy()
        if several and name == "south":
            rows["pain"] = np.nan
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    for name, column in zip(HOLDERS, ("blood", "age"), strict=True):
        frame[["patient", column]].to_csv(tmp_path / f"{name}.csv", index=False)
    for name in (*CLINICS, *HOLDERS):
        label = KINDS[request.param] if name in CLINICS else ""
        (tmp_path / f"{name}.toml").write_text(PARTY.format(name=name, label=label))
    with coordinated(dovetail, tmp_path, (*CLINICS, *HOLDERS), {"run": RUN}, "") as made:
        yield made


@pytest.mark.trained
def test_owners_over_sockets_learn_what_one_process_does(federation: Federation) -> None:
    for where in ("", "-here"):
        ran = federation.start("train", f"run{where}.toml", "--out", f"run{where}")
        assert ran.ended() == 0, ran.printed()
    frame = pd.read_csv(federation.folder / "all.csv")
    sites = {name: federation.folder / f"{name}.site" / "models" for name in (*CLINICS, *HOLDERS)}
    kept = {name: next(models.iterdir()) for name, models in sites.items()}
    bottoms = [load_bottom(kept[name]) for name in HOLDERS]
    for name in CLINICS:
        top = dt.load(kept[name])
        same = dt.load(federation.folder / "run-here" / "models" / name)
        assert top.task == same.task  # agreed intervals, and a baseline of its own
        model = join(top, bottoms)
        scores = model.score(frame)
        assert scores.get("auc_labels", scores.get("c_index", 1.0)) > 0.65
        if top.task.kind == "amounts":
            assert np.corrcoef(model.predict(frame), frame["cost"])[0, 1] > 0.5
    result = json.loads((federation.folder / "run" / "result.json").read_text())
    assert result["parties"]["north"]["loss"] != 0
    sent = (federation.folder / "north.site" / "ledger.jsonl").read_text()
    assert ("fedoptimus.TakeTimes" in sent) == (top.task.kind == "survival")
    known = (federation.folder / "lab.site" / "ledger.jsonl").read_text()
    assert "TakeTimes" not in known
