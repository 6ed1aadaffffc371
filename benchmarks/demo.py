"""Processor seconds of ``dovetail demo``, variant by variant.

    python -m benchmarks.demo [--beside FOLDER]

Each demo is a process of its own, of a compiled copy of the package, as pip installs it; "beside"
is another checkout's, run first.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import _perf, _results
from benchmarks._installed import installed

TARGET_S = 10.0


def demo(path: Path) -> tuple[float, float | None, dict[str, float]]:
    """Processor seconds, millions of instructions, and each variant's share of the time."""
    with tempfile.TemporaryDirectory() as folder:
        package = installed(path, Path(folder) / "package")
        counter = Path(folder) / "perf"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [
                *_perf.counting(counter),
                sys.executable,
                "-m",
                "dovetail",
                "demo",
                "--quiet",
            ],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(package)},
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        executed = _perf.millions(counter)
        result = json.loads((Path(folder) / "out" / "demo" / "result.json").read_text())
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds = {name: float(variant["seconds"]) for name, variant in result["variants"].items()}
    whole = sum(seconds.values())
    return spent, executed, {name: taken / whole for name, taken in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beside", type=Path, help="a folder with another version's dovetail/")
    given = parser.parse_args()
    rows = []
    folders = {"now": Path(__file__).parents[1]}
    if given.beside is not None:
        folders = {"beside": given.beside.absolute(), **folders}
    for version, folder in folders.items():
        spent, executed, shares = demo(folder)
        rows.append(
            {
                "version": version,
                "cpu s": spent,
                "at most": TARGET_S,
                "million instructions": executed,
                **shares,
            }
        )
    _results.write("demo", "The demo, and each variant's share of its variants' time", rows)


if __name__ == "__main__":
    main()
