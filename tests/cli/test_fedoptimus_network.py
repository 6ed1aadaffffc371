"""FedOptimus with every owner in a process of its own, by the commands that a user types."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import PATIENCE_S, Federation, free_port
from owner_files import HERE, LABEL_OWNERS, NAMES, write_owners, write_table

import dovetail as package
from dovetail import data as dd
from dovetail.models.owners import load_bottom

pytestmark = pytest.mark.network

SETTINGS = """
[fedoptimus]
epochs = 4
batch_size = 16
optimizer = "adam"
learning_rate = 0.01
embedding = 8
top = [8]
"""

RUN = """
method = "fedoptimus"
evaluate_every = 0
[engine]
kind = "stream"
listen = "127.0.0.1:{port}"
partners = ["north", "south", "clinic", "lab"]
wait_s = 180
grace_s = 0.5
timeout_s = 120
"""


@pytest.fixture
def federation(dovetail: Any, tmp_path: Path) -> Iterator[Federation]:
    write_owners(tmp_path, policy='drivers = ["coordinator", "north"]')
    port = free_port()
    (tmp_path / "network.toml").write_text(RUN.format(port=port) + SETTINGS)
    (tmp_path / "here.toml").write_text(HERE + SETTINGS)
    drivers = ("--driver", "coordinator", "--driver", "north", "--host", "127.0.0.1")
    done = dovetail("certificates", *NAMES, "coordinator", *drivers, "-q")
    assert done.code == 0, done.err
    with Federation(tmp_path, port, ("--name", "coordinator")).ending() as made:
        yield made


def kept_model(federation: Federation, name: str) -> Path:
    """The only model that an owner saved at its home."""
    (folder,) = (federation.folder / f"{name}.site" / "models").iterdir()
    return folder


def test_owners_on_machines_of_their_own_end_with_the_same_models(
    federation: Federation, dovetail: Any
) -> None:
    joined = [federation.join(name) for name in NAMES]
    settings = ("--set", "fedoptimus.selection={share=0.5, rows=40}")
    driver = federation.start("train", "network.toml", "--out", "apart", *settings)
    assert driver.ended() == 0, driver.said()
    assert "train samples of north are at all data owners" in driver.said()
    done = dovetail("train", "here.toml", "--out", "here", "-q", *settings)
    assert done.code == 0, done.err
    here = federation.folder / "here" / "models"
    apart, together = federation.result("apart"), federation.result("here")
    for name in LABEL_OWNERS:
        kept = kept_model(federation, name)
        own = package.load(kept).network.state_dict()
        for key, value in package.load(here / name).network.state_dict().items():
            assert torch.equal(own[key], value)
        assert apart["parties"][name]["accuracy"] == pytest.approx(
            together["parties"][name]["accuracy"]
        )
    (chosen,) = {path.parent.name for path in here.glob("*/bottom.json")}
    bottom = kept_model(federation, chosen)
    own = load_bottom(bottom).network.state_dict()
    for key, value in load_bottom(here / chosen).network.state_dict().items():
        assert torch.equal(own[key], value)
    # Brought to one place, a label owner's model and a data owner's predict together.
    shutil.copytree(bottom, federation.folder / "brought" / chosen)
    shutil.copytree(kept_model(federation, "north"), federation.folder / "brought" / "north")
    done = dovetail("predict", "brought/north", f"{chosen}.csv", "-q", "--json")
    assert json.loads(done.out)["answered"] == [chosen]
    for name, sent in (("north", "fedoptimus.Learned"), (chosen, "fedoptimus.Embeddings")):
        assert sent in (federation.folder / f"{name}.site" / "ledger.jsonl").read_text()
    # What is aligned is not aligned again.
    again = federation.start("train", "network.toml", "--out", "again", *settings)
    assert again.ended() == 0, again.said()
    assert "samples of north" not in again.said()
    assert federation.result("again")["parties"] == apart["parties"]
    for each in joined:
        each.signal(signal.SIGTERM)
        assert each.ended() == 0, each.said()


def test_an_owner_that_does_not_answer_is_left_out_and_asked_again(federation: Federation) -> None:
    joined = {name: federation.join(name) for name in NAMES}
    changed = ("fedoptimus.rounds=80", "fedoptimus.timeout_s=2", "checkpoint_every=0")
    settings = [part for each in changed for part in ("--set", each)]
    driver = federation.start("train", "network.toml", "--out", "apart", *settings)
    federation.wait_for_lines("apart", 3, driver)
    joined["lab"].signal(signal.SIGSTOP)
    before = len(federation.lines("apart"))
    missed = federation.first_missed("apart", before, driver)
    assert missed["missed"].keys() == {"lab"}
    joined["lab"].signal(signal.SIGCONT)
    deadline = time.monotonic() + PATIENCE_S
    while "missed" in federation.lines("apart")[-1]:
        assert time.monotonic() < deadline, driver.said()
        time.sleep(0.02)
    driver.signal(signal.SIGKILL)


def test_a_coordinator_that_was_killed_goes_on_where_it_was(federation: Federation) -> None:
    for name in NAMES:
        federation.join(name)
    federation.train_whole_and_killed(40, "--set", "fedoptimus.rounds=40")

    def told(out: str) -> list[Any]:
        changing = {"seconds", "bytes"}  # restoring takes messages, too
        return [
            {key: value for key, value in line.items() if key not in changing}
            for line in federation.lines(out)
        ]

    assert told("stopped") == told("whole")
    assert federation.result("stopped")["parties"] == federation.result("whole")["parties"]


def test_a_label_owner_predicts_with_data_owners_on_machines_of_their_own(
    federation: Federation, dovetail: Any
) -> None:
    joined = [federation.join(name) for name in NAMES]
    driver = federation.start("train", "network.toml", "--out", "out")
    assert driver.ended() == 0, driver.said()
    for each in joined:
        each.signal(signal.SIGTERM)
        assert each.ended() == 0, each.said()
    rows = np.random.default_rng(1).permutation(np.arange(300, 410))  # none of them north's own
    write_table(federation.folder / "new.csv", rows, label=True)
    federation.joining = ("--name", "north")
    clinic, lab = federation.join("clinic"), federation.join("lab")
    listen = ("--listen", f"127.0.0.1:{federation.port}", "--partners", "clinic,lab")
    asked = ("predict", "north.site", "new.csv", "--party", "north.toml", *listen)

    def predicted(*options: str) -> tuple[Any, dict[str, list[Any]]]:
        done = federation.start(*asked, "--json", *options)
        assert done.ended() == 0, done.said()
        (line,) = [each for each in done.said().splitlines() if each.startswith("{")]
        said = json.loads(line)
        columns = said["columns"]
        return said, {each[0]: list(each[1:]) for each in zip(*columns.values(), strict=True)}

    # The same with all networks in one place.
    for name in ("north", "clinic", "lab"):
        shutil.copytree(kept_model(federation, name), federation.folder / "brought" / name)

    def in_one_place(rows: np.ndarray, *globs: str) -> dict[str, list[Any]]:
        write_table(federation.folder / "whole.csv", rows, *globs)
        done = dovetail("predict", "brought/north", "whole.csv", "--id", "person", "--json")
        assert done.code == 0, done.err
        columns = json.loads(done.out)["columns"]
        return {each[0]: list(each[1:]) for each in zip(*columns.values(), strict=True)}

    def assert_same(ours: dict[str, list[Any]], theirs: dict[str, list[Any]]) -> None:
        for person, (label, *probabilities, answered) in theirs.items():
            assert ours[person][0] == label
            assert ours[person][1:-1] == pytest.approx(probabilities, abs=2e-6)
            assert ours[person][-1] == answered

    said, by_person = predicted("--wait", str(PATIENCE_S))
    assert (said["answered"], said["missing"], said["not_predicted"]) == (["clinic", "lab"], [], 10)
    assert said["scored_rows"] == len(by_person) == 100
    assert_same(by_person, in_one_place(np.arange(300, 320), "mean *", "worst *"))
    assert_same(by_person, in_one_place(np.arange(320, 400), "mean *"))
    # One that stalls, and then is gone.
    alone = in_one_place(np.arange(300, 400), "mean *")
    lab.signal(signal.SIGSTOP)
    said, by_person = predicted("--wait", "10", "--timeout", "3")
    assert (said["answered"], said["missing"]) == (["clinic"], ["lab"])
    assert_same(by_person, alone)
    lab.signal(signal.SIGKILL)
    lab.ended()
    done = federation.start(*asked, "--wait", "10", "--out", "said.csv")
    assert done.ended() == 0, done.said()
    assert "with the data owners clinic (100 of 110 rows); left out of the mean: lab" in done.said()
    assert "10 of 110 rows are not predicted" in done.said()
    assert set(dd.read_table(federation.folder / "said.csv").column("answered").values) == {
        "clinic"
    }
    clinic.signal(signal.SIGTERM)
    assert clinic.ended() == 0, clinic.said()
    for name, sent in (("north", "predicting.Recall"), ("clinic", "fedoptimus.Embeddings")):
        lines = (federation.folder / f"{name}.site" / "ledger.jsonl").read_text().splitlines()
        to = {line["to"] for line in map(json.loads, lines) if line.get("message") == sent}
        assert to == ({"clinic", "lab"} if name == "north" else {"coordinator", "north"})
    assert dovetail("ledger", "clinic.site/ledger.jsonl").code == 0
