"""Locks on what one process uses at a time, such as a run's folder, and which process that is.

The lock is the kernel's, which drops it when its process ends, however that happens. Beside it
stands who holds it: ``.lock.json``.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from dovetail.errors import ConfigError
from dovetail.network.printable import printable
from dovetail.network.retry import write_text

#: The lock of a folder, in it.
LOCK = ".lock"


def lock_of(path: Path) -> FileLock:
    """The lock of a path, not yet held."""
    return FileLock(path, mode=0o600, thread_local=False)


@contextmanager
def in_use(folder: Path, advice: str, *, lock: str = LOCK, wait_s: float = 0.0) -> Iterator[None]:
    """The folder is this process's meanwhile; it is made if it is not there.

    Args:
        folder: which.
        advice: what else can be done than to wait, after "or".
        lock: the name of the lock's file; of one file of the folder, ``.FILE.lock``.
        wait_s: how long to wait for another process.

    Raises:
        ConfigError: another process uses it: which, since when, and what to do.
    """
    path = folder / lock
    made = _missing(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        acquired = lock_of(path).acquire(timeout=wait_s, poll_interval=0.05)
    except Timeout:
        raise ConfigError(f"{_user(path)}; wait until it ends, or {advice}") from None
    except OSError as error:
        raise ConfigError(
            f"cannot write to the folder {folder}: {error.strerror}; allow it, or name another"
        ) from None
    with acquired:
        owner = path.with_name(f"{lock}.json")
        try:
            write_text(owner, json.dumps(_this_process()) + "\n")
            yield
        finally:
            owner.unlink(missing_ok=True)
            if lock != LOCK:  # beside a user's files nothing is left
                with suppress(OSError):
                    path.unlink()
            _remove_if_unused(made, path)


def _missing(folder: Path) -> list[Path]:
    """The folders that are to be made, innermost first."""
    return [each for each in (folder, *folder.parents) if not each.exists()]


def _remove_if_unused(made: list[Path], lock: Path) -> None:
    """Folders that were made for nothing, as where a run file is refused."""
    with suppress(OSError):
        if made and list(lock.parent.iterdir()) == [lock]:
            lock.unlink()
        for folder in made:
            folder.rmdir()


def _this_process() -> dict[str, object]:
    name = Path(sys.argv[0]).name or "python"
    return {
        "pid": os.getpid(),
        "command": shlex.join([name, *sys.argv[1:]])[:200],
        "host": socket.gethostname(),
        "since": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def _user(lock: Path) -> str:
    """Description of who uses what."""
    what = lock.with_name(lock.name[1:].removesuffix(LOCK)) if lock.name != LOCK else lock.parent
    try:
        user = json.loads(lock.with_name(f"{lock.name}.json").read_text(encoding="utf-8"))
        who = printable(
            f"process {user['pid']} on {user['host']} ({user['command']}) since {user['since']}"
        )
    except (OSError, ValueError, KeyError, TypeError):  # it has only just begun
        who = "another process"
    return f"{what} is in use by {who}"
