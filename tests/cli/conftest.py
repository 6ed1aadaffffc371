"""The command, run in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dovetail import data as dd
from dovetail.cli.main import main
from dovetail.cli.train import train


@dataclass(frozen=True)
class Done:
    """What a command left: its exit code, and what it printed where."""

    code: int
    out: str
    err: str


#: Columns of the built-in breast cancer set, dealt to a clinic and a lab; a few steps.
RUN = """
method = "apfed-c"
baselines = ["alone"]
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
        captured = capsys.readouterr()
        code = int(done.value.code or 0)
        del done  # and with its traceback the tables that the command had open
        return Done(code, captured.out, captured.err)

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
    train(folder / "run.toml", out=folder / "out", quiet=True)
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


# --- Parties with files of their own --------------------------------------------------------------

#: A run of the parties that ``deal`` writes; a few steps.
PARTY_RUN = """
method = "apfed-mixed"
evaluate_every = 0
parties = ["clinic.toml", "lab.toml", "registry.toml"]
test = 0.25

[apfed.distil]
exchange = "gradients"
max_steps = 40
folds = 2
copies = 1

[apfed]
encoder = [8]
head = [8]
epochs = 2
learning_rate = 0.05
"""

#: They agree to the baseline, and to questions about few rows: they have few.
POLICY = """[policy]
algorithms = ["align", "apfed-mixed", "tvfl"]
min_rows = 1
max_uses = 100000
"""

PARTY = """
[party]
name = "{name}"
table = "{name}.csv"
id = "person"
{label}
{policy}
[apfed]
exact = true
encoder = [8]
"""


@dataclass(frozen=True)
class Dealt:
    """Parties' files, and which rows of the breast cancer set each holds, in its table's order."""

    folder: Path
    held: dict[str, np.ndarray]
    columns: dict[str, list[str]]

    @property
    def files(self) -> list[Path]:
        return [self.folder / f"{name}.toml" for name in self.held]

    def shared(self, *names: str) -> int:
        """How many samples all of these have."""
        return len(set.intersection(*(set(self.held[name].tolist()) for name in names)))

    def ids(self, name: str) -> np.ndarray:
        return np.array([f"P-{row:03d}" for row in self.held[name]], dtype=object)

    def change(self, name: str, *changes: tuple[str, str]) -> None:
        """Replaces texts of a file; a policy takes the place of the one that was there."""
        text = (self.folder / name).read_text()
        for old, new in changes:
            if "[policy]" in new:
                text = text.replace(POLICY, "", 1)
                said = "" if "algorithms" in new else 'algorithms = ["align", "apfed-mixed"]\n'
                new = new.replace("[policy]", f"[policy]\n{said}min_rows = 1\nmax_uses = 100000")
            assert old in text
            text = text.replace(old, new, 1)
        (self.folder / name).write_text(text)


@pytest.fixture(scope="session")
def deals(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Dealt]:
    """Writes ``deal``'s files once for each seed; read only."""

    @cache
    def write(seed: int) -> Dealt:
        pooled, _ = dd.load("breast-cancer")
        assert isinstance(pooled.x, dd.Table)
        order = np.random.default_rng(seed).permutation
        rows = {
            "clinic": np.arange(160),
            "lab": np.arange(100, 200),
            "registry": np.r_[30:80, 120:160, 200:210],
        }
        globs = {"clinic": "mean *", "lab": "worst *", "registry": "* error"}
        dealt = Dealt(
            tmp_path_factory.mktemp("dealt"),
            {name: order(each) for name, each in rows.items()},
            {name: pooled.x.select([glob]) for name, glob in globs.items()},
        )
        for name, held in dealt.held.items():
            columns = {each: pooled.x.column(each).values[held] for each in dealt.columns[name]}
            label = ""
            if name == "clinic":
                columns["diagnosis"] = pooled.labels.values[held]
                label = 'label = "diagnosis"'
            table = {"person": dealt.ids(name), **columns}
            dd.write_table(dealt.folder / f"{name}.csv", table)
            (dealt.folder / f"{name}.toml").write_text(
                PARTY.format(name=name, label=label, policy=POLICY)
            )
        (dealt.folder / "run.toml").write_text(PARTY_RUN)
        return dealt

    return write


@pytest.fixture
def deal(deals: Callable[[int], Dealt], tmp_path: Path) -> Callable[..., Dealt]:
    """Three parties of partly the same patients, in any order, and ``PARTY_RUN``.

    The clinic has labels; the lab shares 60 of its 160 patients, the registry 90, both 40.
    """

    def deal(folder: Path = tmp_path, *, seed: int = 0) -> Dealt:
        written = deals(seed)
        shutil.copytree(written.folder, folder, dirs_exist_ok=True)
        return replace(written, folder=folder)

    return deal
