"""What a party's runs are in between two letters: so that its process may end after each of them.

Over a network a party's process stays, and what it holds in memory is written when the driver says
``Save``. A party that joins by mailbox may be a job that runs at night: after each letter all that
its next answers depend on is written here, and the next process goes on from there, bit for bit.

    shop.site/checkpoints/DRIVER/RUN/ALGORITHM/parked-MARK.safetensors

MARK is that of the mailbox's journal; a file whose mark is not in the journal yet is of an answer
that has not left, and is not gone on from. Some of what a party may be in the middle of is written
nowhere: a key of one secret sum, codes whose gradient is due. While there is such a thing the
party is *busy*, and its process stays for the next letter. So it does in an alignment. If it is
told to end in the middle of one, the alignment is written until the next process has taken it up,
encrypted under a key of the site's secret:

    shop.site/mailbox/DRIVER.aligning
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from dovetail.errors import DovetailError
from dovetail.network.certificates import certificate_name
from dovetail.network.checkpoint import State, read_state, written_state
from dovetail.network.retry import write_private

_NAME = re.compile(r"parked-(\d+)\.safetensors")

_log = logging.getLogger(__name__)


class Parkable(Protocol):
    """The party of one run, as it is hosted."""

    driver: str
    touched: bool  # since it was parked last

    def unsaved(self) -> str:
        """What it is in the middle of and cannot be written; "" where nothing is."""

    def park(self, path: Path) -> None:
        """Write what it is in."""

    def alignment(self) -> State | None:
        """An alignment under way that can be kept; None: there is none."""

    @property
    def parks_in(self) -> Path | None:
        """The folder; None of a party that keeps nothing between messages."""


class Parked:
    """Writes what runs are in, and finds it again.

    Args:
        folder: where an alignment that is under way is written.
        key: gives the 32 bytes that it is encrypted under.
    """

    def __init__(self, folder: Path, key: Callable[[], bytes]) -> None:
        self._folder, self._key = folder, key
        self._runs: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._marks: dict[str, int] = {}
        self._open: WeakSet[Any] = WeakSet()

    def begin(self, marks: Mapping[str, int]) -> None:
        """Driver -> mark of the last answer in its journal, before anything is asked."""
        self._marks = dict(marks)

    def watch(self, party: Parkable, run: str) -> None:
        """From here on this party's states are written."""
        self._open.add(party)
        self._runs[party] = run

    def leave_alignments(self) -> bool:
        """Write alignments that are under way, as this process ends; whether there was one.

        Raises:
            OSError: one cannot be written.
        """
        left = False
        for each in self._open:
            state = each.alignment()
            if state is None:
                continue
            kept = {"run": self._runs[each], "mark": self._marks.get(each.driver, 0), "in": state}
            nonce = os.urandom(12)
            cipher = ChaCha20Poly1305(self._key())
            sealed = cipher.encrypt(nonce, written_state(kept), each.driver.encode())
            write_private(self._path(each.driver), nonce + sealed)
            left = True
        return left

    def take_up(self, driver: str, run: str, party: Any) -> None:
        """Have a party go on with an alignment that an earlier process has left."""
        path = self._path(driver)
        if not path.exists():
            return
        try:
            data, cipher = path.read_bytes(), ChaCha20Poly1305(self._key())
            kept = read_state(cipher.decrypt(data[:12], data[12:], driver.encode()))
            if (kept["run"], kept["mark"]) == (run, self._marks.get(driver, 0)):
                party.restore(kept["in"])
        except (DovetailError, InvalidTag, KeyError, ValueError) as error:
            _log.warning("%s: the alignment in it is not gone on with: %r", path, error)
        path.unlink(missing_ok=True)

    def _path(self, driver: str) -> Path:
        return self._folder / f"{certificate_name(driver)}.aligning"

    def newest(self, folder: Path, driver: str) -> Path | None:
        """The newest state of a run of a driver that its journal knows of."""
        for mark, path in _files(folder):
            if mark <= self._marks.get(driver, 0):
                return path
        return None

    def busy(self, driver: str) -> str:
        """What of this driver's runs cannot be written now."""
        return next(filter(None, (each.unsaved() for each in self._of(driver))), "")

    def park(self, driver: str, mark: int) -> None:
        """Write what has changed since the last call, as that of this mark.

        What cannot be written is told in the log, and this process must not end before its run.
        """
        committed, self._marks[driver] = self._marks.get(driver, 0), mark
        for each in self._of(driver):
            folder = each.parks_in
            if not each.touched or folder is None or each.unsaved():
                continue
            try:
                each.park(folder / f"parked-{mark}.safetensors")
            except (DovetailError, OSError) as error:
                _log.warning("what %s is in is not written, so do not end it: %s", folder, error)
                continue
            each.touched = False
            older = [path for number, path in _files(folder) if number <= committed]
            for path in older[1:]:
                path.unlink(missing_ok=True)

    def _of(self, driver: str) -> list[Any]:
        return [each for each in self._open if each.driver == driver]


def forget_parked(folder: Path) -> None:
    """The run goes on in a process that stays: what was parked is older from here on."""
    for _, path in _files(folder):
        path.unlink(missing_ok=True)


def _files(folder: Path) -> list[tuple[int, Path]]:
    """The newest first."""
    if not folder.is_dir():
        return []
    found = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted(((int(name[1]), path) for name, path in found if name), reverse=True)
