"""Commands that a room starts: one after another, each in a process of its own.

    .room/queue.json    what was asked for and has not ended, oldest first
    .room/NAME.log      what a command has printed

A room that ends leaves its running command to end by itself; commands that wait are taken up again
by the next room of the folder.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from dovetail.errors import ConfigError
from dovetail.network.certificates import make_folder
from dovetail.network.retry import open_private, write_text

#: Commands that may wait, and ended ones that are remembered.
MAX_WAITING, _MOST_ENDED = 100, 50

#: Seconds that a command has to end by Ctrl-C before it is ended.
_GRACE_S = 20.0

#: Bytes at the end of a log that a page shows.
_SHOWN = 8_000

_log = logging.getLogger(__name__)

_STARTED = "from dovetail.__main__ import process; process()"

State = Literal["waiting", "running", "stopping", "done", "failed", "stopped"]

#: States of what has not ended.
GOING = ("waiting", "running", "stopping")


@dataclass
class Job:
    """A command of ``dovetail``.

    Attributes:
        name: of its log, and of the run that it makes.
        arguments: after ``dovetail``.
        state: how it stands.
        asked, began, ended: seconds since 1970; 0: not yet.
        code: its exit code; None while it has none.
    """

    name: str
    arguments: tuple[str, ...]
    state: State = "waiting"
    asked: float = field(default_factory=time.time)
    began: float = 0.0
    ended: float = 0.0
    code: int | None = None

    @property
    def command(self) -> str:
        """As one would type it."""
        return " ".join(["dovetail", *self.arguments])


class Jobs:
    """The queue of one folder.

    Args:
        folder: where logs and the queue are kept, in ``.room``.
        accepts: whether a command that an earlier room of the folder left waiting may run: whoever
            can write the folder could have written it.
        at_a_time: commands that run side by side.
        cwd: where they run.

    Raises:
        ConfigError: the queue of an earlier room cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        *,
        accepts: Callable[[Job], bool],
        at_a_time: int = 1,
        cwd: Path | None = None,
    ) -> None:
        self._folder = folder / ".room"
        self._accepts = accepts
        self._at_a_time = at_a_time
        self._cwd = cwd
        self._lock = threading.RLock()
        self._jobs: list[Job] = []
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._closed = threading.Event()
        make_folder(self._folder)
        self._read()
        self._thread = threading.Thread(target=self._run, daemon=True, name="dovetail-jobs")
        self._thread.start()

    def add(self, name: str, arguments: Sequence[str]) -> Job:
        """Let a command wait for its turn.

        Raises:
            ConfigError: a name that no folder can have, one that waits or runs already, or too
                many that wait.
        """
        if not _is_name(name):
            raise ConfigError(
                f"a run's name has letters, digits, blanks, dots and dashes, got {name[:80]!r}"
            )
        with self._lock:
            going = [job for job in self._jobs if job.state in GOING]
            if any(job.name == name for job in going):
                raise ConfigError(f"{name!r} waits or runs already")
            if len(going) >= MAX_WAITING:
                raise ConfigError(
                    f"{MAX_WAITING} commands wait already; stop some, or let them end"
                )
            job = Job(name, tuple(arguments))
            self._jobs = [each for each in self._jobs if each.name != name] + [job]
            self._write()
        return job

    def stop(self, name: str) -> None:
        """End a command: by Ctrl-C, so that what it has finished is kept.

        Raises:
            ConfigError: none of that name waits or runs.
        """
        with self._lock:
            job = self.of(name)
            if job is None or job.state not in ("waiting", "running"):
                raise ConfigError(f"nothing called {name!r} waits or runs")
            process = self._processes.get(name)
            job.state = "stopped" if process is None else "stopping"
            self._write()
        if process is not None:
            threading.Thread(target=_end, args=(process,), daemon=True).start()

    def of(self, name: str) -> Job | None:
        """The newest of this name."""
        with self._lock:
            return next((job for job in self._jobs if job.name == name), None)

    def all(self) -> list[Job]:
        """All that are known, the newest first."""
        with self._lock:
            return self._jobs[::-1]

    def log(self, name: str) -> str:
        """The end of what a command has printed."""
        try:
            with self._log(name).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _SHOWN))
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def logs(self) -> list[Path]:
        """Files that grow while commands run."""
        with self._lock:
            return [self._log(name) for name in self._processes]

    def state(self) -> object:
        """Differs when something has changed."""
        with self._lock:
            return [(job.name, job.state, job.asked) for job in self._jobs]

    def close(self) -> None:
        """Start no more; what runs goes on."""
        self._closed.set()
        self._thread.join(2.0)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _run(self) -> None:
        while not self._closed.wait(0.2):
            with self._lock:
                for name, process in list(self._processes.items()):
                    if process.poll() is not None:
                        del self._processes[name]
                        self._ended(name, process.returncode)
                waiting = [job for job in self._jobs if job.state == "waiting"]
                for job in waiting[: max(0, self._at_a_time - len(self._processes))]:
                    self._start(job)

    def _start(self, job: Job) -> None:
        handle = open_private(self._log(job.name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(handle, "wb") as log:
            log.write(f"$ {job.command}\n".encode())
            log.flush()
            self._processes[job.name] = subprocess.Popen(
                [sys.executable, "-c", _STARTED, *job.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._cwd,
                start_new_session=True,  # Ctrl-C at the room's terminal ends the room alone
            )
        job.state, job.began = "running", time.time()
        _log.info("%s starts: %s", job.name, job.command)
        self._write()

    def _ended(self, name: str, code: int) -> None:
        job = self.of(name)
        if job is None:
            return
        job.code, job.ended = code, time.time()
        if job.state == "stopping":
            job.state = "stopped"
        else:
            job.state = "done" if code == 0 else "failed"
        _log.info("%s is %s, exit code %d", name, job.state, code)
        self._write()

    def _read(self) -> None:
        path = self._folder / "queue.json"
        if not path.exists():
            return
        try:
            kept = [Job(**values) for values in json.loads(path.read_text(encoding="utf-8"))]
            for job in kept:
                job.arguments = tuple(map(str, job.arguments))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(
                f"{path} cannot be read ({error}), so nobody knows what waits; delete it"
            ) from None
        kept = [job for job in kept if _is_name(job.name)]  # it is a file's name, too
        for job in kept:
            if job.state == "waiting" and not self._accepts(job):
                _log.warning("%s does not run: this room would not begin it", job.command)
                job.state = "failed"
            if job.state in ("running", "stopping"):  # its room ended; the command may have gone on
                job.state = "stopped"
        self._jobs = kept

    def _write(self) -> None:
        ended = [job for job in self._jobs if job.state not in GOING]
        for job in ended[: max(0, len(ended) - _MOST_ENDED)]:
            self._jobs.remove(job)
        write_text(self._folder / "queue.json", json.dumps([asdict(job) for job in self._jobs]))


def _is_name(name: str) -> bool:
    return bool(re.fullmatch(r"[\w][\w .-]{0,79}", str(name))) and not str(name).endswith(".")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ctrl-C, then SIGTERM."""
    for each in (signal.SIGINT, signal.SIGTERM):
        try:
            process.send_signal(each)
            process.wait(_GRACE_S)
            return
        except (subprocess.TimeoutExpired, ValueError):  # Windows has no SIGINT for others
            continue
    process.kill()
