"""APFed across a link that is slow, loses packets or is cut: it trains, slower, and says so.

Driver and passive party are processes in network namespaces of their own (``lossy_link.py``).
Codes are those of MNIST's 2-1 setting in bytes: 128 rows of 256 float32, 131 KB each way.

    python tests/network/test_lossy_runs.py table 40 reno    40 steps by delay and loss, and so
                                                             on for bbr, where the kernel has it
"""

from __future__ import annotations

import hashlib
import json
import math
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import forked
import lossy_link
import numpy as np
import processes
import pytest
import torch
from lossy_link import ADDRESS, LossyLink

from dovetail.data import Alignment, Classification, PartyData, SharedRows
from dovetail.federated import Local
from dovetail.methods import apfed
from dovetail.models import Head, Perceptron
from dovetail.network import Engine, InProcess
from dovetail.network.certificates import Authority
from dovetail.network.client import serve
from dovetail.network.credentials import Credentials
from dovetail.network.host import Host
from dovetail.network.stream import Stream

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(bool(why := lossy_link.available()), reason=str(why)),
]
PORT = 5001
NUM_ROWS, BATCH, WIDTH = 512, 128, 256
SILENCE_S = 3.0
CUT_S = 5.0  # longer than a silence, so that the line is lost and dialled again


# --- The run -------------------------------------------------------------------------------------


def strip(name: str) -> torch.Tensor:
    rng = torch.Generator().manual_seed(len(name))
    return torch.rand(NUM_ROWS, 14 * 28, generator=rng)


def bank(steps: int, timeout_s: float | None = None) -> apfed.Active:
    """An epoch is one step, so that each is timed."""
    labels = torch.randint(10, (NUM_ROWS,), generator=torch.Generator().manual_seed(1))
    return apfed.Active(
        PartyData("bank", np.arange(NUM_ROWS), {"strip": strip("bank")}, labels),
        Alignment({name: torch.arange(NUM_ROWS) for name in ("bank", "shop")}),
        Classification(tuple(range(10))),
        apfed.Config(epochs=steps, steps_per_epoch=1, batch_size=BATCH, timeout_s=timeout_s),
        Local("bank"),
        seed=0,
        encoder=Perceptron((WIDTH,)),
        head=Head((32,), 0.5),
    )


def shop() -> apfed.Passive:
    rows = SharedRows("shop", strip("the shop"), torch.arange(NUM_ROWS))
    return apfed.Passive(rows, apfed.PassiveConfig(), Perceptron((WIDTH,)), Local("shop"))


def fingerprint(active: apfed.Active) -> str:
    """Hash of every bit of the model's weights."""
    weights = active.model().network.state_dict()
    return hashlib.sha256(b"".join(each.numpy().tobytes() for each in weights.values())).hexdigest()


def in_process(steps: int) -> str:
    active = bank(steps)
    for _ in apfed.train(active, InProcess({"shop": shop()}, driver="bank")):
        pass
    return fingerprint(active)


# --- What runs in a namespace --------------------------------------------------------------------


def run_driver(folder: Path, steps: int, timeout_s: float | None, grace_s: float) -> None:
    """Trains; prints a line of JSON per step, and one of the weights."""
    shown = Credentials.load(folder, "bank")
    address = f"{ADDRESS['a']}:{PORT}"
    with Stream(
        address, driver="bank", credentials=shown, parties=["shop"], silence_s=SILENCE_S
    ) as stream:
        print(json.dumps("listens"), flush=True)
        stream.wait(20)
        engine: Engine = stream.engine("run", grace_s=grace_s)
        active = bank(steps, timeout_s)
        for epoch in apfed.train(active, engine):
            print(json.dumps([epoch.seconds, dict(epoch.reasons)]), flush=True)
        print(json.dumps(fingerprint(active)), flush=True)


def run_party(folder: Path) -> None:
    """Serves until ended."""
    host = Host("shop", lambda *_: shop())
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    address = f"{ADDRESS['a']}:{PORT}"
    shown = Credentials.load(folder, "shop")
    serve(host, address, shown, driver="bank", stop=stop, silence_s=SILENCE_S)


# --- Around it -----------------------------------------------------------------------------------


@dataclass
class Step:
    """When its line came, how long it took, and why parties were left out of it."""

    at: float
    seconds: float
    missed: dict[str, str]


class Run:
    """The two processes; ``steps`` yields each step when it is done."""

    def __init__(self, lines: IO[str], errors: Path) -> None:
        self._lines, self._errors = lines, errors
        self.fingerprint = ""

    def line(self) -> Any:
        line = self._lines.readline()
        assert line, f"the driver ended: {self._errors.read_text()}"
        return json.loads(line)

    def steps(self) -> Iterator[Step]:
        while not isinstance(line := self.line(), str):
            yield Step(time.monotonic(), *line)
        self.fingerprint = line


@contextmanager
def started(
    link: LossyLink,
    folder: Path,
    steps: int,
    *,
    timeout_s: float | None = None,
    grace_s: float = 5.0,
) -> Iterator[Run]:
    authority = Authority.create(now=processes.NOW, days=90)
    for name in ("bank", "shop"):
        shown = processes.credentials(authority, name, listens=name == "bank", days=60)
        (folder / "ca.pem").write_bytes(shown.ca)
        (folder / f"{name}.pem").write_bytes(shown.certificate)
        (folder / f"{name}.key").write_bytes(shown.key)
        (folder / f"{name}.key").chmod(0o600)
    this, log = Path(__file__), folder / "bank.txt"
    arguments = ("driver", folder, steps, grace_s, timeout_s or 0)
    at_a, at_b = (link.spaces[side] for side in ADDRESS)
    with (
        forked.begin(folder, this, *arguments, stderr=log, namespace=at_a) as driver,
        forked.begin(
            folder, this, "party", folder, stdout=folder / "shop.txt", namespace=at_b
        ) as party,
    ):
        try:
            assert driver.stdout is not None
            run = Run(driver.stdout, log)
            assert run.line() == "listens"
            yield run
        finally:
            driver.kill()
            party.kill()


def milliseconds(steps: list[Step]) -> str:
    times = sorted(1e3 * step.seconds for step in steps[1:])  # the first one allocates
    return f"median {statistics.median(times):.0f} ms, slowest {times[-1]:.0f} ms"


# --- Tests ---------------------------------------------------------------------------------------


def test_delay_and_loss_change_the_time_and_not_the_weights(tmp_path: Path) -> None:
    with LossyLink(20, 0.01, 0) as link:
        with started(link, tmp_path, 10) as run:
            steps = list(run.steps())
        passed, dropped = link.counts()
    print(f"20 ms, 1 % loss: a step {milliseconds(steps)}; {dropped} of {passed + dropped} lost")
    assert dropped > 0
    assert min(step.seconds for step in steps) >= 0.040  # there and back
    assert not any(step.missed for step in steps)
    assert run.fingerprint == in_process(10)


def test_a_run_that_may_wait_outlives_a_cut_with_the_same_weights(tmp_path: Path) -> None:
    steps = []
    with LossyLink(5, 0, 0) as link, started(link, tmp_path, 20, grace_s=60) as run:
        for step in run.steps():
            steps.append(step)
            if len(steps) == 5:
                link.cut()
                time.sleep(CUT_S)
                link.mend()
    slowest_s = max(step.seconds for step in steps)
    print(f"cut for {CUT_S} s: one step took {slowest_s:.1f} s")
    assert slowest_s > CUT_S - 0.5  # it may have begun a little after the cut
    assert not any(step.missed for step in steps)
    assert run.fingerprint == in_process(20)


def test_a_run_that_may_not_wait_goes_on_without_the_party_and_takes_it_back(
    tmp_path: Path,
) -> None:
    steps: list[Step] = []
    cut_at, mended_at = math.inf, math.inf
    with (
        LossyLink(5, 0, 0) as link,
        started(link, tmp_path, 10**6, timeout_s=0.5, grace_s=1) as run,
    ):
        for step in run.steps():
            steps.append(step)
            assert step.at < mended_at + 20, "the party did not come back"
            if len(steps) == 5:
                link.cut()
                cut_at = step.at
            elif mended_at == math.inf and step.at > cut_at + CUT_S:
                link.mend()
                mended_at = step.at
            elif step.at > mended_at and not any(each.missed for each in steps[-10:]):
                break
    without = [step for step in steps if step.missed]
    back_s = steps[-10].at - mended_at
    print(
        f"cut for {CUT_S} s: left out after {without[0].at - cut_at:.1f} s, "
        f"of {len(without)} steps; back {back_s:.1f} s after the cut"
    )
    assert not any(step.missed for step in steps[:5])
    assert all(step.missed.keys() == {"shop"} for step in without)
    assert "has not answered apfed.Codes since" in without[0].missed["shop"]
    assert "has not been connected since" in without[-1].missed["shop"]
    assert max(step.seconds for step in steps) < CUT_S  # nobody waits for its end


# --- As a program --------------------------------------------------------------------------------


def table(num_steps: int, congestion: str) -> None:
    """Prints the time of a step by delay, loss and TCP's way of meeting loss."""
    for delay_ms, loss in ((0, 0.0), (0, 0.01), (20, 0.0), (20, 0.01)):
        with LossyLink(delay_ms, loss, 0) as link, tempfile.TemporaryDirectory() as folder:
            for side in ADDRESS:
                setting = f"echo {congestion} > /proc/sys/net/ipv4/tcp_congestion_control"
                subprocess.run(link.command(side, ["sh", "-c", setting]), check=True)
            with started(link, Path(folder), num_steps) as run:
                summary = milliseconds(list(run.steps()))
        print(f"{congestion} {delay_ms} ms, {100 * loss:.0f} % loss: a step {summary}", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case "driver", folder, steps, grace_s, timeout_s:
            run_driver(Path(folder), int(steps), float(timeout_s) or None, float(grace_s))
        case "party", folder:
            run_party(Path(folder))
        case "table", num_steps, congestion:
            table(int(num_steps), congestion)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
