"""Parties in processes of their own, with certificates of their own, for tests."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from forked import context
from torch import Tensor

from dovetail.alignment import Responder
from dovetail.data import Alignment, Classification, PartyData, SharedRows
from dovetail.errors import NetworkError, TrainingError
from dovetail.federated import Local
from dovetail.methods import apfed
from dovetail.models import Head, Perceptron
from dovetail.network import Message, Party
from dovetail.network.certificates import (
    Authority,
    certificate_pem,
    key_pem,
    new_key,
)
from dovetail.network.client import Event, serve
from dovetail.network.credentials import Credentials
from dovetail.network.host import Host
from dovetail.network.ledger import LedgerFile
from dovetail.network.stream import Stream

# --- Certificates --------------------------------------------------------------------------------

NOW = datetime.now(UTC)


def credentials(
    authority: Authority, name: str, *, listens: bool = False, now: datetime = NOW, days: int = 2
) -> Credentials:
    """What the party of this name shows, and that it believes this authority."""
    key = new_key()
    certificate = authority.issue(
        name, key.public_key(), now=now, days=days, listens=listens, hosts=("127.0.0.1",)
    )
    return Credentials(authority.pem, certificate_pem(certificate), key_pem(key))


def expired(authority: Authority, name: str) -> Credentials:
    """Credentials of last year."""
    return credentials(authority, name, now=NOW - timedelta(days=365), days=1)


# --- Messages and parties ------------------------------------------------------------------------


class Question(Message):
    """Multiply this; but sleep first, or do what ``instead`` says."""

    x: Tensor
    sleep_s: float = 0.0
    instead: str = ""


class Answer(Message):
    """How often this party has handled a question, and in which process."""

    x: Tensor
    handled: int
    pid: int


class Other(Message):
    """What nobody asked for."""


class Doubles:
    """Doubles what it is sent."""

    accepts = (Question,)

    def __init__(self) -> None:
        self.handled = 0

    def handle(self, message: Message) -> Message:
        assert isinstance(message, Question)
        self.handled += 1
        time.sleep(message.sleep_s)
        match message.instead:
            case "lie":
                return Other()
            case "fail":
                raise TrainingError("its loss is\x1b[31m nan\nlower its rate")
            case "crash":
                raise KeyError("anna's salary")
        return Answer(2 * message.x, self.handled, os.getpid())


IDS = {"shop": range(0, 600, 2), "clinic": range(0, 600, 3), "lab": range(100, 200)}


def shared_rows(name: str, num: int = 24) -> SharedRows:
    rng = torch.Generator().manual_seed(len(name))
    return SharedRows(name, torch.randn(num, 3, generator=rng), torch.arange(num))


def open_party(losses: Mapping[str, str], name: str, run: str, algorithm: str) -> Party:
    """The party that answers in a run."""
    if algorithm == "processes":
        return Doubles()
    if algorithm == "psi":
        return Responder(name, list(IDS[name]))
    if algorithm == "apfed":
        config = apfed.PassiveConfig(loss=losses[run], learning_rate=0.1)  # type: ignore[arg-type]
        return apfed.Passive(shared_rows(name), config, Perceptron((4,)), Local(name))
    raise TrainingError(f"it has no {algorithm}")


def active(name: str, parties: tuple[str, ...]) -> apfed.Active:
    num = 24
    rng = torch.Generator().manual_seed(9)
    data = PartyData(
        name,
        np.arange(num),
        {"x": torch.randn(num, 3, generator=rng)},
        torch.randint(2, (num,), generator=rng),
    )
    return apfed.Active(
        data,
        Alignment({party: torch.arange(num) for party in (name, *parties)}),
        Classification((0, 1)),
        apfed.Config(epochs=2, batch_size=8, learning_rate=0.1),
        Local(name),
        seed=3,
        encoder=Perceptron((4,)),
        head=Head((4,), 0.0),
    )


# --- Processes -----------------------------------------------------------------------------------


def _answer(
    name: str,
    address: str,
    shown: Credentials,
    driver: str,
    losses: Mapping[str, str],
    silence_s: float,
    events: Connection,
) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    torch.set_num_threads(1)
    host = Host(name, lambda run, algorithm, _: open_party(losses, name, run, algorithm))

    def report(event: Event) -> None:
        events.send((event.kind, event.text))

    try:
        serve(host, address, shown, driver=driver, stop=stop, on_event=report, silence_s=silence_s)
        events.send(("stopped", ""))
    except NetworkError as error:
        events.send(("ended", str(error)))


def answers(path: Path, connection: Connection) -> None:
    """Answers what comes until it is killed, with a line of each in its ledger."""
    host = Host("shop", lambda *_: Doubles(), ledger=LedgerFile(path, "shop"))
    while True:
        connection.send_bytes(bytes(host.handle(connection.recv_bytes(), "bank")))


def drive(port: int, shown: Credentials, events: Connection) -> None:
    """A driver that asks once, and then sits there."""
    with Stream(f"127.0.0.1:{port}", driver="bank", credentials=shown, parties=["shop"]) as stream:
        stream.wait(20)
        stream.engine("r").ask({"shop": Question(torch.ones(1))}, Answer).or_raise()
        events.send(("asked", ""))
        time.sleep(60)


@dataclass
class Process:
    """A process that was started here, and what it told."""

    process: Any
    connection: Connection
    events: list[tuple[str, str]] = field(default_factory=list)

    @property
    def pid(self) -> int:
        pid: int = self.process.pid
        return pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def await_event(self, kind: str, timeout_s: float = 20.0) -> str:
        """The text of the next event of this kind."""
        deadline = time.monotonic() + timeout_s
        while self.connection.poll(max(0.0, deadline - time.monotonic())):
            self.events.append(self.connection.recv())
            if self.events[-1][0] == kind:
                return self.events[-1][1]
        raise AssertionError(f"no {kind!r} within {timeout_s} s, but {self.events}")

    def end(self) -> None:
        if self.process.is_alive():
            self.signal(signal.SIGKILL)
        self.process.join()
        self.process.close()
        self.connection.close()


class Processes:
    """Starts processes; ends them all."""

    def __init__(self) -> None:
        self.started: list[Process] = []

    def start(self, target: Callable[..., None], *args: Any) -> Process:
        """Run ``target(*args, connection)`` in a process of its own."""
        ours, theirs = context.Pipe()
        process = context.Process(target=partial(target, *args, theirs), daemon=True)
        process.start()
        theirs.close()
        self.started.append(Process(process, ours))
        return self.started[-1]

    def party(
        self,
        name: str,
        port: int,
        shown: Credentials,
        *,
        driver: str = "bank",
        losses: Mapping[str, str] | None = None,
        silence_s: float = 3.0,
    ) -> Process:
        """A party that serves until it is ended."""
        address = f"127.0.0.1:{port}"
        return self.start(_answer, name, address, shown, driver, losses or {}, silence_s)


@contextmanager
def processes() -> Iterator[Processes]:
    """Ends what was started in it."""
    all_of_them = Processes()
    try:
        yield all_of_them
    finally:
        for process in all_of_them.started:
            process.end()
