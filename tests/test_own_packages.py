"""A stranger's package adds an engine and a command, by the entry points of our own companions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import forked
import numpy as np
import pytest
import same_secrets
from safetensors.numpy import load_file

from dovetail import data as dd

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "own-engine.md").read_text()
WIRE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[-1]

POINTS = """
[dovetail.engines]
beside = own_wire:Beside
[dovetail.commands]
greet = own_greeting:greet
"""

GREETING = '''
def greet(name: str) -> None:
    """Say hello.

    Args:
        name: who is greeted.
    """
    print("hello", name)
'''

PARTY = """
[party]
name = "{name}"
table = "{name}.csv"
id = "patient"
label = "diagnosis"
[policy]
algorithms = ["chfl"]
"""

RUN = """
method = "chfl"
seed = 3
[chfl]
rounds = 2
"""

THERE = """
[engine]
kind = "beside"
partners = ["north", "south"]
files = { north = "north.toml", south = "south.toml" }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the package, installed, and two parties."""
    info = tmp_path / "own_wire-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-wire\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(POINTS)
    (tmp_path / "own_wire.py").write_text(WIRE)
    (tmp_path / "own_greeting.py").write_text(GREETING)
    pooled = dd.load("breast-cancer")[0]
    assert isinstance(pooled.x, dd.Table)
    for index, name in enumerate(("north", "south")):
        part = pooled.take(np.arange(index, 200, 2))
        assert isinstance(part.x, dd.Table)
        columns = {each: part.x.column(each).values for each in part.x.select(["mean *"])}
        dd.write_table(
            tmp_path / f"{name}.csv",
            {"patient": part.ids, "diagnosis": part.labels.values, **columns},
        )
        (tmp_path / f"{name}.toml").write_text(PARTY.format(name=name))
    (tmp_path / "there.toml").write_text(RUN + THERE)
    (tmp_path / "here.toml").write_text('parties = ["north.toml", "south.toml"]' + RUN)
    return tmp_path


def command(folder: Path, *words: str) -> forked.Ended:
    return forked.command(folder, *words, environment={"PYTHONPATH": str(folder)})


def test_the_page_registers_what_this_package_does() -> None:
    (table,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    points = tomllib.loads(table)["project"]["entry-points"]
    assert points == {"dovetail.engines": {"beside": "own_wire:Beside"}}


def test_a_strangers_command_is_listed_explained_and_run(folder: Path) -> None:
    assert re.search(r"  greet +Say hello\.", command(folder, "--help").out)
    assert "who is greeted" in command(folder, "greet", "--help").out.lower()
    assert command(folder, "greet", "you").out == "hello you\n"


def test_a_run_file_without_the_engine_imports_nothing_of_it(folder: Path) -> None:
    (folder / "own_wire.py").write_text("raise RuntimeError\n")
    done = command(folder, "train", "here.toml", "--set", "method=chlf")
    assert "did you mean 'chfl'?" in done.err
    done = command(folder, "train", "there.toml")
    words = "the engine 'beside' of the installed package 'own-wire' cannot be loaded"
    assert (done.code, words in done.err) == (2, True), done.err


@pytest.mark.slow
def test_a_run_over_a_strangers_engine_gives_the_model_of_one_process(folder: Path) -> None:
    (folder / "same.py").write_text(same_secrets.COMMAND)
    paths = f"{folder}:{ROOT / 'tests' / 'network'}"
    for file in ("here.toml", "there.toml"):
        words = ("train", file, "--quiet")
        done = forked.script(folder, folder / "same.py", *words, environment={"PYTHONPATH": paths})
        assert done.code == 0, done.err
    here = folder / "out" / "here" / "models" / "north" / "model.safetensors"
    (there,) = (folder / "north.site").rglob("model.safetensors")
    ours, theirs = load_file(here), load_file(there)
    assert ours.keys() == theirs.keys()
    for name in ours:  # sites compute on one thread, one process on all
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-6)
