"""Processes of tests are forked from a server that has read the libraries once, and has no threads.

There is one such server for all tests of a process, so what it reads is said in one place. A
process of its own starts in a fraction of a second so, and shares no memory with the test.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "dovetail.methods.apfed.plugin",
        "dovetail.methods.chfl.plugin",
        "dovetail.methods.fedoptimus.plugin",
        "dovetail.methods.hyfem.plugin",
        "dovetail.companions.survival.plugin",
        "dovetail.alignment.psi",
        "dovetail.api.progress",
        "dovetail.api.reading",
        "dovetail.api.scores",
        "dovetail.cli.command",
        "dovetail.cli.join",
        "dovetail.cli.main",
        "dovetail.cli.output",
        "dovetail.cli.predict",
        "dovetail.cli.train",
        "dovetail.report.page",
        "dovetail.runs.proposing",
        "dovetail.runs.train",
        "dovetail.node.join",
        "dovetail.companions.mailbox.joining",
        "dovetail.node.partyfile",
        "dovetail.network.client",
        "dovetail.network.stream",
        "cryptography.hazmat.backends.openssl.backend",
        "grpc.experimental",
        "jinja2",
        "lightgbm",
        "sklearn.datasets",
        "sklearn.metrics",
        "sklearn.model_selection",
        "torch.fx.experimental.symbolic_shapes",  # read when a gradient is first handed on
    ]
)


@dataclass(frozen=True)
class Ended:
    """A process that ended: its exit code, and what it printed where."""

    code: int
    out: str
    err: str


class Running:
    """A process that runs, with the methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, process: ForkServerProcess, stdout: IO[str] | None) -> None:
        self._process = process
        self.stdout = stdout

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise TimeoutError(f"it did not end in {timeout} s")
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """When it has ended: what it printed that was not read yet, some lines; and nothing."""
        self.wait(timeout)
        if self.stdout is None or self.stdout.closed:
            return "", None
        with self.stdout:
            return self.stdout.read(), None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self.stdout is not None:
            self.stdout.close()
        self.wait()


def command(folder: Path, *words: object, environment: Mapping[str, str] | None = None) -> Ended:
    """``dovetail WORDS`` in a folder, as a process of its own."""
    return _run(folder, None, words, environment)


def script(
    folder: Path, path: Path, *words: object, environment: Mapping[str, str] | None = None
) -> Ended:
    """``python PATH WORDS`` in a folder, as a process of its own."""
    return _run(folder, path, words, environment)


def code(folder: Path, text: str, *words: object, strict: bool = False) -> Ended:
    """``python -c TEXT WORDS`` in a folder, as a process of its own.

    Where it is strict, a warning is an error.
    """
    return _run(folder, text, words, None, strict=strict)


def begin(
    folder: Path,
    what: str | Path | None,
    *words: object,
    environment: Mapping[str, str] | None = None,
    stdout: Path | None = None,
    stderr: Path | None = None,
    strict: bool = False,
    namespace: str | None = None,
) -> Running:
    """A process that is begun and not waited for.

    Args:
        what: a program's file, a program, or None for ``dovetail``.
        stdout: the file that it prints to; else it can be read while the process runs.
        stderr: likewise; else where the first goes.
        namespace: the network that it is in, where it is another.
    """
    ours = None
    if stdout is None:
        reading, out = os.pipe()
        ours = os.fdopen(reading, encoding="utf-8")
    else:
        out = os.open(stdout, _WRITTEN)
    err = os.dup(out) if stderr is None else os.open(stderr, _WRITTEN)
    texts = [*map(str, words)]
    space = None if namespace is None else Path("/run/netns", namespace)
    process = context.Process(
        target=_child,
        args=(folder, what, texts, dict(environment or {}), strict, space, DupFd(out), DupFd(err)),
    )
    process.start()
    os.close(out)
    os.close(err)
    return Running(process, ours)


_WRITTEN = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def _run(
    folder: Path,
    what: str | Path | None,
    words: Sequence[object],
    environment: Mapping[str, str] | None,
    *,
    strict: bool = False,
) -> Ended:
    with tempfile.TemporaryDirectory() as kept:
        out, err = Path(kept) / "out", Path(kept) / "err"
        running = begin(
            folder, what, *words, environment=environment, stdout=out, stderr=err, strict=strict
        )
        return Ended(running.wait(), out.read_text(), err.read_text())


def _child(
    folder: Path,
    what: str | Path | None,
    words: Sequence[str],
    environment: Mapping[str, str],
    strict: bool,
    namespace: Path | None,
    out: DupFd,
    err: DupFd,
) -> None:
    for standard, file in ((1, out.detach()), (2, err.detach())):
        os.dup2(file, standard)
        os.close(file)
    if namespace is not None:
        with namespace.open() as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    os.chdir(folder)
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    if strict:
        warnings.simplefilter("error")
    match what:
        case None:
            from dovetail.cli.main import main

            sys.argv = ["dovetail", *words]
            main()
        case Path():
            sys.argv = [str(what), *words]
            sys.path.insert(0, str(what.parent))
            runpy.run_path(str(what), run_name="__main__")
        case str():
            sys.argv = ["-c", *words]
            exec(compile(what, "<code>", "exec"), {"__name__": "__main__"})
