"""A driver and its partners as processes of their own, by the commands a user types."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Federation, free_port
from same_secrets import as_in_one_process

from dovetail.alignment.stored import load_rows
from dovetail.cli.interrupts import LIMIT_S
from dovetail.network.ledger import verify

#: As ``PARTY_RUN`` of conftest.py, with the partners elsewhere.
RUN = """
method = "apfed-mixed"
baselines = ["alone", "tvfl"]
evaluate_every = 0
parties = ["clinic.toml"]
test = 0.25

[engine]
kind = "stream"
listen = "127.0.0.1:{port}"
partners = ["lab", "registry"]
wait_s = 180

[apfed]
encoder = [8]
head = [8]
epochs = 2
learning_rate = 0.05
"""


def result(folder: Path) -> Any:
    """What a run found, but seconds."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items() if key != "seconds"}
        return value

    return plain(json.loads((folder / "result.json").read_text()))


def weights(folder: Path) -> bytes:
    return (folder / "models" / "clinic" / "model.safetensors").read_bytes()


@dataclass(eq=False)
class Clinics(Federation):
    """A clinic that drives, a lab and a registry."""

    dealt: Any = None

    def write_run(self, *changes: tuple[str, str], name: str = "network.toml") -> Path:
        text = RUN.format(port=self.port)
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        (self.folder / name).write_text(text)
        return self.folder / name

    def write_here(self, *changes: tuple[str, str]) -> Path:
        """The run file with all parties in one process."""
        path = self.write_run(*changes, name="here.toml")
        text = re.sub(r"\[engine\].*?(?=\[apfed\])", "", path.read_text(), flags=re.DOTALL)
        text = text.replace('["clinic.toml"]', '["clinic.toml", "lab.toml", "registry.toml"]')
        path.write_text(text)
        return path


@pytest.fixture
def federation(deal: Any, dovetail: Any) -> Iterator[Clinics]:
    dealt = deal()
    named = ("clinic", "lab", "registry", "--driver", "clinic", "--host", "127.0.0.1")
    assert dovetail("certificates", *named, "-q").code == 0
    made = Clinics(dealt.folder, free_port(), ("--name", "clinic"), dealt=dealt)
    with made.ending():
        yield made


# --- Mistakes -------------------------------------------------------------------------------------


def assert_refused(done: Any, words: str) -> None:
    lines = [
        line for line in done.err.splitlines() if not re.match("dovetail: (waiting|here|at )", line)
    ]
    assert done.code == 2, done
    assert len(lines) == 1, done.err
    assert re.search(words, lines[0]), done.err
    assert lines[0].startswith("dovetail: ")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"lab", "registry"', '"lab", "clinic"', "partners names 'clinic', which is the driver"),
        ('"lab", "registry"', '"lab", "lab"', "partners must be different names"),
        ('"lab", "registry"', "", r"engine\.partners: .*at least 1 item"),
        ("127.0.0.1:", "", r"engine\.listen: expected HOST:PORT, for example 0\.0\.0\.0:7443, got"),
        ("wait_s", "wait", r"unknown key 'engine\.wait'; did you mean 'wait_s'"),
        ('kind = "stream"', "", r"unknown key 'engine\.listen'"),
        (
            'kind = "stream"',
            'kind = "carrier pigeon"',
            r"engine\.kind: expected one of 'inprocess'",
        ),
        ('["clinic.toml"]', '["clinic.toml", "lab.toml"]', "parties names one file, the driver's"),
        (
            '"alone", "tvfl"',
            '"pooled"',
            "the baseline 'pooled' puts everybody's columns in one",
        ),
        ("[apfed]", "[apfed]\ntrade_off = { shop = 1.0 }", "names 'shop', which is no passive par"),
        (
            "[engine]",
            '[engine]\ncertificates = "none"',
            r"there is no .*none/ca\.pem, the authority",
        ),
        (
            "[engine]",
            '[engine]\ncertificates = "certificates/lab"',
            r"there is no .*lab/clinic\.pem, the certificate of 'clinic'",
        ),
        (
            "wait_s = 180",
            "wait_s = 0.2",
            "after 0.2 s there is no connection from 'lab', 'registry'",
        ),
    ],
)
def test_a_mistake_in_the_run_file_is_one_sentence(
    federation: Clinics, dovetail: Any, old: str, new: str, words: str
) -> None:
    assert_refused(dovetail("train", federation.write_run((old, new))), words)
    assert not (federation.folder / "out").exists()


def test_a_driver_needs_its_port_its_folder_and_a_certificate_that_drives(
    federation: Clinics, dovetail: Any
) -> None:
    run = federation.write_run()
    with socket.socket() as other:
        other.bind(("127.0.0.1", federation.port))
        other.listen()
        assert_refused(dovetail("train", run), r"cannot listen on .*the port free\?")
    shutil.rmtree(federation.folder / "certificates" / "clinic")
    assert_refused(dovetail("train", run), r"there is no folder .*certificates/clinic with ca\.pem")
    dovetail("certificates", "clinic", "-q")
    assert_refused(
        dovetail("train", run), "is for a party that joins, and no partner would believe"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("clinic.toml --listen 127.0.0.1:1", "give --partners and --listen"),
        ("clinic.toml --partners lab", "give --partners and --listen"),
        ("clinic.toml --partners clinic --listen 127.0.0.1:1", "which is the driver itself"),
        (
            "clinic.toml lab.toml --partners lab --listen 127.0.0.1:1",
            "name one party file, the dri",
        ),
        ("clinic.toml --partners lab --listen here", "listen: expected HOST:PORT"),
        (
            "clinic.toml --partners lab --listen 127.0.0.1:1 --initiator lab",
            "leave --initiator out",
        ),
        ("network.toml --partners lab", r"a run file says in \[engine\] who is elsewhere"),
        ("clinic.toml", "or where the others are elsewhere: dovetail align bank.toml --partners"),
    ],
)
def test_a_mistake_in_aligning_is_one_sentence(
    federation: Clinics, dovetail: Any, arguments: str, words: str
) -> None:
    federation.write_run()
    assert_refused(dovetail("align", *arguments.split()), words)


def test_the_settings_of_a_network_are_kept_with_the_run_and_repeat_it(
    federation: Clinics, tmp_path: Path
) -> None:
    from dovetail.runs.runfile import check_run, load_run, resolved

    path = federation.write_run(("wait_s", 'certificates = "certificates/clinic"\nwait_s'))
    settings = resolved(load_run(path), 0)
    assert settings["engine"] == {
        "kind": "stream",
        "listen": f"127.0.0.1:{federation.port}",
        "partners": ["lab", "registry"],
        "certificates": str(tmp_path / "certificates" / "clinic"),
        "precision": "float32",
        "wait_s": 180.0,
        "max_message_mb": 256.0,
        "timeout_s": 30.0,
    }
    assert resolved(check_run(settings, where="again"), 0) == settings
    here = resolved(load_run(federation.write_here()), 0)
    assert here["engine"] == {"kind": "inprocess", "precision": "float32"}


@pytest.mark.slow
def test_codes_of_half_the_bytes_travel_in_process_too(federation: Clinics, dovetail: Any) -> None:
    run = federation.write_here()
    dovetail("train", run, "--out", "whole", "-q")
    dovetail("train", run, "--out", "half", "-q", "--set", "engine.precision=float16")
    whole, half = (result(federation.folder / name) for name in ("whole", "half"))
    assert weights(federation.folder / "whole") != weights(federation.folder / "half")
    assert 2 * half["bytes"]["lab"]["sent"] == whole["bytes"]["lab"]["sent"]


# --- From two tables to a prediction --------------------------------------------------------------


@pytest.mark.network
@pytest.mark.parametrize(
    "losses",
    [("contrastive", "contrastive"), ("reconstruction", "contrastive")],
    ids=["C", "mixed"],  # R: with a driver that is stopped, below
)
def test_parties_on_machines_of_their_own_train_the_same_model(
    federation: Clinics,
    dovetail: Any,
    losses: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_in_one_process(monkeypatch.setattr)  # the driver is this process
    for name, loss in zip(("lab", "registry"), losses, strict=True):
        federation.dealt.change(f"{name}.toml", ("[apfed]", f'[apfed]\nloss = "{loss}"'))
    partners = [federation.join(name) for name in ("lab", "registry")]
    run = federation.write_run()
    is_mixed = losses[0] != losses[1]
    if is_mixed:  # as typed, the driver too
        driver = federation.start("train", run, "--out", "apart")
        assert driver.ended() == 0, driver.printed()
        assert "waiting at 127.0.0.1" in driver.printed()
        assert "here: lab, registry" in driver.printed()
    else:
        done = dovetail("train", run, "--out", "apart", "-q")
        assert (done.code, done.err) == (0, "")
    dovetail("train", federation.write_here(), "--out", "here", "-q")
    here, apart = federation.folder / "here", federation.folder / "apart"
    assert weights(here) == weights(apart)
    reported = result(apart)
    assert reported["missed"] == {}
    assert reported.keys() == result(here).keys()
    for key in ("parties", "baselines", "variants"):
        assert reported[key] == result(here)[key]

    for partner in partners:
        partner.signal(signal.SIGINT)
    for name, partner in zip(("lab", "registry"), partners, strict=True):
        assert partner.ended() == 0
        assert "clinic has closed the connection" in partner.printed()
        assert verify(federation.folder / f"{name}.site" / "ledger.jsonl").party == name
    verified = verify(federation.folder / "clinic.site" / "ledger.jsonl")
    assert verified.party == "clinic"
    assert verified.bytes_to().keys() == {"lab", "registry"}
    if is_mixed:
        predicted = dovetail("predict", "apart", "clinic.csv", "--id", "person")
        assert predicted.code == 0
        assert len(predicted.out.splitlines()) == 161


@pytest.mark.network
def test_a_partner_whose_gradients_are_refused_reads_why_in_its_own_terminal(
    federation: Clinics,
) -> None:
    lab = federation.join_lying("lab", "apfed.CodeGradient", honest=1)
    registry = federation.join("registry")
    run = federation.write_run()
    driver = federation.start("train", run, "--out", "apart", "--set", "min_participation=0")
    assert driver.ended() == 0, driver.printed()
    why = "epoch 1, step 2: apfed.CodeGradient: the gradient is not finite"
    assert f"party 'lab' is left out of {why}" in driver.printed()
    lab.wait_for(rf"\d\d:\d\d  run \S+: 'clinic' leaves this party out of {why}\n")
    assert "leaves this party out" not in registry.printed()


@pytest.mark.network
@pytest.mark.parametrize(
    ("method", "kind", "why"),
    [
        ("tvfl", "vertical.Codes", "its codes are not finite"),
        ("apfed-d", "distil.Ready", "distil.Ready: no widths of 2 codes"),
    ],
)
def test_a_partner_that_a_run_ends_of_reads_so_in_its_own_terminal(
    federation: Clinics, method: str, kind: str, why: str
) -> None:
    for name in ("lab", "registry"):
        allowed = '"align", "apfed-mixed", "tvfl"'
        federation.dealt.change(f"{name}.toml", (allowed, f'{allowed}, "apfed-d"'))
    lab = federation.join_lying("lab", kind)
    federation.join("registry")
    changed = ("--set", f"method={method}", "--set", "baselines=[]")
    if method == "apfed-d":  # the exchange in which a partner says its widths
        changed += ("--set", "apfed.distil.exchange=gradients")
    driver = federation.start("train", federation.write_run(), "--out", "apart", *changed)
    assert driver.ended() == 2
    assert re.search(rf"party 'lab': .*({why})", driver.printed()), driver.printed()
    lab.wait_for(rf"run \S+: 'clinic' ends the run: .*({why})")


@pytest.mark.network
def test_a_run_that_every_partner_refuses_ends_before_it_trains(federation: Clinics) -> None:
    run = federation.write_run()
    sealed = ("--set", "method=apfed", "--set", "baselines=[]", "--set", "seeds=[0, 1]")
    allowed = '"align", "apfed-mixed", "tvfl"'
    for name in ("lab", "registry"):
        federation.dealt.change(f"{name}.toml", (allowed, f'{allowed}, "apfed"'))
        federation.join(name)
    driver = federation.start("train", run, "--out", "apart", *sealed)
    assert driver.ended() == 2
    # Each seed asks another number of each row, and a policy gives one.
    why = "nobody helps: party 'lab': refuses 1 number a row: it has given 1 of a row before"
    assert why in driver.printed()
    of_seed = [federation.folder / "apart" / f"seed-{seed}" for seed in (0, 1)]
    assert [(folder / "result.json").exists() for folder in of_seed] == [True, False]
    assert not (of_seed[1] / "models").exists()


# --- Aligning -------------------------------------------------------------------------------------


@pytest.mark.network
def test_aligning_finds_the_intersection_and_a_run_of_another_alignment_is_refused(
    federation: Clinics, dovetail: Any
) -> None:
    folder, dealt = federation.folder, federation.dealt
    for name in ("lab", "registry"):
        federation.join(name)
    here = ("clinic.toml", "--listen", f"127.0.0.1:{federation.port}", "--wait", "180")
    both = (*here, "--partners", "lab,registry")
    counted = json.loads(dovetail("align", *both, "--count", "--json").out)
    shared = {name: dealt.shared("clinic", name) for name in ("lab", "registry")}
    assert (counted["mode"], counted["shared"]) == ("cardinality", shared)
    assert not (folder / "clinic.site" / "aligned").exists()

    kept_file = folder / "clinic.site" / "aligned" / "clinic.safetensors"
    done = json.loads(dovetail("align", *both, "--json").out)
    assert done == {
        "mode": "intersection",
        "initiator": "clinic",
        "rows": {"clinic": 160, "lab": 100, "registry": 100},
        "shared": shared,
        "shared_by_all": dealt.shared("clinic", "lab", "registry"),
        "files": {"clinic": str(kept_file.relative_to(folder))},
    }
    mine = load_rows(kept_file, "clinic", dealt.ids("clinic").astype(np.str_))
    for name in ("lab", "registry"):
        path = folder / f"{name}.site" / "aligned" / "clinic.safetensors"
        theirs = load_rows(path, name, dealt.ids(name).astype(np.str_))
        has = theirs.rows_S >= 0
        assert theirs.run == mine.run
        assert has.tolist() == mine.partners[name].tolist()
        assert (
            dealt.held[name][theirs.rows_S[has]].tolist()
            == dealt.held["clinic"][mine.rows_S[has]].tolist()
        )

    older = kept_file.read_bytes()
    run = federation.write_run()
    again = dovetail("align", run)  # a run file says the same
    assert (again.code, "Each party keeps its own part" in again.out) == (0, True)
    kept_file.write_bytes(older)
    assert_refused(
        dovetail("train", run, "-q"),
        r"party 'lab': the run is of alignment '\w+', and this party's rows are of '\w+' with "
        r"'clinic'; align first \(at 'clinic': dovetail align RUN\)",
    )
    assert dovetail("align", *here, "--partners", "lab", "-q").code == 0
    assert_refused(
        dovetail("train", run, "-q"),
        r"'clinic' is aligned with 'lab' and not with 'registry'; align again with all of them",
    )
    only_lab = federation.write_run(('"lab", "registry"', '"lab"'))
    assert dovetail("train", only_lab, "-q").code == 0


# --- Faults ---------------------------------------------------------------------------------------

#: Long enough to be struck in mid-epoch.
LONGER = (("epochs = 2", "epochs = 8\nsteps_per_epoch = 60"), ('["alone", "tvfl"]', '["alone"]'))


@pytest.mark.network
def test_a_driver_that_is_stopped_or_killed_goes_on_to_the_same_model(
    federation: Clinics, dovetail: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_in_one_process(monkeypatch.setattr)  # the last driver is this process
    partners = [federation.join(name) for name in ("lab", "registry")]
    run = federation.write_run(*LONGER)
    train = ("train", run, "--out", "apart", "-q")
    first = federation.start(*train)
    federation.wait_for_lines("apart", 2, first)
    stopped_at = first.signal(signal.SIGINT)
    assert first.ended() == 130, first.printed()
    ended_s = time.monotonic() - stopped_at
    assert ended_s < LIMIT_S
    assert "Traceback" not in first.printed()
    second = federation.start(*train, "--resume")
    federation.wait_for_lines("apart", 5, second)
    killed_at = second.signal(signal.SIGKILL)
    assert second.ended() == -signal.SIGKILL
    done = dovetail(*train, "--resume")
    took_s = time.monotonic() - killed_at
    assert (done.code, done.err) == (0, "")
    dovetail("train", federation.write_here(*LONGER), "--out", "here", "-q")
    assert weights(federation.folder / "apart") == weights(federation.folder / "here")
    assert result(federation.folder / "apart")["missed"] == {}
    print(f"Ctrl-C: the driver ended after {ended_s:.1f} s; resumed and done {took_s:.1f} s after")
    for partner in partners:
        assert partner.running()
        assert (
            len(re.findall(r"apfed-mixed/seed-0/\w+ \(apfed-mixed\) begins", partner.printed()))
            == 1
        )


@pytest.mark.trained
@pytest.mark.network
def test_a_partner_that_dies_or_stalls_is_done_without_and_taken_back(
    federation: Clinics, dovetail: Any
) -> None:
    num_epochs, steps_per_epoch = 120, 10
    changes = (
        (
            "epochs = 2",
            f"epochs = {num_epochs}\nsteps_per_epoch = {steps_per_epoch}\ntimeout_s = 2",
        ),
        ('["alone", "tvfl"]', "[]"),
        ("evaluate_every = 0", "evaluate_every = 0\ncheckpoint_every = 5\nmin_participation = 0"),
        ("wait_s = 180", "wait_s = 180\ngrace_s = 1"),
        ("learning_rate = 0.05", "learning_rate = 0.006"),
    )
    lab = federation.join("lab")
    federation.join("registry")
    # The driver begins an epoch when it is allowed to, so nothing here is a race with its end.
    driver = federation.start_held("train", federation.write_run(*changes), "--out", "apart", "-q")
    epoch = 0

    def play(more: int) -> bool:
        """So many epochs more; whether the last one went without the lab."""
        nonlocal epoch
        epoch += more
        federation.allow(epoch)
        federation.wait_for_lines("apart", epoch, driver)
        return "lab" in federation.lines("apart")[epoch - 1].get("missed", {})

    def play_until_it_is_back() -> None:
        for seconds in np.linspace(0, 4, 30):  # a minute in all, for a busy machine
            if not play(1):
                return
            time.sleep(seconds)
        raise AssertionError(f"it was not taken back: {driver.printed()}")

    play(3)
    for num_lost in (1, 2):
        lab.signal(signal.SIGKILL)
        lab.ended()
        driver.wait_for(f"(?s)(lost 'lab'.*){{{num_lost}}}")
        assert play(2), "it is dead, and its answers came"
        lab = federation.join("lab")
        driver.wait_for(f"(?s)('lab' is back.*){{{num_lost}}}")
        play_until_it_is_back()
    play(5 - epoch % 5 + 1)  # one that is not saved: it is in its steps that a partner stalls here
    lab.signal(signal.SIGSTOP)
    assert play(2), "it is stopped, and its answers came"
    lab.signal(signal.SIGCONT)
    play_until_it_is_back()
    federation.allow(num_epochs)
    assert driver.ended() == 0, driver.printed()

    metrics = federation.lines("apart")
    missed = result(federation.folder / "apart")["missed"]
    assert "lab" in missed  # and, of a machine that is busy for 2 s, also the registry
    assert re.search(r"has not answered apfed\.Code\w+ since", json.dumps(metrics))
    of_lab = [line for line in driver.printed().splitlines() if "'lab'" in line]
    warnings = [line for line in of_lab if "is left out of epoch" in line]
    assert len(warnings) == len(str(missed["lab"]["steps"])), warnings  # the 1st, 10th, 100th, ...
    # Lost and back, and how much was missed; not a line a step. A save may find it away, too.
    others = [line for line in of_lab if line not in warnings and "is not saved there" not in line]
    lost = [line for line in others if "lost 'lab'" in line]
    assert len(lost) in (2, 3), others
    assert len([line for line in others if "'lab' is back" in line]) == len(lost), others
    assert len(others) == 2 * len(lost) + 1, others
    assert re.search(
        rf"party 'lab' was left out of \d+ of {num_epochs * steps_per_epoch} steps; first in epoch",
        others[-1],
    )
    accuracy = result(federation.folder / "apart")["parties"]["clinic"]["accuracy"]
    assert accuracy > 0.8  # 0.875 and 0.9 where nobody is missed, of two seeds
