"""A run of a bench as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Seconds that a run has to keep what it has once it was asked to stop.
PATIENCE_S = 60.0


class Child:
    """A ``dovetail`` command in a process of its own.

    A run that eats all memory or crashes takes nothing else with it, and has its threads to itself.

    Args:
        arguments: after ``dovetail``.
        threads: what it computes with.
    """

    def __init__(self, arguments: Sequence[str], *, threads: int) -> None:
        # Open as long as the process.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._began = time.monotonic()
        self.seconds = 0.0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dovetail.cli.worker", *arguments],
            stdin=subprocess.PIPE,  # closed, it stops: when we end in whatever way
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
            start_new_session=True,  # Ctrl-C is ours to pass on
        )

    def done(self) -> bool:
        """Whether it has ended."""
        ended = self._process.poll() is not None
        if ended and not self.seconds:
            self.seconds = time.monotonic() - self._began
        return ended

    def stop(self) -> None:
        """Have it keep what it has and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def failure(self) -> str | None:
        """Why it failed, in a sentence; None where it did not."""
        code = self._process.returncode
        with self._errors as file:
            file.seek(0)
            said = file.read().decode("utf-8", errors="replace").strip().splitlines()
        assert self._process.stdin is not None
        self._process.stdin.close()
        if code == 0:
            return None
        if code < 0:
            return f"killed by signal {-code}" + (", as when memory runs out" if code == -9 else "")
        return said[-1].removeprefix("dovetail: ") if said else f"ended with exit code {code}"


def tail_lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl``; none where there is none yet."""
    try:
        text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:  # being written
            break
    return found
