"""A run of a bench as a process of its own."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

#: Seconds that a run has to keep what it has once it was asked to stop.
PATIENCE_S = 60.0

if sys.platform == "linux":
    _CONTEXT = multiprocessing.get_context("forkserver")
    _CONTEXT.set_forkserver_preload(
        [
            "dovetail.runs.train",
            "lightgbm",
            "pandas",
            "scipy.optimize",
            "sklearn.metrics",
            "sklearn.model_selection",
            "typer",
        ]
    )
else:
    _CONTEXT = multiprocessing.get_context("spawn")


class Child:
    """A ``dovetail`` command in a process of its own.

    A run that eats all memory or crashes takes nothing else with it, and has its threads to itself.
    It is forked from a server that has imported what runs need: seconds of processor time each.

    Args:
        arguments: after ``dovetail``.
        threads: what it computes with.
    """

    def __init__(self, arguments: Sequence[str], *, threads: int) -> None:
        # Open as long as the process.
        self._errors = tempfile.NamedTemporaryFile()  # noqa: SIM115
        self._began = time.monotonic()
        self.seconds = 0.0
        # Closed, it stops: when we end in whatever way.
        theirs, self._line = _CONTEXT.Pipe(duplex=False)
        settings = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self._process = _CONTEXT.Process(
            target=_work,
            args=(tuple(arguments), settings, str(Path.cwd()), threads, self._errors.name, theirs),
        )
        self._process.start()
        theirs.close()

    def done(self) -> bool:
        """Whether it has ended."""
        ended = self._process.exitcode is not None
        if ended and not self.seconds:
            self.seconds = time.monotonic() - self._began
        return ended

    def stop(self) -> None:
        """Have it keep what it has and end."""
        self._line.close()
        self._process.join(PATIENCE_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._errors.close()

    def failure(self) -> str | None:
        """Why it failed, in a sentence; None where it did not."""
        code = self._process.exitcode
        assert code is not None
        with self._errors as file:
            file.seek(0)
            lines = file.read().decode("utf-8", errors="replace").strip().splitlines()
        self._line.close()
        if code == 0:
            return None
        if code < 0:
            return f"killed by signal {-code}" + (", as when memory runs out" if code == -9 else "")
        return lines[-1].removeprefix("dovetail: ") if lines else f"ended with exit code {code}"


def _work(
    arguments: Sequence[str],
    settings: Mapping[str, str],
    folder: str,
    threads: int,
    errors: str,
    line: Connection,
) -> None:
    """The command, in the child: it stops when ``line`` is closed."""
    os.setsid()  # Ctrl-C is the bench's to pass on
    os.environ.clear()
    os.environ.update(settings)
    os.chdir(folder)
    os.dup2(line.fileno(), 0)
    for number, path in ((1, os.devnull), (2, errors)):
        file = os.open(path, os.O_WRONLY)
        os.dup2(file, number)
        os.close(file)
    import torch

    torch.set_num_threads(threads)
    sys.argv = ["dovetail", *arguments]
    runpy.run_module("dovetail.cli.worker", run_name="__main__")


def tail_lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl``; none where there is none yet."""
    try:
        text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    except OSError:
        return []
    lines = []
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:  # being written
            break
    return lines
