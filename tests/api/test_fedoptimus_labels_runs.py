"""FedOptimus of several labels, and of times to an event: from tables to joint predictions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import dovetail as dt
from dovetail.cli.main import app
from dovetail.errors import DataError
from dovetail.models.joined import open_model

FAST = dt.FedOptimus(epochs=16, learning_rate=5e-3, batch_size=32, embedding=16)
#: Label, further arguments of a party with it, the score that is to be good.
KINDS = {
    "yes or no": (["relapse", "pain"], {}, "auc_labels", 0.7),
    "numbers": (["cost", "stay"], {"task": "regression"}, "r2_labels", 0.3),
    "times": ({"time": "days", "event": "died"}, {}, "c_index", 0.65),
}


def people(rows: int = 420) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age, blood, iron = rng.normal(size=(3, rows))
    days = np.ceil(rng.exponential(60 * np.exp(-age - blood)))
    frame = pd.DataFrame({
        "patient": np.arange(rows), "age": age, "blood": blood, "iron": iron,
        "relapse": (age + blood + 0.5 * rng.normal(size=rows) > 0).astype(float),
        "pain": (iron - age + 0.5 * rng.normal(size=rows) > 0).astype(float),
        "cost": 5000 + 1000 * (age + blood), "stay": 5 + iron - blood,
        "days": np.minimum(days, 200), "died": days <= 200,
    })  # fmt: skip
    for name in ("relapse", "cost"):
        frame.loc[rng.random(rows) < 0.2, name] = np.nan
    return frame


def columns_of(label: list[str] | dict[str, str]) -> list[str]:
    return [*label.values()] if isinstance(label, dict) else label


def parties(kind: str) -> list[dt.Party]:
    """The second clinic does not know the second of several labels."""
    frame = people()
    label, more, *_ = KINDS[kind]
    named = columns_of(label)
    made = []
    for number, name in enumerate(("north", "south")):
        rows = frame.iloc[number::2][["patient", *named]].copy()
        if name == "south" and kind != "times":
            rows[named[1]] = np.nan
        made.append(dt.Party(name, rows, id="patient", label=label, **more))
    made.append(dt.Party("lab", frame[["patient", "blood", "iron"]], id="patient"))
    made.append(dt.Party("gp", frame[["patient", "age"]], id="patient"))
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_owners_learn_and_predict_together(kind: str, tmp_path: Path) -> None:
    label, _, score, least = KINDS[kind]
    out = tmp_path / "run"
    run = dt.fit(FAST, parties(kind), test=0.25, out=out, quiet=True)
    assert run.result["parties"]["north"][score] > least
    frame, model = people(), open_model(out / "models" / "south")
    said = model.predictions(frame)
    if kind == "times":
        north = dt.load(out / "models" / "north").task
        assert north.cuts == model.task.cuts
        assert north.base != model.task.base
        return
    each = said.probabilities if kind == "yes or no" else said.values
    assert each.shape == (len(frame), 2)
    for place, name in enumerate(columns_of(label)):  # of the second from the other clinic
        known = frame[name].notna()
        assert np.corrcoef(each[known, place], frame[name][known])[0, 1] > 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_is_split_over_owners(kind: str, tmp_path: Path) -> None:
    label, more, score, least = KINDS[kind]
    frame = people()[["age", "blood", "iron", *columns_of(label)]]
    frame.to_csv(tmp_path / "all.csv", index=False)
    said = label if isinstance(label, list) else "{ time = 'days', event = 'died' }"
    task = 'task = "regression"\n' if more else ""
    (tmp_path / "run.toml").write_text(
        'method = "fedoptimus"\nbaselines = ["classic", "alone", "linear"]\n[data]\n'
        f'source = "all.csv"\nlabel = {said}\n{task}test = 0.25\n[data.partition]\n'
        'kind = "owners"\ndata_owners = 2\nlabel_owners = 2\n[fedoptimus]\nepochs = 12\n'
        "learning_rate = 5e-3\nbatch_size = 32\nembedding = 16\n"
    )
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["train", str(tmp_path / "run.toml"), "--out", str(out), "-q"])
    assert done.exit_code == 0, done.output
    result = json.loads((out / "result.json").read_text())
    assert result["mean"][score] > least
    assert {"classic", "alone", "linear"} <= set(result["baselines"])


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (["relapse", "shade"], "in one of 420 rows; give it a run of its own"),
        (["relapse", "cost"], "yes or no and a number are two runs"),
    ],
)
def test_labels_of_two_kinds_are_refused_with_what_to_do(label: list[str], words: str) -> None:
    frame = people().assign(shade=np.array(["a", "b", "c"])[np.arange(420) % 3])
    lab = dt.Party("lab", frame[["patient", "iron"]], id="patient")

    def fit() -> None:
        clinic = dt.Party("clinic", frame[["patient", *label]], id="patient", label=label)
        dt.fit(FAST, [clinic, lab], quiet=True)

    with pytest.raises(DataError, match=words):
        fit()


def test_the_worth_of_owners_is_of_all_labels_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frame = people()[["age", "blood", "iron", *KINDS["yes or no"][0]]]
    frame.to_csv(tmp_path / "all.csv", index=False)
    run = tmp_path / "run.toml"
    run.write_text(
        'method = "fedoptimus"\n[data]\nsource = "all.csv"\nlabel = ["relapse", "pain"]\n'
        'test = 0.25\n[data.partition]\nkind = "owners"\nlabel_owners = 2\n'
        'data_owners = { gp = ["age"], lab = ["iron"] }\n'
    )
    done = CliRunner().invoke(app, ["value", str(run), "--by", "mi", "--json"])
    assert done.exit_code == 0, done.output
    nats = json.loads((tmp_path / "out" / "run" / "value.json").read_text())["partners"]
    assert min(nats[name]["mi"]["mean"] for name in ("gp", "lab")) > 0.05
