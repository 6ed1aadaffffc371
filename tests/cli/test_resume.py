"""``dovetail train --resume``: a run that was stopped ends as if it had not been."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import forked
import pytest
from killing import contents

from dovetail.runs import RunFolder

LONGER = (
    ("epochs = 2", "epochs = 4"),
    ('baselines = ["alone"]', 'baselines = ["alone", "tvfl"]'),
    ("evaluate_every = 0", "evaluate_every = 2"),
    ('method = "apfed-c"', 'method = "apfed-r"'),
)
NUM_LINES = 3 * 4  # variants x epochs


def stop_after(monkeypatch: pytest.MonkeyPatch, num_lines: int) -> None:
    """Have Ctrl-C come when this many lines are written."""
    epoch = RunFolder.epoch
    left = iter(range(num_lines - 1))

    def interrupted(self: RunFolder, variant: str, line: Any) -> None:
        epoch(self, variant, line)
        if next(left, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "epoch", interrupted)


@pytest.fixture(scope="session")
def kept() -> dict[str, Any]:
    """What a run that was not stopped holds, once one of the tests has trained it."""
    return {}


@pytest.fixture
def whole(dovetail: Any, write_run: Any, tmp_path: Path, kept: dict[str, Any]) -> dict[str, Any]:
    """What the run holds that was not stopped; its file is written, too."""
    run = write_run(*LONGER)
    if not kept:
        assert dovetail("train", run, "--out", "whole", "-q").code == 0
        kept.update(contents(tmp_path / "whole"))
    return kept


@pytest.mark.slow
@pytest.mark.parametrize("num_lines", [1, 3, 4, 5, 7, 9, 12])
def test_a_run_stopped_in_any_stage_resumes_as_if_it_had_not(
    dovetail: Any, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_lines: int
) -> None:
    run = tmp_path / "run.toml"
    with monkeypatch.context() as patched:
        stop_after(patched, num_lines)
        assert dovetail("train", run, "--out", "stopped", "-q").code != 0
    lines = (tmp_path / "stopped" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == num_lines
    assert not (tmp_path / "stopped" / "result.json").exists()
    done = dovetail("train", run, "--out", "stopped", "--resume", "-q")
    assert (done.code, done.err) == (0, "")
    assert contents(tmp_path / "stopped") == whole
    assert len(whole["metrics.jsonl"]) == NUM_LINES
    assert not (tmp_path / "stopped" / "checkpoint").exists()  # it ended


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["apfed-r", "alone", "tvfl"])
def test_a_run_stopped_between_a_variants_last_epoch_and_its_end_resumes_the_same(
    dovetail: Any, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    run = tmp_path / "run.toml"
    ended = RunFolder.keep_variant

    def interrupted(self: RunFolder, name: str, outcome: Any) -> None:
        if name == variant:
            raise KeyboardInterrupt
        ended(self, name, outcome)

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "keep_variant", interrupted)
        assert dovetail("train", run, "--out", "stopped", "-q").code != 0
    assert dovetail("train", run, "--out", "stopped", "--resume", "-q").code == 0
    assert contents(tmp_path / "stopped") == whole


def test_stopped_twice_is_as_good(
    dovetail: Any, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run.toml"
    for num_lines, flags in ((3, ()), (4, ("--resume",))):  # of variant 1, then of variant 2
        with monkeypatch.context() as patched:
            stop_after(patched, num_lines)
            assert dovetail("train", run, "--out", "stopped", "-q", *flags).code != 0
    assert dovetail("train", run, "--out", "stopped", "--resume", "-q").code == 0
    assert contents(tmp_path / "stopped") == whole


def test_overwriting_a_stopped_run_begins_anew(
    dovetail: Any, write_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(*LONGER)
    with monkeypatch.context() as patched:
        stop_after(patched, 3)
        dovetail("train", run, "--out", "stopped", "-q")
        patched.undo()
        stop_after(patched, 1)
        dovetail("train", run, "--out", "stopped", "-q", "--overwrite")
    lines = (tmp_path / "stopped" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1]


def test_a_stopped_run_is_begun_anew_only_where_that_is_said(
    dovetail: Any, write_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(*LONGER)
    train = ("train", run, "--out", "stopped", "-q")
    with monkeypatch.context() as patched:
        stop_after(patched, 3)
        dovetail(*train)
    before = contents(tmp_path / "stopped")
    done = dovetail(*train, "--set", "data.source=nowhere.csv")  # before any data are read
    assert done.code == 2
    assert (
        "stopped holds a run that was stopped: say the same with --resume to go on with it, with "
        "--overwrite to begin anew, or with --out stopped-2 to keep it"
    ) in " ".join(done.err.split())
    assert contents(tmp_path / "stopped") == before
    done = dovetail(*train, "--overwrite")
    assert done.code == 0, done.err
    assert len((tmp_path / "stopped" / "metrics.jsonl").read_text().splitlines()) == NUM_LINES


def test_of_several_seeds_the_one_that_was_stopped_is_named(
    dovetail: Any, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ("train", write_run(*LONGER), "--out", "both", "-q", "--seed", 0, "--seed", 1)
    with monkeypatch.context() as patched:
        stop_after(patched, NUM_LINES + 3)
        dovetail(*train)
    done = dovetail(*train)
    assert done.code == 2
    assert "both/seed-1 holds a run that was stopped: say" in done.err
    assert dovetail(*train, "--resume").code == 0
    assert "both holds a run that finished: say" in dovetail(*train).err


def test_a_run_that_stopped_before_its_first_epoch_leaves_nothing_to_go_on_from(
    dovetail: Any, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ("train", write_run(), "--out", "stopped", "-q")
    with monkeypatch.context() as patched:

        def interrupted(self: RunFolder, variant: str, line: Any) -> None:
            raise KeyboardInterrupt

        patched.setattr(RunFolder, "epoch", interrupted)
        assert dovetail(*train).code == 130
    assert dovetail(*train).code == 0


def test_other_settings_do_not_go_on_from_a_stopped_run(
    dovetail: Any, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(*LONGER)
    with monkeypatch.context() as patched:
        stop_after(patched, 3)
        dovetail("train", run, "--out", "stopped", "-q")
    done = dovetail(
        "train", run, "--out", "stopped", "--resume", "--set", "apfed.learning_rate=0.5"
    )
    assert done.code == 2
    assert "start anew with --overwrite" in done.err
    assert "apfed" in done.err


def test_a_damaged_checkpoint_is_told_in_a_sentence(
    dovetail: Any, write_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(*LONGER)
    with monkeypatch.context() as patched:
        stop_after(patched, 3)
        dovetail("train", run, "--out", "stopped", "-q")
    path = tmp_path / "stopped" / "checkpoint" / "apfed-r" / "driver.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    done = dovetail("train", run, "--out", "stopped", "--resume")
    assert done.code == 2
    assert "driver.safetensors is damaged" in done.err
    assert "Traceback" not in done.err


@pytest.mark.slow
@pytest.mark.parametrize("num_lines", [2, 10])  # in the method, and in the last baseline
def test_a_killed_process_resumes_as_if_it_had_not_been(
    dovetail: Any, write_run: Any, tmp_path: Path, num_lines: int
) -> None:
    run = write_run(*LONGER, ("steps_per_epoch = 3", "steps_per_epoch = 10"))
    dovetail("train", run, "--out", "whole", "-q")
    metrics = tmp_path / "killed" / "metrics.jsonl"
    with forked.begin(tmp_path, None, "train", run, "--out", "killed", "-q") as process:
        while process.poll() is None:
            if metrics.exists() and metrics.read_bytes().count(b"\n") >= num_lines:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.002)
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "result.json").exists()
    assert dovetail("train", run, "--out", "killed", "--resume", "-q").code == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
