"""Dovetail on the peers' task: two processes, gRPC with mutual TLS, a ledger at each end.

``vertical`` is classic vertical learning, the peers' mathematics; ``apfed`` is APFed-C, whose label
owner predicts alone; ``alone`` is that label owner without a partner. The networks, batch and
optimizer are those of ``common``. ``sealed`` is APFed-S by its defaults, on pixels as columns of a
table: it has no steps, and chooses its models itself.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import dovetail as dt
from benchmarks._line import issue, listening, running
from benchmarks.exchange import socket_bytes
from benchmarks.peers import common
from benchmarks.peers.strips import OWNER, PARTNER
from dovetail.data import Alignment, Classification, PartyData, SharedRows
from dovetail.data.party import UNLABELLED
from dovetail.federated import Local
from dovetail.methods import apfed, vertical
from dovetail.methods.substitutes import predict_alone
from dovetail.models import Head, Perceptron
from dovetail.network import Engine, InProcess, LedgerFile
from dovetail.network.client import serve
from dovetail.network.credentials import Credentials
from dovetail.network.host import Host
from dovetail.settings.models import OptimizerConfig

EVERY = 50
VERSION = f"dovetail {dt.__version__}, torch {torch.__version__}"
RATE: dict[str, Any] = {
    "learning_rate": common.LEARNING_RATE,
    "momentum": common.MOMENTUM,
    "weight_decay": common.WEIGHT_DECAY,
}


def run_partner(port: int, folder: Path, data: Path) -> None:
    """The partner: answers until it is ended."""
    loaded = common.Data(data)
    train = SharedRows(PARTNER, loaded.other, torch.arange(len(loaded.other)))
    test = SharedRows(PARTNER, loaded.other_test, torch.arange(len(loaded.other_test)))
    encoder = Perceptron(common.ENCODER)

    def party(run: str, *_: object) -> vertical.Member | apfed.Passive:
        if run == "vertical":
            return vertical.Member(
                train, test, OptimizerConfig(**RATE), encoder, Local(train.party)
            )
        return apfed.Passive(
            train, apfed.PassiveConfig(loss="contrastive", **RATE), encoder, Local(train.party)
        )

    with LedgerFile(folder / "partner.jsonl", PARTNER) as ledger:
        host = Host(PARTNER, party, ledger=ledger)
        shown = Credentials.load(folder, PARTNER)
        serve(host, f"127.0.0.1:{port}", shown, driver=OWNER, stop=threading.Event())


def train(
    method: str, data: common.Data, engine: Engine, port: int, given: argparse.Namespace
) -> Any:
    """What the peers' programs tell of their training; bytes are those of the sockets, TLS too."""
    num_rows = len(data.columns if method == "apfed" else data.labels)
    labels = torch.full((num_rows,), UNLABELLED)
    labels[: len(data.labels)] = data.labels
    party = PartyData(OWNER, np.arange(num_rows), {"strip": data.columns[:num_rows]}, labels)
    alignment = Alignment({name: torch.arange(num_rows) for name in (OWNER, PARTNER)})
    config: dict[str, Any] = {
        "batch_size": common.BATCH_SIZE,
        "epochs": given.steps // EVERY,
        "steps_per_epoch": EVERY,
        **RATE,
    }
    networks: dict[str, Any] = {
        "seed": 0,
        "encoder": Perceptron(common.ENCODER),
        "head": Head(common.HEAD, common.DROPOUT),
    }
    task = Classification(tuple(range(common.NUM_CLASSES)))
    outputs: Any
    if method == "vertical":
        owner = vertical.Owner(
            party, alignment, task, vertical.Config(**config), Local(party.name), **networks
        )
        epochs: Iterator[Any] = vertical.train(owner, engine)
        samples = torch.arange(len(data.labels_test))
        outputs = lambda: vertical.predict(owner, engine, data.local_test, samples)  # noqa: E731
    else:
        shared = alignment if method == "apfed" else None
        active = apfed.Active(
            party, shared, task, apfed.Config(**config), Local(party.name), **networks
        )
        epochs = apfed.train(active, engine)
        outputs = lambda: active.model().outputs(data.local_test)  # noqa: E731

    def accuracy(logits: torch.Tensor) -> float:
        return float((logits.argmax(dim=1) == data.labels_test).float().mean())

    curve: list[tuple[int, float, float]] = []
    spent = warmed = 0.0
    before = num_bytes = 0
    for epoch in epochs:
        spent += epoch.seconds
        num_bytes = socket_bytes(port) - before
        curve.append((epoch.number * EVERY, spent, accuracy(outputs())))
        before = socket_bytes(port)  # scoring asks the partner, too
        if epoch.number == 1:  # the others leave their first steps out, too
            warmed = spent
        if spent - warmed > given.seconds:
            break
    done = curve[-1][0]
    gone = curve[-1][2]
    if method == "vertical":
        gone = accuracy(predict_alone(owner, data.local_test)["zeros"])
    return {
        "version": VERSION,
        "steps": done,
        "seconds": spent,
        "warm_seconds": warmed,
        "samples_per_second": common.BATCH_SIZE * (done - EVERY) / (spent - warmed),
        "curve": curve,
        "accuracy": curve[-1][2],
        "gone": gone,
        "bytes_per_step": num_bytes / EVERY,
    }


def train_sealed(data: common.Data) -> dict[str, Any]:
    """APFed-S, both parties in one process: one question, then models chosen and refitted."""

    def frame(x: torch.Tensor, side: str) -> pd.DataFrame:
        numbers = {f"{side}{at}": column for at, column in enumerate(x.numpy().T)}
        return pd.DataFrame({"id": np.arange(len(x)), **numbers})

    labels = pd.array(data.labels.tolist() + [None] * (len(data.columns) - len(data.labels)))
    started = time.perf_counter()
    parties = [
        dt.Party(OWNER, frame(data.columns, "upper").assign(digit=labels), id="id", label="digit"),
        dt.Party(PARTNER, frame(data.other, "lower"), id="id"),
    ]
    run = dt.fit(dt.APFed(), parties, test=None, quiet=True)
    seconds = time.perf_counter() - started
    model, tested = run.models[OWNER], frame(data.local_test, "upper")
    predicted = np.asarray(model.predictions(tested, allow_unseen=True).values).astype(int)
    accuracy = float((predicted == data.labels_test.numpy()).mean())
    return {
        "version": VERSION,
        "steps": None,
        "seconds": seconds,
        "warm_seconds": 0.0,
        "samples_per_second": None,
        "curve": [(0, seconds, accuracy)],
        "accuracy": accuracy,
        "gone": accuracy,
        "bytes_per_step": None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--method", choices=("vertical", "apfed", "alone", "sealed"), default="vertical"
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--steps", type=int, default=1250)
    parser.add_argument("--partner", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(common.THREADS)
    if given.partner:
        run_partner(int(given.partner[0]), Path(given.partner[1]), given.data)
        return
    if given.method == "sealed":
        common.write(given.out, train_sealed(common.Data(given.data)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        issue(folder, OWNER, (PARTNER,))
        with listening(folder, OWNER, (PARTNER,)) as stream:
            command = [sys.executable, "-m", "benchmarks.peers.dovetail_peer"]
            words = ["--data", str(given.data), "--partner", str(stream.port), temporary]
            with running([*command, *words]):
                stream.wait(120)
                data = common.Data(given.data)
                engine: Engine = InProcess({}, driver=OWNER)
                if given.method != "alone":
                    engine = stream.engine(given.method)
                common.write(given.out, train(given.method, data, engine, stream.port, given))


if __name__ == "__main__":
    main()
