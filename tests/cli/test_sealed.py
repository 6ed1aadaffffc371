"""APFed-S by the commands a user types: one question a partner, and nobody reads a label."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from federations import Federation, free_port

from dovetail.models import load

pytest.importorskip("seal")

AGREED = ('"align", "apfed", "tvfl"]', '"align", "apfed-s"]')

SECTION = '\n[apfed.distil]\nfolds = 3\nstudents = ["linear"]\n'

RUN = 'method = "apfed-s"\nparties = ["clinic.toml", "lab.toml", "registry.toml"]\ntest = 0.3\n'

NETWORK = """
method = "apfed-s"
parties = ["clinic.toml"]
test = 0.3

[engine]
kind = "stream"
listen = "127.0.0.1:{port}"
partners = ["lab", "registry"]
wait_s = 180
"""


@pytest.fixture
def dealt(deal: Any) -> Any:
    """Party files that agree to APFed-S, and run.toml."""
    found = deal()
    for name in ("lab", "registry"):
        found.change(f"{name}.toml", AGREED)
    (found.folder / "run.toml").write_text(RUN + SECTION)
    return found


@pytest.mark.slow
def test_a_run_of_party_files_sends_two_messages_a_partner(
    dealt: Any, dovetail: Callable[..., Any]
) -> None:
    done = dovetail("train", "run.toml", "--out", "out")
    assert done.code == 0, done.err
    result = json.loads((dealt.folder / "out" / "result.json").read_text())
    assert set(result["baselines"]) == {
        "best-alone",
        "linear",
        "boosting",
        "network",
        "majority",
        "joint",
    }
    assert result["distilled"]["partners"] == ["lab", "registry"]
    assert result["distilled"]["numbers_per_row"] == 1
    text = (dealt.folder / "out" / "ledger.jsonl").read_text()
    book = [json.loads(line) for line in text.splitlines()]
    sent = [(each["from"], each["to"], each["message"], each["count"]) for each in book]
    assert sorted(sent) == sorted(
        line
        for name in ("lab", "registry")
        for line in (
            ("clinic", name, "sealed.Begin", 1),
            (name, "clinic", "sealed.Answered", 1),
        )
    )
    again = dovetail("train", "run.toml", "--out", "again")
    assert again.code == 0, again.err
    models = [load(dealt.folder / out / "models" / "clinic") for out in ("out", "again")]
    for one, other in zip(*(each.network.state_dict().values() for each in models), strict=True):
        assert one.equal(other)


def test_a_party_must_agree_to_multiply(dealt: Any, dovetail: Callable[..., Any]) -> None:
    dealt.change("lab.toml", ('"align", "apfed-s"', '"align", "apfed-d"'))
    done = dovetail("train", "run.toml", "--out", "out")
    assert done.code != 0
    assert "party 'lab' refuses 'apfed-s': its policy allows align, apfed-d" in done.err


def test_a_policy_says_how_many_numbers_leave_of_a_row(
    dealt: Any, dovetail: Callable[..., Any]
) -> None:
    policy = '"align", "apfed-s"]'
    dealt.change("lab.toml", (policy, f"{policy}\nsealed = {{ numbers_per_row = 2 }}"))
    kernels = ("--set", 'apfed.sealed.kernels=["linear","radial","trees"]')
    done = dovetail("train", "run.toml", "--out", "out", *kernels)
    assert done.code == 0, done.err
    result = json.loads((dealt.folder / "out" / "result.json").read_text())
    assert result["distilled"]["partners"] == ["registry"]
    assert "refuses 3 numbers a row" in result["distilled"]["lost"]["lab"]
    assert "policy.sealed.numbers_per_row is 2" in result["distilled"]["lost"]["lab"]


@pytest.fixture
def federation(dealt: Any, dovetail: Callable[..., Any]) -> Iterator[Federation]:
    named = ("clinic", "lab", "registry", "--driver", "clinic", "--host", "127.0.0.1")
    assert dovetail("certificates", *named, "-q").code == 0
    made = Federation(dealt.folder, free_port(), ("--name", "clinic"))
    (dealt.folder / "network.toml").write_text(NETWORK.format(port=made.port) + SECTION)
    with made.ending():
        yield made


@pytest.mark.network
def test_parties_on_machines_of_their_own_learn_the_same_model_bit_for_bit(
    federation: Federation, dovetail: Callable[..., Any]
) -> None:
    folder = federation.folder
    lab, registry = federation.join("lab"), federation.join("registry")
    driver = federation.start("train", "network.toml", "--out", "apart")
    assert driver.ended() == 0, driver.said()
    here = dovetail("train", "run.toml", "--out", "here")
    assert here.code == 0, here.err
    apart, whole = federation.result("apart"), federation.result("here")
    assert apart["parties"] == whole["parties"]
    assert apart["baselines"] == whole["baselines"]
    one, other = (load(folder / out / "models" / "clinic") for out in ("apart", "here"))
    for name, values in one.network.state_dict().items():
        assert values.equal(other.network.state_dict()[name]), name
    counted = list((folder / "lab.site" / "numbers").iterdir())
    assert [path.name for path in counted] == ["clinic.safetensors"]
    for each in (lab, registry):
        each.signal(signal.SIGTERM)
        assert each.ended() == 0, each.said()
