"""Labels are not thrown away: a model that was scored learns from the rows that scored it, too."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tables import clinic_and_lab, parties

import dovetail as dt
from dovetail.methods.apfed import distilling


def runs(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: bool) -> tuple[dt.Run, list]:
    """A run of APFed-S, and how many rows each of its own models learnt from."""
    learnt: list[int] = []
    fit_all = distilling.fit_all
    monkeypatch.setattr(
        "dovetail.models.learners.refit.fit_all",
        lambda learners, rows, **how: (
            learnt.append(len(rows.x_NF)), fit_all(learners, rows, **how)
        )[1],
    )  # fmt: skip
    clinic, lab = clinic_and_lab()
    method = dt.APFed(distil={"students": ["linear"]}, **settings)
    return dt.fit(method, parties(clinic, lab), test=0.25, out=folder, quiet=True), learnt


@pytest.mark.slow
@pytest.mark.usefixtures("brief_learners")
def test_the_kept_model_learns_from_the_rows_that_scored_it_and_asks_nobody_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refitted, learnt = runs(tmp_path / "refitted", monkeypatch)
    assert learnt == [120]
    assert any("all 120 labelled rows, once 30 of them" in note for note in refitted.scores.notes)
    cards = {
        name: (refitted.folder / "models" / name / "card.md").read_text()
        for name in ("clinic", "joint")
    }
    said = "it learned from all 120 labelled rows, once 30 of them had scored it"
    assert {name: said in card for name, card in cards.items()} == {"clinic": True, "joint": False}
    result = json.loads((refitted.folder / "result.json").read_text())
    joint_card = json.loads((refitted.folder / "models" / "joint" / "card.json").read_text())
    assert joint_card["run"]["scores"] == result["baselines"]["joint"]
    held_back, learnt = runs(tmp_path / "held-back", monkeypatch, refit=False)
    assert learnt == []
    assert any("30 labelled rows of 'clinic' scored" in note for note in held_back.scores.notes)
    # What is scored, and what partners gave, is the same; the model is not. The joint model learns
    # from answers whose masks are drawn anew, which rounds a few of them otherwise.
    scored = [run.scores.to_dict() for run in (refitted, held_back)]
    joint = [
        next(each.pop(name) for name in list(each) if name.startswith("joint")) for each in scored
    ]
    assert scored[0] == scored[1]
    assert joint[0]["auc"] == pytest.approx(joint[1]["auc"], abs=0.15)
    sent = [
        [
            (line["message"], line["count"], line["bytes"])
            for line in map(json.loads, (run.folder / "ledger.jsonl").read_text().splitlines())
        ]
        for run in (refitted, held_back)
    ]
    assert [each[:2] for each in sent[0]] == [each[:2] for each in sent[1]]
    clinic, _ = clinic_and_lab()
    p, q = (run.models["clinic"].predict_proba(clinic) for run in (refitted, held_back))
    assert np.abs(p - q).max() > 1e-4


@pytest.mark.usefixtures("brief_learners")
def test_no_test_rows_is_said_by_0() -> None:
    clinic, lab = clinic_and_lab()
    method = dt.APFed(distil={"students": ["linear"]})
    run = dt.fit(method, parties(clinic, lab), test=0, quiet=True)
    assert not run.scores.names
    assert isinstance(run.models["clinic"].predict_proba(clinic), np.ndarray)
