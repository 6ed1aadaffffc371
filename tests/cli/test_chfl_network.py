"""CHFL with every party in a process of its own, by the commands that a user types."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import Federation, free_port

import dovetail as package
from dovetail import data as dd
from dovetail.experiment.runfile import load_run
from dovetail.experiment.setup import load_data, setup
from dovetail.methods import chfl
from dovetail.methods.chfl.stages import ChflSetup
from dovetail.network import InProcess

pytestmark = pytest.mark.network

NAMES = ("north", "south")
OWN = ("worst area", "worst texture", "worst smoothness")

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


@pytest.fixture
def federation(dovetail: Any, tmp_path: Path) -> Iterator[Federation]:
    with written(dovetail, tmp_path, dict(zip(NAMES, OWN, strict=False))).ending() as made:
        yield made


def written(dovetail: Any, tmp_path: Path, owns: dict[str, str]) -> Federation:
    """Files of parties with a column of their own each, certificates, and run files."""
    pooled, _ = dd.load("breast-cancer")
    assert isinstance(pooled.x, dd.Table)
    for place, (name, own) in enumerate(owns.items()):
        part = pooled.take(np.arange(place, pooled.num_rows, len(owns)))
        assert isinstance(part.x, dd.Table)
        columns = {
            column: part.x.column(column).values for column in (*part.x.select(["mean *"]), own)
        }
        dd.write_table(
            tmp_path / f"{name}.csv",
            {"row": part.ids, "diagnosis": part.labels.values, **columns},
        )
        (tmp_path / f"{name}.toml").write_text(PARTY.format(name=name))
    port = free_port()
    run = RUN.replace('["north", "south"]', json.dumps([*owns]))
    (tmp_path / "network.toml").write_text(run.format(port=port))
    here = re.sub(r"\[engine\].*?(?=\[chfl\])", "", run, flags=re.DOTALL)
    files = json.dumps([f"{name}.toml" for name in owns])
    here = here.replace("[chfl]", f"parties = {files}\n[chfl]")
    (tmp_path / "here.toml").write_text(here)
    named = (*owns, "coordinator", "--driver", "coordinator", "--host", "127.0.0.1")
    done = dovetail("certificates", *named, "-q")
    assert done.code == 0, done.err
    return Federation(tmp_path, port)


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
        each.signal(signal.SIGTERM)
        assert each.ended() == 0, each.said()


def test_a_round_closes_at_its_deadline_with_who_answered(federation: Federation) -> None:
    north, south = (federation.join(name) for name in NAMES)
    settings = ("--set", "chfl.rounds=80", "--set", "rulers=[]", "--set", "chfl.timeout_s=2")
    settings += ("--set", "min_participation=0")  # a slow machine may miss many rounds
    driver = federation.start("train", "network.toml", "--out", "apart", *settings)
    federation.wait_for_lines("apart", 3, driver)
    south.signal(signal.SIGSTOP)
    before = len(federation.lines("apart"))
    missed = federation.first_missed("apart", before, driver)
    assert missed["missed"] == {"south": 1}
    assert (
        missed["seconds"] < 30
    )  # 2 s for the round, 2 s for the average, and what else is running
    south.signal(signal.SIGCONT)
    back = len(federation.lines("apart"))
    federation.wait_for_lines("apart", back + 3, driver)
    assert driver.ended() == 0, driver.said()
    said = federation.result("apart")
    assert said["missed"]["south"]["rounds"] >= 1
    assert "missed" not in federation.lines("apart")[-1]
    for each in (north, south):
        each.signal(signal.SIGTERM)
        assert each.ended() == 0, each.said()


def test_a_coordinator_that_was_killed_goes_on_where_it_was(federation: Federation) -> None:
    for name in NAMES:
        federation.join(name)
    federation.train_whole_and_killed(30, "--set", "chfl.rounds=30", "--set", "rulers=[]")

    def told(out: str) -> list[Any]:
        return [
            {key: value for key, value in line.items() if key != "seconds"}
            for line in federation.lines(out)
        ]

    assert told("stopped") == told("whole")
    assert federation.result("stopped")["parties"] == federation.result("whole")["parties"]


def test_members_with_certificates_sum_in_secret_what_they_sum_in_the_clear(
    dovetail: Any, tmp_path: Path
) -> None:
    names = (*NAMES, "west")
    settings = ("--set", "rulers=[]", "--set", "chfl.rounds=12")
    with written(dovetail, tmp_path, dict(zip(names, OWN, strict=True))).ending() as federation:
        for name in names:
            others = json.dumps([*names])
            path = federation.folder / f"{name}.toml"
            path.write_text(path.read_text() + f"secure = true\nmembers = {others}\n")
            federation.join(name)
        refused = federation.start("train", "network.toml", "--out", "clear", *settings)
        assert refused.ended() == 2
        assert "refuses to show its common column: its file says chfl.secure" in refused.said()

        # Its second half is of a coordinator that was killed: the rounds it repeats are the same.
        secret = (*settings, "--set", "chfl.secure=true")
        driver = federation.start("train", "network.toml", "--out", "apart", *secret)
        federation.wait_for_lines("apart", 5, driver)
        driver.signal(signal.SIGKILL)
        driver.ended()
        again = federation.start("train", "network.toml", "--out", "apart", *secret, "--resume")
        assert again.ended() == 0, again.said()
        assert len(federation.lines("apart")) == 12
        assert not any("skipped" in line for line in federation.lines("apart"))
        assert dovetail("train", "here.toml", "--out", "here", "-q", *settings).code == 0
        for name in names:
            kept = package.load(federation.kept_models(name)["chfl"]).network.state_dict()
            here = package.load(federation.folder / "here" / "models" / name).network.state_dict()
            for key, value in kept.items():
                assert torch.allclose(value, here[key], atol=1e-3)
            folder = federation.folder / f"{name}.site" / "sums" / "coordinator"
            assert [len(path.read_text().split("\n")) - 1 for path in folder.iterdir()] == [12]
