"""What a Ray cluster saves and costs: trials against one process, and parties as its processes.

    python -m benchmarks.ray_cluster --parties 8 16

Two nodes of one core each, on this machine. Trials: of a search, APFed-R on breast-cancer, here and
as tasks. Parties: rounds of CHFL on rows drawn at random, here and each in a process of the
cluster. Seconds are of the clock; what else the machine does is in them. What was measured before,
and is not asked for again, is kept.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _results
from dovetail.cluster import LOCAL, RayTasks, Tasks, tasks_at
from dovetail.runs.runfile import RunFile, check_run
from dovetail.runs.search import search
from dovetail.runs.train import train_seeds

#: Of each node: what Ray takes at least.
STORE_BYTES = 80 * 2**20

ROWS_OF_PARTY, ROUNDS = 200, 10


def trials(num: int, epochs: int) -> RunFile:
    """A search of so many trials."""
    parties = {"clinic": ["mean *"], "lab": ["worst *"]}
    partition = {"kind": "columns", "active": "clinic", "parties": parties}
    rates = [round(0.001 * (place + 1), 3) for place in range(num)]
    return check_run(
        {
            "method": "apfed-r",
            "data": {"source": "breast-cancer", "test": 0.3, "partition": partition},
            "apfed": {"epochs": epochs, "encoder": [1024, 1024]},
            "search": {"trials": num, "keys": {"apfed.learning_rate": rates}},
        },
        where="benchmark",
    )


def rounds(parties: int, table: Path, engine: dict[str, Any]) -> RunFile:
    """CHFL of so many parties."""
    partition = {"kind": "common-unique", "parties": parties, "common": 0.5}
    data = {"source": str(table), "label": "y", "test": 0.1, "partition": partition}
    chfl = {"rounds": ROUNDS, "local_epochs": 1, "batch_size": 32}
    return check_run(
        {
            "method": "chfl",
            "data": data,
            "chfl": chfl,
            "engine": engine,
            "evaluate_every": 0,
            "checkpoint_every": 0,
        },
        where="benchmark",
    )


def tabled(parties: int, folder: Path) -> Path:
    """Rows at random, twenty columns."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS_OF_PARTY * parties, 20)).round(4)
    head = ",".join([*(f"x{place}" for place in range(20)), "y"])
    y = np.where(x[:, 0] + x[:, 1] > 0, "up", "down")
    lines = [",".join([*map(str, row), label]) for row, label in zip(x.tolist(), y, strict=True)]
    path = folder / f"{parties}.csv"
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


def clocked(run: RunFile, tasks: Tasks) -> float:
    """Seconds of a search."""
    began = time.perf_counter()
    search(run, seed=0, tasks=tasks)
    return time.perf_counter() - began


def trained(run: RunFile) -> tuple[float, float]:
    """Seconds of a run, and of these those of its rounds."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        result = train_seeds(run, Path(folder) / "run", (0,), resume=False)
        return time.perf_counter() - began, float(result["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--parties", type=int, nargs="*", default=[8, 16])
    given = parser.parse_args()
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    began = time.perf_counter()
    cluster: Any = Cluster(initialize_head=True, head_node_args=node)
    cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    started = time.perf_counter() - began
    rows: list[dict[str, Any]] = []

    def note(what: str, here: float, there: float, of: str) -> None:
        ratio = round(here / there, 2) if here else ""
        one = round(here, 2) if here else ""
        rows.append({"what": what, "one process": one, "Ray": round(there, 2), "ratio": ratio})
        rows[-1]["of"] = of

    try:
        began = time.perf_counter()
        with tasks_at(cluster.address) as tasks:
            assert isinstance(tasks, RayTasks)
            note("two nodes start, s", 0, started, "once a cluster")
            note("connect, s", 0, time.perf_counter() - began, "once a command")
            began = time.perf_counter()
            list(tasks.map(str, range(2)))
            note("first tasks, s", 0, time.perf_counter() - began, "processes that read torch")
            began = time.perf_counter()
            list(tasks.map(str, range(200)))
            note("a task, ms", 0, 5 * (time.perf_counter() - began), "of 200 that do nothing")
            run = trials(given.trials, given.epochs)
            note(f"{given.trials} trials, s", clocked(run, LOCAL), clocked(run, tasks), "a search")
        for parties in given.parties:
            with tempfile.TemporaryDirectory() as folder:
                table = tabled(parties, Path(folder))
                engine = {"kind": "ray", "address": cluster.address, "cpus": 2 / parties}
                whole, in_rounds = trained(rounds(parties, table, {"kind": "inprocess"}))
                there, rounds_there = trained(rounds(parties, table, engine))
            of = f"{ROUNDS} rounds of CHFL, {ROWS_OF_PARTY} rows a party"
            note(f"{parties} parties, whole run, s", whole, there, of)
            note(f"{parties} parties, rounds, s", in_rounds, rounds_there, of)
    finally:
        cluster.shutdown()
    asked = {row["what"] for row in rows}
    rows += [row for row in _results.before("ray_cluster") if row["what"] not in asked]
    _results.write("ray_cluster", "A Ray cluster of two nodes of one core each", rows)


if __name__ == "__main__":
    main()
