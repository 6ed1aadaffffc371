"""Owners as ``dovetail join`` runs them, and their coordinator, without a wire between them."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import same_secrets
import torch
from owner_files import HERE, NAMES, people, write_owners

import dovetail as package
from dovetail import data as dd
from dovetail import methods
from dovetail.alignment.stored import load_rows
from dovetail.errors import AlignmentError, ConfigError, PartyError
from dovetail.methods import fedoptimus
from dovetail.methods.fedoptimus.aligning import align_owners, relay_alignment
from dovetail.models.joined import join
from dovetail.models.owners import load_bottom
from dovetail.network import Engine, Message, decode, encode
from dovetail.network.control import Failed
from dovetail.network.engine import R, Replies
from dovetail.network.host import Host
from dovetail.network.ledger import LedgerFile, verify
from dovetail.node.driver import Coordinator
from dovetail.node.engines import StreamSection
from dovetail.node.joint_prediction import Asker
from dovetail.node.partyfile import open_site
from dovetail.node.runs import Runs
from dovetail.node.site_folder import Refusals
from dovetail.node.status_line import StatusLine
from dovetail.runs.runfile import load_run
from dovetail.runs.setup import Loaded, load_data, setup

SETTINGS = """
[fedoptimus]
epochs = 6
server = "average"
batch_size = 16
optimizer = "adam"
learning_rate = 0.01
weight_decay = 1e-4
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


class Sent(Engine):
    """Hands the bytes of each message to the party's host, one run's."""

    def __init__(self, hosts: Mapping[str, Host], run: str, numbers: Any, driver: str) -> None:
        super().__init__(driver)
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


def joined(folder: Path, names: Sequence[str], driver: str) -> dict[str, Host]:
    """What answers at each of these parties' sites."""
    hosts = {}
    for name in names:
        site, site_folder = open_site(folder / f"{name}.toml"), folder / f"{name}.site"
        site_folder.mkdir(exist_ok=True)
        teller = StatusLine(driver, quiet=True)
        refusals = Refusals(site_folder / "refusals.jsonl", teller.print)
        runs = Runs(site, site_folder, refusals, teller, torch.device("cpu"))
        ledger = LedgerFile(site_folder / "ledger.jsonl", name)
        hosts[name] = Host(name, runs.open, admit=site.policy.admit, ledger=ledger)
    return hosts


def left(hosts: Mapping[str, Host]) -> None:
    """They stop."""
    for host in hosts.values():
        assert host._recorder._ledger is not None
        host._recorder._ledger.close()


class Carrying(Coordinator):
    """A coordinator whose partners are in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site_folder = folder / "coordinator.site"
        self.site_folder.mkdir(exist_ok=True)
        self.alignment = ""
        self.printed: list[str] = []
        self.hosts = joined(folder, NAMES, "coordinator")
        self._numbers = itertools.count(1)

    def wait(self) -> None:
        pass

    def print(self, text: str) -> None:
        self.printed.append(text)

    def _engine(self, run: str, parties: Sequence[str] | None = None) -> Engine:
        return Sent(self.hosts, run, self._numbers, "coordinator")

    def close(self) -> None:
        left(self.hosts)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, SETTINGS)
    return tmp_path


def write_files(folder: Path, settings: str) -> None:
    write_owners(folder)
    (folder / "elsewhere.toml").write_text(ELSEWHERE + settings)
    (folder / "here.toml").write_text(HERE + settings)


def train(folder: Path, run_file: str, driver: Carrying | None = None) -> Any:
    """What a variant gives."""
    run = load_run(folder / run_file)
    if driver is None:
        loaded = load_data(run)
    else:
        data = methods.METHODS["fedoptimus"].load_driver(run, driver, where="run.toml").data
        driver.begin(0, "fresh")
        loaded = Loaded(data, None, connect=driver.connect)
    lines: list[Any] = []
    task = setup(run, 0, loaded)
    return task.train("fedoptimus", 0, lambda variant, total, line: lines.append(line)), lines


@pytest.mark.trained
@pytest.mark.slow
def test_owners_at_home_end_with_the_models_of_one_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same_secrets.as_in_one_process(monkeypatch.setattr)
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
        local_model = package.load(kept)
        assert local_model.about["label"] == "diagnosis"
        for key, value in model.network.state_dict().items():
            assert torch.equal(local_model.network.state_dict()[key], value)
    for name, bottom in here.bottoms.items():
        (kept,) = (folder / f"{name}.site" / "models").iterdir()
        for key, value in bottom.network.state_dict().items():
            assert torch.equal(load_bottom(kept).network.state_dict()[key], value)
    driver.close()
    ledger_lines = (folder / "lab.site" / "ledger.jsonl").read_text().splitlines()
    sent = {json.loads(line).get("message") for line in ledger_lines}
    assert {"relay.Carried", "selection.Ranked"} <= sent


@pytest.mark.slow
def test_an_alignment_is_made_once_and_again_when_a_table_changes(folder: Path) -> None:
    driver = Carrying(folder)
    assert relay_alignment(driver, where="run", print_line=driver.print) == (
        ("clinic", "lab"),
        ("north", "south"),
    )
    first = driver.alignment
    assert len(driver.printed) == 5  # one line, and one for each part of each label owner
    relay_alignment(driver, where="run", print_line=driver.print)
    assert (driver.alignment, len(driver.printed)) == (first, 5)
    driver.close()
    lines = (folder / "lab.csv").read_text().splitlines()
    (folder / "lab.csv").write_text("\n".join(lines[:-1]) + "\n")
    changed = Carrying(folder)
    relay_alignment(changed, where="run", print_line=changed.print)
    assert changed.alignment != first
    changed.close()


@pytest.mark.slow
def test_owners_without_a_common_id_align_by_match_keys(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each numbers its rows its own way; where a coordinator carries, and in one process."""
    same_secrets.as_in_one_process(monkeypatch.setattr)  # the same rows test
    patients = {}
    for name in NAMES:
        table = pl.read_csv(folder / f"{name}.csv")
        patients[name] = table["person"].to_list()
        table.with_row_index(f"{name}_number").write_csv(folder / f"{name}.csv")
        file = folder / f"{name}.toml"
        keys = f'id = "{name}_number"\nmatch = [["person"]]'
        file.write_text(file.read_text().replace('id = "person"', keys))
        assert "match" in file.read_text()
    driver = Carrying(folder)
    assert relay_alignment(driver, where="run", print_line=driver.print)[0] == ("clinic", "lab")
    driver.close()
    sites = {name: open_site(folder / f"{name}.toml") for name in NAMES}
    labellers = {name: sites[name] for name in ("north", "south")}
    here = align_owners(labellers, {name: sites[name] for name in ("clinic", "lab")})
    for owner in labellers:
        for part, rows in here[owner].items():
            shared = [[patients[name][row] for row in rows[name]] for name in rows]
            assert all(each == shared[0] for each in shared)
            kept = (
                folder / f"{owner}.site" / "aligned" / "coordinator" / f"{owner}.{part}.safetensors"
            )
            stored = load_rows(kept, owner, sites[owner].table.ids).rows_S
            assert len(stored) > 10
            assert {patients[owner][row] for row in stored} == set(shared[0])


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


@pytest.mark.slow
def test_every_owner_has_its_model_at_home_when_training_is_over(folder: Path) -> None:
    for name in ("north", "south"):
        text = (folder / f"{name}.toml").read_text()
        (folder / f"{name}.toml").write_text(text + "test_share = 0.0\n")
    driver = Carrying(folder)
    _, lines = train(folder, "elsewhere.toml", driver)
    driver.close()
    assert not any("accuracy" in line for line in lines)
    (chosen,) = lines[0]["participants"]
    run = "".join(driver._run[0])
    for name in ("north", "south", chosen):
        (kept,) = (folder / f"{name}.site" / "models").iterdir()
        file = "bottom.json" if name == chosen else "model.json"
        assert json.loads((kept / file).read_text())["run"] == f"{run}/fedoptimus/seed-0"
    (other,) = {"clinic", "lab"} - {chosen}
    assert not (folder / f"{other}.site" / "models").exists()  # the tops do not know it


# --- Predicting together -------------------------------------------------------------------------


class AskingHere(Asker):
    """A label owner whose data owners are in this process."""

    def __init__(self, folder: Path, name: str, hosts: Mapping[str, Host]) -> None:
        site = open_site(folder / f"{name}.toml")
        section = StreamSection(kind="stream", listen="127.0.0.1:1", partners=(*hosts,))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dovetail.node.joint_prediction.site_reaches", lambda *_, **__: None)
            super().__init__(site, kept_top(folder, name), section)
        self.hosts = hosts
        self._numbers = itertools.count(time.time_ns())

    def wait(self) -> None:
        pass

    def _engine(self, run: str, parties: Sequence[str] | None = None) -> Engine:
        assert parties is not None
        here = {name: self.hosts[name] for name in parties}
        return Sent(here, run, self._numbers, self.name)


def kept_top(folder: Path, name: str) -> package.models.Model:
    (kept,) = (folder / f"{name}.site" / "models").iterdir()
    return package.load(kept)


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Owners that have trained with all data owners; read only."""
    folder = tmp_path_factory.mktemp("trained")
    write_files(folder, SETTINGS.partition("selection")[0])
    driver = Carrying(folder)
    train(folder, "elsewhere.toml", driver)
    driver.close()
    return folder


@pytest.fixture
def trained(trained_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_once, tmp_path / "trained"))


def in_one_place(folder: Path, rows: np.ndarray, *owners: str) -> torch.Tensor:
    """What north's model says of these rows with these owners' networks beside it."""
    bottoms = []
    for name in owners:
        (kept,) = (folder / f"{name}.site" / "models").iterdir()
        bottoms.append(load_bottom(kept))
    whole = join(kept_top(folder, "north"), bottoms)
    pooled, _ = dd.load("breast-cancer")
    x = pooled.take(rows).x
    assert isinstance(x, dd.Table)
    return whole.outputs(
        {name: each.transform(x) for name, each in whole.inputs.items()}  # type: ignore[arg-type]
    )


def test_a_label_owner_predicts_new_samples_with_data_owners_at_their_sites(trained: Path) -> None:
    rows = np.random.default_rng(1).permutation(np.arange(300, 410))  # none of them its own
    hosts = joined(trained, ("clinic", "lab"), "north")
    answer = AskingHere(trained, "north", hosts).ask(people(rows))
    left(hosts)
    assert answer.missed == {}
    assert answer.answered["clinic"].tolist() == (rows < 400).tolist()
    assert answer.answered["lab"].tolist() == (rows < 320).tolist()
    outputs = kept_top(trained, "north").outputs(answer.mean())
    both, one = rows < 320, (rows >= 320) & (rows < 400)
    expected = in_one_place(trained, rows[both], "clinic", "lab")
    torch.testing.assert_close(outputs[torch.from_numpy(both)], expected)
    expected = in_one_place(trained, rows[one], "clinic")
    torch.testing.assert_close(outputs[torch.from_numpy(one)], expected)
    # Nothing of it is kept, and an alignment for training keeps its place.
    assert {path.name for path in (trained / "clinic.site" / "aligned").iterdir()} == {
        "coordinator"
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("lab.toml", ', "fedoptimus"', "", "refuses 'fedoptimus': its policy allows align"),
        ("lab.toml", "[policy]", "[policy]\nmin_ids = 60", "60"),
        ("lab.toml", "[policy]", "[policy]\nmax_rows = 40", "refuses 50 rows in one message"),
        ("lab.toml", "[policy]", '[policy]\ndrivers = ["south"]', "refuses the driver 'north'"),
        ("lab.csv", "worst area", "another", "keeps no network of the run"),
        ("lab.csv", "P-", "Q-", "has none of these samples"),
    ],
)
def test_a_data_owner_that_does_not_answer_is_left_out_and_says_why(
    trained: Path, file: str, old: str, new: str, words: str
) -> None:
    text = (trained / file).read_text()
    assert old in text
    (trained / file).write_text(text.replace(old, new))
    rows = np.arange(200, 250)
    hosts = joined(trained, ("lab", "clinic"), "north")
    answer = AskingHere(trained, "north", hosts).ask(people(rows))
    left(hosts)
    assert words in answer.missed["lab"]
    assert answer.missed.keys() == {"lab"}
    assert not answer.answered.get("lab", torch.zeros(1)).any()
    outputs = kept_top(trained, "north").outputs(answer.mean())
    torch.testing.assert_close(outputs, in_one_place(trained, rows, "clinic"))


def test_all_that_refuse_are_named_and_ids_are_named_once(trained: Path) -> None:
    for name in ("clinic", "lab"):
        text = (trained / f"{name}.toml").read_text()
        (trained / f"{name}.toml").write_text(text.replace(', "fedoptimus"', ""))
    hosts = joined(trained, ("lab", "clinic"), "north")
    answer = AskingHere(trained, "north", hosts).ask(people(np.arange(200, 250)))
    assert answer.missed.keys() == {"lab", "clinic"}
    left(hosts)
    with pytest.raises(AlignmentError, match="repeated"):
        AskingHere(trained, "north", hosts).ask(people(np.array([1, 1])))


def _begin() -> Message:
    settings = fedoptimus.Config().model_dump_json()
    return fedoptimus.messages.BeginData(settings, 0, ("north",), (1,), (1,))


def test_a_data_owner_without_a_shard_is_named(folder: Path) -> None:
    lines = (folder / "lab.csv").read_text().splitlines()
    (folder / "lab.csv").write_text("\n".join([lines[0], lines[1].replace("P-", "Q-")]) + "\n")
    driver = Carrying(folder)
    with pytest.raises(AlignmentError, match="data owner 'lab' has none of the 120 training"):
        relay_alignment(driver, where="run", print_line=driver.print)
    driver.close()


def test_a_party_that_only_aligns_is_no_owner(folder: Path) -> None:
    text = (folder / "lab.toml").read_text()
    (folder / "lab.toml").write_text(text.replace(', "fedoptimus"', ""))
    driver = Carrying(folder)
    with pytest.raises(PartyError, match=r"refuses 'relay': its policy allows no"):
        relay_alignment(driver, where="run", print_line=driver.print)
    driver.close()


def test_both_kinds_of_owner_are_needed(folder: Path) -> None:
    driver = Carrying(folder)
    driver.hosts = {name: driver.hosts[name] for name in ("clinic", "lab")}
    with pytest.raises(ConfigError, match="of clinic, lab no party's file names a label"):
        relay_alignment(driver, where="run", print_line=driver.print)


@pytest.mark.trained
@pytest.mark.slow
def test_owners_that_noise_what_leaves_write_its_epsilon_into_their_own_books(
    folder: Path,
) -> None:
    write_files(folder, SETTINGS.replace("selection =", "# selection ="))  # all take part
    expected = {
        "lab": "embeddings = { clip = 1.0, noise = 2.0, epsilon = 12.0 }",
        "north": "gradients = { clip = 0.01, noise = 2.0 }",
    }
    for name, line in expected.items():
        with (folder / f"{name}.toml").open("a") as file:
            file.write(line + "\n")
    driver = Carrying(folder)
    outcome, _ = train(folder, "elsewhere.toml", driver)
    driver.close()
    for scores in outcome.scores["fedoptimus"].values():
        assert scores["accuracy"] > 0.5
    kinds = {"lab": "fedoptimus.Embeddings", "north": "fedoptimus.Learned"}
    for name, kind in kinds.items():
        path = folder / f"{name}.site" / "ledger.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        spent = [line["epsilon"] for line in lines if line.get("message") == kind]
        assert len(spent) > 3
        assert spent == sorted(spent)
        assert spent[0] < spent[-1]
        assert all("epsilon" not in line for line in lines if line.get("message") != kind)
        lines_sent = [line for line in verify(path).lines() if "epsilon" in line]
        assert {line["message"] for line in lines_sent} == {kind}
        assert max(line["epsilon"] for line in lines_sent) == spent[-1]
        if name == "lab":
            assert spent[-1] <= 12.0  # its own budget, whatever the coordinator asks
    for name in ("clinic", "south"):  # they have set nothing
        assert "epsilon" not in (folder / f"{name}.site" / "ledger.jsonl").read_text()
