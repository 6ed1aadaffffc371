"""README's two tables with the threads that Dovetail chooses, and with as many as a user asks for.

    python -m benchmarks.threads [--turns 3] [--busy 2] [--beside FOLDER] [--images]

Each run is a process of its own; they take turns, so that a busy machine slows all alike. "alone"
adds no load to what the machine has; "beside" keeps so many processes busy meanwhile. "default"
sets no variable, the others ``OMP_NUM_THREADS``. ``--beside`` adds another checkout, by default and
on one thread. Figures are medians of wall seconds, start of the interpreter included.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import _results

HERE = Path(__file__).parents[1]
README = HERE / "README.md"
COUNTS = ("default", "1", "2", "4")
REACH = 1.1


IMAGES = (
    'method = "apfed-r"\nevaluate_every = 0\n'
    '[data]\nsource = "mnist"\nrows = 4000\n'
    'partition = { kind = "strips", views = 2, active = 1 }\n[apfed]\nepochs = 2\n'
)


def write_run(folder: Path, images: bool) -> None:
    """README's tables and run file; or APFed-R on strips of MNIST, whose networks convolve."""
    if images:
        (folder / "run.toml").write_text(IMAGES)
        return
    lines = re.findall(
        r"^dovetail ((?:demo --tables|init --table) ?[^#\n]*)", README.read_text(), re.M
    )
    for line in lines:
        command = [sys.executable, "-m", "dovetail.cli.main", *shlex.split(line)]
        subprocess.run(
            command, cwd=folder, env=environment(HERE), check=True, stdout=subprocess.DEVNULL
        )
    if not (folder / "run.toml").exists():
        raise SystemExit(f"{README} says no longer how run.toml is made: {lines}")


def environment(package: Path) -> dict[str, str]:
    """This process's, with a checkout's package and no number of threads."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return {**kept, "PYTHONPATH": str(package)}


def seconds(folder: Path, package: Path, threads: str) -> tuple[float, float]:
    """Wall and processor seconds of one seed."""
    variables = environment(package)
    if threads != "default":
        variables["OMP_NUM_THREADS"] = threads
    command = ["train", "run.toml", "--seed", "0", "--out", "out", "--overwrite"]
    before, started = os.times(), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "dovetail.cli.main", *command],
        cwd=folder,
        env=variables,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    after = os.times()
    spent = after.children_user + after.children_system
    return time.perf_counter() - started, spent - before.children_user - before.children_system


@contextmanager
def busy(num: int) -> Iterator[None]:
    """So many processes that compute for nobody."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num)]
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--busy", type=int, default=2, help="processes of the load")
    parser.add_argument("--beside", type=Path, help="a folder with another version's dovetail/")
    parser.add_argument("--images", action="store_true", help="APFed-R on MNIST instead")
    given = parser.parse_args()
    cells = [(f"{count}", HERE, count) for count in COUNTS]
    if given.beside is not None:
        before = given.beside.absolute()
        cells += [(f"{count}, before", before, count) for count in ("default", "1")]
    rows = []
    for load, num in (("alone", 0), ("beside", given.busy)):
        walls: dict[str, list[float]] = {name: [] for name, _, _ in cells}
        spents: dict[str, list[float]] = {name: [] for name, _, _ in cells}
        started = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as folder, busy(num):
            write_run(Path(folder), given.images)
            for _ in range(given.turns):
                for name, package, count in cells:
                    wall, spent = seconds(Path(folder), package, count)
                    walls[name].append(wall)
                    spents[name].append(spent)
                    print(f"{load}: {name}: {wall:.1f} s, {spent:.1f} s of processor", flush=True)
        best = min(statistics.median(walls[count]) for count in COUNTS)
        for name, _, _ in cells:
            wall = statistics.median(walls[name])
            rows.append(
                {
                    "load": load,
                    "load before": started,
                    "busy processes": num,
                    "OMP_NUM_THREADS": name,
                    "wall seconds": wall,
                    "fastest": min(walls[name]),
                    "processor seconds": statistics.median(spents[name]),
                    "times the best": wall / best,
                    "reach": REACH if name == "default" else "",
                }
            )
    title = "APFed-R on MNIST" if given.images else "README's two tables"
    _results.write(
        "threads_images" if given.images else "threads",
        f"{title} by number of threads; {os.cpu_count()} cores, {given.turns} turns",
        rows,
    )


if __name__ == "__main__":
    main()
