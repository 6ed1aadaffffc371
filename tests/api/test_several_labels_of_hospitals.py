"""Several labels of patients that hospitals do not share: CHFL and HyFEM, from tables to files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import dovetail as dt
from dovetail.cli.main import app
from dovetail.data import MultiTarget
from dovetail.errors import ConfigError, DataError

LABELS = ["relapse", "sepsis", "pain"]
NUMBERS = ["cost", "days"]
#: Each hospital's columns; "age" is at all.
COLUMNS = {"north": ("age", "weight"), "south": ("age", "blood"), "west": ("age",)}
METHODS = {
    "chfl": dt.CHFL(widths=(8,), rounds=4, local_epochs=3, learning_rate=0.02, batch_size=32),
    "hyfem": dt.HyFEM(rounds=6, local_steps=8, learning_rate=0.1, batch_size=32),
}


def people(rows: int = 450) -> pd.DataFrame:
    """A third of the rows lacks relapse; costs are in thousands, days few."""
    rng = np.random.default_rng(0)
    age, weight, blood = rng.normal(size=(3, rows))
    scores = np.stack([age + blood, 2 * age, weight - age], axis=1)
    so = (rng.random((rows, 3)) < 1 / (1 + np.exp(-2 * scores))).astype(float)
    so[rng.random(rows) < 0.33, 0] = np.nan
    frame = pd.DataFrame({"patient": np.arange(rows), "age": age, "weight": weight, "blood": blood})
    frame["cost"] = 5000 + 1000 * (age + 0.3 * rng.normal(size=rows))
    frame["days"] = 5 - 2 * age + 0.5 * rng.normal(size=rows)
    return frame.assign(**dict(zip(LABELS, so.T, strict=True)))


def hospitals(labels: list[str], *, blocks: bool = False, **more: Any) -> Iterator[dt.Party]:
    """The last does not know the second label of any patient."""
    frame = people()
    for index, (name, columns) in enumerate(COLUMNS.items()):
        rows = frame.iloc[index::3][["patient", *columns, *labels]].copy()
        if name == "west":
            rows[labels[1]] = np.nan
        named = {"blocks": {column: [column] for column in columns}} if blocks else {}
        yield dt.Party(name, rows, id="patient", label=labels, **named, **more)


@pytest.fixture(scope="module", params=METHODS)
def run(request: pytest.FixtureRequest) -> dt.Run:
    parties = list(hospitals(LABELS, blocks=request.param == "hyfem"))
    return dt.fit(METHODS[request.param], parties, test=0.25, quiet=True, baselines=["linear"])


@pytest.mark.trained
def test_every_hospital_has_a_model_of_all_labels(run: dt.Run, tmp_path: Path) -> None:
    frame, name = people(), run.result["method"]
    details = run.result["variants"][name]["details"]
    assert {"auc", "average_precision", "rows"} <= set(details[name]["north"]["labels"]["relapse"])
    assert details[name]["west"]["labels"]["sepsis"] == {"rows": 0.0}
    assert {"auc_labels", "average_precision_labels"} <= set(run.result["mean"])
    assert {"lrap", "ranking_loss"} <= set(run.result["parties"]["north"])
    assert run.result["baselines"]["linear"]["auc_labels"] > 0.6
    for party in COLUMNS:
        model = run.models[party]
        assert model.score(frame)["auc_labels"] > 0.7
        each = model.predictions(frame).probabilities
        # West learnt of sepsis from the others.
        assert np.corrcoef(each[:, 1], frame["sepsis"])[0, 1] > 0.4
        again = dt.load(model.save(tmp_path / party))
        np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    out, invoke = str(tmp_path / "model.onnx"), CliRunner().invoke
    done = invoke(app, ["export", str(tmp_path / "north"), "--out", out])
    assert done.exit_code == 0, done.output
    ours, theirs = run.models["north"].predictions(frame), dt.load(out).predictions(frame)
    np.testing.assert_allclose(theirs.probabilities, ours.probabilities, atol=1e-5)


def test_the_report_and_the_card_name_every_label(run: dt.Run, tmp_path: Path) -> None:
    page = run.report(tmp_path / "report.html").read_text()
    assert "AUC of each label, on the test rows that have it" in page
    people().to_csv(tmp_path / "all.csv", index=False)
    run.models["north"].save(tmp_path / "north")
    done = CliRunner().invoke(app, ["card", str(tmp_path / "north"), str(tmp_path / "all.csv")])
    assert done.exit_code == 0, done.output
    card = (tmp_path / "north" / "card.md").read_text()
    assert "3 labels at once: relapse, sepsis, pain" in card


@pytest.mark.trained
@pytest.mark.parametrize("method", METHODS)
def test_numbers_are_standardised_by_the_rows_of_all(method: str, tmp_path: Path) -> None:
    parties = list(hospitals(NUMBERS, blocks=method == "hyfem", task="regression"))
    run = dt.fit(METHODS[method], parties, test=0.25, quiet=True, baselines=["majority"])
    frame, tasks = people(), [model.task for model in run.models.values()]
    assert all(task == tasks[0] for task in tasks)
    assert isinstance(tasks[0], MultiTarget)
    assert tasks[0].means == pytest.approx((5000, 5), rel=0.1)
    assert run.result["mean"]["r2_labels"] > 0.3
    for name in COLUMNS:
        said = run.models[name].predict(frame)
        assert list(said.columns) == NUMBERS
        assert np.corrcoef(said["days"], frame["days"])[0, 1] > 0.6


@pytest.mark.parametrize("method", METHODS)
def test_a_list_of_one_label_is_that_label_alone(method: str) -> None:
    models = []
    for label in ("pain", ["pain"]):
        parties = [
            dt.Party(
                name, people().iloc[index::3][["patient", *columns, "pain"]], id="patient",
                label=label, blocks={"age": ["age"]} if method == "hyfem" else {},
            )
            for index, (name, columns) in enumerate(COLUMNS.items())
        ]  # fmt: skip
        run = dt.fit(METHODS[method], parties, test=0.25, quiet=True)
        models.append(run.models["west"].predictions(people()).probabilities)
    np.testing.assert_array_equal(*models)


@pytest.mark.parametrize(
    ("method", "partition"),
    [
        ("chfl", {"kind": "common-unique", "parties": 3}),
        ("chfl", {"kind": "by-column", "column": "place", "parties": ["a", "b"]}),
        (
            "hyfem",
            {"kind": "by-column", "column": "place", "parties": ["a", "b"], "rows": {"a": 90}},
        ),
    ],
)
@pytest.mark.parametrize("task", ["several", "several numbers", "a number"])
def test_one_table_is_dealt_by_rows(
    method: str, partition: dict[str, Any], task: str, tmp_path: Path
) -> None:
    label, score, least = {
        "several": (json.dumps(LABELS), "auc_labels", 0.6),
        "several numbers": (json.dumps(NUMBERS), "r2_labels", 0.0),
        "a number": ('"cost"', "r2", 0.0),
    }[task]
    frame = people(300)
    frame = frame[["patient", "age", "weight", "blood", *(c for c in frame if f'"{c}"' in label)]]
    frame.assign(place=np.where(frame["patient"] % 2, "a", "b")).to_csv(tmp_path / "all.csv")
    parts = ", ".join(f"{key} = {json.dumps(value)}" for key, value in partition.items())
    parts = parts.replace('{"a": 90}', "{ a = 90 }")
    short = "widths = [8]\n" if method == "chfl" else "local_steps = 8\n"
    (tmp_path / "run.toml").write_text(
        f'method = "{method}"\nseeds = [0]\nbaselines = []\n'
        f'[data]\nsource = "{tmp_path}/all.csv"\nid = "patient"\n'
        f"label = {label}\ntest = 0.25\npartition = {{ {parts} }}\n"
        + ('task = "regression"\n' if "number" in task else "")
        + f"[{method}]\nrounds = 4\nlearning_rate = 0.02\n{short}"
    )
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["train", str(tmp_path / "run.toml"), "--out", str(out), "-q"])
    assert done.exit_code == 0, (done.output, done.exception)
    (result,) = [json.loads(path.read_text()) for path in out.rglob("result.json")]
    assert result["mean"][score] > least


@pytest.mark.parametrize("method", METHODS)
def test_labels_that_do_not_fit_together_are_refused(method: str) -> None:
    def refusal(labels: dict[str, list[str]], **of_party: dict[str, Any]) -> str:
        parties = [
            dt.Party(
                name, people().iloc[index::2], id="patient", label=own, **of_party.get(name, {}),
                blocks={"age": ["age"]} if method == "hyfem" else {},
            )
            for index, (name, own) in enumerate(labels.items())
        ]  # fmt: skip
        with pytest.raises((ConfigError, DataError)) as caught:
            dt.fit(METHODS[method], parties, test=0.25, quiet=True)
        return str(caught.value)

    said = refusal({"a": LABELS, "b": LABELS[::-1]})
    assert "the labels of 'a' are relapse, sepsis, pain, those of 'b' pain, sepsis, relapse" in said
    said = refusal({"a": LABELS, "b": ["pain"]})
    assert "the label of 'a' is of multilabel, that of 'b' of classification; give all" in said
    said = refusal({"a": ["pain", "days"], "b": ["pain", "days"]})
    assert "label 'days' has" in said
    assert "yes or no and a number are two runs" in said
    scale = {"task": "regression", method: {"label_scale": {"cost": [5000.0, 1000.0]}}}
    said = refusal({"a": NUMBERS, "b": NUMBERS}, a=scale, b={"task": "regression"})
    assert "label_scale is { LABEL = [MEAN, SCALE], ... } of cost and days, got" in said
