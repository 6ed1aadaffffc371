"""What a command takes before and beside its work: processor seconds and memory of whole processes.

    python -m benchmarks.start

Each line is a process of its own, on one thread, of a copy of the package that is compiled as pip
installs it; lines take turns, figures are medians of five. ``import torch`` is beside them, since
all that reads a table waits for it. ``inspect`` and ``predict`` are README's, on the tables of
``dovetail demo --tables``; the mistake is a run file that is not there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import _results
from benchmarks._installed import installed

TURNS = 5
COMMAND = ("-m", "dovetail")
#: What -> words for Python, exit code.
LINES: dict[str, tuple[tuple[str, ...], int]] = {
    "import torch": (("-c", "import torch"), 0),
    "import dovetail": (("-c", "import dovetail"), 0),
    "dt.APFed()": (("-c", "import dovetail as dt; dt.APFed()"), 0),
    "dovetail --help": ((*COMMAND, "--help"), 0),
    "a mistake": ((*COMMAND, "inspect", "missing.toml"), 2),
    "dovetail inspect run.toml": ((*COMMAND, "inspect", "run.toml"), 0),
    "dovetail predict out/run new-customers.csv": (
        (*COMMAND, "predict", "out/run", "new-customers.csv", "--id", "customer"),
        0,
    ),
}
#: README's lines that make the files, and a model in a few seconds.
PREPARED = (
    "demo --tables",
    "init --table visits.csv --id customer --name shop --role partner --driver customers",
    "init --table customers.csv --id customer --label bought --partners shop",
    "train run.toml --quiet",
)
#: Processor seconds, where there is a bar.
MOST = {"dovetail inspect run.toml": 2.0, "dt.APFed()": 1.8}


#: Starts a process from a small one: its peak would count the memory of who started it.
_SMALL = """
import json, os, sys
out = os.open(os.devnull, os.O_WRONLY)
actions = [(os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, out, 2)]
number = os.posix_spawn(sys.executable, [sys.executable, *sys.argv[1:]], os.environ,
                        file_actions=actions)
_, status, used = os.wait4(number, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime,
                  used.ru_maxrss / 1024]))
"""


def spent(words: tuple[str, ...], code: int, folder: Path, package: Path) -> tuple[float, float]:
    """Processor seconds and MiB at most of a process of Python's."""
    done = subprocess.run(
        [sys.executable, "-c", _SMALL, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=True,
    )
    ended, seconds, mib = json.loads(done.stdout)
    if ended != code:
        raise SystemExit(f"{' '.join(words)} ended with {ended}")
    return seconds, mib


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    turns: dict[str, list[tuple[float, float]]] = {what: [] for what in LINES}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        package = installed(Path(__file__).parents[1], folder / "package")
        for line in PREPARED:
            spent(
                (*COMMAND, *line.split(), *["--yes"] * line.startswith("init")), 0, folder, package
            )
        for turn in range(1 + TURNS):
            for what, (words, code) in LINES.items():
                found = spent(words, code, folder, package)
                if turn:  # the first reads files that later ones find in memory
                    turns[what].append(found)
    seconds = {what: statistics.median(each[0] for each in turns[what]) for what in LINES}
    reported = [
        {
            "what": what,
            "processor s": seconds[what],
            "of import torch": seconds[what] / seconds["import torch"],
            "peak MiB": statistics.median(each[1] for each in turns[what]),
            "at most, s": MOST.get(what, "-"),
        }
        for what in LINES
    ]
    _results.write("start", "What a command takes before and beside its work", reported)


if __name__ == "__main__":
    main()
