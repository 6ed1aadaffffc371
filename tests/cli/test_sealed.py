"""APFed-S by the commands a user types: one question a partner, and nobody reads a label."""

from __future__ import annotations

import csv
import json
import re
import signal
import stat
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from federations import PATIENCE_S, Federation, free_port, write_new
from same_secrets import as_in_one_process
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dovetail as dt
from dovetail.models import load
from dovetail.network.quota import Quota
from dovetail.privacy import encrypted

PENALTIES = [0.001, 0.01, 0.1, 1.0, 10.0]

AGREED = ('"align", "apfed-mixed", "tvfl"]', '"align", "apfed"]')

SECTION = '\n[apfed.distil]\nfolds = 3\nstudents = ["linear"]\n'

RUN = 'method = "apfed"\nparties = ["clinic.toml", "lab.toml", "registry.toml"]\ntest = 0.3\n'

NETWORK = """
method = "apfed"
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
    deal_made = deal()
    for name in ("lab", "registry"):
        deal_made.change(f"{name}.toml", AGREED)
    (deal_made.folder / "run.toml").write_text(RUN + SECTION)
    return deal_made


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
    ledger = [json.loads(line) for line in text.splitlines()]
    sent = [(each["from"], each["to"], each["message"], each["count"]) for each in ledger]
    assert sorted(sent) == sorted(
        line
        for name in ("lab", "registry")
        for line in (
            ("clinic", name, "sealed.Begin", 1),
            (name, "clinic", "sealed.Answered", 1),
        )
    )
    report = json.loads(dovetail("inspect", "run.toml", "--json").out)
    for each in report["methods"][0]["messages"]:  # as they were announced, but for test rows
        sent = {(line["from"], line["to"]): line["bytes"] for line in ledger}
        pair = each["party"], each["partner"]
        assert each["per"] == "run"
        # Some of the labelled rows only test: that may be two ciphertexts fewer, or one more.
        assert abs(each["sent_bytes"] - sent[pair]) <= 2.5 * encrypted.TARGET_WIRE
        assert abs(each["received_bytes"] - sent[pair[::-1]]) <= 2.5 * encrypted.SECOND_WIRE
    models = dealt.folder / "out" / "models"
    assert sorted(path.name for path in models.iterdir()) == ["clinic", "joint", "lab", "registry"]
    keys = models / "joint" / "keys.safetensors"
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    whole = write_new(dealt.folder, "clinic", "lab", "registry")
    together = dovetail("predict", "out/models/joint", whole, "--id", "person", "--json")
    assert together.code == 0, together.err
    output = json.loads(together.out)
    assert output["answered"] == ["lab", "registry"]
    assert output["predicted_together"] == output["rows"] > 0
    keys.unlink()
    done = dovetail("predict", "out/models/joint", whole, "--id", "person")
    assert "the keys that read partners' answers are not here" in done.err
    alone = dovetail("predict", "out", whole, "--id", "person")
    assert alone.code == 0, alone.err

    again = dovetail("train", "run.toml", "--out", "again")
    assert again.code == 0, again.err
    models = [load(dealt.folder / out / "models" / "clinic") for out in ("out", "again")]
    for one, other in zip(*(each.network.state_dict().values() for each in models), strict=True):
        assert one.equal(other)


def test_a_party_must_agree_to_multiply(dealt: Any, dovetail: Callable[..., Any]) -> None:
    dealt.change("lab.toml", ('"align", "apfed"', '"align", "apfed-d"'))
    done = dovetail("train", "run.toml", "--out", "out")
    assert done.code != 0
    assert "party 'lab' refuses 'apfed': its policy allows align, apfed-d" in done.err


def test_a_policy_says_how_many_numbers_leave_of_a_row(
    dealt: Any, dovetail: Callable[..., Any]
) -> None:
    policy = '"align", "apfed"]'
    dealt.change("lab.toml", (policy, f"{policy}\nsealed = {{ numbers_per_row = 0 }}"))
    done = dovetail("train", "run.toml", "--out", "out")
    assert done.code == 0, done.err
    result = json.loads((dealt.folder / "out" / "result.json").read_text())
    assert result["distilled"]["partners"] == ["registry"]
    assert "refuses 1 number a row" in result["distilled"]["lost"]["lab"]
    assert "policy.sealed.numbers_per_row is 0" in result["distilled"]["lost"]["lab"]


@pytest.mark.slow
def test_with_ten_labels_of_each_of_15_classes_the_solo_model_is_above_logistic_regression() -> (
    None
):
    """On rows whose labels the owner lacks; penalty of the regression by cross-validation."""
    x, y = make_classification(
        2000, 24, n_informative=16, n_classes=15, n_clusters_per_class=1, random_state=1
    )
    rng = np.random.default_rng(1)
    known = np.concatenate([rng.choice(np.flatnonzero(y == each), 10, False) for each in range(15)])
    local, ids = x[:, ::2], np.arange(len(x))
    table = {"id": ids, **{f"a{index}": values for index, values in enumerate(local.T)}}
    labels = pd.Series(y).where(pd.Series(ids).isin(known)).astype("Int64")
    shop = {"id": ids, **{f"b{index}": values for index, values in enumerate(x[:, 1::2].T)}}
    parties = [
        dt.Party("bank", pd.DataFrame({**table, "y": labels}), id="id", label="y"),
        dt.Party("shop", pd.DataFrame(shop), id="id"),
    ]
    run = dt.fit(dt.APFed(distil={"students": ["linear"]}), parties, test=None, quiet=True)
    rest = np.setdiff1d(ids, known)
    output = run.models["bank"].predict(pd.DataFrame(table).iloc[rest])
    alone = make_pipeline(
        StandardScaler(), GridSearchCV(LogisticRegression(max_iter=300), {"C": PENALTIES}, cv=3)
    )
    alone.fit(local[known], y[known])
    assert (np.asarray(output).astype(int) == y[rest]).mean() > alone.score(local[rest], y[rest])


@pytest.fixture
def federation(dealt: Any, dovetail: Callable[..., Any]) -> Iterator[Federation]:
    named = ("clinic", "lab", "registry", "--driver", "clinic", "--host", "127.0.0.1")
    assert dovetail("certificates", *named, "-q").code == 0
    made = Federation(dealt.folder, free_port(), ("--name", "clinic"))
    (dealt.folder / "network.toml").write_text(NETWORK.format(port=made.port) + SECTION)
    for name in ("lab", "registry"):  # who is asked about rows of training once more
        dealt.change(
            f"{name}.toml", (AGREED[1], f"{AGREED[1]}\nsealed = {{ numbers_per_row = 2 }}")
        )
    with made.ending():
        yield made


@pytest.mark.network
def test_parties_on_machines_of_their_own_learn_the_same_model_bit_for_bit(
    federation: Federation, dovetail: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_in_one_process(monkeypatch.setattr)
    folder = federation.folder
    lab, registry = federation.join("lab"), federation.join("registry")
    driver = federation.start("train", "network.toml", "--out", "apart")
    assert driver.ended() == 0, driver.printed()
    here = dovetail("train", "run.toml", "--out", "here")
    assert here.code == 0, here.err
    apart, whole = federation.result("apart"), federation.result("here")
    assert apart["parties"] == whole["parties"]
    assert apart["baselines"] == whole["baselines"]
    one, other = (load(folder / out / "models" / "clinic") for out in ("apart", "here"))
    for name, values in one.network.state_dict().items():
        assert values.equal(other.network.state_dict()[name]), name
    counted = Quota(folder / "lab.site").read("SELECT DISTINCT driver FROM numbers")
    assert counted == [("clinic",)]

    # The key stays in the site, and each partner keeps its part: new rows are asked about.
    assert not (folder / "apart" / "models" / "joint" / "keys.safetensors").exists()
    (keys,) = (folder / "clinic.site" / "keys").iterdir()
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    local = write_new(folder, "clinic", "lab", "registry")
    listen = ("--listen", f"127.0.0.1:{federation.port}", "--partners", "lab,registry")
    asked = ("predict", "apart", local, "--party", "clinic.toml", *listen, "--json")

    def predicted(*options: str) -> Any:
        done = federation.start(*asked, *options)
        assert done.ended() == 0, done.printed()
        (line,) = [each for each in done.printed().splitlines() if each.startswith("{")]
        return json.loads(line)

    output = predicted("--wait", str(PATIENCE_S))
    assert output["answered"] == ["lab", "registry"], output
    done = dovetail("predict", "here/models/joint", local, "--id", "person", "--json")
    together = json.loads(done.out)["columns"]["p(malignant)"]
    assert output["columns"]["p(malignant)"] == pytest.approx(together, abs=2e-5)
    alone = json.loads(dovetail("predict", "apart", local, "--json").out)["columns"]["p(malignant)"]
    assert together != pytest.approx(alone, abs=1e-3)
    # One question a partner, and the same rows again cost nothing.
    requests = [
        line["message"]
        for text in (folder / "clinic.site" / "ledger.jsonl").read_text().splitlines()
        if (line := json.loads(text)).get("to") == "lab"
    ]
    assert requests.count("smoothing.Smooth") == 1
    numbers = "SELECT * FROM numbers ORDER BY driver, id"
    before = Quota(folder / "lab.site").read(numbers)
    assert predicted("--wait", str(PATIENCE_S))["columns"] == output["columns"]
    assert Quota(folder / "lab.site").read(numbers) == before
    for each in (lab, registry):
        each.signal(signal.SIGTERM)
        assert each.ended() == 0, each.printed()
    assert predicted("--wait", "1")["columns"]["p(malignant)"] == alone


@pytest.mark.network
def test_a_service_asks_partners_who_read_nothing_and_answers_alone_when_they_are_gone(
    federation: Federation, dovetail: Callable[..., Any]
) -> None:
    pytest.importorskip("uvicorn")
    pytest.importorskip("onnx")
    folder = federation.folder
    lab, registry = federation.join("lab"), federation.join("registry")
    driver = federation.start("train", "network.toml", "--out", "apart")
    assert driver.ended() == 0, driver.printed()
    new = write_new(folder, "clinic", "lab", "registry")
    alone = json.loads(dovetail("predict", "apart", new, "--json").out)["columns"]["p(malignant)"]
    listen = ("--listen", f"127.0.0.1:{federation.port}", "--partners", "lab,registry")
    options = ("--party", "clinic.toml", *listen, "--port", "0", "--within", "20")
    serving = federation.start("serve", "apart", *options)
    serving.wait_for(r"serving .* at http://127.0.0.1:\d+")
    found = re.search(r"http://127.0.0.1:(\d+)", serving.printed())
    assert found is not None
    columns = [*load(folder / "apart" / "models" / "clinic").inputs["own"].columns, "person"]
    rows = [
        {name: row[name] if name == "person" else float(row[name]) for name in columns}
        for row in csv.DictReader(new.read_text().splitlines())
    ]

    def answered(by: set[str]) -> list[float]:
        """Probabilities, as soon as these partners and no others have a part in some."""
        deadline = time.monotonic() + PATIENCE_S / 3
        while True:
            request = urllib.request.Request(
                f"http://127.0.0.1:{found[1]}/predict",
                json.dumps(rows).encode(),
                {"content-type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
                report = json.loads(reply.read())
            if {name for each in report["predictions"] for name in each["answered"]} == by:
                return [each["probabilities"]["malignant"] for each in report["predictions"]]
            assert time.monotonic() < deadline, report
            time.sleep(0.2)

    together = answered({"lab", "registry"})
    assert together != pytest.approx(alone, abs=1e-3)
    assert answered({"lab", "registry"}) == together  # the same numbers, however often
    for each in (lab, registry):
        each.signal(signal.SIGKILL)
    assert answered(set()) == pytest.approx(alone, abs=2e-6)
    with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/metrics", timeout=30) as reply:
        metrics = reply.read().decode()
    counts = re.findall(
        r'dovetail_rows_said_total{by="(\w+)",.*partners="([^"]*)"} ([\d.]+)', metrics
    )
    rows_said = {(by, partners): float(num) for by, partners, num in counts}
    assert rows_said["joint", "lab,registry"] >= 2
    assert rows_said["solo", ""] >= len(rows)
    serving.signal(signal.SIGINT)
    serving.ended()
    assert "Traceback" not in serving.printed()


@pytest.mark.network
def test_a_signed_proposal_names_its_messages_and_is_what_partners_answer(
    federation: Federation, dovetail: Callable[..., Any]
) -> None:
    folder = federation.folder
    for name in ("lab", "registry"):
        path = folder / f"{name}.toml"
        path.write_text(path.read_text().replace("[policy]", '[policy]\napproval = "signed"'))
    asked = dovetail("propose", "network.toml", "--purpose", "Which tumours are malignant?")
    assert asked.code == 0, asked.err
    page = (folder / "proposal.md").read_text()
    assert "sealed.Begin" in page
    assert "sealed.Answered" in page
    for name in ("lab", "registry"):
        signed = dovetail("review", "proposal.json", "--party", f"{name}.toml", "--yes")
        assert signed.code == 0, signed.err
        federation.join(name)
    bare = federation.start("train", "network.toml", "--out", "bare")
    assert bare.ended() != 0
    assert "was not proposed" in bare.printed()
    agreed = federation.start(
        "train", "network.toml", "--proposal", "proposal.json", "--out", "agreed"
    )
    assert agreed.ended() == 0, agreed.printed()
    assert federation.result("agreed")["distilled"]["partners"] == ["lab", "registry"]
    (kept,) = (folder / "lab.site" / "models").iterdir()
    assert json.loads((kept / "bottom.json").read_text())["proposal"]
