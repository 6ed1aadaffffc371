"""A mistake from Python ends in one sentence that says whose it is and what to do."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tables import SMALL, clinic_and_lab, parties

import dovetail as dt
from dovetail import DovetailError

CLINIC, LAB = clinic_and_lab()


def party(frame: Any = CLINIC, **keys: Any) -> dt.Party:
    return dt.Party("clinic", frame, **{"id": "patient", "label": "ill", **keys})


def fit(*given: Any, method: Any = None, **keys: Any) -> dt.Run:
    return dt.fit(method or dt.APFed("partners", **SMALL), list(given), quiet=True, **keys)


def deal(partition: dt.Partition, **keys: Any) -> dt.Run:
    return dt.fit(dt.APFed("partners", **SMALL), dt.simulate(CLINIC, partition, **keys), quiet=True)


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "no such id": (lambda: party(id="pateint"), "no column 'pateint' in the DataFrame; did you"),
    "no such label": (lambda: party(label="il"), "party 'clinic': no column 'il' in the DataFrame"),
    "no such column": (lambda: party(columns=["agee"]), "matches 'agee'; did you mean 'age'"),
    "the id is an index": (
        lambda: party(CLINIC.set_index("patient")),
        r"whose index it is; give df.reset_index\(\)",
    ),
    "ids that repeat": (
        lambda: party(pd.concat([CLINIC, CLINIC.head(2)])),
        "party 'clinic': .*2 .*repeated",
    ),
    "ids that are missing": (
        lambda: party(CLINIC.assign(patient=CLINIC["patient"].where(CLINIC.index > 2))),
        "party 'clinic': column 'patient' of the DataFrame has no id in 3 of 120 rows",
    ),
    "a DataFrame for a party": (
        lambda: fit(party(), LAB),
        r"a DataFrame becomes one with dovetail.Party\(name, df",
    ),
    "columns of one name": (
        lambda: party(CLINIC.rename(columns={"age": "ill"})),
        "cannot read the DataFrame: it has two columns 'ill'; rename one",
    ),
    "a folder that cannot be": (
        lambda: fit(party(), dt.Party("lab", LAB, id="patient"), out="/proc/here"),
        "cannot write to the folder /proc/here: .*; allow it, or name another",
    ),
    "no table": (lambda: party(42), "party 'clinic': expected a path, a SELECT or a DataFrame"),
    "an array": (lambda: party(np.ones((3, 3))), "got numpy.ndarray"),
    "no such file": (lambda: party(Path("nowhere.csv")), "there is no file .*nowhere.csv"),
    "no rows": (lambda: party(CLINIC.head(0)), "the DataFrame has no rows"),
    "a mistyped argument": (
        lambda: party(lable="ill"),
        r"dovetail.Party\('clinic'\): unknown argument 'lable'; did you mean 'label'",
    ),
    "a mistyped method": (lambda: party(apfd={}), "unknown argument 'apfd'; did you mean 'apfed'"),
    "a mistyped setting of a party": (
        lambda: party(apfed={"encodr": [8]}),
        r"dovetail.Party\('clinic'\): unknown key 'apfed.encodr'; did you mean 'encoder'",
    ),
    "a task that is none": (lambda: party(task="guess"), "party.task"),
    "columns and blocks": (
        lambda: party(columns=["age"], blocks={"a": ["age"]}),
        "give columns or blocks, not both",
    ),
    "a name that is none": (
        lambda: dt.Party("a/b", CLINIC, id="patient"),
        "a party's name begins with",
    ),
    "a mistyped setting": (
        lambda: dt.APFed(epoch=3),
        "dovetail.APFed: unknown key 'epoch'; did you mean 'epochs'",
    ),
    "a mistyped setting of CHFL": (lambda: dt.CHFL(round=3), "did you mean 'rounds'"),
    "a wrong value": (lambda: dt.HyFEM(rounds="many"), "dovetail.HyFEM: rounds: .*got 'many'"),
    "a loss that is none": (
        lambda: dt.APFed("mse"),  # type: ignore[arg-type]
        "variant is one of sealed, distil, reconstruction, contrastive, partners, got 'mse'",
    ),
    "a method that is none": (lambda: dt.Method("apfedd"), "no method 'apfedd'; did you mean"),
    "a baseline that is none": (
        lambda: fit(*parties(CLINIC, LAB), baselines=["alonee"]),
        "dovetail.fit: .*got 'alonee'",
    ),
    "no label anywhere": (
        lambda: fit(party(label=None), parties(CLINIC, LAB)[1]),
        "dovetail.fit: exactly one party must have labels",
    ),
    "one party": (lambda: fit(party()), "dovetail.fit: 'clinic' is the only party"),
    "two of one name": (lambda: fit(party(), party()), "two parties are called 'clinic'"),
    "no id that both have": (
        lambda: fit(*parties(CLINIC, LAB.assign(patient=LAB["patient"] + "x"))),
        "'lab'.*shares no",
    ),
    "a policy that refuses": (
        lambda: fit(party(), dt.Party("lab", LAB, id="patient", policy={"algorithms": ["align"]})),
        r"party 'lab' refuses 'apfed-mixed': its policy allows align \(dovetail.Party\('lab'\)\)",
    ),
    "infinite numbers": (
        lambda: fit(party(CLINIC.assign(age=np.inf)), parties(CLINIC, LAB)[1]),
        "party 'clinic': column 'age' of the DataFrame has 90 infinite values",
    ),
    "no label in any row": (
        lambda: fit(party(CLINIC.assign(ill=None)), parties(CLINIC, LAB)[1]),
        "party 'clinic': label 'ill' has no value in any of its 120 rows",
    ),
    "a test share that is none": (lambda: fit(*parties(CLINIC, LAB), test=2), "dovetail.fit: test"),
    "no seeds": (lambda: fit(*parties(CLINIC, LAB), seeds=0), "seeds is how many"),
    "to resume nothing": (lambda: fit(*parties(CLINIC, LAB), resume=True), "resume needs out"),
    "no labels for CHFL": (
        lambda: fit(*parties(CLINIC, LAB), method=dt.CHFL()),
        r"party 'lab' has no labels.* in dovetail.Party\('lab'\)",
    ),
    "a partition without its active party": (
        lambda: deal(dt.Columns({"a": "age"}, active="b"), label="ill"),
        "the active party 'b' is none of the parties",
    ),
    "a network for a method that has none": (
        lambda: dt.APFed(encoder=torch.nn.Linear),  # type: ignore[arg-type]
        "'sealed' chooses among learners and has no encoder",
    ),
    "a partition that is none": (lambda: dt.Strips(0), "dovetail.Strips: views"),
    "a table without a label": (
        lambda: deal(dt.Columns({"a": "age"})),
        "needs a label: say which column to predict",
    ),
    "no run": (lambda: dt.Run("nowhere"), "nowhere is no folder of a finished run"),
    "no address": (lambda: dt.listen("here", ["lab"]), "dovetail.listen: listen: expected HOST"),
    "no driver": (lambda: dt.join(party(), "localhost:7443"), "say who drives"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_ends_in_one_sentence(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working, temporary = tmp_path / "working", tmp_path / "temporary"
    working.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(working)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    make, words = MISTAKES[what]
    with pytest.raises(DovetailError, match=words) as error:
        make()
    assert "\n" not in str(error.value)
    assert list(temporary.iterdir()) == []  # no folder of a run that was not


def test_a_table_that_is_a_mistake_leaves_a_folder_that_can_be_used_again(tmp_path: Path) -> None:
    strangers = LAB.assign(patient=LAB["patient"] + "x")
    with pytest.raises(DovetailError, match="shares no"):
        fit(*parties(CLINIC, strangers), out=tmp_path / "run")
    assert fit(*parties(CLINIC, LAB), out=tmp_path / "run").folder == tmp_path / "run"


def test_missing_values_are_no_mistake() -> None:
    holes = CLINIC.assign(age=CLINIC["age"].where(CLINIC.index % 3 > 0), ill=CLINIC["ill"].copy())
    holes.loc[holes.index[:30], "ill"] = None  # without a label they still help
    run = fit(party(holes), parties(CLINIC, LAB)[1])
    assert np.isfinite(run.models["clinic"].predict_proba(holes)).all()
