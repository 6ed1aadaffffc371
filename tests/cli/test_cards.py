"""Every model that training leaves has a card, which tells what its run's folder says."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from member_files import MEMBERS, SETTINGS, write_members

from dovetail.models.card import renew_all


@pytest.mark.slow
def test_training_leaves_a_card_with_what_left_whom_and_an_audit_is_told_on_it(
    trained: Path, tmp_path: Path, patients: Path, dovetail: Callable[..., Any]
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    folder = run / "models" / "clinic"
    card = json.loads((folder / "card.json").read_text())
    result = json.loads((run / "result.json").read_text())
    assert card["run"]["scores"] == result["parties"]["clinic"]
    assert card["run"]["baselines"].keys() == {"alone"}
    lines = (run / "ledger.jsonl").read_bytes()
    assert card["run"]["ledger"]["sha256"] == hashlib.sha256(lines).hexdigest()
    sent = card["run"]["ledger"]["sent"]
    assert sent["lab -> clinic"]["bytes"] == result["bytes"]["lab"]["sent"] > 0
    assert card["run"]["audit"] is None
    text = (folder / "card.md").read_text()
    assert "None was made" in text
    assert "| lab -> clinic |" in text

    taught = tmp_path / "taught.csv"
    taught.write_text("".join(patients.read_text().splitlines(keepends=True)[:30]))
    digest = hashlib.sha256(taught.read_bytes()).hexdigest()
    (run / "run.toml").write_text(f'[sha256]\n"taught.csv" = "{digest}"\n')
    refused = dovetail("card", folder, taught)
    assert (refused.code, "taught this model, and a card has sc" in refused.err) == (2, True)
    done = dovetail("card", folder, patients, "--by", "mean radius", "-q")
    assert done.code == 0, done.err
    finding = {
        "variant": "apfed-c",
        "observer": "lab",
        "owner": "clinic",
        "channel": "gradients",
        "target": "labels",
        "advantage": 0.31,
        "verdict": "high",
    }
    (run / "audit.json").write_text(json.dumps({"findings": [finding]}))
    renew_all(run)  # as dovetail audit does
    again = json.loads((folder / "card.json").read_text())
    assert again["run"]["audit"] == {"verdict": "high", "findings": [finding]}
    assert again["scores"]["rows"] == 40  # what was scored by hand stays
    assert (
        "| lab of clinic | labels from gradients | 0.310 | high |"
        in (folder / "card.md").read_text()
    )


def test_a_card_compares_its_party_with_the_baselines_of_that_party(
    tmp_path: Path, dovetail: Callable[..., Any]
) -> None:
    write_members(tmp_path, "hyfem", MEMBERS)
    files = json.dumps([f"{name}.toml" for name in MEMBERS])
    run = f'method = "hyfem"\nbaselines = ["standalone"]\nparties = {files}\n{SETTINGS["hyfem"]}'
    (tmp_path / "run.toml").write_text(run)
    done = dovetail("train", "run.toml", "--out", "out", "-q")
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    alone = result["variants"]["standalone"]["scores"]["standalone"]
    for name in MEMBERS:
        folder = tmp_path / "out" / "models" / name
        card = json.loads((folder / "card.json").read_text())["run"]
        assert card["scores"] == result["parties"][name]
        assert card["baselines"] == {"standalone": alone[name]}
        assert "| standalone |" in (folder / "card.md").read_text()
    server = json.loads((tmp_path / "out" / "models" / "server" / "card.json").read_text())["run"]
    assert server["baselines"] == {
        "standalone (mean of 3 parties)": result["baselines"]["standalone"]
    }
