"""CHFL with every party in a process of its own, by the commands that a user types."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dovetail as package
from dovetail import data as dd
from dovetail.algorithms import chfl
from dovetail.cli.runfile import load_run
from dovetail.cli.setup import load_data, setup
from dovetail.evaluation.chfl import ChflSetup
from dovetail.network import InProcess

pytestmark = pytest.mark.network

#: Seconds until a process that says nothing has failed: of a machine with much else to do.
PATIENCE_S = 180.0

NAMES = ("north", "south")

RUN = """
method = "chfl"
rulers = ["common"]
[engine]
kind = "stream"
listen = "127.0.0.1:{port}"
partners = ["north", "south"]
wait_s = 180
grace_s = 0.5
timeout_s = 120
[chfl]
widths = [8, 4]
rounds = 4
local_epochs = 1
batch_size = 16
learning_rate = 0.01
"""

PARTY = """
[party]
name = "{name}"
table = "{name}.csv"
id = "row"
label = "diagnosis"
[policy]
algorithms = ["chfl"]
drivers = ["coordinator"]
[chfl]
common = ["mean *"]
"""


@dataclass(eq=False)
class Process:
    """A command that runs on its own."""

    process: subprocess.Popen[bytes]
    output: Path

    def said(self) -> str:
        return self.output.read_text()

    def wait_for(self, words: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(words, self.said()):
            assert time.monotonic() < deadline, f"no {words!r} in: {self.said()}"
            assert self.process.poll() is None, self.said()
            time.sleep(0.02)

    def ended(self) -> int:
        return self.process.wait(timeout=PATIENCE_S)


@dataclass(eq=False)
class Federation:
    """Two clinics' files and certificates, and a coordinator's, in one folder."""

    folder: Path
    port: int
    started: list[Process]

    def start(self, *arguments: object) -> Process:
        output = self.folder / f"output-{len(self.started)}"
        command = [sys.executable, "-m", "dovetail.cli.main", *map(str, arguments)]
        with output.open("wb") as file:
            process = subprocess.Popen(command, cwd=self.folder, stdout=file, stderr=file)
        self.started.append(Process(process, output))
        return self.started[-1]

    def join(self, name: str) -> Process:
        return self.start("join", f"{name}.toml", "--driver", f"127.0.0.1:{self.port}")

    def result(self, out: str) -> Any:
        return json.loads((self.folder / out / "result.json").read_text())

    def lines(self, out: str) -> list[Any]:
        path = self.folder / out / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [json.loads(line) for line in whole]

    def wait_for_round(self, out: str, number: int, driver: Process) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while len(self.lines(out)) < number:
            assert time.monotonic() < deadline, driver.said()
            assert driver.process.poll() is None, driver.said()
            time.sleep(0.005)

    def kept_models(self, name: str) -> dict[str, Path]:
        """Stage -> the model that a party saved at its home."""
        folders = (self.folder / f"{name}.site" / "models").iterdir()
        return {folder.name.split("+")[1]: folder for folder in folders}


@pytest.fixture
def federation(dovetail: Any, tmp_path: Path) -> Iterator[Federation]:
    pooled, _ = dd.load("breast-cancer")
    assert isinstance(pooled.x, dd.Table)
    for place, (name, own) in enumerate(zip(NAMES, ("worst area", "worst texture"), strict=True)):
        part = pooled.take(np.arange(place, pooled.num_rows, 2))
        assert isinstance(part.x, dd.Table)
        columns = {
            column: part.x.column(column).values for column in (*part.x.select(["mean *"]), own)
        }
        dd.write_table(
            tmp_path / f"{name}.csv",
            {"row": part.ids, "diagnosis": part.labels.values, **columns},
        )
        (tmp_path / f"{name}.toml").write_text(PARTY.format(name=name))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "network.toml").write_text(RUN.format(port=port))
    here = re.sub(r"\[engine\].*?(?=\[chfl\])", "", RUN, flags=re.DOTALL)
    here = here.replace("[chfl]", 'parties = ["north.toml", "south.toml"]\n[chfl]')
    (tmp_path / "here.toml").write_text(here)
    named = (*NAMES, "coordinator", "--driver", "coordinator", "--host", "127.0.0.1")
    done = dovetail("certificates", *named, "-q")
    assert done.code == 0, done.err
    made = Federation(tmp_path, port, [])
    yield made
    for each in made.started:
        with suppress(ProcessLookupError):
            each.process.send_signal(signal.SIGCONT)
            each.process.kill()
        each.process.wait()


def in_one_process(run_file: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Party -> the weights it ends with where all are called one after the other."""
    run = load_run(run_file)
    task = setup(run, 0, load_data(run))
    assert isinstance(task, ChflSetup)
    members = {name: chfl.Member(own.rows) for name, own in task.parties.items()}
    engine = InProcess(members, driver="coordinator")
    for _ in chfl.train(chfl.Coordinator(task.config_of("chfl"), seed=0), engine):
        pass
    return {name: member.model().network.state_dict() for name, member in members.items()}


def test_parties_on_machines_of_their_own_end_with_the_same_models(
    federation: Federation, dovetail: Any
) -> None:
    joined = [federation.join(name) for name in NAMES]
    driver = federation.start("train", "network.toml", "--out", "apart")
    assert driver.ended() == 0, driver.said()
    here = in_one_process(federation.folder / "here.toml")
    # Members that the command trains as one stack take sums in another order.
    assert dovetail("train", "here.toml", "--out", "here", "-q").code == 0
    for name in NAMES:
        kept = federation.kept_models(name)
        assert kept.keys() == {"chfl", "common"}
        at_home = package.load(kept["chfl"]).network.state_dict()
        stacked = package.load(federation.folder / "here" / "models" / name).network.state_dict()
        for key, value in here[name].items():
            assert torch.equal(at_home[key], value)
            assert torch.allclose(at_home[key], stacked[key], atol=1e-4)
        done = dovetail("predict", kept["chfl"], f"{name}.csv", "-q", "--out", "said.csv")
        assert done.code == 0, done.err
        assert "chfl.Trained" in (federation.folder / f"{name}.site" / "ledger.jsonl").read_text()
    said = federation.result("apart")
    assert said["parties"].keys() == set(NAMES)
    best = federation.lines("apart")[3]["best"]
    assert said["mean"]["validation"] == federation.lines("apart")[best - 1]["validation"]
    for each in joined:
        each.wait_for("model .*: on its test rows accuracy")
        each.process.send_signal(signal.SIGTERM)
        assert each.ended() == 0, each.said()


def test_a_round_closes_at_its_deadline_with_who_answered(federation: Federation) -> None:
    north, south = (federation.join(name) for name in NAMES)
    settings = ("--set", "chfl.rounds=400", "--set", "rulers=[]", "--set", "chfl.timeout_s=2")
    driver = federation.start("train", "network.toml", "--out", "apart", *settings)
    federation.wait_for_round("apart", 3, driver)
    south.process.send_signal(signal.SIGSTOP)
    before = len(federation.lines("apart"))
    deadline = time.monotonic() + PATIENCE_S
    while not any("missed" in line for line in federation.lines("apart")[before:]):
        assert time.monotonic() < deadline, driver.said()
        time.sleep(0.02)
    missed = next(line for line in federation.lines("apart")[before:] if "missed" in line)
    assert missed["missed"] == {"south": 1}
    assert (
        missed["seconds"] < 30
    )  # 2 s for the round, 2 s for the average, and what else is running
    south.process.send_signal(signal.SIGCONT)
    back = len(federation.lines("apart"))
    federation.wait_for_round("apart", back + 3, driver)
    assert driver.ended() == 0, driver.said()
    said = federation.result("apart")
    assert said["missed"]["south"]["rounds"] >= 1
    assert "missed" not in federation.lines("apart")[-1]
    for each in (north, south):
        each.process.send_signal(signal.SIGTERM)
        assert each.ended() == 0, each.said()


def test_a_coordinator_that_was_killed_goes_on_where_it_was(federation: Federation) -> None:
    for name in NAMES:
        federation.join(name)
    settings = ("--set", "chfl.rounds=60", "--set", "rulers=[]")
    whole = federation.start("train", "network.toml", "--out", "whole", *settings)
    assert whole.ended() == 0, whole.said()
    driver = federation.start("train", "network.toml", "--out", "stopped", *settings)
    federation.wait_for_round("stopped", 5, driver)
    driver.process.kill()
    driver.ended()
    assert len(federation.lines("stopped")) < 60
    again = federation.start("train", "network.toml", "--out", "stopped", "--resume", *settings)
    assert again.ended() == 0, again.said()

    def told(out: str) -> list[Any]:
        return [
            {key: value for key, value in line.items() if key != "seconds"}
            for line in federation.lines(out)
        ]

    assert told("stopped") == told("whole")
    assert federation.result("stopped")["parties"] == federation.result("whole")["parties"]
