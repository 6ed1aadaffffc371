"""A party that joins answers what its own file allows, keeps what it must, and stops when told."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
import torch

from dovetail import data as dd
from dovetail.alignment import Responder, psi
from dovetail.alignment.stored import StoredRows, digest, load_rows, save_rows, training_run
from dovetail.errors import AlignmentError, ConfigError, PartyError
from dovetail.federated import Local
from dovetail.methods import apfed, limits, vertical
from dovetail.methods.base import Site
from dovetail.methods.settings.apfed import PassiveFields
from dovetail.methods.settings.party import PolicySection
from dovetail.models import Head, Perceptron
from dovetail.network import InProcess, Message, Party, decode, encode
from dovetail.network.certificates import Authority, certificate_pem, key_pem, new_key
from dovetail.network.checkpoint import REQUESTS, Restore, Restored, Save, Saved
from dovetail.network.control import Failed
from dovetail.network.credentials import Credentials
from dovetail.network.host import Host
from dovetail.network.ledger import verify
from dovetail.network.stream import Stream
from dovetail.node.join import describe
from dovetail.node.partyfile import open_site
from dovetail.node.partysections import party_file
from dovetail.node.runs import Runs
from dovetail.node.site_folder import Refusals, SiteFolder, run_key, site_secret
from dovetail.node.status_line import StatusLine

BANK_IDS = np.array([f"P-{number:02d}" for number in range(40)])
SHOP_IDS = np.array([f"P-{number:02d}" for number in range(50, 10, -1)])

SHOP = """
[party]
name = "shop"
table = "shop.csv"
id = "person"

[policy]
drivers = ["bank"]
{policy}

[apfed]
exact = true
loss = "contrastive"
encoder = [8, 4]
optimizer = "sgd"
learning_rate = 0.03
momentum = 0.9
weight_decay = 1e-4
"""


@pytest.fixture
def shop_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes the shop's table and party file, with these lines in its policy.

    It agrees to classic vertical learning, too, and to questions about few rows: it has forty.
    """
    x = np.random.default_rng(0).normal(size=(len(SHOP_IDS), 3))
    columns = {"person": SHOP_IDS.astype(object), **{f"x{i}": x[:, i] for i in range(3)}}
    dd.write_table(tmp_path / "shop.csv", columns)

    def write(policy: str = "") -> Path:
        if "algorithms" not in policy:
            policy += '\nalgorithms = ["align", "apfed-mixed", "tvfl"]'
        if "min_rows" not in policy:
            policy += "\nmin_rows = 1"
        (tmp_path / "shop.toml").write_text(SHOP.format(policy=policy))
        return tmp_path / "shop.toml"

    return write


# --- What is decided, without a network -----------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    type: str
    run: str = "a1"


@dataclass(eq=False)
class At:
    """A site as it is when it has joined, and what it has said."""

    site: Site
    site_folder: Path
    runs: Runs
    host: Host
    teller: StatusLine

    def refused(self) -> list[dict[str, Any]]:
        path = self.site_folder / "refusals.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def engine(self, run: str, algorithm: str, driver: str = "bank") -> InProcess:
        party = self.runs.open(run, algorithm, driver)
        return InProcess({"shop": party}, driver=driver)


@pytest.fixture
def joined(shop_file: Callable[..., Path], tmp_path: Path) -> Callable[..., At]:
    def join(policy: str = "") -> At:
        site = open_site(shop_file(policy))
        site_folder = tmp_path / "shop.site"
        site_folder.mkdir(exist_ok=True)
        teller = StatusLine("bank", quiet=True)
        refusals = Refusals(site_folder / "refusals.jsonl", teller.print)
        runs = Runs(site, site_folder, refusals, teller, torch.device("cpu"))
        host = Host("shop", runs.open, admit=site.policy.admit, on_refusal=refusals.record)
        return At(site, site_folder, runs, host, teller)

    return join


def bank() -> dd.PartyData:
    x = torch.randn(len(BANK_IDS), 3, generator=torch.Generator().manual_seed(1))
    labels = (x[:, 0] > 0).long()
    return dd.PartyData("bank", BANK_IDS, {"own": x}, labels)


def train(network: InProcess, alignment: dd.Alignment) -> bytes:
    """The bank's weights after an epoch of APFed."""
    config = apfed.Config(epochs=1, batch_size=8, learning_rate=0.1)
    active = apfed.Active(
        bank(),
        alignment,
        dd.Classification(("no", "yes")),
        config,
        Local("bank"),
        seed=0,
        encoder=Perceptron((8, 4)),
        head=Head((4,)),
    )
    list(apfed.train(active, network))
    return b"".join(each.detach().numpy().tobytes() for each in active.encoder.parameters())


def test_a_party_that_joins_trains_as_one_of_the_same_process(
    joined: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Units of so small an encoder die, and codes of one direction are refused.
    monkeypatch.setattr(limits, "LEAST_RANK", 0)
    shop = joined()
    aligned = psi.align(shop.engine("a1", "psi"), BANK_IDS)
    kept = StoredRows(
        "bank",
        "a1",
        aligned.alignment.rows["bank"],
        digest(BANK_IDS),
        partners={"shop": aligned.alignment.rows["shop"] >= 0},
    )
    save_rows(tmp_path / "bank.safetensors", kept)
    alignment = load_rows(tmp_path / "bank.safetensors", "bank", BANK_IDS).alignment()
    assert {name: rows.tolist() for name, rows in alignment.rows.items()} == {
        name: rows.tolist() for name, rows in aligned.alignment.rows.items()
    }
    apart = train(shop.engine(training_run("a1", "apfed", "seed-0"), "apfed"), alignment)

    site = shop.site
    kept_rows = load_rows(shop.site_folder / "aligned" / "bank.safetensors", "shop", site.table.ids)
    assert (kept_rows.run, kept_rows.driver, kept_rows.partners) == ("a1", "bank", {})
    shared = dd.SharedRows("shop", site.table.encoded(site.fit_input()).joined(), kept_rows.rows_S)
    passive = apfed.Passive(
        shared,
        apfed.PassiveConfig(optimizer="sgd", learning_rate=0.03, momentum=0.9, weight_decay=1e-4),
        Perceptron((8, 4)),
        # Its first run with the bank.
        Local("shop", secret=lambda: run_key(site_secret(shop.site_folder), "bank", 1)),
    )
    together = dd.Alignment({**alignment.rows, "shop": kept_rows.rows_S})
    assert apart == train(InProcess({"shop": passive}, driver="bank"), together)


def test_rows_are_kept_when_an_alignment_is_complete_and_not_before(joined: Any) -> None:
    shop = joined()
    part = shop.site_folder / "aligned" / "bank.safetensors"
    party = shop.runs.open("a1", "psi", "bank")

    class Stops:
        accepts = party.accepts

        def handle(self, message: Message) -> Message:
            if isinstance(message, psi.Places):
                raise ConfigError("the line is lost")
            return party.handle(message)

    with pytest.raises(PartyError, match="the line is lost"):
        psi.align(InProcess({"shop": Stops()}, driver="bank"), BANK_IDS)
    assert not part.exists()
    psi.count_overlap(shop.engine("a2", "psi"), BANK_IDS)
    assert not part.exists()
    psi.align(shop.engine("a3", "psi"), BANK_IDS)
    stored = load_rows(part, "shop", shop.site.table.ids)
    assert stored.run == "a3"
    assert sorted(SHOP_IDS[stored.rows_S[stored.rows_S >= 0]]) == sorted(
        set(SHOP_IDS) & set(BANK_IDS)
    )


def test_a_run_of_another_alignment_is_refused(joined: Any) -> None:
    shop = joined()
    with pytest.raises(
        AlignmentError, match=r"is not aligned with 'bank' yet; align first \(at 'b"
    ):
        shop.runs.open("a1/apfed/seed-0", "apfed", "bank")
    psi.align(shop.engine("a1", "psi"), BANK_IDS)
    shop.runs.open("a1/apfed/seed-0", "apfed", "bank")
    psi.align(shop.engine("a2", "psi"), BANK_IDS)
    words = "the run is of alignment 'a1', and this party's rows are of 'a2' with 'bank'; align fir"
    for algorithm in ("apfed", "vertical"):
        with pytest.raises(AlignmentError, match=words):
            shop.runs.open("a1/apfed/seed-0", algorithm, "bank")
    shop.runs.open("a2/apfed/seed-0", "apfed", "bank")


def test_rows_found_with_one_driver_are_not_used_with_another(joined: Any) -> None:
    shop = joined()
    psi.align(shop.engine("a1", "psi"), BANK_IDS)
    folder = shop.site_folder / "aligned"
    (folder / "bank.safetensors").rename(folder / "other.safetensors")
    site = shop.site
    allowed = site.policy.section.model_copy(update={"drivers": ("bank", "other")})
    both = replace(site, policy=replace(site.policy, section=allowed))
    runs = Runs(
        both,
        shop.site_folder,
        Refusals(shop.site_folder / "r", print),
        shop.teller,
        torch.device("cpu"),
    )
    with pytest.raises(AlignmentError, match="rows are of 'a1' with 'bank'; align first"):
        runs.open("a1/apfed", "apfed", "other")


def test_a_table_that_changed_is_aligned_again_and_no_path_is_told(
    joined: Any, tmp_path: Path
) -> None:
    shop = joined()
    psi.align(shop.engine("a1", "psi"), BANK_IDS)
    table = (tmp_path / "shop.csv").read_text().splitlines()
    (tmp_path / "shop.csv").write_text("\n".join([table[0], *reversed(table[1:])]) + "\n")
    with pytest.raises(AlignmentError, match="do not fit its table, which has changed") as raised:
        joined().runs.open("a1/apfed", "apfed", "bank")
    assert str(tmp_path) not in str(raised.value)


def test_a_party_that_was_restarted_goes_on_from_its_saved_state(joined: Any) -> None:
    shop = joined()
    psi.align(shop.engine("a1", "psi"), BANK_IDS)
    run = "a1/apfed/seed-0"
    samples = load_rows(
        shop.site_folder / "aligned" / "bank.safetensors", "shop", shop.site.table.ids
    ).rows_S
    codes = apfed.Codes((samples >= 0).nonzero().flatten()[:8], torch.arange(32.0).sin().view(8, 4))

    def gradient(party: Party) -> list[float]:
        answer = party.handle(codes)
        assert isinstance(answer, apfed.CodeGradient)
        return answer.gradient_BD.flatten().tolist()

    party = shop.runs.open(run, "apfed", "bank")
    party.handle(apfed.Begin((4,), 0, 0))
    gradient(party)
    assert isinstance(party.handle(Save("apfed", 1, 0)), Saved)
    expected = [gradient(party), gradient(party)]
    again = joined()
    restarted = again.runs.open(run, "apfed", "bank")
    assert [gradient(restarted), gradient(restarted)] == expected
    with pytest.raises(ConfigError, match=r"refuses to go back .* in the middle of a run"):
        restarted.handle(Restore("apfed", 1, exactly=True))
    again.runs.restarted("bank")  # the driver fell, and resumes
    restored = restarted.handle(Restore("apfed", 1, exactly=True))
    assert isinstance(restored, Restored)
    assert gradient(restarted) == expected[0]
    other = joined().runs.open("a1/apfed/seed-1", "apfed", "bank")
    with pytest.raises(PartyError, match=r"was sent apfed.Codes before training began"):
        other.handle(codes)


def test_states_of_an_alignment_go_when_its_rows_do(joined: Any) -> None:
    shop = joined()
    for alignment in ("a1", "a2"):
        psi.align(shop.engine(alignment, "psi"), BANK_IDS)
        party = shop.runs.open(f"{alignment}/apfed/seed-0", "apfed", "bank")
        party.handle(apfed.Begin((4,), 0, 0))
        party.handle(Save("apfed", 1, 0))
        (folder,) = (shop.site_folder / "checkpoints" / "bank").iterdir()
        assert folder.name == f"{alignment}+apfed+seed-0"
        assert (folder / "apfed" / "1.safetensors").exists()


def test_an_alignment_that_cannot_be_saved_is_not_reported_as_done(
    joined: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = joined()
    psi.align(shop.engine("a1", "psi"), BANK_IDS)
    party = shop.runs.open("a1/apfed/seed-0", "apfed", "bank")
    party.handle(apfed.Begin((4,), 0, 0))
    party.handle(Save("apfed", 1, 0))

    def full(path: Path, stored: StoredRows) -> None:
        raise AlignmentError(f"cannot write {path}")

    monkeypatch.setattr("dovetail.node.runs.save_rows", full)
    with pytest.raises(PartyError, match="it cannot save its rows of the alignment") as raised:
        psi.align(shop.engine("a2", "psi"), BANK_IDS)
    assert str(shop.site_folder) not in str(raised.value)
    # What went before is all there.
    rows = load_rows(shop.site_folder / "aligned" / "bank.safetensors", "shop", shop.site.table.ids)
    assert rows.run == "a1"
    assert list((shop.site_folder / "checkpoints" / "bank").glob("a1*/apfed/1.safetensors"))


def test_a_member_of_classic_vertical_learning_goes_on_only_when_told_from_where(
    joined: Any,
) -> None:
    shop = joined()
    psi.align(shop.engine("a1", "psi"), BANK_IDS)
    run = "a1/tvfl/seed-0"
    party = shop.runs.open(run, "vertical", "bank")
    party.handle(vertical.Open(0))
    party.handle(Save("vertical", 1, 0))
    restarted = joined().runs.open(run, "vertical", "bank")
    encode_0 = vertical.Encode(torch.zeros(1, dtype=torch.int64), True, False)
    with pytest.raises(PartyError, match="or was restarted since; go on with --resume"):
        restarted.handle(encode_0)
    restarted.handle(Restore("vertical", 1, exactly=True))
    with pytest.raises(Exception, match="sample"):  # it is asked for one that it has not
        restarted.handle(vertical.Encode(torch.tensor([10**6]), True, False))


def test_states_of_a_drivers_last_runs_are_kept(
    joined: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.node.runs.KEPT_RUNS", 3)
    shop = joined()
    psi.align(shop.engine("a1", "psi"), BANK_IDS)
    other = shop.site_folder / "checkpoints" / "other" / "a1+apfed"
    other.mkdir(parents=True)
    for number in range(5):
        party = shop.runs.open(f"a1/apfed/{number}", "apfed", "bank")
        party.handle(apfed.Begin((4,), 0, 0))
        party.handle(Save("apfed", 1, 0))
        for path in (shop.site_folder / "checkpoints" / "bank" / f"a1+apfed+{number}").rglob("*"):
            os.utime(path, (number, number))
        os.utime(path.parents[1], (number, number))
    kept = {path.name for path in (shop.site_folder / "checkpoints" / "bank").iterdir()}
    assert kept == {"a1+apfed+2", "a1+apfed+3", "a1+apfed+4"}
    assert other.exists()


@pytest.mark.parametrize(
    ("policy", "asked", "driver", "words"),
    [
        (
            'algorithms = ["align"]',
            "apfed.Begin",
            "bank",
            "refuses 'apfed-mixed': its policy allows align",
        ),
        ("algorithms = []", "psi.Begin", "bank", "refuses 'align': its policy allows nothing"),
        ("", "psi.Begin", "mallory", "refuses the driver 'mallory': its policy allows bank"),
        ("", "apfed.Save", "mallory", "refuses the driver 'mallory': its policy allows bank"),
        (
            'algorithms = ["align"]',
            "apfed.Restore",
            "bank",
            "refuses 'apfed-mixed': its policy allows",
        ),
        ('messages = ["psi.Begin"]', "psi.Blinded", "bank", "refuses 'psi.Blinded': its policy al"),
        ("messages = []", "psi.Begin", "bank", "refuses 'psi.Begin': its policy allows nothing"),
        ("", "apfed.Quit", "bank", "refuses 'apfed.Quit': no such message is known here"),
        ("", "align.Begin", "bank", "refuses 'align.Begin': no such message is known here"),
        ("", "os.system", "bank", "refuses 'os': its policy allows align, apfed-mixed, tvfl"),
        ("", "", "bank", "refuses '': its policy allows align, apfed-mixed, tvfl"),
    ],
)
def test_what_the_policy_does_not_allow_is_refused(
    joined: Any, policy: str, asked: str, driver: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        joined(policy).site.policy.admit(Asked(asked), driver)


def test_a_refusal_is_written_down_and_the_driver_hears_why(joined: Any) -> None:
    shop = joined('algorithms = ["align"]')
    begin = apfed.Begin((4,), 0, 0)
    reply = shop.host.handle(encode(begin, run="a1/apfed", sequence=1), "bank")
    failed = decode(reply, [Failed])
    assert failed.cause == "refuses 'apfed-mixed': its policy allows align"
    (line,) = shop.refused()
    assert {**line, "time": ""} == {
        "time": "",
        "driver": "bank",
        "message": "apfed.Begin",
        "run": "a1/apfed",
        "why": failed.cause,
        "times": 1,
    }
    written = datetime.fromisoformat(line["time"])
    assert abs((datetime.now(UTC) - written).total_seconds()) < 60
    assert (shop.site_folder / "refusals.jsonl").stat().st_mode & 0o077 == 0
    shop.host.handle(encode(begin, run="a1/apfed", sequence=1), "bank")
    shop.host.handle(b"no message", "bank")
    again, unread = shop.refused()[1:]
    assert "a replayed message" in again["why"]
    assert (unread["message"], unread["run"]) == ("", "")


def test_what_the_policy_allows_is_admitted(joined: Any) -> None:
    shop = joined()
    for message in (
        *(kind.wire_name() for kind in Responder.accepts),
        *(kind.wire_name() for kind in apfed.Passive.accepts),
        *(kind.wire_name() for kind in vertical.Member.accepts),
        "apfed.Save",
        "vertical.Restore",
    ):
        shop.site.policy.admit(Asked(message), "bank")
        shop.site.policy.admit(Asked(message, "5f0c/apfed-c/seed-0"), "bank")


@pytest.mark.parametrize("run", ["", "../..", "a/../b", "/etc", "a//b", "a b", "a\n", "x" * 201])
def test_a_runs_id_is_no_path(joined: Any, run: str) -> None:
    shop = joined()
    with pytest.raises(ConfigError, match=r"refuses the run .*: an id has at most 200 letters"):
        shop.site.policy.admit(Asked("psi.Begin", run), "bank")


def test_algorithms_are_checked_again_when_a_run_is_opened(joined: Any) -> None:
    shop = joined('algorithms = ["align"]')
    for algorithm, words in (
        ("apfed", "refuses 'apfed-mixed'"),
        ("os", "refuses 'os': it is unknown here"),
    ):
        with pytest.raises(ConfigError, match=words):
            shop.runs.open("a1/x", algorithm, "bank")
    with pytest.raises(ConfigError, match="refuses the driver 'mallory'"):
        shop.runs.open("a1", "psi", "mallory")


def test_a_message_of_too_many_rows_is_refused_before_it_is_answered(joined: Any) -> None:
    shop = joined("max_rows = 30")
    engine = shop.engine("a1", "psi")
    words = "party 'shop': refuses 40 rows in one message: its policy allows 30"
    with pytest.raises(PartyError, match=words):
        psi.align(engine, BANK_IDS)
    (line,) = shop.refused()
    assert (line["message"], line["driver"], line["run"]) == ("psi.Blinded", "bank", "a1")
    assert psi.align(shop.engine("a2", "psi"), BANK_IDS, batch_size=30).overlap == {"shop": 29}


def test_alignments_follow_the_policy(joined: Any) -> None:
    counts = joined('align_modes = ["cardinality"]')
    assert psi.count_overlap(counts.engine("a1", "psi"), BANK_IDS)["shop"].num_shared == 29
    with pytest.raises(PartyError, match="asks for mode 'intersection'; this party agrees to card"):
        psi.align(counts.engine("a2", "psi"), BANK_IDS)
    (line,) = counts.refused()
    assert (line["message"], line["run"]) == ("psi.Begin", "a2")
    careful = joined("min_ids = 41")
    with pytest.raises(PartyError, match="has 40 ids; this party compares itself with sets of 41"):
        psi.align(careful.engine("a1", "psi"), BANK_IDS)


def test_no_message_has_a_field_that_the_party_file_has() -> None:
    """A driver cannot set a party's network, loss, rate or data: it has no words for them."""
    settings = {*PassiveFields.model_fields, *PolicySection.model_fields}
    for section in party_file().model_fields.values():
        settings |= set(section.annotation.model_fields)  # type: ignore[union-attr]
    assert {"encoder", "loss", "learning_rate", "table", "drivers", "min_ids"} <= settings
    accepted = [
        *Responder.accepts,
        *apfed.Passive.accepts,
        *vertical.Member.accepts,
        *REQUESTS,
    ]
    for message in accepted:
        assert not settings & {field.name for field in fields(message)}, message
    begins = {
        apfed.Begin: {"code_shape", "projected_width", "seed", "run_loss"},
        vertical.Open: {"seed"},
    }
    for message, names in begins.items():
        assert {field.name for field in fields(message)} == names


@pytest.mark.parametrize(
    ("algorithm", "begin"),
    [
        ("apfed", apfed.Begin((4,), 0, 0)),
        ("apfed", apfed.Begin((16,), 4, 7)),
        ("vertical", vertical.Open(3)),
    ],
)
def test_whatever_a_driver_sends_the_party_trains_as_its_own_file_says(
    joined: Any, algorithm: str, begin: Message
) -> None:
    shop = joined()
    psi.align(shop.engine("a1", "psi"), BANK_IDS)
    party = shop.runs.open("a1/x", algorithm, "bank")
    party.handle(begin)
    inner = party.party.party.party
    assert inner.optimizer.learning_rate == 0.03
    assert inner.config.loss == "contrastive"
    network = inner.network if algorithm == "apfed" else inner.encoder
    shapes = [tuple(each.shape) for each in network.parameters()]
    assert shapes[:4] == [(8, 3), (8,), (4, 8), (4,)]
    x = shop.site.table.encoded(shop.site.fit_input()).joined()
    assert torch.equal(inner.shared.x, x)


def test_repeated_refusals_are_counted_and_few_lines_are_written(tmp_path: Path) -> None:
    lines_shown: list[str] = []
    refusals = Refusals(tmp_path / "refusals.jsonl", lines_shown.append)
    for _ in range(250):
        refusals.record("mallory", "psi.Begin", "a1", "no")
    refusals.MOST = 3
    for number in range(100):
        refusals.record("mallory", "x" * (number + 1), "r" * 1000, "w" * 1000)
    lines = [json.loads(line) for line in (tmp_path / "refusals.jsonl").read_text().splitlines()]
    assert [line["times"] for line in lines if line["message"] == "psi.Begin"] == [1, 10, 100]
    assert lines[-1]["why"].startswith("refusals of many kinds")
    assert len(lines) == len(lines_shown) < 10
    assert (tmp_path / "refusals.jsonl").stat().st_size < 5000
    assert lines_shown[1] == "refused psi.Begin of 'mallory': no (10 times)"


def test_replays_of_different_numbers_are_one_kind_of_refusal(tmp_path: Path) -> None:
    lines_shown: list[str] = []
    refusals = Refusals(tmp_path / "refusals.jsonl", lines_shown.append)
    for number in range(1, 1001):
        why = f"it was sent number {number} after number 1000: a replayed message"
        refusals.record("mallory", "apfed.Codes", f"a{number}/apfed/seed-0", why)
    lines = [json.loads(line) for line in (tmp_path / "refusals.jsonl").read_text().splitlines()]
    assert [line["times"] for line in lines] == [1, 10, 100, 1000]
    assert "number 1000 after number 1000" in lines[-1]["why"]  # the latest
    assert len(lines_shown) == 4


def test_a_full_disk_ends_no_party(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines_shown: list[str] = []
    refusals = Refusals(tmp_path / "absent" / "refusals.jsonl", lines_shown.append)
    refusals.record("mallory", "psi.Begin", "a1", "no")
    assert lines_shown == ["refused psi.Begin of 'mallory': no"]
    assert "a refusal is not written" in caplog.text


def test_what_is_written_at_home_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with SiteFolder(tmp_path / "home") as site_folder:
            (site_folder.path / "join.log.1").write_text("")
            assert (site_folder.path / "join.log.1").stat().st_mode & 0o777 == 0o600
        (tmp_path / "else").write_text("")
        assert (tmp_path / "else").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_a_site_is_of_one_process(tmp_path: Path) -> None:
    with (
        SiteFolder(tmp_path / "home") as site_folder,
        pytest.raises(
            ConfigError, match=r"home is in use by process .* stop it, or give dovetail join"
        ),
        SiteFolder(tmp_path / "home"),
    ):
        pass
    assert site_folder.path.stat().st_mode & 0o777 == 0o700
    with SiteFolder(tmp_path / "home"):
        pass


def test_it_is_said_what_is_agreed_to_and_nothing_of_the_table_but_its_size(joined: Any) -> None:
    shop = joined('align_modes = ["intersection"]\nmin_ids = 1000\nmax_message_mb = 8')
    text = "\n".join(describe(shop.site, {"bank": "bank.example.org:7443"}, shop.site_folder))
    for words in (
        "'shop' joins 'bank' at bank.example.org:7443",
        "40 rows, 3 columns",
        "agrees to  align, apfed-mixed, tvfl",
        "intersection, with sets of 1,000 ids or more",
        "contrastive loss, rate 0.03",
        "all else, and messages above 8 MB or 100,000 rows",
    ):
        assert words in text
    assert "P-" not in text
    assert "x0" not in text


# --- The command ----------------------------------------------------------------------------------


def put_credentials(folder: Path, authority: Authority, name: str, *, listens: bool) -> Credentials:
    key = new_key()
    certificate = authority.issue(name, key.public_key(), now=datetime.now(UTC), listens=listens)
    made = Credentials(authority.pem, certificate_pem(certificate), key_pem(key))
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in (("ca.pem", made.ca), (f"{name}.pem", made.certificate)):
        (folder / file).write_bytes(content)
    (folder / f"{name}.key").write_bytes(made.key)
    (folder / f"{name}.key").chmod(0o600)
    return made


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create(now=datetime.now(UTC))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            "--driver bank",
            r"--driver takes HOST:PORT, for example bank\.example\.org:7443, got 'ba",
        ),
        ("--driver https://bank:1", "--driver takes HOST:PORT"),
        ("--driver bank:65536", "--driver takes HOST:PORT"),
        ("--driver bank:1 --name mallory", "refuses the driver 'mallory': its policy allows bank"),
        (
            "--driver bank:1",
            r"there is no folder .*certificates/shop with ca\.pem, shop\.pem and sh",
        ),
        (
            "--driver bank:1 --certificates here",
            r"there is no here/ca\.pem, the authority that 'sho",
        ),
    ],
)
def test_a_mistake_is_one_sentence(
    dovetail: Any, shop_file: Any, arguments: str, words: str
) -> None:
    done = dovetail("join", shop_file(), *arguments.split())
    assert (done.code, done.out) == (2, "")
    assert re.search(words, done.err), done.err
    assert done.err.startswith("dovetail: ")
    assert done.err.count("\n") == 1


def test_what_its_libraries_refuse_is_one_sentence_too(
    dovetail: Any, shop_file: Any, authority: Authority
) -> None:
    file = shop_file()
    put_credentials(file.parent / "certificates" / "shop", authority, "shop", listens=False)
    done = dovetail("join", file, "--driver", "bank:1", "--device", "abacus")
    assert (done.code, done.out) == (2, "")
    assert "there is no device 'abacus' here" in done.err
    file.write_text(file.read_text().replace("[policy]", '[policy]\nmessages = ["psi.Begn"]'))
    done = dovetail("join", file, "--driver", "bank:1")
    words = "policy.messages: 'psi.Begn' is no message; there are psi.Pass, psi.Begin, psi.Blinded"
    assert words in done.err
    assert done.err.endswith("; did you mean 'psi.Begin'?\n")
    file = shop_file('algorithms = ["align", "apfed-c"]')
    done = dovetail("join", file, "--driver", "bank:1")
    assert "policy.algorithms: 'apfed-c' is no algorithm; there are align, " in done.err
    assert "; did you mean 'apfed" in done.err


def test_a_driver_that_is_not_named_is_asked_for(dovetail: Any, shop_file: Any) -> None:
    file = shop_file()
    file.write_text(file.read_text().replace('drivers = ["bank"]', ""))
    done = dovetail("join", file, "--driver", "bank:1")
    assert "say who drives with --name NAME, the name in the driver's certificate" in done.err


# --- Over a network -------------------------------------------------------------------------------


@dataclass(eq=False)
class Process:
    """``dovetail join`` as a process of its own."""

    process: subprocess.Popen[bytes] | forked.Running
    output: Path
    site_folder: Path

    def printed(self) -> str:
        return self.output.read_text()

    def wait_for(self, words: str, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not re.search(words, self.printed()):
            assert time.monotonic() < deadline, f"no {words!r} in: {self.printed()}"
            assert self.process.poll() is None, self.printed()
            time.sleep(0.05)

    def stop(self, number: int = signal.SIGINT) -> tuple[int, float]:
        """Its exit code, and how long it took."""
        started = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(timeout=30), time.monotonic() - started

    def refused(self) -> list[dict[str, Any]]:
        path = self.site_folder / "refusals.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def join(tmp_path: Path, shop_file: Any, authority: Authority) -> Iterator[Callable[..., Process]]:
    """Starts ``dovetail join shop.toml``, and ends what was started."""
    put_credentials(tmp_path / "certificates" / "shop", authority, "shop", listens=False)
    started: list[subprocess.Popen[bytes] | forked.Running] = []

    def start(port: int, policy: str = "", *more: str, anew: bool = False) -> Process:
        output = tmp_path / f"output-{len(started)}"
        words = ["join", str(shop_file(policy)), "--driver", f"127.0.0.1:{port}", *more]
        process: subprocess.Popen[bytes] | forked.Running
        if anew:  # as a user's is, which reads all libraries
            with output.open("wb") as file:
                command = [sys.executable, "-m", "dovetail.cli.main", *words]
                process = subprocess.Popen(command, stdout=file, stderr=file)
        else:
            process = forked.begin(Path.cwd(), None, *words, stdout=output)
        started.append(process)
        return Process(process, output, tmp_path / "shop.site")

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.fixture
def listen(tmp_path: Path, authority: Authority) -> Iterator[Callable[..., Stream]]:
    """A driver's ``Stream``."""
    streams: list[Stream] = []

    def start(driver: str = "bank", port: int = 0) -> Stream:
        credentials = put_credentials(tmp_path / driver, authority, driver, listens=True)
        address = f"127.0.0.1:{port}"
        streams.append(Stream(address, driver=driver, credentials=credentials, parties=["shop"]))
        return streams[-1]

    yield start
    for stream in streams:
        stream.close()


@pytest.mark.network
def test_a_site_aligns_trains_and_stops_at_ctrl_c(
    join: Callable[..., Process], listen: Callable[..., Stream]
) -> None:
    stream = listen()
    shop = join(stream.port, anew=True)
    stream.wait(60)
    aligned = psi.align(stream.engine("a1"), BANK_IDS)
    assert aligned.overlap == {"shop": 29}
    weights = train(stream.engine("a1/apfed/seed-0"), aligned.alignment)  # type: ignore[arg-type]
    # Each run that begins here has a key of its own, and so networks of its own.
    assert weights != train(stream.engine("a1/apfed/again"), aligned.alignment)  # type: ignore[arg-type]
    with pytest.raises(PartyError, match="the run is of alignment 'a0', and this party's rows are"):
        stream.engine("a0/apfed").ask({"shop": apfed.Begin((4,), 0, 0)}, apfed.Ready).or_raise()
    code, seconds = shop.stop()
    assert code == 0
    assert seconds < 20
    for words in (
        r"'shop' joins 'bank' at 127\.0\.0\.1",
        r"connected to bank",
        r"run a1 \(align\) begins",
        r"aligned with 'bank': 29 of 40 rows are shared \(alignment a1\)",
        r"run a1/apfed/seed-0 \(apfed-mixed\) begins",
        r"run a1/apfed/seed-0: \d+ messages, \d.* in, \d.* out",
        r"refused apfed\.Begin of 'bank': the run is of alignment 'a0'",
        r"stopped; the ledger's last hash is [0-9a-f]{64}\n$",
    ):
        assert re.search(words, shop.printed()), shop.printed()
    assert "Traceback" not in shop.printed()
    ledger = verify(shop.site_folder / "ledger.jsonl")
    assert ledger.party == "shop"
    assert ledger.last_hash in shop.printed()
    assert "apfed.CodeGradient" in (shop.site_folder / "ledger.jsonl").read_text()
    assert shop.site_folder.stat().st_mode & 0o777 == 0o700
    for path in shop.site_folder.rglob("*"):
        assert b"P-12" not in (path.read_bytes() if path.is_file() else b"")


@pytest.mark.network
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_at_once_while_there_is_no_driver(
    join: Callable[..., Process], number: int
) -> None:
    shop = join(9, "", "--quiet") if number == signal.SIGTERM else join(9)
    if number == signal.SIGTERM:
        deadline = time.monotonic() + 60
        while not (shop.site_folder / "join.log").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1.0)
    else:
        shop.wait_for(r"bank is not at 127.0.0.1:9 yet \(Connection refused\)")
    code, seconds = shop.stop(number)
    assert (code, seconds < 20) == (0, True), shop.printed()
    assert (shop.printed() == "") == (number == signal.SIGTERM)


@pytest.mark.network
def test_what_is_refused_is_told_to_both_and_disturbs_nobody(
    join: Callable[..., Process], listen: Callable[..., Stream]
) -> None:
    stream = listen()
    shop = join(stream.port, 'algorithms = ["align"]\nmax_message_mb = 0.5\nmax_rows = 2000')
    stream.wait(60)
    engine = stream.engine("a1")

    def refused(message: Message, words: str) -> None:
        with pytest.raises(PartyError, match=words):
            engine.ask({"shop": message}, psi.Ready, timeout_s=20).or_raise()

    refused(apfed.Begin((4,), 0, 0), "refuses 'apfed-mixed': its policy allows align")
    refused(psi.Blinded(0, torch.zeros(2001, 32, dtype=torch.uint8)), "refuses 2001 rows in one m")
    refused(psi.Blinded(0, torch.zeros(40_000, 32, dtype=torch.uint8)), "at most 524288 are allowe")
    assert psi.align(stream.engine("a2"), BANK_IDS).overlap == {"shop": 29}
    assert stream.connected == ("shop",)
    whys = [line["why"] for line in shop.refused()]
    assert any("refuses 'apfed-mixed'" in why for why in whys)
    assert any("refuses 2001 rows" in why for why in whys)
    assert any("at most 524288 are allowed" in why for why in whys)
    assert shop.stop()[0] == 0
    assert (
        "refused apfed.Begin of 'bank': refuses 'apfed-mixed': its policy allows align"
        in shop.printed()
    )


@pytest.mark.network
def test_ids_are_compared_as_digits_where_both_say_so(
    join: Callable[..., Process],
    listen: Callable[..., Stream],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(globals(), "SHOP", SHOP.replace("id =", 'id_as = "digits"\nid ='))
    ids = np.array([f"{row:05d}" for row in range(40)], dtype=object)
    dd.write_table(tmp_path / "shop.csv", {"person": ids, "x": np.arange(40.0)})
    stream = listen()
    join(stream.port)
    stream.wait(60)
    assert psi.align(stream.engine("a1"), ["5", "39", "40"], id_as="digits").overlap == {"shop": 2}
    with pytest.raises(PartyError, match=r"'bank' compares ids as 'text', 'shop' as 'digits'"):
        psi.align(stream.engine("a2"), ["5", "39", "40"])


@pytest.mark.network
def test_only_the_driver_that_was_named_is_answered(
    join: Callable[..., Process], listen: Callable[..., Stream]
) -> None:
    mallory = listen("mallory")
    port = mallory.port
    shop = join(port)
    shop.wait_for("its certificate is of another name")
    assert mallory.connected == ()
    mallory.close()
    bank = listen("bank", port)
    bank.wait(60)
    assert psi.align(bank.engine("a1"), BANK_IDS).overlap == {"shop": 29}
    assert shop.stop()[0] == 0


@pytest.mark.network
def test_a_driver_that_returns_is_answered_again(
    join: Callable[..., Process], listen: Callable[..., Stream]
) -> None:
    first = listen()
    shop = join(first.port)
    first.wait(60)
    aligned = psi.align(first.engine("a1"), BANK_IDS)
    first.close()
    shop.wait_for("bank has closed the connection|lost the line|is not at")
    second = listen("bank", first.port)
    second.wait(60)
    train(second.engine("a1/apfed/seed-0"), aligned.alignment)  # type: ignore[arg-type]
    code, _ = shop.stop(signal.SIGTERM)
    assert code == 0
