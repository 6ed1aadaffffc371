"""``dovetail audit``: the files that it leaves, its exit code, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

#: Steps enough for codes to say something, on partners who know nothing alike.
LEARNS = (
    ("steps_per_epoch = 3", "steps_per_epoch = 6\nlearning_rate = 0.05"),
    ('clinic = ["mean *"], lab = ["worst *"]', 'clinic = ["worst *"], lab = ["* error"]'),
)


@pytest.mark.slow
def test_a_run_is_audited_from_its_folder_and_fails_a_pipeline(
    dovetail: Any, write_run: Any, tmp_path: Path
) -> None:
    run = write_run(*LEARNS)
    assert dovetail("train", run, "--quiet").code == 0
    trained = json.loads((tmp_path / "out/run/result.json").read_text())
    done = dovetail("audit", "out/run", "--fast", "--fail-over", "high")
    assert done.code == 1, done.err  # ten columns in eight numbers: a lab learns them
    for words in ("lab <- clinic", "labels from codes", "Worst off", "Not tried", "audit.html"):
        assert words in done.out
    report = json.loads((tmp_path / "out/run/audit.json").read_text())
    assert report["verdict"] == "high"
    assert report["scores"]["apfed-c"] == trained["parties"]["clinic"]  # the run, bit for bit
    assert report["messages"]["apfed-c"]["apfed.Codes"] == 12
    inverted = [each for each in report["findings"] if each["channel"] == "codes"]
    inverted = [each for each in inverted if each["target"] == "columns"]
    assert inverted[0]["score"] > inverted[0]["baseline"]
    assert inverted[0]["worst"][0].startswith("worst ")
    page = (tmp_path / "out/run/audit.html").read_text()
    for words in ("Verdict: high", "What was not tried", "apfed.label_epsilon", "Under which"):
        assert words in page


@pytest.mark.slow
def test_defences_are_settings_that_cost_and_are_counted(
    dovetail: Any, write_run: Any, tmp_path: Path
) -> None:
    run = write_run(
        ("[passive]", "[passive]\ngradients = { clip = 0.01, noise = 4.0 }"),
        ("[apfed]", "[apfed]\ncodes = { clip = 1.0, noise = 4.0 }\nlabel_epsilon = 1.0"),
    )
    done = dovetail("train", run, "--json")
    assert done.code == 0, done.err
    spent = {each["what"]: each for each in json.loads(done.out)["epsilon"]}
    assert spent["codes"]["from"] == "clinic"
    assert spent["codes"]["releases"] <= 2  # six batches of 64 of 426 rows
    assert 0 < spent["codes"]["epsilon"] < spent["gradients"]["epsilon"]  # a contrast moves all
    line = json.loads((tmp_path / "out/run/metrics.jsonl").read_text().splitlines()[1])
    assert line["epsilon"] == spent["gradients"]["epsilon"]
    ledger = map(json.loads, (tmp_path / "out/run/ledger.jsonl").read_text().splitlines())
    cost = {each["message"]: each.get("epsilon") for each in ledger}
    assert cost["apfed.Codes"] == spent["codes"]["epsilon"]
    assert cost["apfed.CodeGradient"] == spent["gradients"]["epsilon"]
    assert cost["apfed.Begin"] is None
    again = dovetail("audit", run, "--fast", "--json", *SETTINGS)
    assert again.code == 0, again.err
    by_name = {
        (each["target"], each["channel"]): each for each in json.loads(again.out)["findings"]
    }
    assert by_name["columns", "codes"]["verdict"] != "high"


SETTINGS = ("--set", "apfed.codes.noise=100.0", "--set", "passive.gradients.noise=100.0")


@pytest.mark.slow
def test_a_budget_that_is_spent_ends_with_a_usable_model(
    dovetail: Any, write_run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    budget = "codes = { clip = 1.0, noise = 2.0, epsilon = 6.0 }"
    run = write_run(("[apfed]", f"[apfed]\n{budget}"), ("epochs = 2", "epochs = 12"))
    done = dovetail("train", run, "--json")
    assert done.code == 0, done.err
    assert "the budget of epsilon = 6" in caplog.text
    (spent,) = json.loads(done.out)["epsilon"]
    assert 0 < spent["epsilon"] <= 6
    assert spent["stopped"]
    assert (tmp_path / "out/run/models/clinic/model.safetensors").exists()
    assert dovetail("report", "out/run", "--quiet").code == 0
    assert "its budget is spent" in (tmp_path / "out/run/report.html").read_text()
    assert dovetail("predict", "out/run", "new.csv").code == 2  # no such table: the model is read


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--variant", "tvfl"), "the run has no variant 'tvfl'; it has apfed-c, alone"),
        (("--fail-over", "much"), "--fail-over takes low or high"),
        (("--set", "passive.gradients.noise=1.0"), "set clip"),
    ],
)
def test_mistakes_are_one_sentence(
    dovetail: Any, write_run: Any, arguments: tuple[str, ...], words: str
) -> None:
    done = dovetail("audit", write_run(), *arguments)
    assert done.code == 2
    assert words in done.err


@pytest.mark.slow
def test_inspect_tells_what_audits_found(
    dovetail: Any, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    done = dovetail("inspect", write_run())
    assert done.code == 0, done.err
    assert "columns, both ways: high on digits and on credit" in done.out
    done = dovetail("inspect", write_run(), "--set", "method=apfed-d")  # what is trained, not APFed
    assert "labels, to partners: none on digits and credit" in done.out  # it releases columns once
    assert '"gradients" labels and columns, both ways: high on both' in done.out
    assert "in simulation, dovetail audit RUN --try measures the cost" in done.out
    assert "apfed.distil.exchange" in done.out
