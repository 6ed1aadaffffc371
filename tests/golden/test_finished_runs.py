"""Run folders and models that an earlier version finished can still be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import golden
import pytest
from golden_finished import FINISHED, RUNS, read


@pytest.mark.trained
@pytest.mark.parametrize("name", FINISHED)
def test_a_model_of_before_predicts_what_it_predicted(name: str, tmp_path: Path) -> None:
    record = golden.recorded("finished")
    now = read(name, tmp_path)
    assert now
    expected = {path: record["predictions"][path] for path in now}
    golden.check(
        {**record, "predictions": expected},
        {"platform": golden.here(), "predictions": now},
    )


def means(folder: Path) -> list[dict[str, Any]]:
    """The scores of a run, its method's and its baselines', each a mean where there are several."""
    result = json.loads((folder / "result.json").read_text())
    method = result.get("mean") or next(iter(result["parties"].values()))
    return [method, *result["baselines"].values()]


@pytest.mark.parametrize("name", FINISHED)
def test_a_run_of_before_is_reported_with_its_scores_and_what_was_sent(
    name: str, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    code, _, err = golden.dovetail(tmp_path, "report", RUNS / name, "--out", page, "-q")
    assert (code, err) == (0, "")
    text = page.read_text()
    for scores in means(RUNS / name):
        for score in ("accuracy", "auc"):
            if score in scores:
                value = scores[score]
                value = value["mean"] if isinstance(value, dict) else value
                assert f"{value:.3f}" in text, (score, value)
    ledgers = list((RUNS / name).rglob("ledger.jsonl"))
    assert ledgers
    for ledger in ledgers:
        method = json.loads((ledger.parent / "result.json").read_text())["method"]
        for line in golden.json_lines(ledger):
            assert line["from"] in text
            if line["variant"] == method and line["bytes"]:
                assert line["message"] in text
