"""The method of docs/own-method.md is one: it trains, equals its ruler, and can be installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import data as dd
from dovetail import methods
from dovetail.errors import ConfigError
from dovetail.experiment.runfile import RunFile, check_run

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "own-method.md").read_text()


def blocks(language: str) -> list[str]:
    """The page's blocks of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


(CODE,) = blocks("python")
RUN, PACKAGE = blocks("toml")
TRAIN, PREDICT, INSTALLED = (block.split() for block in blocks("sh"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a reader of the page has made: the method, the run file, and patients."""
    (tmp_path / "own_method.py").write_text(CODE)
    (tmp_path / "run.toml").write_text(RUN.replace("rounds = 60", "rounds = 4"))
    pooled = dd.load("breast-cancer")[0].take(np.arange(40))
    assert isinstance(pooled.x, dd.Table)
    columns = {name: pooled.x.column(name).values for name in pooled.x.names}
    dd.write_table(tmp_path / "new-patients.csv", columns)
    return tmp_path


def execute(folder: Path, command: list[str], *more: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, *command[1:]]
    if command[0] == "dovetail":
        words = [sys.executable, "-m", "dovetail.cli.main", *command[1:]]
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    return subprocess.run(
        [*words, *more], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def install(folder: Path, table: str) -> None:
    """Leave what pip leaves of a package."""
    about = tomllib.loads(table)["project"]
    info = folder / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n"
    )
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in about["entry-points"].items()
    )
    (info / "entry_points.txt").write_text(points)


def test_the_page_shows_the_example_and_it_is_short() -> None:
    assert (ROOT / "examples" / "own_method.py").read_text() == CODE
    assert CODE.count("\n") < 80


def test_the_method_of_the_page_equals_pooled_gradient_descent_and_predicts(folder: Path) -> None:
    done = execute(folder, TRAIN)
    assert done.returncode == 0, done.stderr
    assert "FedSGD, predicts alone: party-1" in done.stdout
    run = folder / "out" / "run" / "seed-1"
    result = json.loads((run / "result.json").read_text())
    losses = [scores["log_loss"] for scores in result["parties"].values()]
    assert losses == pytest.approx([result["rulers"]["pooled-sgd"]["log_loss"]] * 3, abs=1e-5)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    by_stage = {stage: [n["round"] for n in lines if n["stage"] == stage] for stage in ("fedsgd",)}
    assert by_stage == {"fedsgd": [1, 2, 3, 4]}
    done = execute(folder, PREDICT)
    assert done.returncode == 0, done.stderr
    assert (done.stdout.startswith("row,"), done.stdout.count("\n")) == (True, 41)


def test_an_installed_method_is_one_of_dovetails(folder: Path) -> None:
    install(folder, PACKAGE)
    done = execute(folder, INSTALLED, "--seed", "0", "--set", "rulers=[]", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "fedsgd"
    text = (folder / "out" / "run" / "ledger.jsonl").read_text()
    left = [json.loads(line) for line in text.splitlines()]
    assert {tensor["name"] for line in left for tensor in line["tensors"]} == {
        "weights_P",
        "gradient_P",
    }
    assert {line["count"] for line in left} == {4}


@pytest.fixture
def looking(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RunFile]]:
    """Installs a package with these methods, and reads the run file of the page."""

    def look(points: str, **changes: str) -> RunFile:
        install(folder, PACKAGE.replace('fedsgd = "own_method:FedSgd"', points))
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr(methods, "METHODS", dict(methods.METHODS))
        monkeypatch.setattr(methods, "_looked", False)
        return check_run({**tomllib.loads(RUN), **changes}, where="run.toml")

    yield look
    sys.modules.pop("own_method", None)


def test_a_run_file_has_a_section_for_an_installed_method(looking: Any) -> None:
    run = looking('fedsgd = "own_method:FedSgd"')
    assert (run.fedsgd.rounds, run.fedsgd.learning_rate) == (60, 0.5)
    with pytest.raises(ConfigError, match=r"unknown key 'fedsgd.round'; did you mean 'rounds'\?"):
        check_run({**tomllib.loads(RUN), "fedsgd": {"round": 1}}, where="run.toml")
    with pytest.raises(ConfigError, match="'fedsgd' is simulated only"):
        methods.method_of("fedsgd").load_sites(run, {}, where="")


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ('fedsgd = "gone:FedSgd"', r"'own-method' cannot be loaded .*No module named 'gone'"),
        ('fedsgd = "json:loads"', "it is to name a subclass of OwnMethod"),
        ('apfed = "own_method:FedSgd"', "a method 'apfed', and so has Dovetail; rename it"),
        ('seeds = "own_method:FedSgd"', "no method can be called 'seeds': run files have that key"),
    ],
)
def test_an_installed_method_that_cannot_be_is_named(looking: Any, points: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        looking(points)


def test_a_run_file_cannot_name_code(looking: Any) -> None:
    with pytest.raises(ConfigError, match=r"method: .* got 'own_method:FedSgd'"):
        looking('fedsgd = "own_method:FedSgd"', method="own_method:FedSgd")
