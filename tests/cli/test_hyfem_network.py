"""HyFEM with every party in a process of its own, by the commands that a user types."""

from __future__ import annotations

import json
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

pytestmark = pytest.mark.network

#: Columns in groups; no party has all.
GROUPS = {"size": ["* area", "* radius"], "looks": ["* texture"], "shape": ["* symmetry"]}
HELD = {"north": ("size", "looks"), "south": ("looks", "shape")}

HYFEM = """
[hyfem]
classes = ["benign", "malignant"]
rounds = 5
local_steps = 4
batch_size = 16
learning_rate = 0.1
[hyfem.extractors]
size = [4]
looks = [4]
shape = [3]
"""

NETWORK = """
method = "hyfem"
rulers = ["fedper"]
[engine]
kind = "stream"
listen = "127.0.0.1:{port}"
partners = ["north", "south"]
name = "server"
wait_s = 180
grace_s = 0.5
timeout_s = 120
"""

HERE = """
method = "hyfem"
rulers = ["fedper"]
parties = ["north.toml", "south.toml"]
"""

PARTY = """
[party]
name = "{name}"
table = "{name}.csv"
id = "row"
label = "diagnosis"
{blocks}
[policy]
algorithms = ["hyfem"]
drivers = ["server"]
[hyfem]
widths = [5]
classes = ["benign", "malignant"]
"""


@pytest.fixture
def federation(dovetail: Any, tmp_path: Path) -> Iterator[Federation]:
    pooled, _ = dd.load("breast-cancer")
    for place, (name, held) in enumerate(HELD.items()):
        part = pooled.take(np.arange(place, pooled.num_rows, 2))
        assert isinstance(part.x, dd.Table)
        columns = {
            column: part.x.column(column).values
            for block in held
            for column in part.x.select(GROUPS[block])
        }
        dd.write_table(
            tmp_path / f"{name}.csv", {"row": part.ids, "diagnosis": part.labels.values, **columns}
        )
        blocks = "".join(f"blocks.{block} = {json.dumps(GROUPS[block])}\n" for block in held)
        (tmp_path / f"{name}.toml").write_text(PARTY.format(name=name, blocks=blocks))
    port = free_port()
    (tmp_path / "network.toml").write_text(NETWORK.format(port=port) + HYFEM)
    (tmp_path / "here.toml").write_text(HERE + HYFEM)
    named = (*HELD, "server", "--driver", "server", "--host", "127.0.0.1")
    done = dovetail("certificates", *named, "-q")
    assert done.code == 0, done.err
    with Federation(tmp_path, port).ending() as made:
        yield made


def test_parties_on_machines_of_their_own_end_with_the_same_weights(
    federation: Federation, dovetail: Any
) -> None:
    joined = [federation.join(name) for name in HELD]
    driver = federation.start("train", "network.toml", "--out", "apart")
    assert driver.ended() == 0, driver.said()
    assert dovetail("train", "here.toml", "--out", "here", "-q").code == 0
    folders = {"server": federation.folder / "apart" / "models" / "server"}
    for name in HELD:
        kept = federation.kept_models(name)
        assert kept.keys() == {"hyfem", "fedper"}
        folders[name] = kept["hyfem"]
        ledger = (federation.folder / f"{name}.site" / "ledger.jsonl").read_text()
        assert "hyfem.Trained" in ledger
    for name, folder in folders.items():
        apart = package.load(folder)
        here = package.load(federation.folder / "here" / "models" / name)
        one, two = apart.network.state_dict(), here.network.state_dict()
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)
        assert {block: each.to_json() for block, each in apart.inputs.items()} == {
            block: each.to_json() for block, each in here.inputs.items()
        }
    for name in HELD:  # the server's model takes the blocks that a table has
        for folder in (folders[name], folders["server"]):
            done = dovetail("predict", folder, f"{name}.csv", "-q", "--out", "said.csv")
            assert done.code == 0, done.err
    for each in joined:
        each.wait_for("model .*: on its test rows accuracy")
        each.signal(signal.SIGTERM)
        assert each.ended() == 0, each.said()


def test_a_round_closes_at_its_deadline_with_who_answered(federation: Federation) -> None:
    north, south = (federation.join(name) for name in HELD)
    settings = ("--set", "hyfem.rounds=80", "--set", "rulers=[]", "--set", "hyfem.timeout_s=2")
    settings += ("--set", "min_participation=0")  # a slow machine may miss many rounds
    driver = federation.start("train", "network.toml", "--out", "apart", *settings)
    federation.wait_for_lines("apart", 3, driver)
    south.signal(signal.SIGSTOP)
    before = len(federation.lines("apart"))
    missed = federation.first_missed("apart", before, driver)
    assert missed["missed"] == {"south": 1}
    south.signal(signal.SIGCONT)
    assert driver.ended() == 0, driver.said()
    assert federation.result("apart")["missed"]["south"]["rounds"] >= 1
    assert "missed" not in federation.lines("apart")[-1]
    for each in (north, south):
        each.signal(signal.SIGTERM)
        assert each.ended() == 0, each.said()


def test_a_server_that_was_killed_goes_on_where_it_was(federation: Federation) -> None:
    for name in HELD:
        federation.join(name)
    federation.train_whole_and_killed(30, "--set", "hyfem.rounds=30", "--set", "rulers=[]")
    assert [line["loss"] for line in federation.lines("stopped")] == [
        line["loss"] for line in federation.lines("whole")
    ]
    one, two = (
        package.load(federation.folder / out / "models" / "server").network.state_dict()
        for out in ("stopped", "whole")
    )
    assert all(torch.equal(one[key], two[key]) for key in one)
