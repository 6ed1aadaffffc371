"""Commands that a user types, each a process of its own: a driver, and parties that join it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Seconds until a process that says nothing has failed: of a machine with much else to do.
PATIENCE_S = 180.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(eq=False)
class Process:
    """A command that runs on its own."""

    process: subprocess.Popen[bytes]
    output: Path

    def said(self) -> str:
        return self.output.read_text()

    def wait_for(self, words: str, timeout_s: float = PATIENCE_S) -> float:
        """When these words were seen."""
        deadline = time.monotonic() + timeout_s
        while not re.search(words, self.said()):
            assert time.monotonic() < deadline, f"no {words!r} in: {self.said()}"
            assert self.process.poll() is None, self.said()
            time.sleep(0.01)
        return time.monotonic()

    def signal(self, number: int) -> float:
        """Sends it; gives when."""
        self.process.send_signal(number)
        return time.monotonic()

    def ended(self, timeout_s: float = PATIENCE_S) -> int:
        try:
            return self.process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # Python then tells where it is
            self.process.wait()
            raise AssertionError(f"it did not end in {timeout_s} s: {self.said()}") from None


@dataclass(eq=False)
class Federation:
    """Files and certificates of all in one folder, and what was started there.

    Attributes:
        port: where the driver listens.
        joining: more arguments of ``dovetail join``.
    """

    folder: Path
    port: int
    joining: tuple[str, ...] = ()
    started: list[Process] = field(default_factory=list)

    def start(self, *arguments: object) -> Process:
        output = self.folder / f"output-{len(self.started)}"
        command = [sys.executable, "-m", "dovetail.cli.main", *map(str, arguments)]
        with output.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdout=file,
                stderr=file,
                env={**os.environ, "PYTHONFAULTHANDLER": "1"},
            )
        self.started.append(Process(process, output))
        return self.started[-1]

    def join(self, name: str) -> Process:
        address = f"127.0.0.1:{self.port}"
        return self.start("join", f"{name}.toml", "--driver", address, *self.joining)

    @contextmanager
    def ending(self) -> Iterator[Federation]:
        """Whatever was started is ended, also what was stopped."""
        try:
            yield self
        finally:
            for each in self.started:
                with suppress(ProcessLookupError):
                    each.process.send_signal(signal.SIGCONT)
                    each.process.kill()
                each.process.wait()

    def result(self, out: str) -> Any:
        return json.loads((self.folder / out / "result.json").read_text())

    def lines(self, out: str) -> list[Any]:
        """The whole lines of a run that may be writing one."""
        path = self.folder / out / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [json.loads(line) for line in whole]

    def wait_for_lines(self, out: str, number: int, driver: Process) -> float:
        """When there were so many epochs or rounds."""
        path = self.folder / out / "metrics.jsonl"
        deadline = time.monotonic() + PATIENCE_S
        while not path.exists() or path.read_bytes().count(b"\n") < number:
            assert time.monotonic() < deadline, driver.said()
            assert driver.process.poll() is None, driver.said()
            time.sleep(0.005)
        return time.monotonic()

    def kept_models(self, name: str) -> dict[str, Path]:
        """Stage -> the model that a party saved at its home."""
        folders = (self.folder / f"{name}.site" / "models").iterdir()
        return {folder.name.split("+")[1]: folder for folder in folders}
