"""Every model that training leaves has a card, which tells what its run's folder says."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
    assert card["run"]["rulers"].keys() == {"alone"}
    lines = (run / "ledger.jsonl").read_bytes()
    assert card["run"]["ledger"]["sha256"] == hashlib.sha256(lines).hexdigest()
    sent = card["run"]["ledger"]["sent"]
    assert sent["lab -> clinic"]["bytes"] == result["bytes"]["lab"]["sent"] > 0
    assert card["run"]["audit"] is None
    text = (folder / "card.md").read_text()
    assert "None was made" in text
    assert "| lab -> clinic |" in text

    done = dovetail("card", folder, patients, "--by", "mean radius", "-q")
    assert done.code == 0, done.err
    finding = {
        "stage": "apfed-c",
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
