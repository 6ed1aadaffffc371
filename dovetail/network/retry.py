"""Descriptors and disks that run short for a moment, and what to do until they do not."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

R = TypeVar("R")

_IMPORTED = time.monotonic()

#: Seconds between attempts to write: those who took what is short may give it back meanwhile.
PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8)

#: What is short for a moment: descriptors of this process or machine, the disk, a user's part of it
_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EINTR}

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)


def patiently(write: Callable[[], R]) -> R:
    """Result of ``write``; tried again for 1.5 s while descriptors or disk are short.

    Raises:
        OSError: of another kind, or the last attempt's.
    """
    for pause_s in PAUSES_S:
        try:
            return write()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
            _log.info("tried again in %g s: %s", pause_s, error)
        time.sleep(pause_s)
    return write()


def since_start_s() -> float:
    """Seconds that this process has run; where the system does not say, since this was read."""
    try:
        ticks = int(
            Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19]
        )
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return time.monotonic() - _IMPORTED


def open_private(path: str | Path, flags: int) -> int:
    """A descriptor of a file that only its owner reads, from its first byte on.

    Bytes are written as they are, also on Windows.
    """
    return os.open(path, flags | getattr(os, "O_BINARY", 0), 0o600)


def raise_descriptor_limit() -> int | None:
    """Number of files that this process may open from now on; None if the system has no limit."""
    if resource is None:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # a system whose kernel allows less than it says
            return soft
    return hard


def write_text(path: Path, text: str) -> None:
    """Write a file in UTF-8, whole or not at all."""
    fresh = path.with_name(f".{path.name}.new")

    def write() -> None:
        fresh.write_text(text, encoding="utf-8", newline="\n")
        os.replace(fresh, path)

    with naming(path):
        patiently(write)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the system name the file: those of a full disk do not by themselves."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def write_private(path: Path, data: bytes, *, rights: int = 0o600) -> None:
    """Write a file that only its owner reads: whole and on the disk, or not at all.

    Args:
        path: the file.
        data: its bytes.
        rights: of the file, once it is whole, where others may read it.

    Raises:
        OSError: it cannot be written; one that was there before still is.
    """
    fresh = path.with_name(f".{path.name}.new")

    def write() -> None:
        with open(open_private(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.chmod(rights)
        os.replace(fresh, path)
        _sync_folder(path.parent)

    try:
        with naming(path):
            patiently(write)
    except OSError:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    """Let the rename itself reach the disk."""
    if os.name == "nt":  # a folder cannot be opened there; NTFS keeps a journal of renames
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
