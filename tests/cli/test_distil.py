"""APFed-D by the commands a user types: trained, predicted alone, and with partners while there."""

from __future__ import annotations

import csv
import json
import math
import re
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from federations import PATIENCE_S, Federation, free_port, write_new

from dovetail.methods.apfed import distil
from dovetail.models import load
from dovetail.models.learners.joint import JointSpec
from dovetail.network import Message
from dovetail.network.quota import Quota

SECTION = """
[apfed.distil]
exchange = "gradients"
folds = 2
teachers = ["linear"]
students = ["linear"]
max_steps = 60
"""

AGREED = ('"align", "apfed-mixed", "tvfl"]', '"align", "apfed-d"]')

RUN = """
method = "apfed-d"
parties = ["clinic.toml", "lab.toml", "registry.toml"]
test = 0.3
"""

NETWORK = """
method = "apfed-d"
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
    """Party files that agree to APFed-D, and run.toml."""
    deal_made = deal()
    for name in ("lab", "registry"):
        deal_made.change(f"{name}.toml", AGREED)
    (deal_made.folder / "run.toml").write_text(RUN + SECTION)
    return deal_made


def table_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


@pytest.mark.slow
def test_a_run_keeps_a_model_that_predicts_alone_and_one_that_predicts_with_partners(
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
    recovered = result["recovered"]
    assert recovered["solo"] == pytest.approx(recovered["alone"] + recovered["gain"])
    assert "Share of the gain kept" in done.out
    assert result["bytes"]["lab"]["sent"] > 0
    models = dealt.folder / "out" / "models"
    assert sorted(path.name for path in models.iterdir()) == ["clinic", "joint", "lab", "registry"]
    solo, joint = load(models / "clinic"), load(models / "joint")
    assert isinstance(joint.spec, JointSpec)
    assert joint.spec.partial  # some of the clinic's patients are at one partner only

    new = write_new(dealt.folder, "clinic")
    whole = write_new(dealt.folder, "clinic", "lab", "registry")
    alone = dovetail("predict", "out", new, "--id", "person")
    assert alone.code == 0, alone.err
    # Its partner is gone: the same command says so, and gives the solo model's word.
    fallen_back = dovetail("predict", "out/models/joint", new, "--id", "person")
    assert fallen_back.code == 0, fallen_back.err
    assert "every row is predicted by the model that needs none" in fallen_back.err
    assert [{**row, "answered": ""} for row in table_of(alone.out)] == table_of(fallen_back.out)
    together = dovetail("predict", "out/models/joint", whole, "--id", "person", "--json")
    assert together.code == 0, together.err
    report = json.loads(together.out)
    assert report["answered"] == ["lab", "registry"]
    assert report["predicted_together"] == report["rows"] > 0
    assert set(report["columns"]["answered"]) == {"lab registry"}
    assert "auc" in report["scores"]
    # The model of the folder is the one that was scored.
    assert solo.about["learner"] == result["distilled"]["choice"]


@pytest.mark.slow
def test_a_gate_that_stays_closed_keeps_the_best_model_alone_bit_for_bit(
    dealt: Any, dovetail: Callable[..., Any]
) -> None:
    settings = ("--set", "apfed.distil.gate=1e6", "--set", "apfed.refit=false", "-q")
    assert dovetail("train", "run.toml", "--out", "closed", *settings).code == 0
    result = json.loads((dealt.folder / "closed" / "result.json").read_text())
    assert result["distilled"]["pays"] is False
    assert "was not better" in result["distilled"]["why"]
    alone = ("--set", 'method="best-alone"', "-q")
    assert dovetail("train", "run.toml", "--out", "alone", *alone).code == 0
    files = [
        dealt.folder / out / "models" / "clinic" / "model.safetensors"
        for out in ("closed", "alone")
    ]
    assert files[0].read_bytes() == files[1].read_bytes()
    scores_alone = json.loads((dealt.folder / "alone" / "result.json").read_text())
    assert (
        scores_alone["parties"]["clinic"]
        == result["parties"]["clinic"]
        == result["baselines"]["best-alone"]
    )


def test_a_run_whose_partners_all_send_nonsense_is_not_called_done(
    dealt: Any, dovetail: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, brief_learners: None
) -> None:
    real = distil.Partner.handle

    def lying(self: distil.Partner, message: Message) -> Message:
        answer = real(self, message)
        return (
            replace(answer, code_ND=answer.code_ND * math.nan)
            if isinstance(answer, distil.Codes)
            else answer
        )

    monkeypatch.setattr(distil.Partner, "handle", lying)
    done = dovetail("train", "run.toml", "--out", "out", "-q")
    assert done.code == 2
    assert re.search(r"was left out of (\d) of \1 steps \(first: .* codes are not finite", done.err)


def test_a_party_must_agree_to_send_its_codes(dealt: Any, dovetail: Callable[..., Any]) -> None:
    dealt.change("lab.toml", ('"align", "apfed-d"', '"align", "apfed-mixed"'))
    done = dovetail("train", "run.toml", "--out", "out", "-q")
    assert done.code == 2
    assert "party 'lab' refuses 'apfed-d': its policy allows align, apfed" in done.err


def test_no_party_is_called_as_the_joint_models_folder(
    dealt: Any, dovetail: Callable[..., Any]
) -> None:
    dealt.change("lab.toml", ('name = "lab"', 'name = "joint"'))
    done = dovetail("train", "run.toml", "--out", "out", "-q")
    assert done.code == 2
    assert "a party is called 'joint', as the folder of the joint model is" in done.err


# --- Over a network -------------------------------------------------------------------------------


@pytest.fixture
def federation(dealt: Any, dovetail: Callable[..., Any]) -> Iterator[Federation]:
    named = ("clinic", "lab", "registry", "--driver", "clinic", "--host", "127.0.0.1")
    assert dovetail("certificates", *named, "-q").code == 0
    made = Federation(dealt.folder, free_port(), ("--name", "clinic"))
    (dealt.folder / "network.toml").write_text(NETWORK.format(port=made.port) + SECTION)
    with made.ending():
        yield made


@pytest.mark.network
def test_parties_on_machines_of_their_own_distil_the_same_and_predict_together(
    federation: Federation, dovetail: Callable[..., Any]
) -> None:
    folder = federation.folder
    lab, registry = federation.join("lab"), federation.join("registry")
    driver = federation.start("train", "network.toml", "--out", "apart")
    assert driver.ended() == 0, driver.printed()
    assert "codes leave it" in lab.printed()
    assert dovetail("train", "run.toml", "--out", "here", "-q").code == 0
    weights = [
        folder / out / "models" / "clinic" / "model.safetensors" for out in ("apart", "here")
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    apart, here = federation.result("apart"), federation.result("here")
    assert apart["parties"]["clinic"] == pytest.approx(here["parties"]["clinic"])
    assert apart["baselines"]["joint"] == pytest.approx(here["baselines"]["joint"])

    card = json.loads((folder / "apart" / "models" / "clinic" / "card.json").read_text())
    for name in ("lab", "registry"):  # where its own record stood when it last told
        assert card["heads"][name]["hash"] in (folder / f"{name}.site/ledger.jsonl").read_text()

    new = write_new(folder, "clinic", "lab", "registry")
    listen = ("--listen", f"127.0.0.1:{federation.port}", "--partners", "lab,registry")
    asked = ("predict", "apart", new, "--party", "clinic.toml", *listen, "--json")

    def predicted(*options: str) -> tuple[Any, str]:
        done = federation.start(*asked, *options)
        assert done.ended() == 0, done.printed()
        (line,) = [each for each in done.printed().splitlines() if each.startswith("{")]
        return json.loads(line), done.printed()

    report, _ = predicted("--wait", str(PATIENCE_S))
    assert report["answered"] == ["lab", "registry"]
    done = dovetail("predict", "here/models/joint", new, "--id", "person", "--json")
    together = json.loads(done.out)["columns"]
    for name, values in together.items():
        if name.startswith("p("):
            assert report["columns"][name] == pytest.approx(values, abs=2e-6)
    # Everybody is gone: the same command goes on with the solo model, and says so.
    for each in (lab, registry):
        each.signal(signal.SIGTERM)
        assert each.ended() == 0, each.printed()
    report, text = predicted("--wait", "1")
    assert "every row is predicted by the model that needs none" in text
    alone = json.loads(dovetail("predict", "apart", new, "--json").out)["columns"]
    assert report["columns"]["p(malignant)"] == alone["p(malignant)"]
    for name, *messages in (
        ("clinic", "distil.Encode"),
        ("lab", "distil.Codes", "recalling.Recal"),
    ):
        ledger = (folder / f"{name}.site" / "ledger.jsonl").read_text()
        assert all(message in ledger for message in messages)


@pytest.mark.network
def test_a_partner_that_dies_is_left_out_and_a_driver_that_is_killed_goes_on(
    federation: Federation,
) -> None:
    settings = ("--set", "apfed.distil.max_steps=200", "--set", "apfed.distil.patience=200")
    for name in ("lab", "registry"):
        federation.join(name)
    driver = federation.start("train", "network.toml", "--out", "stopped", *settings)
    federation.wait_for_lines("stopped", 3, driver)
    driver.signal(signal.SIGKILL)
    driver.ended()
    again = federation.start("train", "network.toml", "--out", "stopped", "--resume", *settings)
    assert again.ended() == 0, again.printed()
    whole = federation.start("train", "network.toml", "--out", "whole", *settings)
    assert whole.ended() == 0, whole.printed()
    assert federation.result("stopped")["parties"] == federation.result("whole")["parties"]

    dying = federation.start(
        "train", "network.toml", "--out", "dying", *settings, "--set", "min_participation=0"
    )
    federation.wait_for_lines("dying", 3, dying)
    federation.started[1].signal(signal.SIGKILL)  # the registry
    assert dying.ended() == 0, dying.printed()
    result = federation.result("dying")
    assert result["distilled"]["partners"] == ["lab"]
    assert result["missed"]["registry"]["steps"] > 0
    assert "was left out of" in dying.printed()
    # The lab, which begins a run once, went on with what it had.
    begun = Quota(federation.folder / "lab.site").read("SELECT run FROM begins")
    assert len(begun) == len(set(begun)) == 3


@pytest.mark.network
def test_a_joint_model_in_service_asks_who_is_there_and_answers_alone_when_they_are_gone(
    federation: Federation, dovetail: Callable[..., Any]
) -> None:
    pytest.importorskip("uvicorn")
    pytest.importorskip("onnx")
    folder = federation.folder
    lab, registry = federation.join("lab"), federation.join("registry")
    driver = federation.start("train", "network.toml", "--out", "apart")
    assert driver.ended() == 0, driver.printed()
    new = write_new(folder, "clinic", "lab", "registry")
    listen = ("--listen", f"127.0.0.1:{federation.port}", "--partners", "lab,registry")
    asked = ("predict", "apart", new, "--party", "clinic.toml", *listen, "--json")
    predicting = federation.start(*asked, "--wait", str(PATIENCE_S))
    assert predicting.ended() == 0, predicting.printed()
    (line,) = [each for each in predicting.printed().splitlines() if each.startswith("{")]
    together = json.loads(line)["columns"]["p(malignant)"]
    alone = json.loads(dovetail("predict", "apart", new, "--json").out)["columns"]["p(malignant)"]
    assert together != pytest.approx(alone, abs=1e-4)

    options = ("--party", "clinic.toml", *listen, "--port", "0", "--within", "2")
    serving = federation.start("serve", "apart", *options)
    serving.wait_for(r"serving .* at http://127.0.0.1:\d+")
    matched = re.search(r"http://127.0.0.1:(\d+)", serving.printed())
    assert matched is not None
    address = f"http://127.0.0.1:{matched[1]}/predict"
    columns = [*load(folder / "apart" / "models" / "clinic").inputs["own"].columns, "person"]
    rows = [
        {name: row[name] if name == "person" else float(row[name]) for name in columns}
        for row in csv.DictReader(new.read_text().splitlines())
    ]

    def answered(by: list[str]) -> dict[str, Any]:
        """An answer that these partners have a part in, as soon as there is one."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            request = urllib.request.Request(
                address, json.dumps(rows).encode(), {"content-type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
                answer_json: dict[str, Any] = json.loads(reply.read())
            if all(each["answered"] == by for each in answer_json["predictions"]):
                return answer_json
            assert time.monotonic() < deadline, answer_json
            time.sleep(0.2)

    def probabilities(reply: dict[str, Any]) -> list[float]:
        return [each["probabilities"]["malignant"] for each in reply["predictions"]]

    reply = answered(["lab", "registry"])
    assert probabilities(reply) == pytest.approx(together, abs=2e-6)
    assert {each["said_by"] for each in reply["predictions"]} == {"joint"}
    assert reply["missing"] == {}
    lab.signal(signal.SIGKILL)
    reply = answered(["registry"])
    assert reply["missing"].keys() == {"lab"}
    assert probabilities(reply) != pytest.approx(together, abs=1e-4)
    registry.signal(signal.SIGSTOP)  # it has a line, and says nothing
    reply = answered([])
    assert reply["missing"].keys() == {"lab", "registry"}
    assert probabilities(reply) == pytest.approx(alone, abs=2e-6)
    assert {each["said_by"] for each in reply["predictions"]} == {"solo"}
    registry.signal(signal.SIGKILL)
    reply = answered([])
    assert reply["missing"].keys() == {"lab", "registry"}
    assert reply["missing"]["lab"] == "is not connected"
    federation.join("lab")
    reply = answered(["lab"])
    assert probabilities(reply) != pytest.approx(alone, abs=1e-4)
    rows = [{name: value for name, value in row.items() if name != "person"} for row in rows]
    assert "is among those" in answered([])["missing"]["lab"]  # nobody says who they are
    serving.signal(signal.SIGINT)
    serving.ended()
    assert "Traceback" not in serving.printed()
