"""Parties as processes of one machine: memory and processor time of each, and what a round costs.

    python -m benchmarks.many_parties

CHFL among so many parties, 400 rows by 20 columns each: ``dovetail join`` of each is a process, as
is ``dovetail train`` of a coordinator without data, over gRPC with mutual TLS and certificates of
``dovetail certificates``. All are forked from one process that has read the libraries, which
then lie in memory once: "private MiB" is what a party adds, "resident MiB" what it would have on a
machine of its own; no rows test, as scoring imports scikit-learn (136 MiB, 2.4 s of processor
time). Processor time is from the fork to the end of the run. On a machine with fewer cores than
parties it grows with how they crowd each other out of its caches; the instructions that the driver
executes (Linux's perf, where there is one) do not.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _perf, _results

COUNTS = (8, 16, 32, 64)
PLANNED = 1000
ROUNDS = 5
PATIENCE_S = 600.0
DRIVER = "coordinator"

PARTY = """
[party]
name = "{name}"
table = "{name}.csv"
id = "row"
label = "y"
[policy]
algorithms = ["chfl"]
drivers = ["coordinator"]
[chfl]
common = ["x*"]
test_share = 0
"""

RUN = """
method = "chfl"
[engine]
kind = "stream"
listen = "127.0.0.1:{port}"
partners = {partners}
[chfl]
rounds = {rounds}
local_epochs = 1
"""


#: What ``join`` and ``train`` import: all methods, as a party may be asked for any.
READ = (
    *(f"dovetail.cli.{name}" for name in ("main", "command", "join", "train")),
    *(f"dovetail.methods.{name}.plugin" for name in ("apfed", "chfl", "fedoptimus", "hyfem")),
    *(f"dovetail.{name}" for name in ("node.join", "runs.train", "methods.table", "api.progress")),
    *("dovetail.network.composite", "dovetail.network.host", "dovetail.network.stream"),
    *("dovetail.companions.survival.plugin", "dovetail.alignment.columns"),
    *("dovetail.federated.secret_mean", "grpc", "jinja2", "prometheus_client"),
    *("numpy.random", "scipy.linalg", "rich.console", "rich.progress", "rich.table"),
)


def command(folder: Path, output: Path, words: tuple[str, ...]) -> None:
    """``dovetail WORDS`` in a forked process."""
    from dovetail.cli.main import main

    os.chdir(folder)
    with output.open("wb") as file:
        for standard in (1, 2):
            os.dup2(file.fileno(), standard)
    sys.argv = ["dovetail", *words]
    main()


def write_files(folder: Path, names: list[str], port: int, rounds: int) -> None:
    rng = np.random.default_rng(0)
    for name in names:
        x = rng.normal(size=(400, 20))
        y = x[:, 0] + x[:, 1] + rng.normal(size=400) > 0
        head = ",".join(["row", *(f"x{i}" for i in range(15)), *(f"u{i}" for i in range(5)), "y"])
        lines = [
            ",".join([str(row), *(f"{v:.6f}" for v in values), "yes" if label else "no"])
            for row, (values, label) in enumerate(zip(x, y, strict=True))
        ]
        (folder / f"{name}.csv").write_text("\n".join([head, *lines, ""]))
        (folder / f"{name}.toml").write_text(PARTY.format(name=name))
    run = RUN.format(port=port, partners=json.dumps(names), rounds=rounds)
    (folder / "run.toml").write_text(run)


def memory(pid: int) -> dict[str, float]:
    """MiB that a process has: all, and what no other has."""
    memory_map = dict(
        re.findall(r"(\w+):\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text())
    )
    private = int(memory_map["Private_Clean"]) + int(memory_map["Private_Dirty"])
    return {"resident": int(memory_map["Rss"]) / 1024, "private": private / 1024}


def used(pid: int) -> float:
    """Processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for(paths: list[Path], words: str, processes: list[Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    for path, process in zip(paths, processes, strict=True):
        while words not in path.read_text():
            assert time.monotonic() < deadline, path.read_text()
            assert process.is_alive(), path.read_text()
            time.sleep(0.1)


def measured(context: Any, num: int, rounds: int) -> dict[str, Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    names = [f"party-{number}" for number in range(num)]
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept)
        write_files(folder, names, port, rounds)

        def start(what: str, *words: str) -> tuple[Path, Any]:
            output = folder / f"{what}.out"
            output.touch()
            process = context.Process(target=command, args=(folder, output, words))
            process.start()
            return output, process

        made, process = start(
            "made", "certificates", *names, DRIVER, "--driver", DRIVER, "--host", "127.0.0.1"
        )
        process.join()
        assert process.exitcode == 0, made.read_text()
        parties = [start(n, "join", f"{n}.toml", "--driver", f"127.0.0.1:{port}") for n in names]
        try:
            wait_for([out for out, _ in parties], "\n", [each for _, each in parties])
            started = [used(each.pid) for _, each in parties]
            output, driver = start("driver", "train", "run.toml", "--out", "out")
            words = _perf.counting(folder / "perf")
            counter = subprocess.Popen([*words, "-p", str(driver.pid)]) if words else None
            last = 0.0
            private = 0.0
            while driver.is_alive():
                try:
                    last, private = used(driver.pid), memory(driver.pid)["private"]
                except OSError:
                    break
                time.sleep(0.2)
            driver.join()
            if counter is not None:
                counter.wait()
            assert driver.exitcode == 0, output.read_text()
            result = json.loads((folder / "out" / "result.json").read_text())
            each = [memory(process.pid) for _, process in parties]
            cost = [used(process.pid) for _, process in parties]
        finally:
            for _, process in parties:
                if process.is_alive():
                    os.kill(process.pid, signal.SIGTERM)
                process.join()
        trained = sum(cost) - sum(started)
        return {
            "parties": num,
            "what": "measured",
            "rounds": rounds,
            "resident MiB a party": sum(one["resident"] for one in each) / num,
            "private MiB a party": sum(one["private"] for one in each) / num,
            "private MiB of the driver": private,
            "processor s a party to start": sum(started) / num,
            "processor s a party and round": trained / num / rounds,
            "processor s of the driver": last,
            "million instructions of the driver": _perf.millions(folder / "perf"),
            "round s": result["seconds"] / rounds,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parties", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--add", action="store_true", help="to the results that there are")
    asked = parser.parse_args()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(READ))
    results: dict[int, dict[str, Any]] = {}
    for num in asked.parties:
        results[num] = measured(context, num, asked.rounds)
        print(results[num], flush=True)
    path, about = _results.FOLDER / "many_parties.jsonl", _results.machine()
    for line in path.read_text().splitlines() if asked.add and path.is_file() else ():
        row = {key: value for key, value in json.loads(line).items() if key not in about}
        if row["what"] == "measured":
            results.setdefault(row["parties"], row)
    rows = [results[num] for num in sorted(results)]
    if len(rows) > 1:
        one, two = rows[-2], rows[-1]
        steps = (PLANNED - two["parties"]) / (two["parties"] - one["parties"])
        grows = [key for key in two if key.endswith(" of the driver") and one.get(key)]
        more = {key: two[key] + steps * (two[key] - one[key]) for key in grows}
        rows.append({**two, **more, "parties": PLANNED, "what": "planned", "round s": "-"})
    _results.write("many_parties", "Parties as processes of one machine", rows)


if __name__ == "__main__":
    main()
