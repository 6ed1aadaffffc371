"""Round trips at each level of NVFlare and over ``Stream``, and APFed's steps, in one run.

    python -m benchmarks.flare

A provisioned NVFlare federation on this machine: a server and two sites as processes, mutual TLS
over tcp. One job measures everything, at its server, in turns, so that a noisy machine slows all
alike; figures are medians. Levels, from the whole of Dovetail's engine down:

    Flare       ``network.calls`` over it: messages encoded, checked, decoded, in both ledgers
    Collab      the bytes alone, by a published function
    Cell        the bytes alone, by ``Cell.send_request``
    core cell   the bytes alone, by the core cell under it, which does not cut them into chunks
    Stream      ``network.stream`` between two more processes, as ``benchmarks.exchange`` has it

APFed's steps have the networks of ``benchmarks.apfed_stream``: Table 3 as MNIST's 2-1 runs have
them. An epoch is so many steps, and nothing else, so that its ratio is that of the steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from nvflare.collab import collab
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import new_cell_message

from benchmarks import _results, apfed_stream, exchange
from benchmarks._line import issue, listening, running
from benchmarks.apfed_stream import CASES, Turns
from dovetail.companions.flare import site as site_files
from dovetail.companions.flare.calls import Answers, collab_calls, quiet
from dovetail.companions.flare.federation import SERVER, FlareFederation, provision
from dovetail.network import InProcess, LedgerFile, Party, encode
from dovetail.network.calls import Calls
from dovetail.network.host import Host
from dovetail.network.stream import Stream

TARGET = 2.0
CHANNEL = "dovetail-benchmark"
DRIVER, PARTIES = exchange.DRIVER, exchange.PARTIES

#: Where the server writes what it found.
OUT = "DOVETAIL_BENCHMARK"


class Echoes:
    """A site: sends back what comes, at every level, and is the passive party of APFed."""

    @collab.init
    def start(self) -> None:
        torch.set_num_threads(1)
        quiet()
        cell = collab.fl_ctx.get_engine().get_cell()
        cell.register_request_cb(channel=CHANNEL, topic="cell", cb=self._back)
        cell.core_cell.register_request_cb(channel=CHANNEL, topic="core", cb=self._back)
        name = collab.site_name
        self._ledger = LedgerFile(Path(os.environ[OUT]).with_name(f"{name}.jsonl"), name)
        self._answers = Answers(name, DRIVER, Host(name, self._open, ledger=self._ledger))

    @collab.publish
    def handle(self, request: bytes) -> bytes:
        return self._answers.handle(request, collab.caller)

    @collab.publish
    def echo(self, data: bytes) -> bytes:
        return data

    @staticmethod
    def _back(message: Any, *_: Any, **__: Any) -> Any:
        return new_cell_message({}, message.payload)

    @staticmethod
    def _open(run: str, algorithm: str, driver: str) -> Party:
        return exchange.Echo() if algorithm == "exchange" else apfed_stream.passive(CASES[run])


class Measures:
    """The server: measures, and writes rows.

    Args:
        seconds: of each row of round trips.
        rounds, steps: turns of each engine, and steps of a turn.
    """

    def __init__(self, seconds: float, rounds: int, steps: int) -> None:
        self._seconds, self._rounds, self._steps = seconds, rounds, steps

    @collab.main
    def run(self) -> str:
        torch.set_num_threads(1)
        quiet()
        out = Path(os.environ[OUT])
        calls = collab_calls({name: name for name in PARTIES}, collab.clients)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            issue(folder, DRIVER, PARTIES)
            with (
                LedgerFile(folder / "flare.jsonl", DRIVER) as flared,
                Calls(calls, driver=DRIVER, ledger=flared) as flare,
                listening(folder, DRIVER, PARTIES) as stream,
            ):
                command = [sys.executable, "-m", "benchmarks.exchange", "--party", "stream"]
                with running(*([*command, each, str(stream.port), temporary] for each in PARTIES)):
                    flare.wait(60)
                    stream.wait(60)
                    trips = [self._trips(size, flare, stream) for size in exchange.SIZES]
                steps = [self._steps_of(name, flare) for name in CASES]
        out.write_text(json.dumps({"trips": trips, "steps": steps}))
        return "done"

    def _trips(self, size: str, flare: Calls, stream: Stream) -> dict[str, Any]:
        message = exchange.There(torch.randn(exchange.SIZES[size]))
        data = bytes(encode(message))
        requests = dict.fromkeys(PARTIES, message)
        engines = {"Flare": flare.engine("echo"), "Stream": stream.engine("echo")}
        sites = collab.clients
        engine = collab.fl_ctx.get_engine()
        cell, job = engine.get_cell(), collab.fl_ctx.get_job_id()
        targets = [FQCN.join([client.get_fqcn(), job]) for client in engine.get_clients()]

        def below(send: Callable[..., Any], topic: str) -> list[bytes]:
            def one(target: str) -> bytes:
                reply = send(
                    channel=CHANNEL,
                    topic=topic,
                    target=target,
                    request=new_cell_message({}, data),
                    timeout=30,
                )
                if reply.payload != data:
                    raise ValueError(f"{topic}: another answer came")
                return data

            return list(pool.map(one, targets))

        with ThreadPoolExecutor(len(targets)) as pool:
            levels: dict[str, Callable[[], object]] = {
                "Flare": lambda: engines["Flare"].ask(requests, exchange.Back).or_raise(),
                "Collab": lambda: list(sites.echo(data)),
                "Cell": lambda: below(cell.send_request, "cell"),
                "core cell": lambda: below(cell.core_cell.send_request, "core"),
                "Stream": lambda: engines["Stream"].ask(requests, exchange.Back).or_raise(),
            }
            failed = {}
            for name in list(levels):
                try:
                    levels[name]()
                except Exception as error:
                    failed[name] = f"fails: {type(error).__name__}"
                    del levels[name]
            taken = exchange.take_turns(levels, self._seconds)
        row: dict[str, Any] = {"size": size, "parties": len(targets)}
        for name in ("Flare", "Collab", "Cell", "core cell", "Stream"):
            row[f"{name} ms"] = failed.get(name) or statistics.median(taken[name])
        row["Flare p95"] = statistics.quantiles(taken["Flare"], n=20)[-1]
        row["Stream p95"] = statistics.quantiles(taken["Stream"], n=20)[-1]
        return row

    def _steps_of(self, name: str, flare: Calls) -> dict[str, Any]:
        case, party = CASES[name], apfed_stream.PARTY
        here = (os.getpid(),)
        inside = Turns(case, InProcess({party: apfed_stream.passive(case)}, driver=DRIVER), here)
        outside = Turns(case, flare.engine(name, parties=(party,)), here)
        for turns in (inside, outside):
            turns.take(3)  # the first ones allocate
            turns.wall.clear()
        for _ in range(self._rounds):
            for turns in (inside, outside):
                turns.take(self._steps)
        ours, plain = (statistics.median(turns.wall) * 1e3 for turns in (outside, inside))
        return {
            "networks": case.networks,
            "loss": case.loss,
            "batch": case.batch_size,
            "Flare ms": ours,
            "in process ms": plain,
            "ratio": ours / plain,
            "at most": TARGET,
        }


def write_job(folder: Path, measure: dict[str, Any]) -> None:
    """As ``dovetail flare export`` writes them, with this file's classes."""
    server, sites = folder / "app_server" / "config", folder / "app_sites" / "config"
    server.mkdir(parents=True)
    sites.mkdir(parents=True)
    meta = {
        "name": folder.name,
        "resource_spec": {},
        "min_clients": len(PARTIES),
        "deploy_map": {"app_server": ["server"], "app_sites": list(PARTIES)},
    }
    controller = {"path": site_files.CONTROLLER, "args": {"server_obj_id": "_server"}}
    executor = {"path": site_files.EXECUTOR, "args": {"client_obj_id": "_client"}}
    at_server = {
        "format_version": 2,
        "workflows": [{"id": "controller", **controller}],
        "components": [
            {"id": "_server", "path": "benchmarks.flare.Measures", "args": measure},
        ],
    }
    at_sites = {
        "format_version": 2,
        "executors": [{"tasks": ["*"], "executor": executor}],
        "components": [{"id": "_client", "path": "benchmarks.flare.Echoes", "args": {}}],
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    (server / "config_fed_server.json").write_text(json.dumps(at_server))
    (sites / "config_fed_client.json").write_text(json.dumps(at_sites))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=12.0, help="of each size [12]")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each engine [12]")
    parser.add_argument("--steps", type=int, default=5, help="steps of a turn [5]")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        out = folder / "found.json"
        kits = provision(folder, PARTIES)
        for name in (SERVER, *PARTIES):
            site_files.prepare_site(kits / name, {})
            path = kits / name / "local" / "resources.json"
            resources = json.loads(path.read_text())
            resources["class_allow_list"].append("benchmarks.flare.")
            site_files.write_resources(kits / name, resources)
        job = folder / "benchmark"
        write_job(job, vars(given))
        environment = {OUT: str(out), "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
        with FlareFederation(kits, environment) as federation:
            federation.start(SERVER, *PARTIES)
            federation.ready(PARTIES)
            number = federation.submit(job)
            began = time.monotonic()
            status = federation.wait(number)
            if not out.exists():
                log = federation.fetch(number, folder) / "log.txt"
                sys.exit(f"{status} after {time.monotonic() - began:.0f} s\n{log.read_text()}")
        results = json.loads(out.read_text())
    torch.set_num_threads(1)
    _results.write(
        "flare", "Round trips at each level of NVFlare, and over Stream", results["trips"]
    )
    _results.write("flare_apfed", "APFed steps over Flare against in process", results["steps"])
    page = _results.FOLDER / "flare_apfed.md"  # of the same command
    page.write_text(page.read_text().replace("benchmarks.flare_apfed", "benchmarks.flare"))


if __name__ == "__main__":
    main()
