"""Training over the network: gRPC, certificates of both sides, the lab in a process of its own."""

from __future__ import annotations

import json
import pickle
import signal
import socket
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forked
import numpy as np
import pytest
from sklearn.base import clone
from tables import SMALL, clinic_and_lab, parties

import dovetail as dt
from dovetail.alignment import stored
from dovetail.errors import ConfigError
from dovetail.sklearn import SoloClassifier

LAB = """
import sys
import polars as pl
import dovetail as dt

lab = dt.Party(
    "lab",
    pl.read_parquet("lab.parquet"),
    id="patient",
    apfed={"encoder": (8,)},
    policy={
        "drivers": ["clinic"],
        "min_ids": 10,
        "algorithms": ["align", "apfed", "apfed-mixed"],
    },
)
dt.join(lab, sys.argv[1])
print("ended", flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with certificates and the lab's table."""
    monkeypatch.chdir(tmp_path)
    words = ["certificates", "clinic", "lab", "--driver", "clinic", "--host", "127.0.0.1"]
    assert forked.command(tmp_path, *words).code == 0
    clinic_and_lab()[1].to_parquet(tmp_path / "lab.parquet", index=False)
    return tmp_path


@contextmanager
def lab_at(address: str, script: str = LAB) -> Iterator[forked.Running]:
    """The lab, in a process that is told to stop by Ctrl-C."""
    process = forked.begin(Path.cwd(), script, address)
    try:
        yield process
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        assert output.splitlines()[-1] == "ended", output
        assert process.returncode == 0, output
    finally:
        process.kill()
        process.communicate()


def address() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.network
def test_partners_elsewhere_train_a_model_that_predicts_alone(folder: Path) -> None:
    clinic, _ = clinic_and_lab()
    clinic_party, _ = parties(*clinic_and_lab())
    at = address()
    with lab_at(at), dt.listen(at, ["lab"], wait_s=120) as partners:
        first = dt.fit(
            dt.APFed("partners", **SMALL),
            clinic_party,
            baselines=["alone"],
            seeds=2,
            out="run",
            partners=partners,
            quiet=True,
        )
        second = dt.fit(
            dt.APFed("partners", **SMALL), clinic_party, partners=partners, quiet=True
        )  # nobody waits
    before = first.models["clinic"].predict_proba(clinic)
    assert before.shape == (120, 2)
    # The lab's network is another one in each run: nobody can compute it from the seed.
    after = second.models["clinic"].predict_proba(clinic)
    assert not np.array_equal(after, before)
    np.testing.assert_allclose(after, before, atol=0.05)
    np.testing.assert_array_equal(dt.Run("run").models["clinic"].predict_proba(clinic), before)
    assert first.result["bytes"].keys() == {"clinic", "lab"}
    assert (folder / "lab.site" / "ledger.jsonl").stat().st_size
    assert (folder / "clinic.site" / "ledger.jsonl").stat().st_size
    assert list(first.scores) == ["APFed with mixed losses, predicts alone", "learned alone"]


@pytest.mark.trained
@pytest.mark.network
@pytest.mark.usefixtures("brief_learners")
def test_several_labels_are_one_question_to_a_partner_elsewhere(folder: Path) -> None:
    clinic, _ = clinic_and_lab()
    clinic["pain"] = (clinic["age"] > 50).astype(float).where(clinic.index % 3 > 0)
    party = dt.Party("clinic", clinic, id="patient", label=["ill", "pain"])
    script = LAB.replace('"min_ids": 10', '"min_ids": 10, "sealed": {"numbers_per_row": 2}')
    at = address()
    with lab_at(at, script), dt.listen(at, ["lab"], wait_s=120) as partners:
        run = dt.fit(dt.APFed(), party, test=0.25, partners=partners, quiet=True, out="run")
    assert run.result["distilled"]["partners"] == ["lab"]
    assert list(run.result["distilled"]["labels"]) == ["ill", "pain"]
    ledger = map(json.loads, (folder / "run" / "ledger.jsonl").read_text().splitlines())
    assert [each["count"] for each in ledger if each["message"] == "sealed.Begin"] == [1]
    assert list(run.models["clinic"].predict(clinic).columns) == ["ill", "pain"]
    assert run.result["baselines"]["joint"]["auc_labels"] > 0.6


@pytest.mark.network
@pytest.mark.usefixtures("brief_learners")
def test_an_estimator_of_scikit_learn_trains_with_partners_elsewhere(folder: Path) -> None:
    clinic, _ = clinic_and_lab()
    X, y = clinic.drop(columns="ill"), clinic["ill"]
    at = address()
    settings = {"sealed": {"rows": 400}}
    with lab_at(at), dt.listen(at, ["lab"], wait_s=120) as partners:
        model = SoloClassifier(partners, name="clinic", id="patient", settings=settings)
        first = model.fit(X, y).predict_proba(X)
        again = clone(model).fit(X, y)  # the same connection, nobody waits
        second = again.predict_proba(X)
    kept = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(kept.predict_proba(X), first)
    assert first.shape == (len(X), 2)
    for each in (model, again):  # the same question again costs no row a number
        assert each.run_.result["distilled"]["partners"] == ["lab"]
    assert {*model.run_.result["bytes"]} == {"clinic", "lab"}
    np.testing.assert_array_equal(model.predict_proba(X), first)  # after the lab has left
    np.testing.assert_allclose(second, first, atol=0.2)
    assert (folder / "lab.site" / "ledger.jsonl").stat().st_size


REGISTRY = """
import sys
import dovetail as dt

registry = dt.Party(
    "lab",
    "lab.parquet",
    id="sample",
    match=[["insurance"], ["surname", "born"]],
    match_columns={"surname": "family"},
    apfed={"encoder": (8,)},
    policy={"drivers": ["clinic"], "algorithms": ["align", "apfed-mixed"]},
)
dt.join(registry, sys.argv[1])
print("ended", flush=True)
"""


@pytest.mark.network
def test_partners_without_a_common_id_train_by_match_keys(folder: Path) -> None:
    clinic, lab = clinic_and_lab()
    people = clinic["patient"].to_list()
    named = {"surname": [f"Name {each}" for each in people], "born": "1980-01-02"}
    insured = [each if row % 2 else None for row, each in enumerate(people)]
    clinic = clinic.assign(**named, insurance=insured, patient=range(len(clinic)))
    lab = lab.assign(
        family=["NAME " + each for each in lab["patient"]],
        born="02.01.1980",
        insurance=lab["patient"],
        sample=range(500, 500 + len(lab)),
    ).drop(columns="patient")
    lab.to_parquet(folder / "lab.parquet", index=False)
    clinic_party = dt.Party(
        "clinic", clinic, id="patient", label="ill", match=[["insurance"], ["surname", "born"]]
    )
    assert not {"surname", "born", "insurance"} & set(clinic_party.columns)
    at = address()
    with lab_at(at, REGISTRY), dt.listen(at, ["lab"], wait_s=120) as partners:
        run = dt.fit(
            dt.APFed("partners", **SMALL), clinic_party, partners=partners, out="run", quiet=True
        )
    assert run.models["clinic"].predict_proba(clinic).shape == (120, 2)
    sent = (folder / "lab.site" / "ledger.jsonl").read_text()
    assert sent.count('"psi.Passing"') == 2  # a pass for each key
    assert "Name" not in sent
    # In one process the same; and what is kept of a frame has the columns to repeat it with.
    both = [
        clinic_party,
        dt.Party(
            "lab",
            lab,
            id="sample",
            match=clinic_party.site.party.match,
            match_columns={"surname": "family"},
            apfed={"encoder": (8,)},
        ),
    ]
    dt.fit(dt.APFed("partners", **SMALL), both, out="here", quiet=True)
    kept = dt.Party.read("here/given/lab.toml")
    assert kept.site.party.match == clinic_party.site.party.match
    assert kept.site.match_values()[0].missing == 0
    with pytest.raises(ConfigError, match=r"match is a list of keys, each a list of columns"):
        dt.Party("clinic", clinic, id="patient", match=["surname"])


@pytest.mark.network
def test_an_event_ends_a_party_that_joined(folder: Path) -> None:
    lab = dt.Party("lab", "lab.parquet", id="patient", policy={"drivers": ["clinic"]})
    stop = threading.Event()
    joined = threading.Thread(
        target=dt.join, args=(lab, address()), kwargs={"stop": stop, "quiet": True}
    )
    joined.start()
    stop.set()
    joined.join(timeout=60)
    assert not joined.is_alive()


def test_what_partners_set_themselves_is_refused_here() -> None:
    clinic_party, lab = parties(*clinic_and_lab())
    partners = dt.listen("127.0.0.1:7443", ["lab"])
    method = dt.APFed("contrastive", passive={"encoder": (4,)})
    with pytest.raises(ConfigError, match="partners on other machines set their own"):
        dt.fit(method, clinic_party, partners=partners, quiet=True)
    with pytest.raises(ConfigError, match="give the one party that drives"):
        dt.fit(dt.APFed(), [clinic_party, lab], partners=partners, quiet=True)
    with pytest.raises(ConfigError, match=r"a coordinator without data drives.*give parties=\[\]"):
        dt.fit(dt.CHFL(), clinic_party, partners=partners, quiet=True)


#: What ids look like -> ids of 60 people, of whom each party has 40, and one that would change how
#: a file is read by a guess.
WRITTEN = {
    "like dates": (
        [f"{a:02d}-{b:02d}-{a + b:02d}" for a in range(6) for b in range(10)],
        "03-25-10",
    ),
    "above 2^63": ([str(2**63 + 7 * k) for k in range(60)], "18446744073709551615"),
    "with zeros": ([f"{k:05d}" for k in range(60)], "A1"),
    "like exponents": ([f"1E{k}" for k in range(60)], "CA40"),
    "decomposed": ([f"Zu\u0308rich {k}" for k in range(60)], "x"),
}

FILES = """
import sys
import dovetail as dt

dt.join(dt.Party("lab", "lab.csv", id="id", policy={"drivers": ["clinic"]}), sys.argv[1])
print("ended", flush=True)
"""


@pytest.mark.network
@pytest.mark.parametrize("what", WRITTEN)
def test_ids_of_files_elsewhere_are_compared_as_they_are_written(folder: Path, what: str) -> None:
    ids, odd = WRITTEN[what]
    ours, theirs = ids[:40], [*ids[20:], odd]
    composed = [unicodedata.normalize("NFC", each) for each in theirs]
    for name, each in (("clinic", ours), ("lab", composed)):
        lines = [f"{id},{row}\n" for row, id in enumerate(each)]
        (folder / f"{name}.csv").write_text("id,x\n" + "".join(lines), encoding="utf-8")
    at, clinic = address(), dt.Party("clinic", "clinic.csv", id="id")
    with lab_at(at, FILES), dt.listen(at, ["lab"], wait_s=120) as partners:
        matched = dt.align(clinic, partners=partners, quiet=True)
    assert matched.shared == {"lab": 20}
    path = folder / "clinic.site" / "aligned" / "clinic.safetensors"
    kept = stored.load_rows(path, "clinic", clinic.site.table.ids)
    assert sorted(kept.rows_S[kept.partners["lab"]].tolist()) == list(range(20, 40))
