"""Kills ``dovetail train`` between two changes of its folder, as ``kill -9`` can, and resumes it.

A process of its own: every run is a fork of it, so that nothing is imported twice.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def train(folder: str, *words: str, die_before: int = 0) -> tuple[int, int]:
    """``dovetail train`` in a fork: its exit code, and how often it changed the file system."""
    reading, writing = os.pipe()
    if child := os.fork():
        os.close(writing)
        _, status = os.waitpid(child, 0)
        with os.fdopen(reading) as file:
            return os.waitstatus_to_exitcode(status), int(file.read() or 0)
    code = 1
    try:
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


def main(num_points: int, *words: str) -> None:
    """Prints a line for each point: where it was, how it resumed, and what differs then."""
    import torch

    torch.set_num_threads(1)
    brief()
    code, changes = train("whole", *words)
    assert code == 0
    whole = contents(Path("whole"))
    for index in range(num_points):
        point = 1 + round(index * (changes - 1) / (num_points - 1))
        folder = f"killed-{point}"
        assert train(folder, *words, die_before=point)[0] == 137
        code, _ = train(folder, *words, "--resume")
        now = contents(Path(folder))
        differing = [name for name in {*whole, *now} if whole.get(name) != now.get(name)]
        print(json.dumps({"point": point, "code": code, "differing": sorted(differing)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
