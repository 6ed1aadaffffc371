"""A run can be watched in TensorBoard and MLflow; both have what ``metrics.jsonl`` has."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dovetail.methods import base
from dovetail.runs import track
from dovetail.runs.track import Tracks, final_scores, numbers_and_texts

Lines = list[dict[str, Any]]

#: Names of a line that are not what it measures.
AXES = ("variant", "epoch", "round")


def lines_of(folder: Path) -> Lines:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def expected(lines: Lines) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """(Variant, name) -> (epoch, value), in order."""
    points: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for line in lines:
        metrics = {name: value for name, value in line.items() if name not in AXES}
        for path, value in numbers_and_texts(metrics)[0].items():
            points.setdefault((line["variant"], path), []).append((line["epoch"], value))
    return points


def in_tensorboard(folder: Path) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """What TensorBoard reads: (variant, name) -> (epoch, value), without the final scores."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    points = {}
    for variant in (folder / "tensorboard").iterdir():
        events = EventAccumulator(str(variant))
        events.Reload()
        for name in events.Tags()["scalars"]:
            if not name.startswith("final/"):
                points[variant.name, name] = [(e.step, e.value) for e in events.Scalars(name)]
    return points


def in_mlflow(uri: str) -> Iterator[tuple[Any, Callable[[str], list[tuple[int, float]]]]]:
    """Each run that MLflow has, oldest first, and what reads a metric of it."""
    from mlflow import MlflowClient  # takes a second to read: not where tests are collected

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("dovetail")
    for run in client.search_runs([experiment.experiment_id], order_by=["start_time"]):

        def history(name: str, id: str = run.info.run_id) -> list[tuple[int, float]]:
            return [(metric.step, metric.value) for metric in client.get_metric_history(id, name)]

        yield run, history


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/watched.db"


@pytest.mark.slow
def test_tensorboard_and_mlflow_have_every_line_the_settings_and_the_scores(
    dovetail: Any, write_run: Any, tmp_path: Path, uri: str
) -> None:
    write_run(("evaluate_every = 0", "evaluate_every = 1"))
    words = ["--track", "tensorboard", "--track", "mlflow", "--set", f"track.uri={uri}", "-q"]
    done = dovetail("train", "run.toml", *words)
    assert (done.code, done.out) == (0, ""), done.err
    folder = tmp_path / "out" / "run"
    metrics = expected(lines_of(folder))
    assert {variant for variant, _ in metrics} == {"apfed-c", "alone"}
    shown = in_tensorboard(folder)
    assert shown.keys() == metrics.keys()
    for curve, values in metrics.items():
        assert [step for step, _ in shown[curve]] == [1, 2]
        assert [value for _, value in shown[curve]] == pytest.approx([value for _, value in values])

    ((run, history),) = in_mlflow(uri)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    for (variant, name), values in metrics.items():
        assert history(f"{variant}/{name}") == values
    settings = tomllib.loads((folder / "run.toml").read_text())
    params = run.data.params
    assert params["apfed.epochs"] == str(settings["apfed"]["epochs"]) == "2"
    assert params["data.partition.kind"] == "columns"
    assert not [name for name in params if name.startswith(("chfl.", "hyfem.", "track."))]
    result = json.loads((folder / "result.json").read_text())
    assert (
        final_scores(result)["parties/clinic/accuracy"] == result["parties"]["clinic"]["accuracy"]
    )
    for name, value in final_scores(result).items():
        assert history(f"final/{name}") == [(0, value)]


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_in_the_same_mlflow_run_and_curve(
    dovetail: Any, write_run: Any, tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run()
    words = ["--track", "tensorboard", "--track", "mlflow", "--set", f"track.uri={uri}", "-q"]

    def stop(variant: str, total: int, line: dict[str, Any]) -> None:
        if (variant, line["epoch"]) == ("alone", 1):
            raise KeyboardInterrupt

    with monkeypatch.context() as changed:
        changed.setattr(base.Progress, "epochs", lambda self, title: nullcontext(stop))
        assert dovetail("train", "run.toml", *words).code == 130
    ((run, _),) = in_mlflow(uri)
    assert run.info.status == "KILLED"
    assert dovetail("train", "run.toml", "--resume", *words).code == 0
    ((run, history),) = in_mlflow(uri)
    assert run.info.status == "FINISHED"
    folder = tmp_path / "out" / "run"
    metrics = expected(lines_of(folder))
    assert [step for step, _ in history("apfed-c/loss")] == [1, 2]
    assert history("apfed-c/loss") == metrics["apfed-c", "loss"]
    # What is trained again for want of a checkpoint gives the same numbers at the same step.
    assert dict(history("alone/loss")) == dict(metrics["alone", "loss"])
    assert {
        curve: [step for step, _ in values] for curve, values in in_tensorboard(folder).items()
    } == {curve: [step for step, _ in values] for curve, values in metrics.items()}


def test_metrics_can_be_read_as_they_grow(
    dovetail: Any, write_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(("epochs = 2", "epochs = 4"))
    path = tmp_path / "out" / "run" / "metrics.jsonl"
    seen = []

    def read(variant: str, total: int, line: dict[str, Any]) -> None:
        rows = duckdb.sql(f"SELECT variant, epoch, loss FROM read_json('{path}')").fetchall()
        seen.append(rows)

    monkeypatch.setattr(base.Progress, "epochs", lambda self, title: nullcontext(read))
    assert dovetail("train", "run.toml", "-q").code == 0
    assert [len(rows) for rows in seen] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert seen[-1] == [
        (line["variant"], line["epoch"], line["loss"]) for line in lines_of(path.parent)
    ]
    assert seen[2] == seen[-1][:3]


def test_what_is_not_installed_is_told_before_data_are_read(
    dovetail: Any, write_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(("breast-cancer", "gone.csv"))
    monkeypatch.setattr(track, "find_spec", lambda name: None)
    done = dovetail("train", "run.toml", "--track", "mlflow")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "pip install 'dovetail-fl[track]'" in done.err
    assert not (tmp_path / "out").exists()


def test_a_tracker_that_is_not_there_or_unknown_ends_in_one_line(
    dovetail: Any, write_run: Any
) -> None:
    write_run()
    done = dovetail("train", "run.toml", "--track", "wandb", "-q")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "track.to.0: input should be 'tensorboard' or 'mlflow', got 'wandb'" in done.err
    uri = "nowhere://watched"
    done = dovetail("train", "run.toml", "--track", "mlflow", "--set", f"track.uri={uri}", "-q")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"MLflow at {uri} cannot be used" in done.err


class Full:
    """A tracker whose disk is full after the first line."""

    def __init__(self, folder: Path, settings: Any) -> None:
        self.lines: Lines = []

    def line(self, line: dict[str, Any]) -> None:
        if self.lines:
            raise OSError("No space left on device")
        self.lines.append(line)

    def finish(self, result: Any) -> None:
        raise AssertionError("it was left out")

    close = finish


def test_training_goes_on_without_a_tracker_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(track, "TensorBoard", Full)
    warnings: list[str] = []
    kept = [{"variant": "apfed-mixed", "epoch": 1, "loss": 0.5}]
    with Tracks(
        ("tensorboard",), tmp_path, {}, name="a run", id="1", kept=kept, warn=warnings.append
    ) as tracks:
        for epoch in (2, 3):
            tracks.line("apfed", {"epoch": epoch, "loss": 0.5})
        tracks.finish({})
    assert len(warnings) == 1
    assert "No space left on device" in warnings[0]
