"""The command, run in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dovetail import data as dd
from dovetail.cli.main import main
from dovetail.cli.train import run_train


@dataclass(frozen=True)
class Done:
    """What a command left: its exit code, and what it printed where."""

    code: int
    out: str
    err: str


#: Columns of the built-in breast cancer set, dealt to a clinic and a lab; a few steps.
RUN = """
method = "apfed-c"
rulers = ["alone"]
evaluate_every = 0

[data]
source = "breast-cancer"
test = 0.25

[data.partition]
kind = "columns"
active = "clinic"
parties = { clinic = ["mean *"], lab = ["worst *"] }

[apfed]
encoder = [8]
head = [8]
epochs = 2
steps_per_epoch = 3

[passive]
encoder = [8]
"""


@pytest.fixture
def dovetail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Done]:
    """Runs ``dovetail ARGUMENTS`` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("DOVETAIL_DATA", raising=False)

    def run(*arguments: object) -> Done:
        monkeypatch.setattr("sys.argv", ["dovetail", *map(str, arguments)])
        with pytest.raises(SystemExit) as done:
            main()
        said = capsys.readouterr()
        return Done(int(done.value.code or 0), said.out, said.err)

    return run


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Writes ``RUN`` to a file, with texts of it replaced."""

    def write(*changes: tuple[str, str], name: str = "run.toml") -> Path:
        text = RUN
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of ``RUN``, with enough steps to be worth something; read only."""
    folder = tmp_path_factory.mktemp("trained")
    text = RUN.replace("steps_per_epoch = 3", "learning_rate = 0.05").replace(
        "epochs = 2", "epochs = 8"
    )
    (folder / "run.toml").write_text(text)
    run_train(
        folder / "run.toml",
        out=folder / "out",
        recipe=None,
        overrides=(),
        seeds=(),
        resume=False,
        quiet=True,
        as_json=False,
        device=None,
    )
    return folder / "out"


@pytest.fixture(scope="session")
def patients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The clinic's raw columns of forty patients, with a number, a label, and no order."""
    pooled, _ = dd.load("breast-cancer")
    part = pooled.take(np.arange(40, 0, -1))
    assert isinstance(part.x, dd.Table)
    path = tmp_path_factory.mktemp("patients") / "patients.csv"
    columns = {name: part.x.column(name).values for name in part.x.select(["mean *"])}
    numbers = np.array([f"P{number}" for number in part.ids], dtype=object)
    dd.write_table(path, {"patient": numbers, "diagnosis": part.labels.values, **columns})
    return path
