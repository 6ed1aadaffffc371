"""A run that is killed at any moment goes on, and ends as one that was not."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import forked
import killing
import pytest
from golden_cases import CASES

#: What APFed-S draws anew for every question: a key, and what a partner has encrypted by it.
DRAWN = r"models/(joint/keys.safetensors|\w+/bottom\.\w+)"


#: Moments at which runs of each method are killed; there are 20.
MOMENTS = int(os.environ.get("DOVETAIL_KILLS", "3"))


def check(done: forked.Ended, num_lines: int) -> None:
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert len(lines) == num_lines, done.err
    assert "Traceback" not in done.err
    for line in lines:
        assert line["code"] == 0, (line, done.err)
        assert not [each for each in line["differing"] if not re.fullmatch(DRAWN, each)], line


@pytest.mark.slow
def test_a_run_that_is_killed_at_any_point_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    CASES["apfed-mixed"].write(tmp_path)
    words = ("--set", "method=apfed", "--set", 'baselines=["alone"]')
    check(forked.script(tmp_path, Path(killing.__file__), "changes", 5, *words), 5)


@pytest.mark.slow
@pytest.mark.parametrize("method", killing.METHODS)
def test_a_run_that_is_killed_at_any_moment_goes_on_as_if_it_had_not(
    tmp_path: Path, method: str
) -> None:
    check(forked.script(tmp_path, Path(killing.__file__), "moments", MOMENTS, method), MOMENTS)


def test_a_run_goes_on_by_the_file_that_its_folder_kept(
    dovetail: Any, write_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dovetail.runs import RunFolder

    write_run()
    assert dovetail("train", "run.toml", "--out", "whole", "-q").code == 0

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "keep_variant", dies)
        assert dovetail("train", "run.toml", "--out", "k", "-q").code == 130
    kept = ("train", "k/run.toml", "-q")
    done = dovetail(*kept, "--out", "k")
    assert done.code == 2
    assert "or go on with a run that was stopped there with --resume" in done.err
    assert dovetail(*kept, "--resume").code == 0  # without --out it is that folder
    whole = killing.contents(tmp_path / "whole")
    assert killing.contents(tmp_path / "k") == whole
    assert dovetail(*kept, "--resume", "--out", "k").code == 0  # it has ended: nothing is done
    assert killing.contents(tmp_path / "k") == whole


def test_a_run_that_is_killed_before_its_first_epoch_is_not_begun_anew_unsaid(
    dovetail: Any, write_run: Any, tmp_path: Path
) -> None:
    write_run()
    (tmp_path / "k" / "checkpoint").mkdir(parents=True)
    (tmp_path / "k" / "checkpoint" / "id").write_text("a1")
    done = dovetail("train", "run.toml", "--out", "k")
    assert done.code == 2
    assert "k holds a run that was stopped: say the same with --resume" in done.err
