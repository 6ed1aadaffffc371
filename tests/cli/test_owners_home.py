"""Owners as ``dovetail join`` runs them, and their coordinator, without a wire between them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dovetail as package
from dovetail import data as dd
from dovetail.cli import methods
from dovetail.cli.driver import Coordinator
from dovetail.cli.home import Refusals, Runs
from dovetail.cli.methods.owners import relay_alignment
from dovetail.cli.partyfile import open_site
from dovetail.cli.runfile import load_run
from dovetail.cli.setup import Loaded, load_data, setup
from dovetail.cli.teller import Teller
from dovetail.errors import AlignmentError, ConfigError, PartyError
from dovetail.models.owners import load_bottom
from dovetail.network import Engine, Message, decode, encode
from dovetail.network.control import Failed
from dovetail.network.engine import R, Replies
from dovetail.network.host import Host
from dovetail.network.ledger import LedgerFile

PARTIES = ("north", "south", "clinic", "lab")

#: Party -> rows of the breast cancer set, in any order, and columns; label owners share no row.
HELD = {
    "north": (np.arange(0, 150), ()),
    "south": (np.arange(150, 330), ()),
    "clinic": (np.arange(10, 400), ("mean *",)),
    "lab": (np.arange(0, 320), ("worst *",)),
}

PARTY = """
[party]
name = "{name}"
table = "{name}.csv"
id = "person"
{label}
[policy]
algorithms = ["align", "fedoptimus"]
[fedoptimus]
{own}
"""

SETTINGS = """
[fedoptimus]
epochs = 6
server = "average"
batch_size = 16
optimizer = "adam"
learning_rate = 0.01
embedding = 8
top = [8]
selection = { share = 0.5, rows = 30 }
"""

ELSEWHERE = """
method = "fedoptimus"
evaluate_every = 0
[engine]
kind = "stream"
listen = "127.0.0.1:1"
partners = ["north", "south", "clinic", "lab"]
"""

HERE = """
method = "fedoptimus"
evaluate_every = 0
parties = ["north.toml", "south.toml", "clinic.toml", "lab.toml"]
"""


class Sent(Engine):
    """Hands the bytes of each message to the party's host, one run's."""

    def __init__(self, hosts: Mapping[str, Host], run: str, numbers: Any) -> None:
        super().__init__("coordinator")
        self._hosts, self._run, self._numbers = hosts, run, numbers

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(self._hosts)

    def send(
        self, requests: Mapping[str, Message], reply: type[R], *, timeout_s: float | None = None
    ) -> Any:
        answered: dict[str, R] = {}
        failures = {}
        for name, request in requests.items():
            self.ledger.record(self.driver, name, request)
            data = encode(request, run=self._run, sequence=next(self._numbers))
            answer = decode(self._hosts[name].handle(data, self.driver), (reply, Failed))
            if isinstance(answer, Failed):
                failures[name] = PartyError(name, answer.cause)
            else:
                self.ledger.record(name, self.driver, answer)
                answered[name] = answer  # type: ignore[assignment]
        came: Replies[R] = Replies(answered, failures)

        class Answered:
            def replies(self) -> Replies[R]:
                return came

        return Answered()


class Carrying(Coordinator):
    """A coordinator whose partners are in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "coordinator.site"
        self.home.mkdir(exist_ok=True)
        self.alignment = ""
        self.said: list[str] = []
        self.hosts = {}
        self._numbers = itertools.count(1)
        for name in PARTIES:
            site, home = open_site(folder / f"{name}.toml"), folder / f"{name}.site"
            home.mkdir(exist_ok=True)
            refusals = Refusals(home / "refusals.jsonl", self.say)
            teller = Teller("coordinator", quiet=True)
            runs = Runs(site, home, refusals, teller, torch.device("cpu"))
            ledger = LedgerFile(home / "ledger.jsonl", name)
            self.hosts[name] = Host(name, runs.open, admit=site.policy.admit, ledger=ledger)

    def wait(self) -> None:
        pass

    def say(self, text: str) -> None:
        self.said.append(text)

    def _engine(self, run: str) -> Engine:
        return Sent(self.hosts, run, self._numbers)

    def close(self) -> None:
        for host in self.hosts.values():
            assert host._ledger is not None
            host._ledger.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pooled, _ = dd.load("breast-cancer")
    assert isinstance(pooled.x, dd.Table)
    for place, (name, (rows, globs)) in enumerate(HELD.items()):
        rows = np.random.default_rng(place).permutation(rows)
        names = pooled.x.select(list(globs)) if globs else []
        columns = {each: pooled.x.column(each).values[rows] for each in names}
        ids = np.array([f"P-{row:03d}" for row in rows], dtype=object)
        if not globs:
            columns["diagnosis"] = pooled.labels.values[rows]
        dd.write_table(tmp_path / f"{name}.csv", {"person": ids, **columns})
        label = "" if globs else 'label = "diagnosis"'
        own = "bottom = [8]" if globs else ""
        (tmp_path / f"{name}.toml").write_text(PARTY.format(name=name, label=label, own=own))
    (tmp_path / "elsewhere.toml").write_text(ELSEWHERE + SETTINGS)
    (tmp_path / "here.toml").write_text(HERE + SETTINGS)
    return tmp_path


def train(folder: Path, run_file: str, driver: Carrying | None = None) -> Any:
    """What a stage gives."""
    run = load_run(folder / run_file)
    if driver is None:
        loaded = load_data(run)
    else:
        data, *_ = methods.fedoptimus.load_driver(run, driver, where="run.toml")
        driver.begin(0, "fresh")
        loaded = Loaded(data, None, connect=driver.connect)
    lines: list[Any] = []
    task = setup(run, 0, loaded)
    return task.train("fedoptimus", 0, lambda stage, total, line: lines.append(line)), lines


def test_owners_at_home_end_with_the_models_of_one_process(folder: Path) -> None:
    driver = Carrying(folder)
    apart, lines = train(folder, "elsewhere.toml", driver)
    here, lines_here = train(folder, "here.toml")
    for scores in (apart.scores["fedoptimus"], here.scores["fedoptimus"]):
        assert scores["north"]["accuracy"] > 0.7
    assert [line["loss"] for line in lines] == [line["loss"] for line in lines_here]
    assert lines[0]["participants"] == lines_here[0]["participants"]
    assert lines[0]["scores"] == lines_here[0]["scores"]
    for name, model in here.models.items():
        assert apart.scores["fedoptimus"][name]["accuracy"] == pytest.approx(
            here.scores["fedoptimus"][name]["accuracy"]
        )
        (kept,) = (folder / f"{name}.site" / "models").iterdir()
        own = package.load(kept)
        assert own.about["label"] == "diagnosis"
        for key, value in model.network.state_dict().items():
            assert torch.equal(own.network.state_dict()[key], value)
    for name, bottom in here.bottoms.items():
        (kept,) = (folder / f"{name}.site" / "models").iterdir()
        for key, value in bottom.network.state_dict().items():
            assert torch.equal(load_bottom(kept).network.state_dict()[key], value)
    driver.close()
    told = (folder / "lab.site" / "ledger.jsonl").read_text().splitlines()
    sent = {json.loads(line).get("message") for line in told}
    assert {"relay.Carried", "selection.Ranked"} <= sent


def test_an_alignment_is_made_once_and_again_when_a_table_changes(folder: Path) -> None:
    driver = Carrying(folder)
    assert relay_alignment(driver, where="run", say=driver.say) == (
        ("clinic", "lab"),
        ("north", "south"),
    )
    first = driver.alignment
    assert len(driver.said) == 5  # one line, and one for each part of each label owner
    relay_alignment(driver, where="run", say=driver.say)
    assert (driver.alignment, len(driver.said)) == (first, 5)
    driver.close()
    lines = (folder / "lab.csv").read_text().splitlines()
    (folder / "lab.csv").write_text("\n".join(lines[:-1]) + "\n")
    changed = Carrying(folder)
    relay_alignment(changed, where="run", say=changed.say)
    assert changed.alignment != first
    changed.close()


def test_a_run_on_another_alignment_does_not_go_on(folder: Path) -> None:
    driver = Carrying(folder)
    driver.alignment = "new"
    with pytest.raises(AlignmentError, match="began on alignment 'old'"):
        driver.begin(0, "old/run")
    assert driver.begin(0, "new/run") == driver.begin(0, "run") == "new/run"
    engine = driver.connect("fedoptimus")
    with pytest.raises(PartyError, match="keeps no rows of alignment 'new'"):
        engine.ask({"lab": _begin()}, Message).or_raise()
    driver.close()


def _begin() -> Message:
    from dovetail.algorithms import fedoptimus

    settings = fedoptimus.Config().model_dump_json()
    return fedoptimus.BeginData(settings, 0, ("north",), (1,), (1,))


def test_a_data_owner_without_a_shard_is_named(folder: Path) -> None:
    lines = (folder / "lab.csv").read_text().splitlines()
    (folder / "lab.csv").write_text("\n".join([lines[0], lines[1].replace("P-", "Q-")]) + "\n")
    driver = Carrying(folder)
    with pytest.raises(AlignmentError, match="data owner 'lab' has none of the 120 training"):
        relay_alignment(driver, where="run", say=driver.say)
    driver.close()


def test_a_party_that_only_aligns_is_no_owner(folder: Path) -> None:
    text = (folder / "lab.toml").read_text()
    (folder / "lab.toml").write_text(text.replace(', "fedoptimus"', ""))
    driver = Carrying(folder)
    with pytest.raises(PartyError, match=r"refuses 'relay': its policy allows no"):
        relay_alignment(driver, where="run", say=driver.say)
    driver.close()


def test_both_kinds_of_owner_are_needed(folder: Path) -> None:
    driver = Carrying(folder)
    driver.hosts = {name: driver.hosts[name] for name in ("clinic", "lab")}
    with pytest.raises(ConfigError, match="of clinic, lab no party's file names a label"):
        relay_alignment(driver, where="run", say=driver.say)
