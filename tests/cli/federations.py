"""Commands that a user types, each a process of its own: a driver, and parties that join it."""

from __future__ import annotations

import csv
import faulthandler
import json
import math
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from forked import context
from same_secrets import as_in_one_process

#: Seconds until a process that says nothing has failed: of a machine with much else to do.
PATIENCE_S = 180.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def command(
    folder: Path, output: Path, arguments: Sequence[str], local_secrets: bool = True
) -> None:
    """``dovetail ARGUMENTS`` in a folder, as a process of its own has it.

    Without ``local_secrets`` its site draws what parties of one process draw.
    """
    from dovetail.cli.main import main

    if not local_secrets:
        as_in_one_process()
    os.chdir(folder)
    with output.open("wb") as file:
        for standard in (1, 2):
            os.dup2(file.fileno(), standard)
    faulthandler.enable()
    sys.argv = ["dovetail", *arguments]
    main()


def lying_command(
    folder: Path, output: Path, arguments: Sequence[str], kind: str, honest: int
) -> None:
    """Run a party whose answers of this kind are NaN after so many honest ones."""
    from dovetail.network.host import Host

    real, left = Host._answer, honest

    def answer(self: Host, opened: Any, driver: str) -> Any:
        nonlocal left
        answer = real(self, opened, driver)
        if answer.wire_name() != kind:
            return answer
        left -= 1
        if left >= 0:
            return answer
        lies: dict[str, Any] = {
            name: x * math.nan for name, x in answer.tensors().items() if x.is_floating_point()
        }
        if kind == "distil.Ready":  # which has no numbers that can be NaN
            lies = {"code_widths": ()}
        return replace(answer, **lies)

    Host._answer = answer  # type: ignore[method-assign]
    command(folder, output, arguments)


def held_command(folder: Path, output: Path, arguments: Sequence[str], local_secrets: bool) -> None:
    """Run a driver that begins no epoch or round above the number in the file "allowed"."""
    loop = import_module("dovetail.federated.driver")
    real = loop.play_round

    def play(driver: Any, number: int, federation: Any) -> Any:
        while number > int((folder / "allowed").read_text()):
            time.sleep(0.01)
        return real(driver, number, federation)

    loop.play_round = play  # type: ignore[attr-defined]
    command(folder, output, arguments, local_secrets)


@dataclass(eq=False)
class Process:
    """A command that runs on its own.

    It is forked from a server that has read all libraries, which takes most of a command's time.
    """

    process: Any
    output: Path

    def running(self) -> bool:
        alive: bool = self.process.is_alive()
        return alive

    def printed(self) -> str:
        return self.output.read_text()

    def wait_for(self, words: str, timeout_s: float = PATIENCE_S) -> float:
        """When these words were seen."""
        deadline = time.monotonic() + timeout_s
        while not re.search(words, self.printed()):
            assert time.monotonic() < deadline, f"no {words!r} in: {self.printed()}"
            assert self.running(), self.printed()
            time.sleep(0.01)
        return time.monotonic()

    def signal(self, number: int) -> float:
        """Sends it; gives when."""
        os.kill(self.process.pid, number)
        return time.monotonic()

    def ended(self, timeout_s: float = PATIENCE_S) -> int:
        """Its exit code; below zero the signal that ended it."""
        self.process.join(timeout_s)
        if self.running():
            self.signal(signal.SIGABRT)  # Python then tells where it is
            self.process.join()
            raise AssertionError(f"it did not end in {timeout_s} s: {self.printed()}")
        code: int = self.process.exitcode
        return code


@dataclass(eq=False)
class Federation:
    """Files and certificates of all in one folder, and what was started there.

    Attributes:
        port: where the driver listens.
        joining: more arguments of ``dovetail join``.
        local_secrets: every site has its own secret, as users' have; else runs repeat bit for bit.
    """

    folder: Path
    port: int
    joining: tuple[str, ...] = ()
    started: list[Process] = field(default_factory=list)
    local_secrets: bool = False

    def start(self, *arguments: object) -> Process:
        return self._begin(command, tuple(map(str, arguments)), self.local_secrets)

    def start_held(self, *arguments: object, allowed: int = 0) -> Process:
        """A driver that waits before each epoch or round until it is allowed."""
        self.allow(allowed)
        return self._begin(held_command, tuple(map(str, arguments)), self.local_secrets)

    def allow(self, number: int) -> None:
        """Let a held driver go on to the end of this epoch or round."""
        (self.folder / "allowed.new").write_text(str(number))
        (self.folder / "allowed.new").replace(self.folder / "allowed")

    def _begin(self, target: Callable[..., None], *given: Any) -> Process:
        output = self.folder / f"output-{len(self.started)}"
        output.touch()
        process = context.Process(target=target, args=(self.folder, output, *given))
        process.start()
        self.started.append(Process(process, output))
        return self.started[-1]

    def join(self, name: str) -> Process:
        address = f"127.0.0.1:{self.port}"
        return self.start("join", f"{name}.toml", "--driver", address, *self.joining)

    def join_lying(self, name: str, kind: str, *, honest: int = 0) -> Process:
        """A party whose answers of this kind are NaN after so many honest ones."""
        address = f"127.0.0.1:{self.port}"
        arguments = ("join", f"{name}.toml", "--driver", address, *self.joining)
        return self._begin(lying_command, arguments, kind, honest)

    @contextmanager
    def ending(self) -> Iterator[Federation]:
        """Whatever was started is ended, also what was stopped."""
        try:
            yield self
        finally:
            for each in self.started:
                if each.running():
                    each.signal(signal.SIGKILL)
                each.process.join()

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
            assert time.monotonic() < deadline, driver.printed()
            assert driver.running(), driver.printed()
            time.sleep(0.005)
        return time.monotonic()

    def first_missed(self, out: str, since: int, driver: Process) -> Any:
        """The first line after so many that says who was missed, when it is there."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for line in self.lines(out)[since:]:
                if "missed" in line:
                    return line
            assert time.monotonic() < deadline, driver.printed()
            assert driver.running(), driver.printed()
            time.sleep(0.02)

    def train_whole_and_killed(self, num_rounds: int, *settings: str) -> None:
        """The run of network.toml twice: in "whole", and in "stopped", killed and resumed."""
        train = ("train", "network.toml", *settings)
        whole = self.start(*train, "--out", "whole")
        assert whole.ended() == 0, whole.printed()
        driver = self.start_held(*train, "--out", "stopped", allowed=6)  # killed in the sixth
        self.wait_for_lines("stopped", 5, driver)
        driver.signal(signal.SIGKILL)
        driver.ended()
        assert len(self.lines("stopped")) < num_rounds
        again = self.start(*train, "--out", "stopped", "--resume")
        assert again.ended() == 0, again.printed()

    def kept_models(self, name: str) -> dict[str, Path]:
        """Variant -> the model that a party saved at its site."""
        folders = (self.folder / f"{name}.site" / "models").iterdir()
        return {folder.name.split("+")[1]: folder for folder in folders}


def write_new(folder: Path, *names: str) -> Path:
    """Some rows of these parties' tables, joined by id, with the label."""
    tables = {}
    for name in names:
        with (folder / f"{name}.csv").open() as file:
            tables[name] = {row["person"]: row for row in csv.DictReader(file)}
    people = sorted(set.intersection(*(set(table) for table in tables.values())))[:20]
    rows = [{k: v for table in tables.values() for k, v in table[who].items()} for who in people]
    path = folder / f"new-{'-'.join(names)}.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


#: A coordinator without data, and the sites that it waits for.
_COORDINATED = """
[engine]
kind = "stream"
listen = "127.0.0.1:{port}"
partners = {names}
name = "coordinator"
wait_s = 180
grace_s = 0.5
timeout_s = 120
"""


@contextmanager
def coordinated(
    dovetail: Callable[..., Any],
    folder: Path,
    names: Sequence[str],
    methods: Mapping[str, str],
    hyfem: str,
) -> Iterator[Federation]:
    """Sites whose party files are in the folder, all joined to a coordinator.

    Args:
        methods: name -> a run file without its parties; written as NAME-here.toml of one process,
            and as NAME.toml of the coordinator's.
        hyfem: what [hyfem] of the coordinator's says besides.
    """
    port, files = free_port(), json.dumps([f"{name}.toml" for name in names])
    engine = _COORDINATED.format(port=port, names=json.dumps([*names]))
    for method, text in methods.items():
        (folder / f"{method}-here.toml").write_text(f"parties = {files}\n{text}")
        apart = text.replace("[hyfem]\n", f"[hyfem]\n{hyfem}\n")
        (folder / f"{method}.toml").write_text(apart + engine)
    who = (*names, "coordinator", "--driver", "coordinator", "--host", "127.0.0.1", "-q")
    done = dovetail("certificates", *who)
    assert done.code == 0, done.err
    with Federation(folder, port, ("--name", "coordinator")).ending() as made:
        for name in names:
            made.join(name)
        yield made
