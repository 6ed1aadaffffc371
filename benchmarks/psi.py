"""Private set intersection against openmined-psi, on more cores, and on a million ids.

    python -m benchmarks.psi --peer-python PYTHON [--large]

Two parties with equally many ids, half of them in common. Both parties run in one process, so
seconds are the work of both; each figure is that of a process of its own, from the ids in memory
to the intersection. "Peak MiB" is of the process: of ours, `import torch` takes 219 before the
first id comes (its build for processors, on Linux). Wall time counts everything, starting worker
processes included; processor time is the sum over all processes, and changes less when a machine
has other work. openmined-psi pins a version of protobuf, so PYTHON is an interpreter that has it;
without one it is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

TARGET_PEER = 0.5  # of openmined-psi's time, on one core
TARGET_CORES = 0.6  # of one core's time, on two
TARGET_PROOFS = 1.05  # of the processor time without proofs of shared ids

#: Ids of each where proofs cost most, beside all else: of more, one shared id in 50 is proved.
PROVED_IDS = 20_000
PROOF_ROUNDS = 5

#: Runs in any interpreter: the ids of both parties, and what a run took.
COMMON = """
import json, os, re, resource, sys, time
num = int(sys.argv[1])
own = [f"customer-{number:09d}" for number in range(num)]
theirs = [f"customer-{number:09d}" for number in range(num // 2, num // 2 + num)]

def measured(work):
    started, used = time.perf_counter(), time.process_time()
    num_shared = work()
    seconds = time.perf_counter() - started
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = time.process_time() - used + children.ru_utime + children.ru_stime
    # Not ru_maxrss: Linux carries the parent's over into the child.
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
    assert num_shared == num - num // 2, num_shared
    print(json.dumps({"seconds": seconds, "processor s": used, "peak MiB": peak}))
"""

PEER = """
import private_set_intersection.python as psi

def work():
    client = psi.client.CreateWithNewKey(True)
    server = psi.server.CreateWithNewKey(True)
    setup = server.CreateSetupMessage(1e-9, num, theirs, psi.DataStructure.RAW)
    response = server.ProcessRequest(client.CreateRequest(own))
    return len(client.GetIntersection(setup, response))

measured(work)
"""

OURS = """
import torch
from dovetail.alignment import Responder, Workers, align, psi, responder
from dovetail.network import InProcess

def work():
    with Workers(int(sys.argv[2])) as workers:
        shop = Responder("shop", theirs, workers=workers)
        engine = InProcess({"shop": shop}, driver="bank", through_bytes=True)
        return align(engine, own, workers=workers).overlap["shop"]

if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[3] == "0":  # one question in place of all, to tell what they cost
        psi.num_questions = responder.num_questions = lambda num, checked: min(num, 1)
    measured(work)
"""


def run(python: str, script: str, *arguments: int) -> dict[str, float]:
    """What a process of its own measured."""
    command = [python, "-c", COMMON + script, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def row(name: str, num_ids: int, workers: int, runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Medians of the runs."""
    medians = {key: statistics.median(each[key] for each in runs) for key in runs[0]}
    return {"what": name, "ids of each": num_ids, "workers": workers, "runs": len(runs), **medians}


def peer_is_there(python: str | None) -> bool:
    if python is None:
        print("openmined-psi is left out: name an interpreter that has it by --peer-python")
        return False
    probe = [python, "-c", "import private_set_intersection.python"]
    done = subprocess.run(probe, capture_output=True, text=True)
    if done.returncode:
        print(f"openmined-psi is left out: {python} cannot import it: {done.stderr.strip()[-200:]}")
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer-python", help="an interpreter that has openmined-psi")
    parser.add_argument("--ids", type=int, default=100_000, help="ids of each party [100000]")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each, in turns [1]")
    parser.add_argument("--large", action="store_true", help="also 1,000,000 ids on two workers")
    given = parser.parse_args()
    from benchmarks import _results  # loads torch

    load = os.getloadavg()[0]
    with_peer = peer_is_there(given.peer_python)
    runs: dict[str, list[dict[str, float]]] = {"one": [], "peer": [], "two": []}
    for _ in range(given.rounds):  # in turns, so that a noisy machine slows all alike
        runs["one"].append(run(sys.executable, OURS, given.ids, 1, 1))
        if with_peer:
            runs["peer"].append(run(given.peer_python, PEER, given.ids))
        runs["two"].append(run(sys.executable, OURS, given.ids, 2, 1))
    proofs: dict[int, list[dict[str, float]]] = {1: [], 0: []}
    for _ in range(PROOF_ROUNDS):
        for with_proofs, done in proofs.items():
            done.append(run(sys.executable, OURS, PROVED_IDS, 1, with_proofs))
    one = row("dovetail", given.ids, 1, runs["one"])
    two = row("dovetail", given.ids, 2, runs["two"])
    peer = row("openmined-psi", given.ids, 1, runs["peer"]) if with_peer else None
    rows = [one, *([peer] if peer else []), two]
    proved, unproved = (
        row(f"dovetail{what}", PROVED_IDS, 1, proofs[number])
        for number, what in ((1, ""), (0, ", one proof only"))
    )
    rows += [proved, unproved]
    if given.large:
        rows.append(row("dovetail", 1_000_000, 2, [run(sys.executable, OURS, 1_000_000, 2, 1)]))

    def ratio(key: str, of: dict[str, Any], to: dict[str, Any] | None) -> Any:
        return of[key] / to[key] if to else "-"

    for each in rows:
        each |= {"of": "-", "seconds ratio": "-", "processor ratio": "-", "at most": "-"}
    for each, other, target in (
        (one, peer, TARGET_PEER),
        (two, one, TARGET_CORES),
        (proved, unproved, TARGET_PROOFS),
    ):
        if other:
            each |= {
                "of": f"{other['what']}, {other['workers']} worker",
                "seconds ratio": ratio("seconds", each, other),
                "processor ratio": ratio("processor s", each, other),
                "at most": target,
            }
    title = (
        f"Private set intersection; {os.cpu_count()} cores, load {load:.1f} before the first run"
    )
    _results.write("psi", title, rows)


if __name__ == "__main__":
    main()
