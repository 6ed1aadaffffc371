"""What a Ray cluster saves and costs: trials against one process, and parties as its processes.

    python -m benchmarks.ray_cluster --trials 0 --parties 8 32 64 128 256 --rounds light
    python -m benchmarks.ray_cluster --trials 0 --parties 8 32 --rounds middle real
    python -m benchmarks.ray_cluster --trials 0 --parties --own

Two nodes of one core each, on this machine, whose processes have the priority of this one. Trials:
of a search, APFed-R on breast-cancer, here and as tasks (not with ``--trials 0``). Parties: CHFL on
rows drawn at random, here and split over one process a core. A light round is one pass over 200
rows of each party by a small network; a real one five passes over 1,000 rows by the paper's, a
middle one a single pass of it. ``--own``: what a party hands to its own cluster.
Seconds are of the clock; what else the machine does is in them, so processor time of the same
rounds stands beside them: here, and the most that one process of the cluster took. What was
measured before, and is not asked for again, is kept.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks import _results
from benchmarks.many_parties import memory, used
from dovetail.alignment import Workers
from dovetail.cluster import LOCAL, RayTasks, Tasks, computing_at, tasks_at
from dovetail.data.vectors import Words
from dovetail.models.learners.choice import LEARNERS, fit_all
from dovetail.models.learners.rows import Rows
from dovetail.privacy import encrypted
from dovetail.runs.runfile import RunFile, check_run
from dovetail.runs.search import search
from dovetail.runs.train import train_seeds

#: Of each node: what Ray takes at least.
STORE_BYTES = 80 * 2**20

#: All parties together have as many test rows: each is scored on all of them.
TEST_ROWS = 160


class Weight(NamedTuple):
    """What a round is: passes over a party's rows, its rows, and how many rounds are played."""

    passes: int
    rows: int
    num: int
    widths: tuple[int, ...]


ROUNDS = {
    "light": Weight(1, 200, 10, (64, 32)),
    "middle": Weight(1, 1_000, 4, (512, 256, 128)),
    "real": Weight(5, 1_000, 2, (512, 256, 128)),
}


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


def rounds(parties: int, weight: str, table: Path, engine: dict[str, Any]) -> RunFile:
    """CHFL of so many parties."""
    kind = ROUNDS[weight]
    partition = {"kind": "common-unique", "parties": parties, "common": 0.5}
    share = min(0.1, TEST_ROWS / (parties * kind.rows))
    data = {"source": str(table), "label": "y", "test": share, "partition": partition}
    chfl: dict[str, Any] = {"rounds": kind.num, "local_epochs": kind.passes, "batch_size": 32}
    chfl["widths"] = list(kind.widths)
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


def tabled(num_rows: int, folder: Path) -> Path:
    """Rows at random, twenty columns."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, 20)).round(4)
    head = ",".join([*(f"x{place}" for place in range(20)), "y"])
    y = np.where(x[:, 0] + x[:, 1] > 0, "up", "down")
    lines = [",".join([*map(str, row), label]) for row, label in zip(x.tolist(), y, strict=True)]
    path = folder / f"{num_rows}.csv"
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


def clocked(run: RunFile, tasks: Tasks) -> float:
    """Seconds of a search."""
    began = time.perf_counter()
    search(run, seed=0, tasks=tasks)
    return time.perf_counter() - began


class Watch:
    """What processes of the cluster that have parties take: looks at them twice a second."""

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}
        self.mib = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(0.5):
            with suppress(OSError):  # one that has ended
                for path in Path("/proc").glob("[0-9]*/cmdline"):
                    pid = int(path.parent.name)
                    if path.read_bytes().startswith(b"ray::Process") and is_ours(pid):
                        self.seconds[pid] = used(pid)
                        self.mib = max(self.mib, memory(pid)["private"])


def is_ours(pid: int) -> bool:
    """Whether it belongs to a node that this process has started."""
    for _ in range(2):  # a node's process, and then whoever started it
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid == os.getpid()


def trained(run: RunFile) -> tuple[float, float, float]:
    """Seconds of a run; of these those of its rounds; processor time of this process."""
    with tempfile.TemporaryDirectory() as folder:
        began, before = time.perf_counter(), time.process_time()
        result = train_seeds(run, Path(folder) / "run", (0,), resume=False)
        seconds = float(result["seconds"])
        return time.perf_counter() - began, seconds, time.process_time() - before


def of_tasks(address: str, num: int, epochs: int, note: Callable[..., None]) -> None:
    """What tasks cost, and what a search gains."""
    began = time.perf_counter()
    with tasks_at(address) as tasks:
        assert isinstance(tasks, RayTasks)
        note("connect, s", 0, time.perf_counter() - began, "once a command")
        began = time.perf_counter()
        list(tasks.map(str, range(2)))
        note("first tasks, s", 0, time.perf_counter() - began, "processes that read torch")
        began = time.perf_counter()
        list(tasks.map(str, range(200)))
        note("a task, ms", 0, 5 * (time.perf_counter() - began), "of 200 that do nothing")
        run = trials(num, epochs)
        note(f"{num} trials, s", clocked(run, LOCAL), clocked(run, tasks), "a search")


def of_own(address: str, note: Callable[..., None]) -> None:
    """A party's heavy parts, here and on its own cluster."""
    rng, nonce = np.random.default_rng(0), encrypted.new_nonce()
    points_N32 = rng.integers(0, 128, (200_000, 32), dtype=np.uint8)
    words = np.array([f"word{number}" for number in range(5000)])
    texts = np.array([" ".join(rng.choice(words, 12)) for _ in range(100_000)], dtype=object)
    owner, layout = encrypted.SecretKey(), encrypted.Layout.best(2_000, 1, 8_000)
    targets_L1 = rng.integers(-(2**10), 2**10, (2_000, 1))
    wire = owner.encrypt(targets_L1, layout, nonce)
    partner = encrypted.Encrypted(layout, owner.public_key(nonce), wire, nonce)
    weights_RL = rng.integers(-50, 50, (8_000, 2_000))
    x_NF = torch.randn(5_000, 20, generator=torch.Generator().manual_seed(0))
    classes_N2 = torch.nn.functional.one_hot((x_NF[:, 0] > 0).long(), 2).float()
    rows = Rows(x_NF, classes_N2, torch.arange(5_000) % 4)
    parts: dict[str, tuple[str, Callable[[], object]]] = {
        "blinding": ("200,000 ids", lambda: Workers().multiply(bytes(range(32)), points_N32)),
        "texts": ("100,000 of 12 words", lambda: Words.fit(texts, 32).vectors(texts)),
        "products": (
            "2,000 labels, 8,000 rows",
            lambda: partner.multiply(lambda rows: weights_RL[rows], 8_000, 6, bytes(32)),
        ),
        "learners": (
            "linear model, trees, network of 5,000 rows, 20 columns",
            lambda: fit_all([*LEARNERS.values()], rows, seed=0),
        ),
    }
    for name, (of, work) in parts.items():
        seconds, used_here = [], []
        for where in (None, address):
            with computing_at(where, "--own"):
                for _ in range(2):  # the first time libraries are read, in each process
                    began, before = time.perf_counter(), time.process_time()
                    work()
                    took = time.perf_counter() - began, time.process_time() - before
            seconds.append(took[0])
            used_here.append(took[1])
        note(f"own: {name}, s", *seconds, of)
        note(f"own: {name}, processor s of the party's machine", *used_here, of)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--parties", type=int, nargs="*", default=[8, 32, 64, 128, 256])
    parser.add_argument("--rounds", nargs="*", choices=[*ROUNDS], default=[*ROUNDS])
    parser.add_argument("--own", action="store_true")
    given = parser.parse_args()
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    began = time.perf_counter()
    # Else they let others go first, and a busy machine is measured.
    head = node | {"_system_config": {"worker_niceness": 0}}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    started = time.perf_counter() - began
    rows: list[dict[str, Any]] = []

    def note(what: str, here: float, there: float, of: str) -> None:
        ratio = round(here / there, 2) if here else ""
        one = round(here, 2) if here else ""
        rows.append({"what": what, "one process": one, "Ray": round(there, 2), "ratio": ratio})
        rows[-1]["of"] = of

    try:
        if given.trials:
            note("two nodes start, s", 0, started, "once a cluster")
            of_tasks(cluster.address, given.trials, given.epochs, note)
        if given.own:
            of_own(cluster.address, note)
        for parties, weight in itertools.product(given.parties, given.rounds):
            with tempfile.TemporaryDirectory() as folder, Watch() as watch:
                kind = ROUNDS[weight]
                table = tabled(parties * kind.rows, Path(folder))
                trained(rounds(2, "light", table, {"kind": "inprocess"}))  # reads the libraries
                engine = {"kind": "ray", "address": cluster.address}
                here = trained(rounds(parties, weight, table, {"kind": "inprocess"}))
                there = trained(rounds(parties, weight, table, engine))
            num, what = kind.num, f"{parties} parties"
            of = f"passes over a party's rows: {kind.passes}; rows: {kind.rows}"
            note(f"{what}, a {weight} round, s", here[1] / num, there[1] / num, of)
            note(f"{what}, all but {weight} rounds, s", here[0] - here[1], there[0] - there[1], of)
            one = max(watch.seconds.values(), default=0.0)
            note(f"{what}, {weight}, processor s", here[2], one, "the run; of one process")
            note(f"{what}, {weight}, MiB a process", 0, watch.mib, "beside shared libraries")
            print(rows[-4:], flush=True)
            keep(rows)
    finally:
        cluster.shutdown()
    keep(rows)


def keep(rows: list[dict[str, Any]]) -> None:
    """Written, with what was measured before and is not measured now."""
    asked = {row["what"] for row in rows}
    before = [row for row in _results.before("ray_cluster") if row["what"] not in asked]
    _results.write("ray_cluster", "A Ray cluster of two nodes of one core each", rows + before)


if __name__ == "__main__":
    main()
