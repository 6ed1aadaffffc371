"""Letters and cards on a relay's disk, within limits, by who has left them."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import Metric

from dovetail.companions.mailbox.letters import read_name
from dovetail.companions.mailbox.places import CARDS, MAIL
from dovetail.network.certificates import make_folder
from dovetail.network.retry import open_private
from dovetail.node.probes import counter, gauge


class FullError(Exception):
    """A party has left as much as it may."""


@dataclass(frozen=True)
class Bounds:
    """Bounds on what each party may leave.

    Attributes:
        num_bytes: in all its letters that lie here.
        num_files: letters that lie here.
        age_s: seconds until a letter that nobody has taken is removed.
        most: bytes of one letter.
    """

    num_bytes: int = 2**30
    num_files: int = 1000
    age_s: float = 30 * 86400.0
    most: int = 2**28


@dataclass(frozen=True)
class _File:
    sender: str
    num_bytes: int
    since: float


class Store:
    """A relay's files; names are those of ``places.Place``.

    Args:
        folder: where they lie.
        bounds: what each party may leave.
        clock: seconds since the epoch.
    """

    def __init__(
        self, folder: Path, bounds: Bounds, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.bounds = bounds
        self._folder, self._clock = folder, clock
        self._lock = threading.Lock()
        self._files: dict[str, _File] = {}
        self._held: dict[str, tuple[int, int]] = {}  # sender -> files, bytes; also under way
        self._counts = dict.fromkeys(("left", "taken", "removed", "expired", "refused"), 0)
        for each in (folder / "cards", folder / "mail"):
            make_folder(each)
        for path in folder.rglob("*"):
            if path.is_dir():
                continue
            if path.name.startswith("."):  # of a process that was killed
                path.unlink()
                continue
            found = path.stat()
            self._add(path.relative_to(folder).as_posix(), found.st_size, found.st_mtime)

    def _add(self, name: str, num_bytes: int, since: float) -> None:
        file = _File(sender_of(name), num_bytes, since)
        self._files[name] = file
        if name.startswith(MAIL):
            self._hold(file.sender, 1, num_bytes)

    def _hold(self, sender: str, files: int, num_bytes: int) -> None:
        held = self._held.get(sender, (0, 0))
        self._held[sender] = held[0] + files, held[1] + num_bytes

    def receive(self, name: str, num_bytes: int) -> Receiving:
        """Room for a file that is about to come.

        Raises:
            FullError: its sender has left as much as it may.
        """
        sender = sender_of(name)
        with self._lock:
            self._expire()
            files, held = self._held.get(sender, (0, 0))
            bounds = self.bounds
            if name.startswith(MAIL):
                if num_bytes > bounds.most:
                    self._counts["refused"] += 1
                    raise FullError(f"a letter of {num_bytes} bytes; at most {bounds.most}")
                if files >= bounds.num_files or held + num_bytes > bounds.num_bytes:
                    self._counts["refused"] += 1
                    raise FullError(
                        f"{sender!r} has {files} letters of {held} bytes here that were not taken; "
                        f"it may have {bounds.num_files} of {bounds.num_bytes} bytes"
                    )
                self._hold(sender, 1, num_bytes)
        return Receiving(self, name, num_bytes)

    def keep(self, name: str, fresh: Path, num_bytes: int) -> None:
        """A file has come whole; one of its name is replaced."""
        path = self._folder / name
        with self._lock:
            make_folder(path.parent)
            self._forget(name)
            os.replace(fresh, path)
            self._files[name] = _File(sender_of(name), num_bytes, self._clock())
            self._counts["left"] += 1

    def give_up(self, name: str, num_bytes: int) -> None:
        """A file did not come whole."""
        if name.startswith(MAIL):
            with self._lock:
                self._hold(sender_of(name), -1, -num_bytes)

    def path(self, name: str) -> Path | None:
        """Where a file lies; None if it does not."""
        with self._lock:
            self._expire()
            if name not in self._files:
                return None
            self._counts["taken"] += 1
            return self._folder / name

    def names(self, folder: str, party: str) -> list[str]:
        """Names in a mailbox: all for its owner, their own for others."""
        with self._lock:
            self._expire()
            found = [
                (name.removeprefix(folder), file.sender)
                for name, file in self._files.items()
                if name.startswith(folder)
            ]
        is_owner = folder == f"{MAIL}{party}/"
        return sorted(name for name, sender in found if is_owner or sender == party)

    def remove(self, name: str) -> None:
        """Take a file away."""
        with self._lock:
            if self._forget(name):
                self._counts["removed"] += 1
                self._unlink(name)

    def refused(self) -> None:
        """Something else was refused."""
        with self._lock:
            self._counts["refused"] += 1

    def fresh(self) -> tuple[Path, int]:
        """A file to write what comes to, and its descriptor."""
        path = self._folder / f".{secrets.token_hex(8)}.new"
        return path, open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def _forget(self, name: str) -> bool:
        file = self._files.pop(name, None)
        if file is not None and name.startswith(MAIL):
            self._hold(file.sender, -1, -file.num_bytes)
        return file is not None

    def _expire(self) -> None:
        least = self._clock() - self.bounds.age_s
        old = [
            name
            for name, file in self._files.items()
            if file.since < least and name.startswith(MAIL)
        ]
        for name in old:
            self._forget(name)
            self._counts["expired"] += 1
            self._unlink(name)

    def _unlink(self, name: str) -> None:
        """Remove a file, and its folder with the last one: any name may have had letters."""
        path = self._folder / name
        with suppress(FileNotFoundError):
            path.unlink()
        if name.startswith(MAIL):
            with suppress(OSError):
                path.parent.rmdir()

    def metrics(self) -> Iterator[Metric]:
        """Letters that lie here, and what became of others, for Prometheus."""
        with self._lock:
            held = {sender: each for sender, each in self._held.items() if each[0]}
            counts = dict(self._counts)
        files = {sender: each for sender, (each, _) in held.items()}
        sizes = {sender: each for sender, (_, each) in held.items()}
        yield gauge("dovetail_relay_letters", "Letters that were not taken.", "sender", files)
        yield gauge("dovetail_relay_bytes", "Their bytes.", "sender", sizes)
        yield counter("dovetail_relay_files", "Files by what became of them.", "event", counts)


class Receiving:
    """File that is being received; it is kept if it comes whole, else deleted."""

    def __init__(self, store: Store, name: str, num_bytes: int) -> None:
        self._store, self._name, self._num_bytes = store, name, num_bytes
        self._done = False
        self._written = 0

    def __enter__(self) -> Receiving:
        try:
            self._path, handle = self._store.fresh()
        except OSError:
            self._store.give_up(self._name, self._num_bytes)
            raise
        self._file = os.fdopen(handle, "wb")
        return self

    def write(self, data: bytes) -> None:
        """The next bytes.

        Raises:
            FullError: more than were announced.
        """
        self._written += len(data)
        if self._written > self._num_bytes:
            raise FullError(f"more than the {self._num_bytes} bytes that were announced")
        self._file.write(data)

    def done(self) -> bool:
        """Keep it, if it is whole."""
        if self._written != self._num_bytes:
            return False
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._store.keep(self._name, self._path, self._num_bytes)
        self._done = True
        return True

    def __exit__(self, *_: object) -> None:
        if not self._done:
            self._file.close()
            self._path.unlink(missing_ok=True)
            self._store.give_up(self._name, self._num_bytes)


def sender_of(name: str) -> str:
    """Party that left a file, by the file's name; only that party may."""
    if name.startswith(CARDS):
        return name.removeprefix(CARDS)
    named = read_name(name.rpartition("/")[2])
    return "" if named is None else named.sender
