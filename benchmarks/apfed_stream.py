"""APFed steps over ``Stream`` against the same steps in process.

    python -m benchmarks.apfed_stream

The parties are those of ``benchmarks.apfed_step``, with the networks of Table 3 as MNIST's 2-1 runs
have them, and once more with perceptrons and codes of 128 x 256. Over ``Stream`` the passive party
is a process on this machine, with mutual TLS over loopback and a ledger at each end. Each process
has one thread of PyTorch; the two take turns, a few steps each, and the ratio is that of the
medians. In process one core does both parties' work, one after the other; over ``Stream`` the
active party's head works while the passive party does, so that the ratio may lie below 1. The CPU
columns are seconds of processor of all parties together, which only a wire can add to.

Bytes on the wire are those of the driver's sockets, TLS and heartbeats included.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import _results, exchange
from benchmarks._line import issue, listening, running
from benchmarks.apfed_step import NUM_ROWS, strips
from dovetail.data import Alignment, Classification, PartyData, SharedRows
from dovetail.federated import Local
from dovetail.methods import apfed
from dovetail.models import TABLE_3, EncoderSpec, Head, Perceptron
from dovetail.network import Engine, InProcess, LedgerFile
from dovetail.network.client import AS_EVER, Way, serve
from dovetail.network.credentials import Credentials
from dovetail.network.host import Host
from dovetail.network.stream import Stream

TARGET = 1.3
TARGET_BYTES = 1.02
DRIVER, PARTY = exchange.DRIVER, exchange.PARTIES[0]
ALIGNMENT = Alignment({name: torch.arange(NUM_ROWS) for name in (DRIVER, PARTY)})


@dataclass(frozen=True)
class Case:
    """One row: networks, loss and batch."""

    networks: str
    loss: str
    batch_size: int

    @property
    def encoder(self) -> EncoderSpec:
        return TABLE_3 if self.networks == "table-3" else Perceptron((512, 256))


CASES = {
    "r": Case("table-3", "reconstruction", 64),
    "c": Case("table-3", "contrastive", 64),
    "small": Case("512, 256", "contrastive", 128),
}


def active(case: Case) -> apfed.Active:
    strip, _, labels = strips()
    return apfed.Active(
        PartyData(DRIVER, np.arange(NUM_ROWS), {"strip": strip}, labels),
        ALIGNMENT,
        Classification(tuple(range(10))),
        apfed.Config(batch_size=case.batch_size),
        Local(DRIVER),
        seed=0,
        encoder=case.encoder,
        head=Head((256,), 0.5),
    )


def passive(case: Case) -> apfed.Passive:
    _, other, _ = strips()
    config = apfed.PassiveConfig(loss=case.loss)  # type: ignore[arg-type]
    return apfed.Passive(
        SharedRows(PARTY, other, ALIGNMENT.rows[PARTY]), config, case.encoder, Local(PARTY)
    )


def run_party(address: str, folder: Path, way: Way = AS_EVER) -> None:
    """Answers until it is ended; the name of a run says which case it is."""
    shown = Credentials.load(folder, PARTY)
    with LedgerFile(folder / f"party-{address.rpartition(':')[2]}.jsonl", PARTY) as ledger:
        host = Host(PARTY, lambda run, *_: passive(CASES[run]), ledger=ledger)
        serve(host, address, shown, driver=DRIVER, stop=threading.Event(), way=way)


# --- Time and bytes ------------------------------------------------------------------------------


class Turns:
    """Steps of one engine: seconds by the wall and by the processors of all parties."""

    def __init__(self, case: Case, engine: Engine, processes: tuple[int, ...]) -> None:
        self.active = active(case)
        self.engine = engine
        self.processes = processes
        self.wall: list[float] = []
        self.processor: list[float] = []
        self.active.begin(engine)

    def take(self, num_steps: int) -> None:
        began = self._used()
        for _ in range(num_steps):
            started = time.perf_counter()
            _, failures = self.active.step(self.engine)
            self.wall.append(time.perf_counter() - started)
            if failures:
                raise failures[PARTY]
        self.processor.append((self._used() - began) / num_steps)

    def _used(self) -> float:
        return sum(processor_s(pid) for pid in self.processes)


def processor_s(pid: int) -> float:
    """Seconds of processor that all threads of a process have used."""
    return time.clock_gettime(~pid << 3 | 2)  # the kernel's number of that clock


def time_both(
    name: str, stream: Stream, party: int, num_rounds: int, num_steps: int
) -> dict[str, Any]:
    case = CASES[name]
    here = os.getpid()
    inside = Turns(case, InProcess({PARTY: passive(case)}, driver=DRIVER), (here,))
    outside = Turns(case, stream.engine(name), (here, party))
    for turns in (inside, outside):
        turns.take(3)  # the first ones allocate
        turns.wall.clear()
        turns.processor.clear()
    counted = stream_bytes(outside.engine)
    carried = exchange.socket_bytes(stream.port)
    for _ in range(num_rounds):
        for turns in (inside, outside):
            turns.take(num_steps)
    carried = exchange.socket_bytes(stream.port) - carried
    counted = stream_bytes(outside.engine) - counted
    ours, plain = (statistics.median(turns.wall) * 1e3 for turns in (outside, inside))
    return {
        "networks": case.networks,
        "loss": case.loss,
        "batch": case.batch_size,
        "MB a step": counted / (num_rounds * num_steps) / 1e6,
        "stream ms": ours,
        "in process ms": plain,
        "ratio": ours / plain,
        "at most": TARGET,
        "stream CPU ms": statistics.median(outside.processor) * 1e3,
        "in process CPU ms": statistics.median(inside.processor) * 1e3,
        "wire / tensor bytes": carried / counted,
        "bytes at most": TARGET_BYTES,
    }


def stream_bytes(engine: Engine) -> int:
    """Bytes of all tensors that an engine has carried."""
    return sum(each["sent"] for each in engine.ledger.bytes_by_party().values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="turns of each [20]")
    parser.add_argument("--steps", type=int, default=5, help="steps of a turn [5]")
    parser.add_argument("--party", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.party:
        run_party(given.party[0], Path(given.party[1]))
        return
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        issue(folder, DRIVER, (PARTY,))
        with listening(folder, DRIVER, (PARTY,)) as stream:
            command = [sys.executable, "-m", "benchmarks.apfed_stream", "--party"]
            with running([*command, f"127.0.0.1:{stream.port}", temporary]) as (party,):
                stream.wait(60)
                for name in CASES:
                    rows.append(time_both(name, stream, party.pid, given.rounds, given.steps))
                    print(json.dumps(rows[-1]), flush=True)
    _results.write("apfed_stream", "APFed steps over Stream against in process", rows)


if __name__ == "__main__":
    main()
