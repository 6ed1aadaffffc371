"""Methods that a coordinator drives, every party a process of its own, by a user's commands.

One table: each method ends with the bits that it has in one process, closes a round at its
deadline, and goes on where it was killed.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import PATIENCE_S, Federation, Process, free_port
from member_files import MEMBERS, SETTINGS, assert_equal, looped, state_of, write_members
from owner_files import LABEL_OWNERS, NAMES, write_owners, write_table

from dovetail import data as dd
from dovetail import load
from dovetail.network.heads import compare
from dovetail.network.quota import Quota

pytestmark = pytest.mark.network

RUN = """
method = "{method}"
baselines = {baselines}
[engine]
kind = "stream"
listen = "127.0.0.1:{port}"
partners = {names}
name = "{driver}"
wait_s = 180
grace_s = 0.5
timeout_s = 120
"""

HERE = """
method = "{method}"
baselines = {baselines}
parties = {files}
"""


@dataclass(frozen=True)
class Case:
    """A method in the table.

    Attributes:
        names: its parties; the last is the one that stalls.
        driver: the coordinator's name.
        baselines: trained beside it.
        long: rounds of a run that is killed in its sixth.
        changing: what a line of a round says anew when it is repeated.
        sent: party -> a message of this method that its ledger has.
        settings: of the run that is compared bit for bit.
    """

    method: str
    names: tuple[str, ...]
    driver: str
    baselines: tuple[str, ...]
    long: int
    changing: frozenset[str]
    sent: dict[str, str]
    settings: tuple[str, ...] = ()

    def written(self, dovetail: Any, folder: Path) -> Federation:
        """The parties' files, certificates, and the run files on a network and in one place."""
        policy = f'drivers = ["{self.driver}", "north"]'
        if self.method == "fedoptimus":
            write_owners(folder, policy=policy)
        else:
            write_members(folder, self.method, self.names, policy=policy)
        port, names = free_port(), json.dumps([*self.names])
        baselines = json.dumps([*self.baselines])
        run = RUN.format(
            method=self.method, baselines=baselines, port=port, names=names, driver=self.driver
        )
        files = json.dumps([f"{name}.toml" for name in self.names])
        here = HERE.format(method=self.method, baselines=baselines, files=files)
        (folder / "network.toml").write_text(run + SETTINGS[self.method])
        (folder / "here.toml").write_text(here + SETTINGS[self.method])
        drivers = ("--driver", self.driver, "--driver", "north", "--host", "127.0.0.1")
        done = dovetail("certificates", *self.names, self.driver, *drivers, "-q")
        assert done.code == 0, done.err
        return Federation(folder, port, ("--name", self.driver))


CHFL = Case(
    "chfl",
    MEMBERS[:2],
    "coordinator",
    ("common",),
    9,
    frozenset({"seconds"}),
    dict.fromkeys(MEMBERS[:2], "chfl.Trained"),
)
HYFEM = Case(
    "hyfem",
    MEMBERS[:2],
    "server",
    ("fedper",),
    9,
    frozenset({"seconds"}),
    dict.fromkeys(MEMBERS[:2], "hyfem.Trained"),
)
FEDOPTIMUS = Case(
    "fedoptimus",
    NAMES,
    "coordinator",
    (),
    9,
    frozenset({"seconds", "bytes"}),  # restoring takes messages, too
    dict.fromkeys(LABEL_OWNERS, "fedoptimus.Learned"),
    ("--set", "fedoptimus.selection={share=0.5, rows=40}"),
)


@pytest.fixture
def federation(request: Any, dovetail: Any, tmp_path: Path) -> Iterator[Federation]:
    with request.param.written(dovetail, tmp_path).ending() as made:
        yield made


def every_method(test: Callable[..., None]) -> Callable[..., None]:
    """A column of the table."""
    cases = [(case, case) for case in (CHFL, HYFEM, FEDOPTIMUS)]
    marked = pytest.mark.parametrize(
        ("federation", "case"), cases, indirect=["federation"], ids=lambda case: case.method
    )
    return marked(test)


def stop_all(joined: list[Process]) -> None:
    for each in joined:
        each.signal(signal.SIGTERM)
        assert each.ended() == 0, each.printed()


def kept_model(federation: Federation, name: str) -> Path:
    """The only model that an owner saved at its site."""
    (folder,) = (federation.folder / f"{name}.site" / "models").iterdir()
    return folder


# --- The table ------------------------------------------------------------------------------------


@every_method
def test_parties_on_machines_of_their_own_end_with_the_same_models(
    federation: Federation, case: Case, dovetail: Any
) -> None:
    joined = [federation.join(name) for name in case.names]
    driver = federation.start("train", "network.toml", "--out", "apart", *case.settings)
    assert driver.ended() == 0, driver.printed()
    done = dovetail("train", "here.toml", "--out", "here", "-q", *case.settings)
    assert done.code == 0, done.err
    for name, message in case.sent.items():
        assert message in (federation.folder / f"{name}.site" / "ledger.jsonl").read_text()
    if case is not FEDOPTIMUS:
        for each in joined:
            each.wait_for("model .*: on its test rows accuracy")
    AFTER[case.method](federation, dovetail, driver)
    stop_all(joined)


@every_method
def test_a_round_closes_at_its_deadline_with_who_answered(
    federation: Federation, case: Case
) -> None:
    joined = [federation.join(name) for name in case.names]
    rounds = 50 if case is FEDOPTIMUS else 80  # a round of FedOptimus has many exchanges
    changed = (f"{case.method}.rounds={rounds}", f"{case.method}.timeout_s=2", "checkpoint_every=0")
    changed += ("baselines=[]", "min_participation=0")  # a slow machine may miss many rounds
    settings = [part for each in changed for part in ("--set", each)]
    driver = federation.start("train", "network.toml", "--out", "apart", *settings)
    federation.wait_for_lines("apart", 3, driver)
    joined[-1].signal(signal.SIGSTOP)
    before = len(federation.lines("apart"))
    missed = federation.first_missed("apart", before, driver)
    stalled = case.names[-1]
    assert missed["missed"].keys() == {stalled}
    if case is not FEDOPTIMUS:  # whose round has as many steps as batches
        assert missed["missed"] == {stalled: 1}
        assert missed["seconds"] < 30  # 2 s for each exchange, and what else is running
    joined[-1].signal(signal.SIGCONT)
    assert driver.ended() == 0, driver.printed()
    assert stalled in federation.result("apart")["missed"]
    if case is not FEDOPTIMUS:
        assert federation.result("apart")["missed"][stalled]["rounds"] >= 1
    assert "missed" not in federation.lines("apart")[-1]
    stop_all(joined)


@every_method
def test_a_coordinator_that_was_killed_goes_on_where_it_was(
    federation: Federation, case: Case
) -> None:
    for name in case.names:
        federation.join(name)
    settings = ("--set", f"{case.method}.rounds={case.long}", "--set", "baselines=[]")
    federation.train_whole_and_killed(case.long, *settings)
    whole, stopped = (
        [
            {key: value for key, value in line.items() if key not in case.changing}
            for line in federation.lines(out)
        ]
        for out in ("whole", "stopped")
    )
    assert stopped == whole
    assert federation.result("stopped")["parties"] == federation.result("whole")["parties"]
    for folder in (federation.folder / "whole" / "models").glob("*"):  # HyFEM's server has one
        assert_equal(
            state_of(folder), state_of(federation.folder / "stopped" / "models" / folder.name)
        )


#: Method -> the answer that is NaN, and who gives it.
LIES = {
    "chfl": ("chfl.Trained", "south"),
    "hyfem": ("hyfem.Trained", "south"),
    "fedoptimus": ("fedoptimus.Embeddings", "lab"),
}


@every_method
def test_a_party_whose_answers_are_refused_reads_why_in_its_own_terminal(
    federation: Federation, case: Case
) -> None:
    kind, liar = LIES[case.method]
    others = [federation.join(name) for name in case.names if name != liar]
    lying = federation.join_lying(liar, kind)
    settings = ("--set", "baselines=[]", "--set", "min_participation=0")
    driver = federation.start("train", "network.toml", "--out", "apart", *settings)
    assert driver.ended() == 0, driver.printed()
    assert f"party {liar!r} is left out of round 1: {kind}" in driver.printed()
    where = re.escape(f"{case.driver!r} leaves this party out of round 1: {kind}")
    lying.wait_for(rf"run \S+: {where}\b.* is not finite")
    stop_all([*others, lying])
    assert lying.printed().count("leaves this party out") == 1  # not a line a round
    assert not any("leaves this party out" in each.printed() for each in others)
    ledgers = [federation.folder / f"{name}.site" for name in (case.driver, liar)]
    first, second, heads = compare(*ledgers)
    assert {first.party, second.party} == {case.driver, liar}
    assert not any(each.why for each in heads)


# --- What else is the same ------------------------------------------------------------------------


def after_chfl(federation: Federation, dovetail: Any, driver: Process) -> None:
    looped_states = looped(federation.folder / "here.toml")
    for name in CHFL.names:
        kept = federation.kept_models(name)
        assert kept.keys() == {"chfl", "common"}
        at_site = state_of(kept["chfl"])
        stacked = state_of(federation.folder / "here" / "models" / name)
        assert_equal(at_site, looped_states[name])
        for key, value in at_site.items():
            assert torch.allclose(value, stacked[key], atol=1e-4)
        done = dovetail("predict", kept["chfl"], f"{name}.csv", "-q", "--out", "said.csv")
        assert done.code == 0, done.err
    outcome, lines = federation.result("apart"), federation.lines("apart")
    assert outcome["parties"].keys() == set(CHFL.names)
    best = lines[3]["best"]
    assert outcome["mean"]["validation"] == lines[best - 1]["validation"]


def after_hyfem(federation: Federation, dovetail: Any, driver: Process) -> None:
    server = federation.folder / "apart" / "models" / "server"
    folders = {"server": server}
    for name in HYFEM.names:
        kept = federation.kept_models(name)
        assert kept.keys() == {"hyfem", "fedper"}
        folders[name] = kept["hyfem"]
    for name, folder in folders.items():
        here = federation.folder / "here" / "models" / name
        assert_equal(state_of(folder), state_of(here))
        inputs = [
            {block: each.to_json() for block, each in load(run_folder).inputs.items()}
            for run_folder in (folder, here)
        ]
        assert inputs[0] == inputs[1]
    for name in HYFEM.names:  # the server's model takes the blocks that a table has
        for folder in (folders[name], server):
            done = dovetail("predict", folder, f"{name}.csv", "-q", "--out", "said.csv")
            assert done.code == 0, done.err


def after_fedoptimus(federation: Federation, dovetail: Any, driver: Process) -> None:
    assert "train samples of north are at all data owners" in driver.printed()
    here = federation.folder / "here" / "models"
    apart, together = federation.result("apart"), federation.result("here")
    for name in LABEL_OWNERS:
        assert_equal(state_of(kept_model(federation, name)), state_of(here / name))
        assert apart["parties"][name]["accuracy"] == pytest.approx(
            together["parties"][name]["accuracy"]
        )
    (chosen,) = {path.parent.name for path in here.glob("*/bottom.json")}
    bottom = kept_model(federation, chosen)
    assert_equal(state_of(bottom), state_of(here / chosen))
    ledger = (federation.folder / f"{chosen}.site" / "ledger.jsonl").read_text()
    assert "fedoptimus.Embeddings" in ledger
    # Brought to one place, a label owner's model and a data owner's predict together.
    shutil.copytree(bottom, federation.folder / "brought" / chosen)
    shutil.copytree(kept_model(federation, "north"), federation.folder / "brought" / "north")
    done = dovetail("predict", "brought/north", f"{chosen}.csv", "-q", "--json")
    assert json.loads(done.out)["answered"] == [chosen]
    # What is aligned is not aligned again.
    again = federation.start("train", "network.toml", "--out", "again", *FEDOPTIMUS.settings)
    assert again.ended() == 0, again.printed()
    assert "samples of north" not in again.printed()
    assert federation.result("again")["parties"] == apart["parties"]


AFTER = {"chfl": after_chfl, "hyfem": after_hyfem, "fedoptimus": after_fedoptimus}


# --- Of one method only ---------------------------------------------------------------------------


def test_members_with_certificates_sum_in_secret_what_they_sum_in_the_clear(
    dovetail: Any, tmp_path: Path
) -> None:
    names, case = MEMBERS, replace(CHFL, names=MEMBERS)
    settings = ("--set", "baselines=[]", "--set", "chfl.rounds=12")
    plain: dict[Path, str] = {}
    with case.written(dovetail, tmp_path).ending() as federation:
        for name in names:
            others = json.dumps([*names])
            path = federation.folder / f"{name}.toml"
            plain[path] = path.read_text()
            path.write_text(plain[path] + f"secure = true\nmembers = {others}\n")
            federation.join(name)
        refused = federation.start("train", "network.toml", "--out", "clear", *settings)
        assert refused.ended() == 2
        assert "refuses to show its common column: its file says chfl.secure" in refused.printed()

        # Its second half is of a coordinator that was killed: the rounds it repeats are the same.
        secret = (*settings, "--set", "chfl.secure=true")
        driver = federation.start("train", "network.toml", "--out", "apart", *secret)
        federation.wait_for_lines("apart", 5, driver)
        driver.signal(signal.SIGKILL)
        driver.ended()
        again = federation.start("train", "network.toml", "--out", "apart", *secret, "--resume")
        assert again.ended() == 0, again.printed()
        assert len(federation.lines("apart")) == 12
        assert not any("skipped" in line for line in federation.lines("apart"))
        for path, text in plain.items():  # the file holds in one process, too
            path.write_text(text)
        assert dovetail("train", "here.toml", "--out", "here", "-q", *settings).code == 0
        for name in names:
            kept = state_of(federation.kept_models(name)["chfl"])
            here = state_of(federation.folder / "here" / "models" / name)
            for key, value in kept.items():
                assert torch.allclose(value, here[key], atol=1e-3)
            quota = Quota(federation.folder / f"{name}.site")
            assert quota.read("SELECT count(*) FROM sums GROUP BY driver, run") == [(12,)]


def assert_lost(missed: list[Any], last: Any, name: str) -> None:
    """Rounds go on without it to the end; on a busy machine another may be late for one, too."""
    assert any(line["missed"].keys() == {name} for line in missed)
    assert name in last["missed"]


def test_a_member_killed_in_mid_round_costs_its_own_part_of_a_secret_sum(
    dovetail: Any, tmp_path: Path
) -> None:
    names = (*MEMBERS, "east")
    case = replace(CHFL, names=names)
    changed = ("chfl.secure=true", "chfl.quorum=0.5", "chfl.rounds=10", "chfl.timeout_s=3")
    changed += ("baselines=[]", "min_participation=0")
    settings = [part for each in changed for part in ("--set", each)]
    with case.written(dovetail, tmp_path).ending() as federation:
        joined = {}
        for name in names:
            path = federation.folder / f"{name}.toml"
            path.write_text(path.read_text() + "secure = true\nquorum = 0.5\n")
            joined[name] = federation.join(name)
        driver = federation.start_held(
            "train", "network.toml", "--out", "out", *settings, allowed=4
        )
        federation.wait_for_lines("out", 3, driver)
        joined["east"].signal(signal.SIGKILL)  # in the fourth round, mostly
        federation.allow(10)
        assert driver.ended() == 0, driver.printed()
        lines = federation.lines("out")
        assert len(lines) == 10
        assert not any("skipped" in line for line in lines)  # each round has its average
        missed = [line for line in lines if "missed" in line]
        assert missed
        assert_lost(missed, lines[-1], "east")


def test_a_data_owner_killed_in_mid_run_costs_its_own_part_of_secret_sums(
    dovetail: Any, tmp_path: Path
) -> None:
    case = replace(FEDOPTIMUS, names=(*NAMES, "shop", "east"))
    changed = ("fedoptimus.secure=true", "fedoptimus.quorum=0.5", "fedoptimus.rounds=10")
    changed += ("fedoptimus.timeout_s=3", "baselines=[]", "min_participation=0")
    settings = [part for each in changed for part in ("--set", each)]
    with case.written(dovetail, tmp_path).ending() as federation:
        rows = np.arange(0, 400)
        for name, globs in (("shop", ("* error",)), ("east", ("mean *", "worst *"))):
            write_table(federation.folder / f"{name}.csv", rows, *globs)
            lab = (federation.folder / "lab.toml").read_text()
            (federation.folder / f"{name}.toml").write_text(lab.replace("lab", name))
        joined = {}
        for name in case.names:
            path = federation.folder / f"{name}.toml"
            if name not in LABEL_OWNERS:
                path.write_text(path.read_text() + "secure = true\nquorum = 0.5\n")
            joined[name] = federation.join(name)
        clear = [each for each in settings if each not in ("fedoptimus.secure=true",)]
        clear.remove("--set")
        refused = federation.start("train", "network.toml", "--out", "clear", *clear)
        assert refused.ended() == 2
        assert (
            "refuses to show its embeddings: its file says fedoptimus.secure" in refused.printed()
        )
        driver = federation.start_held(
            "train", "network.toml", "--out", "out", *settings, allowed=4
        )
        federation.wait_for_lines("out", 3, driver)
        joined["east"].signal(signal.SIGKILL)  # in the fourth round, mostly
        federation.allow(10)
        assert driver.ended() == 0, driver.printed()
        lines = federation.lines("out")
        assert len(lines) == 10
        missed = [line for line in lines if "missed" in line]
        assert missed
        assert_lost(missed, lines[-1], "east")


@pytest.mark.parametrize("federation", [FEDOPTIMUS], indirect=True, ids=["fedoptimus"])
def test_a_label_owner_predicts_with_data_owners_on_machines_of_their_own(
    federation: Federation, dovetail: Any
) -> None:
    joined = [federation.join(name) for name in NAMES]
    driver = federation.start("train", "network.toml", "--out", "out")
    assert driver.ended() == 0, driver.printed()
    stop_all(joined)
    rows = np.random.default_rng(1).permutation(np.arange(300, 410))  # none of them north's own
    write_table(federation.folder / "new.csv", rows, label=True)
    federation.joining = ("--name", "north")
    clinic, lab = federation.join("clinic"), federation.join("lab")
    listen = ("--listen", f"127.0.0.1:{federation.port}", "--partners", "clinic,lab")
    asked = ("predict", "north.site", "new.csv", "--party", "north.toml", *listen)

    def predicted(*options: str) -> tuple[Any, dict[str, list[Any]]]:
        done = federation.start(*asked, "--json", *options)
        assert done.ended() == 0, done.printed()
        (line,) = [each for each in done.printed().splitlines() if each.startswith("{")]
        report = json.loads(line)
        columns = report["columns"]
        return report, {each[0]: list(each[1:]) for each in zip(*columns.values(), strict=True)}

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

    report, by_person = predicted("--wait", str(PATIENCE_S))
    assert (report["answered"], report["missing"], report["not_predicted"]) == (
        ["clinic", "lab"],
        [],
        10,
    )
    assert report["scored_rows"] == len(by_person) == 100
    assert_same(by_person, in_one_place(np.arange(300, 320), "mean *", "worst *"))
    assert_same(by_person, in_one_place(np.arange(320, 400), "mean *"))
    # One that stalls, and then is gone.
    alone = in_one_place(np.arange(300, 400), "mean *")
    lab.signal(signal.SIGSTOP)
    report, by_person = predicted("--wait", "10", "--timeout", "3")
    assert (report["answered"], report["missing"]) == (["clinic"], ["lab"])
    assert_same(by_person, alone)
    lab.signal(signal.SIGKILL)
    lab.ended()
    done = federation.start(*asked, "--wait", "10", "--out", "said.csv")
    assert done.ended() == 0, done.printed()
    assert (
        "with the data owners clinic (100 of 110 rows); left out of the mean: lab" in done.printed()
    )
    assert "10 of 110 rows are not predicted" in done.printed()
    assert set(dd.read_table(federation.folder / "said.csv").column("answered").values) == {
        "clinic"
    }
    clinic.signal(signal.SIGTERM)
    assert clinic.ended() == 0, clinic.printed()
    for name, sent in (("north", "predicting.Recall"), ("clinic", "fedoptimus.Embeddings")):
        lines = (federation.folder / f"{name}.site" / "ledger.jsonl").read_text().splitlines()
        to = {line["to"] for line in map(json.loads, lines) if line.get("message") == sent}
        assert to == ({"clinic", "lab"} if name == "north" else {"coordinator", "north"})
    assert dovetail("ledger", "clinic.site/ledger.jsonl").code == 0
