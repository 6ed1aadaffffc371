"""What attacks have in common: a bank and a shop as anybody sets them up, and processes in need."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from federations import Federation, Process, command, free_port
from forked import context

from dovetail import data as dd
from dovetail.network.credentials import Credentials

BANK = """
[party]
name = "bank"
table = "bank.csv"
id = "person"
label = "label"
"""

SHOP = """
[party]
name = "shop"
table = "shop.csv"
id = "person"

[policy]
drivers = ["bank"]
{policy}

[apfed]
exact = true
encoder = [16, 8]
loss = "reconstruction"
"""

RUN = """
method = "apfed-mixed"
evaluate_every = 1
parties = ["bank.toml"]
test = 0.25

[engine]
kind = "stream"
listen = "127.0.0.1:{port}"
partners = ["shop"]
wait_s = 180
grace_s = 60

[apfed]
encoder = [8]
head = [8]
epochs = {epochs}
batch_size = 32
"""


def poor(
    descriptors: int, folder: Path, output: Path, arguments: Sequence[str]
) -> None:  # pragma: no cover - in a process of its own
    """``dovetail ARGUMENTS`` where no process may have more open files than this."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    command(folder, output, arguments)


def late(
    hours: float, folder: Path, output: Path, arguments: Sequence[str]
) -> None:  # pragma: no cover - in a process of its own
    """``dovetail ARGUMENTS`` on a machine whose clock was set back."""
    seconds, nanoseconds = time.time, time.time_ns
    time.time = lambda: seconds() - 3600 * hours
    time.time_ns = lambda: nanoseconds() - int(3600e9 * hours)
    command(folder, output, arguments)


@dataclass(eq=False)
class Town(Federation):
    """A bank that drives, and a shop, with files and certificates in one folder."""

    def write(self, *, policy: str = "", epochs: int = 40, num_rows: int = 200) -> None:
        rng = np.random.default_rng(0)
        person = np.array([f"P-{number:04d}" for number in range(num_rows)], dtype=object)
        x = rng.normal(size=(num_rows, 6))
        label = np.where(x[:, 0] + x[:, 4] > 0, "yes", "no").astype(object)
        for name, columns in (("bank", range(3)), ("shop", range(3, 6))):
            table = {"person": person, **{f"x{i}": x[:, i] for i in columns}}
            dd.write_table(
                self.folder / f"{name}.csv",
                {**table, **({"label": label} if name == "bank" else {})},
            )
        (self.folder / "bank.toml").write_text(BANK)
        if "algorithms" not in policy:
            policy = f'algorithms = ["align", "apfed-mixed"]\n{policy}'
        (self.folder / "shop.toml").write_text(SHOP.format(policy=policy))
        (self.folder / "run.toml").write_text(RUN.format(port=self.port, epochs=epochs))
        named = ("bank", "shop", "--driver", "bank", "--host", "127.0.0.1", "-q")
        made = self.start("certificates", *named)
        assert made.ended() == 0, made.printed()

    def change(self, name: str, *changes: tuple[str, str]) -> None:
        """Replaces texts of a file."""
        text = (self.folder / name).read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        (self.folder / name).write_text(text)

    def start_poor(self, descriptors: int, *arguments: object) -> Process:
        """As ``start``, with few open files."""
        return self._start_as(poor, descriptors, arguments)

    def start_late(self, hours: float, *arguments: object) -> Process:
        """As ``start``, where the clock is so many hours behind."""
        return self._start_as(late, hours, arguments)

    def _start_as(
        self, target: Callable[..., None], need: float, arguments: Sequence[object]
    ) -> Process:
        output = self.folder / f"output-{len(self.started)}"
        output.touch()
        given = (need, self.folder, output, tuple(map(str, arguments)))
        process = context.Process(target=target, args=given)
        process.start()
        self.started.append(Process(process, output))
        return self.started[-1]

    def credentials(self, name: str) -> Credentials:
        return Credentials.load(self.folder / "certificates" / name, name)


def town(folder: Path) -> Town:
    return Town(folder, free_port(), local_secrets=True)


def assert_given_up(line: socket.socket) -> None:
    """A body that comes a byte at a time is answered with 408, and soon."""
    line.settimeout(0.1)
    began, answer = time.monotonic(), b""
    while not answer and time.monotonic() < began + 10:
        line.sendall(b"x")
        try:
            answer = line.recv(100)
        except TimeoutError:
            continue
    assert answer.split()[1] == b"408"
    assert time.monotonic() - began < 5
