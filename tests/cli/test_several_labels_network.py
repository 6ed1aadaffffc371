"""Several labels, counts and quantiles at two hospitals that a coordinator reaches."""

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

pytestmark = pytest.mark.network

NAMES = ("north", "south")
SCALE = "label_scale = { cost = [5000.0, 1000.0], stay = [5.0, 2.0] }"
COST = "label_scale = [5000.0, 1000.0]"
PARTY = """
[party]
name = "{name}"
table = "{name}.csv"
id = "patient"
label = {label}
{task}
blocks = {{ age = ["age"] }}
[policy]
algorithms = ["chfl", "hyfem"]
drivers = ["coordinator", "server"]
[chfl]
{scale}
[hyfem]
{scale}
"""
METHODS = {
    "chfl": 'method = "chfl"\n[chfl]\nwidths = [4]\nrounds = 3\nbatch_size = 32\n',
    "hyfem": 'method = "hyfem"\n[hyfem]\nrounds = 3\nlocal_steps = 4\nclass_weights = true\n'
    "[hyfem.extractors]\nage = [4]\n",
}
KINDS = {
    "yes or no": ('["relapse", "pain"]', "", "", 'labels = ["relapse", "pain"]'),
    "numbers": ('["cost", "stay"]', 'task = "regression"', SCALE, SCALE),
    "a rate": ('{ count = "visits", exposure = "years" }', "", "", 'task = "counts"'),
    "quantiles": (
        '"cost"', 'task = "quantiles"', COST, f'{COST}\ntask = "quantiles"',
    ),
}  # fmt: skip


@pytest.fixture(params=KINDS)
def federation(request: pytest.FixtureRequest, dovetail: Any, tmp_path: Path) -> Iterator[Any]:
    """South does not know the second label."""
    folder = tmp_path
    label, task, scale, said = KINDS[request.param]
    rng = np.random.default_rng(0)
    for number, name in enumerate(NAMES):
        rows = 90 + 20 * number
        age, noise = rng.normal(size=rows), rng.normal(size=(2, rows))
        table = {
            "patient": np.arange(rows), "age": age,
            "relapse": np.where(age + noise[0] > 0, "yes", "no"), "pain": age + noise[1] > 0,
            "cost": 5000 + 1000 * (age + noise[0]), "stay": 5 + 2 * (age + noise[1]),
            "visits": rng.poisson(np.exp(age)), "years": rng.uniform(0.5, 2, size=rows),
        }  # fmt: skip
        frame = pd.DataFrame(table)[["patient", "age", *(c for c in table if f'"{c}"' in label)]]
        if name == "south" and label.startswith("["):
            frame[json.loads(label)[1]] = np.nan
        frame.to_csv(folder / f"{name}.csv", index=False)
        text = PARTY.format(name=name, label=label, task=task, scale=scale)
        (folder / f"{name}.toml").write_text(text)
    with coordinated(dovetail, folder, NAMES, METHODS, said) as made:
        yield made


def test_hospitals_over_sockets_end_with_what_one_process_has(federation: Federation) -> None:
    for method in METHODS:
        for where in ("", "-here"):
            ran = federation.start("train", f"{method}{where}.toml", "--out", f"{method}{where}")
            assert ran.ended() == 0, ran.printed()
    for name in NAMES:
        frame = pd.read_csv(federation.folder / f"{name}.csv")
        sent = (federation.folder / f"{name}.site" / "ledger.jsonl").read_text()
        for method in METHODS:
            kept = dt.load(federation.kept_models(name)[method])
            same = dt.load(federation.folder / f"{method}-here" / "models" / name)
            assert kept.task == same.task
            ours, theirs = kept.predictions(frame), same.predictions(frame)
            which = "values" if ours.probabilities is None else "probabilities"
            np.testing.assert_allclose(
                getattr(ours, which), getattr(theirs, which), rtol=1e-4, atol=1e-5
            )
            assert f"{method}.Trained" in sent
