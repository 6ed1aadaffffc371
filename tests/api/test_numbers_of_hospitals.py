"""Counts, amounts and quantiles that several hospitals have, each of its own patients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import dovetail as dt
from dovetail.cli.main import app
from dovetail.data import Counts, Quantiles
from dovetail.errors import ConfigError
from dovetail.methods.outcome import goodness
from dovetail.models.joined import open_model

#: Each hospital's columns; "age" is at all.
COLUMNS = {"north": ("age", "blood"), "south": ("age", "heart"), "west": ("age",)}
RATE = {"count": "visits", "exposure": "years"}
#: Label, task, the score that tables show first.
KINDS: dict[str, tuple[Any, str, str]] = {
    "counts": ("visits", "counts", "poisson_deviance"),
    "a rate": (RATE, "counts", "poisson_deviance"),
    "amounts": ("cost", "amounts", "gamma_deviance"),
    "quantiles": ("cost", "quantiles", "pinball"),
}
METHODS: dict[str, dt.Method] = {
    "chfl": dt.CHFL(widths=(8,), rounds=6, local_epochs=2, learning_rate=0.02, batch_size=32),
    "hyfem": dt.HyFEM(rounds=8, local_steps=8, learning_rate=0.05, batch_size=32),
}


def people(rows: int = 360) -> pd.DataFrame:
    """Visits in a time that differs, and costs in thousands."""
    rng = np.random.default_rng(0)
    age, blood, heart = rng.normal(size=(3, rows))
    rate = np.exp(1 + 0.6 * age + 0.5 * blood + 0.3 * heart)
    years = rng.uniform(0.2, 3, rows)
    return pd.DataFrame({
        "patient": np.arange(rows), "age": age, "blood": blood, "heart": heart, "years": years,
        "visits": rng.poisson(rate * years), "cost": 1000 * rng.gamma(4, rate / 4),
    })  # fmt: skip


def columns_of(label: Any) -> list[str]:
    return [*label.values()] if isinstance(label, dict) else [label]


def hospitals(
    frame: pd.DataFrame, kind: str, *, blocks: bool = False, **more: Any
) -> Iterator[dt.Party]:
    label, task, _ = KINDS[kind]
    for index, (name, columns) in enumerate(COLUMNS.items()):
        rows = frame.iloc[index::3][["patient", *columns, *columns_of(label)]]
        named = {"blocks": {column: [column] for column in columns}} if blocks else {}
        yield dt.Party(name, rows, id="patient", label=label, task=task, **named, **more)


@pytest.mark.trained
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_every_hospital_has_a_model_that_says_how_much(
    method: str, kind: str, tmp_path: Path
) -> None:
    frame, (label, _, score) = people(), KINDS[kind]
    parties = hospitals(frame, kind, blocks=method == "hyfem")
    run = dt.fit(METHODS[method], [*parties], test=0.25, quiet=True, baselines=["majority"])
    # A constant of the quantiles is harder to beat than one of a mean.
    least = 0.95 if kind == "quantiles" else 0.8
    assert run.result["mean"][score] < least * run.result["baselines"]["majority"][score]
    ends = [run.models[name].task for name in COLUMNS]
    if kind == "quantiles":  # one standard of all, so that the server's model says numbers, too
        assert ends[0] == ends[1] == ends[2]
        assert ("server" in run.models) == (method == "hyfem")
    else:
        assert len({task.unit for task in ends}) == 3  # each has its own
        assert "server" not in run.models
    for name in COLUMNS:
        model = run.models[name]
        said = model.predict(frame)
        assert np.corrcoef(said, frame[columns_of(label)[0]])[0, 1] > 0.3
        again = dt.load(model.save(tmp_path / name))
        np.testing.assert_array_equal(again.predict(frame), said)
        if kind == "a rate":
            per_year = model.predict(frame.drop(columns=["years", "visits"]))
            np.testing.assert_allclose(said, per_year * frame["years"], rtol=1e-6)
    out = str(tmp_path / "model.onnx")
    done = CliRunner().invoke(app, ["export", str(tmp_path / "north"), "--out", out])
    assert done.exit_code == 0, done.output
    expected = run.models["north"].predict(frame)
    near = 1e-6 * np.abs(expected).max()
    np.testing.assert_allclose(dt.load(out).predict(frame), expected, rtol=1e-4, atol=near)
    assert score.replace("_", " ") in run.report(tmp_path / "r.html").read_text().lower()


@pytest.mark.parametrize("kind", ["a rate", "amounts", "quantiles"])
def test_owners_of_columns_and_of_labels_learn_and_predict_together(
    kind: str, tmp_path: Path
) -> None:
    frame, (label, task, score) = people(), KINDS[kind]
    owners = dt.FedOptimus(epochs=10, learning_rate=5e-3, batch_size=32, embedding=16)
    parties = [
        dt.Party(
            name, frame.iloc[number::2][["patient", *columns_of(label)]], id="patient",
            label=label, task=task,
        )
        for number, name in enumerate(("north", "south"))
    ]  # fmt: skip
    parties.append(dt.Party("lab", frame[["patient", "blood", "heart"]], id="patient"))
    parties.append(dt.Party("gp", frame[["patient", "age"]], id="patient"))
    out = tmp_path / "run"
    run = dt.fit(owners, parties, test=0.25, out=out, quiet=True)
    model = open_model(out / "models" / "south")
    truth = frame[columns_of(label)[0]]
    assert np.corrcoef(model.predict(frame), truth)[0, 1] > 0.5
    assert run.result["mean"][score] == pytest.approx(model.score(frame)[score], rel=0.5)
    if kind != "quantiles":
        assert model.task.unit != dt.load(out / "models" / "north").task.unit
        share = frame["years"].mean() if kind == "a rate" else 1.0
        south = truth[1::2].mean() / share
        assert model.task.unit == pytest.approx(south, rel=0.25)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("kind", "column", "times"), [("amounts", "cost", 100), ("a rate", "years", 365)]
)
def test_units_of_hospitals_may_differ(method: str, kind: str, column: str, times: int) -> None:
    """Each learns the logarithm over a mean of its own: cents or days change nothing."""
    said = []
    for unit in (1, times):
        parties = [*hospitals(people(), kind, blocks=method == "hyfem")]
        frame = people()
        frame[column] *= unit
        parties[0] = next(hospitals(frame, kind, blocks=method == "hyfem"))
        run = dt.fit(METHODS[method], parties, test=0.25, quiet=True)
        in_unit = {"north": frame, "south": people(), "west": people()}
        said.append({name: run.models[name].predict(x) for name, x in in_unit.items()})
    for name, once in said[0].items():
        factor = times if name == "north" and kind == "amounts" else 1
        np.testing.assert_allclose(said[1][name], factor * once, rtol=1e-4)


def test_owners_are_chosen_by_what_their_columns_say_of_a_rate(tmp_path: Path) -> None:
    frame, out = people(), tmp_path / "run"
    frame["noise"] = np.random.default_rng(1).normal(size=len(frame))
    names = {"gp": "age", "lab": "blood", "weather": "noise"}
    clinic = dt.Party(
        "clinic", frame[["patient", "visits", "years"]], id="patient", label=RATE, task="counts"
    )
    others = [
        dt.Party(name, frame[["patient", column]], id="patient") for name, column in names.items()
    ]
    chosen = {"by": "columns", "share": 0.67, "secure": False}
    owners = dt.FedOptimus(epochs=4, learning_rate=5e-3, embedding=8, selection=chosen)
    dt.fit(owners, [clinic, *others], test=0.25, out=out, quiet=True)
    assert {each.name for each in (out / "models").iterdir()} >= {"clinic", "gp", "lab"}
    assert not (out / "models" / "weather").exists()


@pytest.mark.parametrize("method", METHODS)
def test_rates_of_one_exposure_are_counts(method: str) -> None:
    frame, runs = people().assign(years=1.0), []
    for kind in ("counts", "a rate"):
        parties = [*hospitals(frame, kind, blocks=method == "hyfem")]
        runs.append(dt.fit(METHODS[method], parties, test=0.25, quiet=True))
    for name in COLUMNS:
        counts, rates = (run.models[name].predict(frame) for run in runs)
        np.testing.assert_array_equal(counts, rates)


@pytest.mark.trained
@pytest.mark.parametrize(
    ("method", "partition", "baselines"),
    [
        (METHODS["chfl"], dt.CommonUnique(3, common=0.5), ["common", "local", "pooled", "linear"]),
        (METHODS["chfl"], dt.ByColumn("ward", ["a", "b"]), ["common", "linear"]),
        (METHODS["hyfem"], dt.ByColumn("ward", ["a", "b"]), ["standalone", "fedavg", "linear"]),
        (
            dt.FedOptimus(epochs=10, learning_rate=5e-3),
            dt.Owners(data_owners=2, label_owners=2),
            ["classic", "pooled"],
        ),
    ],
    ids=["chfl", "chfl-by-column", "hyfem-by-column", "fedoptimus"],
)
@pytest.mark.parametrize("kind", ["a rate", "quantiles"])
def test_one_table_is_split_over_parties(
    method: dt.Method, partition: Any, baselines: list[str], kind: str
) -> None:
    label, task, score = KINDS[kind]
    frame = people()[["age", "blood", "heart", *columns_of(label)]]
    if isinstance(partition, dt.ByColumn):
        frame = frame.assign(ward=np.where(np.arange(len(frame)) % 2, "a", "b"))
    data = dt.simulate(frame, partition, label=label, task=task)
    run = dt.fit(method, data, baselines=[*baselines, "majority"], quiet=True)
    assert set(run.result["baselines"]) >= set(baselines)
    assert run.result["mean"][score] < run.result["baselines"]["majority"][score]


def test_quantiles_of_several_scales_are_refused() -> None:
    scale = {"chfl": {"label_scale": [3000.0, 1000.0]}}
    parties = [*hospitals(people(), "quantiles", **scale)]
    run = dt.fit(METHODS["chfl"], parties, test=0.25, quiet=True)
    assert run.models["west"].task == Quantiles(3000.0, 1000.0)
    north = dt.Party(
        "north", people()[["patient", "age", "cost"]], id="patient", label="cost",
        task="quantiles", chfl={"label_scale": [1.0, 2.0]},
    )  # fmt: skip
    with pytest.raises(ConfigError, match="different scales of the label"):
        dt.fit(METHODS["chfl"], [north, *parties[1:]], quiet=True)
    counts = next(hospitals(people(), "counts"))
    with pytest.raises(ConfigError, match="of counts, that of 'south' of quantiles; give all"):
        dt.fit(METHODS["chfl"], [counts, *parties[1:]], quiet=True)


def test_what_is_said_of_counts_by_mistake_is_refused_with_what_to_do() -> None:
    scale = {"chfl": {"label_scale": [3.0, 1.0]}}
    with pytest.raises(ConfigError, match="and its label is of counts; leave it out"):
        dt.fit(METHODS["chfl"], [*hospitals(people(), "counts", **scale)], quiet=True)
    frame = people()[["patient", "age", "visits"]]
    frame["visits"] = frame["visits"].clip(upper=30 + frame["patient"] % 2)
    classes = [
        dt.Party(name, frame.iloc[start::2], id="patient", label="visits")
        for start, name in enumerate(("north", "south"))
    ]
    with pytest.raises(ConfigError, match='no classes have task = "regression" or "counts"'):
        dt.fit(METHODS["chfl"], classes, quiet=True)


def test_goodness_of_counts_does_not_depend_on_their_unit() -> None:
    outputs, labels = torch.randn(9, 1), torch.rand(9) + 0.5
    for task in (Counts(7.0), Counts(7000.0)):
        assert goodness(task, outputs, labels) == goodness(Counts(1.0), outputs, labels)
    perfect = labels.log()[:, None]
    assert goodness(Counts(3.0), perfect, labels) == pytest.approx(1.0)
    three = labels[:, None].expand(-1, 3)
    assert goodness(Quantiles(5.0, 9.0), three, labels) == pytest.approx(1.0)
