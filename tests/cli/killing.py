"""Kills ``dovetail train`` as ``kill -9`` can, and resumes it.

It dies between two changes of its folder, or at moments after the folder appeared:

    python tests/cli/killing.py moments 20 [METHOD ...]

A process of its own: every run is a fork of it, so that nothing is imported twice.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

#: What moves, makes and removes files; each is counted.
CHANGES = ("replace", "mkdir", "unlink", "rmdir")


def without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_seconds(each) for key, each in value.items() if key != "seconds"}
    return value


def contents(folder: Path) -> dict[str, Any]:
    """All that a run folder holds, but wall times."""
    held: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or name.startswith("checkpoint/"):
            continue
        if path.suffix == ".jsonl":
            held[name] = [
                without_seconds(json.loads(line)) for line in path.read_text().splitlines()
            ]
        elif path.name == "result.json":
            held[name] = without_seconds(json.loads(path.read_text()))
        elif path.name in ("card.json", "card.md"):  # the moment that the model was written
            held[name] = re.sub(r"\d{4}-\d\d-\d\dT[\d:+]+", "then", path.read_text())
        else:
            held[name] = path.read_bytes()
    return held


#: Shares of an undisturbed run's length, and seconds, from the moment that its folder appears.
MOMENTS = (*(f"{0.05 + 0.9 * each / 17:.3f}" for each in range(18)), "0.3 s", "0.6 s")

#: Method -> a case of the golden record, and settings that make it a run of seconds.
METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    "apfed": (
        "apfed-mixed",
        ('method="apfed"', 'baselines=["alone", "tvfl"]', "apfed.epochs=40", "data.rows=400"),
    ),
    "apfed-d": ("apfed-d", ('baselines=["alone"]', "apfed.distil.max_steps=150")),
    "apfed-c": ("apfed-c", ('baselines=["alone", "tvfl"]', "apfed.epochs=20")),
    "tvfl": ("apfed-tvfl", ("apfed.epochs=100",)),
    "chfl": ("chfl", ("chfl.rounds=5",)),
    "hyfem": ("hyfem", ("hyfem.rounds=8",)),
    "fedoptimus": ("fedoptimus", ("fedoptimus.epochs=6",)),
}


class Lived(NamedTuple):
    """How a run ended: exit code, changes of the file system, seconds since its folder was made."""

    code: int
    changes: int
    seconds: float


def train(folder: str, *words: str, die_before: int = 0, die_after_s: float = math.inf) -> Lived:
    """``dovetail train`` in a fork.

    Args:
        die_before: the number of the change that it dies before.
        die_after_s: when it and all that it began are killed, after its folder was made.
    """
    reading, writing = os.pipe()
    if child := os.fork():
        os.close(writing)
        seconds = _watched(child, Path(folder), die_after_s)
        _, status = os.waitpid(child, 0)
        with os.fdopen(reading) as file:
            return Lived(os.waitstatus_to_exitcode(status), int(file.read() or 0), seconds)
    code = 1
    try:
        os.setpgid(0, 0)
        numbers = itertools.count(1)
        for name in CHANGES:
            setattr(os, name, _counted(getattr(os, name), numbers, die_before))
        from dovetail.cli.main import main

        sys.argv = ["dovetail", "train", "run.toml", "--out", folder, "-q", *words]
        try:
            main()
        except SystemExit as done:
            code = int(done.code or 0)
        os.write(writing, str(next(numbers) - 1).encode())
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _watched(child: int, folder: Path, die_after_s: float) -> float:
    """Waits for a process, or kills its group; what it computed since its folder appeared."""
    born = math.inf
    while not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if born == math.inf and folder.is_dir():
            born = _computed_s(child)
        if _computed_s(child) - born > die_after_s:
            os.killpg(child, signal.SIGKILL)
            break
        time.sleep(0.002)
    return _computed_s(child) - born


def _computed_s(process: int) -> float:
    """Seconds of a processor: a busy machine shifts no moment. Of Linux alone; else the time."""
    stat = Path(f"/proc/{process}/stat")
    if not stat.exists():
        return time.monotonic()
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _counted(change: Callable[..., Any], numbers: itertools.count[int], last: int) -> Any:
    def counted(*arguments: Any, **more: Any) -> Any:
        if next(numbers) == last:
            os._exit(137)
        return change(*arguments, **more)

    return counted


def brief() -> None:
    """Learners alone that end early; nothing is asked of how good they are."""
    from dovetail.models.learners import LEARNERS
    from dovetail.models.learners.boosting import FEW_ROWS, Boosting
    from dovetail.models.learners.network import Network
    from dovetail.models.learners.vertical import StackedConfig

    for learner in (
        Boosting(trees=FEW_ROWS[:1], max_rounds=20),
        Network(StackedConfig(copies=1, max_steps=40)),
    ):
        LEARNERS[learner.name] = learner  # type: ignore[index]


def differing(whole: dict[str, Any], folder: str) -> list[str]:
    """Names of files that are not as those of the run that was not killed."""
    now = contents(Path(folder))
    return sorted(name for name in {*whole, *now} if whole.get(name) != now.get(name))


def between_changes(num_points: int, *words: str) -> None:
    """Prints a line for each point: where it was, how it resumed, and what differs then."""
    code, changes, _ = train("whole", *words)
    assert code == 0
    whole = contents(Path("whole"))
    for index in range(num_points):
        point = 1 + round(index * (changes - 1) / (num_points - 1))
        folder = f"killed-{point}"
        assert train(folder, *words, die_before=point).code == 137
        code = train(folder, *words, "--resume").code
        print(json.dumps({"point": point, "code": code, "differing": differing(whole, folder)}))


def at_moments(method: str, num_moments: int) -> None:
    """Prints a line for each of some moments, drawn: when, how it ended and resumed, what differs.

    In a new folder, which is removed.
    """
    from golden_cases import CASES

    name, more = METHODS[method]
    words = [word for each in (*CASES[name].settings, *more) for word in ("--set", each)]
    with tempfile.TemporaryDirectory() as temporary:
        os.chdir(temporary)
        CASES[name].write(Path())
        code, _, length_s = train("whole", *words)
        assert code == 0
        whole = contents(Path("whole"))
        for moment in sorted(random.Random(method).sample(MOMENTS, num_moments)):
            after_s = float(moment[:-2]) if moment.endswith("s") else float(moment) * length_s
            killed = train(moment, *words, die_after_s=after_s).code
            code = train(moment, *words, "--resume").code
            line = {"method": method, "moment": moment, "of_s": round(length_s, 1)}
            line |= {"killed": killed, "code": code, "differing": differing(whole, moment)}
            print(json.dumps(line), flush=True)
        os.chdir("/")


def main(what: str, *words: str) -> None:
    import torch

    torch.set_num_threads(1)
    brief()
    if what == "changes":
        between_changes(int(words[0]), *words[1:])
        return
    for method in words[1:] or METHODS:
        at_moments(method, int(words[0]))


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1] / "golden"))
    main(*sys.argv[1:])
