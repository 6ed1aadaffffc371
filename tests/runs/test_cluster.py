"""Work on a Ray cluster: the same bits as in one process, also where a machine is lost on the way.

The cluster has two nodes of one core each, on this machine.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import dovetail.cluster
from benchmarks.tables.session import Away
from dovetail.alignment import Workers
from dovetail.audit.attack import Settings
from dovetail.audit.defence_search import BEST_ALONE, try_defences
from dovetail.audit.run import audit
from dovetail.cluster import LOCAL, RayTasks, Tasks, computing_at, tasks_at
from dovetail.data import vectors
from dovetail.data.preprocessing import TableEncoder
from dovetail.data.tables import table_from_arrays
from dovetail.data.vectors import _AT_ONCE
from dovetail.errors import PartyError
from dovetail.methods.base import Progress
from dovetail.methods.facets.defences import Defence
from dovetail.models.learners.choice import fit_all
from dovetail.models.learners.linear import Linear
from dovetail.models.learners.rows import Rows
from dovetail.network.hosted import Hosted, Pool
from dovetail.privacy import encrypted
from dovetail.runs import train, value
from dovetail.runs.runfile import RunFile, check_run
from dovetail.runs.setup import load_data, setup
from dovetail.runs.train import train_away, train_seeds
from dovetail.settings.encode import Asked, Encode
from dovetail.settings.privacy import Release

pytestmark = [pytest.mark.slow, pytest.mark.network]

#: Of each node: the least that Ray takes.
STORE_BYTES = 80 * 2**20

#: Seconds after which a state that does not come is a fault.
PATIENCE_S = 300.0

#: Tasks that wait end when there is such a file.
GO_ON = "go-on"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(160, 4)), columns=["a", "b", "c", "d"])
    frame["y"] = np.where(frame["a"] + frame["c"] > 0, "up", "down")
    frame["where"] = ["north"] * 100 + ["south"] * 60
    frame["site"] = np.repeat(list("vwxyz"), [10, 20, 30, 40, 60])
    for column, measured in (("e", "north"), ("f", "south")):
        frame[column] = np.where(frame["where"] == measured, rng.normal(size=160), np.nan)
    path = tmp_path_factory.mktemp("table") / "rows.csv"
    frame.assign(id=range(len(frame))).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'dovetail-fl[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dovetail.cluster, "BEGUN_IN_S", PATIENCE_S)  # a process a core, however slow
        yield from two_nodes()


def two_nodes() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    # Ray's processes let others go first, and begin late, or not at all, on a busy machine.
    head = node | {"_system_config": {"worker_niceness": 0}}
    for left in reversed(range(3)):
        try:
            nodes = Cluster(initialize_head=True, head_node_args=head)
            break
        except Exception as error:  # Ray raises no other: its client did not reach what it began
            if "timed out during startup" not in str(error):
                raise
            if not left:
                pytest.skip("Ray begins no cluster here")
    nodes.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    yield nodes
    nodes.shutdown()


@pytest.fixture(scope="module")
def tasks(cluster: Any) -> Iterator[RayTasks]:
    with tasks_at(cluster.address) as there:
        assert isinstance(there, RayTasks)
        yield there


def second(cluster: Any) -> str:
    """The second machine's name."""
    (node,) = cluster.worker_nodes
    return str(node.node_id)


def lose(cluster: Any) -> None:
    """The second machine falls, and the cluster knows it."""
    fallen = second(cluster)
    (node,) = cluster.worker_nodes
    cluster.remove_node(node, allow_graceful=False)
    import ray

    wait_until(lambda: fallen not in {each["NodeID"] for each in ray.nodes() if each["Alive"]})


def replace(cluster: Any) -> None:
    """Another comes in its place."""
    cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)


def wait_until(seen: Callable[[], object]) -> None:
    """Waits for a state; the time is only there so that a fault does not wait for ever."""
    ends = time.monotonic() + PATIENCE_S
    while not seen() and time.monotonic() < ends:
        time.sleep(0.02)
    assert seen()


def when(seen: Callable[[], object], then: Callable[[], None]) -> threading.Thread:
    """A thread that waits for a state, and then does that."""

    def waits() -> None:
        wait_until(seen)
        then()

    thread = threading.Thread(target=waits, daemon=True)
    thread.start()
    return thread


class AtFirstRound(Progress):
    """Does something in mid-run: when the first round has ended, before the second begins."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self.done = False

    def epochs(self, title: str) -> AbstractContextManager[Any]:
        return nullcontext(self)

    def __call__(self, variant: str, total: int, line: dict[str, Any]) -> None:
        if not self.done:
            self.done = True
            self._then()


METHODS: dict[str, dict[str, Any]] = {
    "apfed-r": {"apfed": {"epochs": 2, "encoder": [4], "head": [4]}, "passive": {"encoder": [4]}},
    "apfed": {},
    "chfl": {"chfl": {"widths": [4], "rounds": 12, "local_epochs": 1, "batch_size": 16}},
}
COLUMNS = {"one": ["a", "b"], "two": ["c"], "three": ["d"]}


def run_of(method: str, table: Path, **changes: Any) -> RunFile:
    partition: dict[str, Any] = {"kind": "columns", "active": "one", "parties": COLUMNS}
    if method == "chfl":  # of unlike sizes: parties of one are trained as stacked tensors here
        partition = {"kind": "by-column", "column": "where", "parties": ["north", "south"]}
    data = {"source": str(table), "label": "y", "id": "id", "test": 0.25, "partition": partition}
    return check_run({"method": method, "data": data, **METHODS[method], **changes}, where="test")


def files_of(folder: Path) -> dict[str, bytes]:
    """Weights, ledgers and scores of a run folder."""
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.name in ("model.safetensors", "ledger.jsonl")  # bottom: encrypted, by the system
    }
    for path in folder.rglob("result.json"):
        result = json.loads(path.read_text())
        found[path.relative_to(folder).as_posix()] = json.dumps(
            [result["parties"], result["baselines"], result["bytes"]]
        ).encode()
    return found


def squared(number: int) -> int:
    if number < 0:
        raise PartyError("shop", "has no such number")
    return number * number


def waits(folder: Path, number: int) -> int:
    """Says on which machine it has begun, and ends when it is let go on."""
    import ray

    (folder / f"{number}-{ray.get_runtime_context().get_node_id()}").touch()
    wait_until((folder / GO_ON).exists)
    return number


def test_a_search_and_seeds_have_the_bits_of_one_process(
    tasks: Tasks, table: Path, tmp_path: Path
) -> None:
    grid = {"apfed.learning_rate": [1e-4, 0.02], "apfed.head": [[4]]}
    run = run_of("apfed-r", table, baselines=["alone"], search={"trials": 3, "keys": grid})
    found = []
    for name, where in (("here", LOCAL), ("there", tasks)):
        train_seeds(run, tmp_path / name, (0, 1), resume=False, tasks=where)
        search = json.loads((tmp_path / name / "search.json").read_text())
        for trial in search["trials"]:
            del trial["seconds"]
        found.append((search, files_of(tmp_path / name)))
    assert found[0] == found[1]
    assert len([name for name in found[0][1] if name.endswith(".safetensors")]) == 2


def test_a_run_of_a_bench_comes_back_with_its_folder(
    tasks: RayTasks, table: Path, tmp_path: Path
) -> None:
    run = run_of("apfed-r", table)
    train_seeds(run, tmp_path / "here", (3,), resume=False)
    away = Away(tasks.start(train_away, (run, 3)), tmp_path / "there")
    assert away.failure() is None
    assert away.done()
    assert files_of(tmp_path / "here") == files_of(tmp_path / "there")


def test_coalitions_are_worth_the_same(tasks: Tasks, table: Path) -> None:
    run = value.with_joint(run_of("apfed-r", table))
    made = setup(run, 0, load_data(run))
    here, there = (
        value.value(lambda seed: made, (0,), value.CoalitionScores(None, ""), by="loo", tasks=where)
        for where in (LOCAL, tasks)
    )
    del here["seconds"], there["seconds"]
    assert here == there


def test_an_audit_finds_the_same(tasks: Tasks, table: Path) -> None:
    run = run_of("apfed-r", table)
    settings = Settings(known=20, network=False)
    here, there = (audit(run, (0,), settings=settings, tasks=each) for each in (LOCAL, tasks))
    assert here.findings == there.findings
    assert here.scores == there.scores


@pytest.mark.usefixtures("brief_learners")
def test_defences_that_an_audit_tries_cost_the_same(tasks: Tasks, table: Path) -> None:
    run, loud = run_of("apfed-r", table), Release(clip=1.0, noise=8.0)
    grid = (Defence("as it is", {}), Defence("noise 8", {"codes": loud}, loud))
    here, there = (try_defences(run, (0,), defences=grid, tasks=each) for each in (LOCAL, tasks))
    assert [each.name for each in here.cells] == ["as it is", "noise 8", BEST_ALONE]
    assert here.cells == there.cells


def test_what_a_task_raises_is_raised_here(tasks: Tasks) -> None:
    given = tasks.map(squared, [2, -1, 3])
    assert next(given) == 4
    with pytest.raises(PartyError, match="has no such number") as raised:
        next(given)
    assert raised.value.party == "shop"


def test_a_lost_machines_tasks_are_done_on_another(
    cluster: Any, tasks: Tasks, tmp_path: Path
) -> None:
    fallen = second(cluster)

    def fall() -> None:
        lose(cluster)
        (tmp_path / GO_ON).touch()

    falls = when(lambda: list(tmp_path.glob(f"*-{fallen}")), fall)
    assert list(tasks.map(partial(waits, tmp_path), range(6))) == [0, 1, 2, 3, 4, 5]
    falls.join()
    replace(cluster)
    (lost,) = tmp_path.glob(f"*-{fallen}")
    assert len(list(tmp_path.glob(f"{lost.name[0]}-*"))) == 2  # begun there, and again elsewhere


def test_ctrl_c_ends_what_is_on_its_way(tasks: Tasks, tmp_path: Path) -> None:
    when(lambda: list(tmp_path.iterdir()), lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        list(tasks.map(partial(waits, tmp_path), range(20)))  # none would end, nor free its core
    assert list(tasks.map(squared, [3])) == [9]
    assert len(list(tmp_path.iterdir())) < 8


@pytest.mark.usefixtures("brief_learners")
def test_parties_on_a_cluster_train_the_same_bits(
    cluster: Any, table: Path, tmp_path: Path
) -> None:
    engine = {"kind": "ray", "address": cluster.address}
    for name, changes in (("here", {}), ("there", {"engine": engine})):
        run = run_of("apfed", table, checkpoint_every=2, **changes)
        train_seeds(run, tmp_path / name, (0,), resume=False)
    assert files_of(tmp_path / "here") == files_of(tmp_path / "there")


@pytest.mark.usefixtures("brief_learners")
def test_a_run_whose_machine_falls_ends_with_the_same_bits(
    cluster: Any, table: Path, tmp_path: Path
) -> None:
    engine = {"kind": "ray", "address": cluster.address}
    train_seeds(run_of("chfl", table), tmp_path / "here", (0,), resume=False)
    folder, falls = tmp_path / "there", AtFirstRound(partial(lose, cluster))
    train_seeds(run_of("chfl", table, engine=engine), folder, (0,), resume=False, talk=falls)
    assert falls.done
    replace(cluster)
    assert files_of(tmp_path / "here") == files_of(folder)


@pytest.mark.usefixtures("brief_learners")
def test_five_parties_share_two_processes_one_of_which_ends(
    cluster: Any, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dealt = {"kind": "by-column", "column": "site", "parties": list("vwxyz")}
    data = {"source": str(table), "label": "y", "id": "id", "test": 0.25, "partition": dealt}
    chfl = METHODS["chfl"]["chfl"] | {"batch_size": 4}  # unlike numbers of steps: none is stacked
    changes = {"data": data, "chfl": chfl}
    engine = {"kind": "ray", "address": cluster.address}
    train_seeds(run_of("chfl", table, **changes), tmp_path / "here", (0,), resume=False)
    pools, folder = [], tmp_path / "there"
    monkeypatch.setattr(train, "Pool", lambda *given: pools.append(Pool(*given)) or pools[0])

    def end() -> None:
        _, last = pools[0]._actors
        last.stop()

    ends = AtFirstRound(end)
    run = run_of("chfl", table, **changes, engine=engine)
    train_seeds(run, folder, (0,), resume=False, talk=ends)
    assert ends.done
    assert files_of(tmp_path / "here") == files_of(folder)


@pytest.mark.usefixtures("brief_learners")
def test_rounds_that_are_not_scored_fetch_no_state(
    cluster: Any, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does what their noise has cost, which each round reports."""
    fetched, fetch = [], Hosted._fetch
    monkeypatch.setattr(Hosted, "_fetch", lambda hosted: fetched.append(hosted) or fetch(hosted))
    chfl = METHODS["chfl"]["chfl"] | {"private": {"noise": 1.0}}
    changes = {"chfl": chfl, "evaluate_every": 0, "checkpoint_every": 0}
    there = {"engine": {"kind": "ray", "address": cluster.address}}
    epsilons = []
    for name, engine in (("here", {}), ("there", there)):
        folder = tmp_path / name
        train_seeds(run_of("chfl", table, **changes, **engine), folder, (0,), resume=False)
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        epsilons.append([json.loads(line).get("epsilon") for line in lines])
    assert epsilons[0] == epsilons[1]
    assert all(epsilons[0])
    assert files_of(tmp_path / "here") == files_of(tmp_path / "there")
    assert len(fetched) < 3  # not one a round: when training is over


@pytest.fixture
def handed_out(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What tasks of a cluster were given."""
    given: list[Any] = []
    start = RayTasks.start

    def noted(tasks: RayTasks, work: Any, one: Any, **more: Any) -> Any:
        given.append(one)
        return start(tasks, work, one, **more)

    monkeypatch.setattr(RayTasks, "start", noted)
    return given


def test_a_partys_own_cluster_blinds_and_fits_alike(cluster: Any, handed_out: list[Any]) -> None:
    points = np.random.default_rng(0).integers(0, 256, (5_000, 32), dtype=np.uint8)
    points[:, 31] &= 127
    x_NF = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    targets_NC = torch.nn.functional.one_hot((x_NF[:, 0] > 0).long(), 2).float()
    rows = Rows(x_NF, targets_NC, torch.arange(60) % 3)

    def worked() -> tuple[np.ndarray, torch.Tensor]:
        with Workers() as workers:
            blinded = workers.multiply(bytes(range(32)), points)
        return blinded, fit_all([Linear()], rows, seed=0)["linear"].held_out_NC

    here = worked()
    assert not handed_out
    with computing_at(cluster.address, "party.compute"):
        there = worked()
    assert len(handed_out) == 3 + 1
    assert np.array_equal(here[0], there[0])
    assert torch.equal(here[1], there[1])


def test_a_partys_own_cluster_encodes_texts_and_pictures_alike(
    cluster: Any, handed_out: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hashed words, by a file, and by an installed package that the site trusts."""
    from pixel_encoders import pixels_onnx  # which the cluster's processes do not find

    pixels_onnx(tmp_path / "encoder.onnx")
    rng = np.random.default_rng(0)
    names = [f"{number}.png" for number in range(70)]
    for name in names:
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(tmp_path / name)
    words = [f"word{number}" for number in range(300)]
    columns = {
        "age": rng.normal(size=70),
        "note": [" ".join(rng.choice(words, 8)) for _ in range(70)],
        "photo": names,
        "said": [f"{number} times" for number in range(70)],
    }
    onnx = {"kind": "picture", "model": str(tmp_path / "encoder.onnx"), "pixels": 8}
    package = {"kind": "text", "model": "numpy:char.str_len"}
    asked = {"photo": onnx | {"folder": str(tmp_path)}, "said": package}
    monkeypatch.setattr(vectors, "_AT_ONCE", 30)

    def encoded() -> torch.Tensor:
        ask = Asked({name: Encode(**each) for name, each in asked.items()})
        table = table_from_arrays("visits", columns).asking(ask)
        vectors._memory.clear()
        return TableEncoder.fit(table, [*columns], party="clinic").transform(table)

    here = encoded()
    assert not handed_out
    with computing_at(cluster.address, "party.compute"):
        there = encoded()
    # Words hashed, their means, their codes: three parts each; and two batches of each encoder.
    assert len(handed_out) == 3 * 3 + 2 * 2
    assert torch.equal(here, there)


def test_a_partys_own_cluster_multiplies_ciphertexts_alike(
    cluster: Any, handed_out: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encrypted, "_AT_ONCE", 2)
    rng, layout, nonce = np.random.default_rng(0), encrypted.Layout(30, 2, 16, 2), bytes(32)
    weights_RL = rng.integers(-999, 999, (300, 30))
    for seed in (0, 1):  # a process of the cluster keeps the first owner's targets no longer
        owner = encrypted.SecretKey()
        targets_LC = np.random.default_rng(seed).integers(-(2**10), 2**10, (30, 2))
        wire = owner.encrypt(targets_LC, layout, nonce)
        partner = encrypted.Encrypted(layout, owner.public_key(nonce), wire, nonce)
        here = partner.multiply(lambda rows: weights_RL[rows], len(weights_RL), 6, bytes(32))
        with computing_at(cluster.address, "party.compute"):
            there = partner.multiply(lambda rows: weights_RL[rows], len(weights_RL), 6, bytes(32))
        assert np.array_equal(here, there)
    assert len(handed_out) == 2 * 3  # of 128 rows each


APART = """
method = "apfed"
parties = ["bank.toml"]
test = 0.25
baselines = ["linear"]

[apfed.distil]
teachers = ["linear"]
students = ["linear"]

[apfed.sealed]
rows = 3000

[engine]
kind = "stream"
listen = "127.0.0.1:{port}"
partners = ["shop"]
wait_s = 180
"""

PARTY = """
[party]
name = "{name}"
table = "{name}.csv"
id = "person"
{more}
[policy]
algorithms = ["align", "apfed"]
{policy}
"""

DRIVEN = 'drivers = ["bank"]'


@pytest.mark.usefixtures("tasks")
def test_sites_that_join_by_grpc_compute_on_clusters_of_their_own(
    cluster: Any, tmp_path: Path
) -> None:
    """Both are processes, with certificates: the shop joins, the bank drives."""
    from federations import Federation, free_port  # which the cluster's processes do not find

    rng = np.random.default_rng(0)
    people = np.arange(_AT_ONCE + 100)  # more texts than one piece, and more ids
    words = np.array([f"word{number}" for number in range(50)])
    for name, shift in (("bank", 0), ("shop", 100)):
        rows: dict[str, Any] = {"person": people + shift, f"{name} a": rng.normal(size=len(people))}
        if name == "bank":
            label = np.where(rows["bank a"] > 0, "up", "down")
            rows["y"] = np.where(people < 300, label, "")
        else:
            rows["note"] = [" ".join(rng.choice(words, 5)) for _ in people]
        pd.DataFrame(rows).to_csv(tmp_path / f"{name}.csv", index=False)
    with Federation(tmp_path, free_port()).ending() as made:
        names = ("shop", "bank", "--driver", "bank", "--host", "127.0.0.1", "-q")
        certified = made.start("certificates", *names)
        assert certified.ended() == 0, certified.printed()
        (tmp_path / "run.toml").write_text(APART.format(port=made.port))
        for where, compute in (("here", ""), ("there", f'compute = "{cluster.address}"')):
            labelled = f'label = "y"\n{compute}'
            for name, more, policy in (("bank", labelled, ""), ("shop", compute, DRIVEN)):
                text = PARTY.format(name=name, more=more, policy=policy)
                (tmp_path / f"{name}.toml").write_text(text)
            shop = made.join("shop")
            bank = made.start("train", "run.toml", "--out", where)
            assert bank.ended(600.0) == 0, bank.printed()
            shop.signal(signal.SIGINT)
            assert shop.ended() == 0, shop.printed()
            connected = {each["DriverPid"] for each in ray_jobs()}
            both = {shop.process.pid, bank.process.pid}
            assert connected & both == (both if compute else set())
    assert files_of(tmp_path / "here") == files_of(tmp_path / "there")


def ray_jobs() -> list[dict[str, Any]]:
    """Processes that have connected to the cluster."""
    from ray._private.state import jobs

    found: list[dict[str, Any]] = jobs()
    return found
