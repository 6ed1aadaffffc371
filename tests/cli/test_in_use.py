"""One process at a time writes in a run's folder; another is told which one does."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import forked
import pytest

from dovetail.errors import ConfigError
from dovetail.network.in_use import in_use

LONG = (("epochs = 2", "epochs = 1000000"),)

HOLDS = """
import sys, time
from pathlib import Path
from dovetail.network.in_use import in_use
with in_use(Path(sys.argv[1]), "name another", lock=sys.argv[2]):
    print("held", flush=True)
    time.sleep(600)
"""


def holding(tmp_path: Path, folder: Path, lock: str = ".lock") -> Any:
    """A process that holds a lock until it is killed."""
    process = forked.begin(tmp_path, HOLDS, folder, lock)
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.slow
def test_a_folder_is_of_one_run_until_that_ends_or_dies(
    dovetail: Any, write_run: Any, tmp_path: Path
) -> None:
    long = write_run(*LONG, name="long.toml")
    metrics = tmp_path / "k" / "metrics.jsonl"
    with forked.begin(tmp_path, None, "train", long, "--out", "k", "-q") as first:
        while not (metrics.exists() and metrics.stat().st_size):
            assert first.poll() is None
            time.sleep(0.01)
        run = write_run()
        for command in (
            ("train", run, "--out", "k", "--seed", 1),
            ("train", run, "--out", "k", "--overwrite"),
            ("train", long, "--out", "k", "--resume"),
            ("audit", "k"),
            ("value", "k"),
        ):
            done = dovetail(*command)
            assert done.code == 2
            assert f"k is in use by process {first.pid} on " in done.err
            assert "train" in done.err
            assert "since 2" in done.err
            assert "wait until it ends, or name another folder" in done.err
        assert dovetail("report", "k").code == 0  # of what there is so far
        first.send_signal(signal.SIGKILL)
    assert dovetail("train", run, "--out", "k", "-q", "--overwrite").code == 0
    assert "seed = 0" in (tmp_path / "k" / "run.toml").read_text()
    assert {path.name for path in (tmp_path / "k").glob(".*")} == {".lock"}


def test_a_dead_process_holds_nothing_and_its_name_goes(tmp_path: Path) -> None:
    with holding(tmp_path, tmp_path / "run") as process:
        with (
            pytest.raises(ConfigError, match=rf"run is in use by process {process.pid} on \S+ \("),
            in_use(tmp_path / "run", "name another"),
        ):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
    with in_use(tmp_path / "run", "name another"):
        assert str(process.pid) not in (tmp_path / "run" / ".lock.json").read_text()
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


def test_a_folder_that_was_made_for_nothing_is_removed(tmp_path: Path) -> None:
    with in_use(tmp_path / "run", "name another"):
        pass
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_refused_leaves_no_folder(
    dovetail: Any, write_run: Any, tmp_path: Path
) -> None:
    run = write_run(('"breast-cancer"', '"nowhere.csv"'))
    assert dovetail("train", run, "--out", "k").code == 2
    assert not (tmp_path / "k").exists()
