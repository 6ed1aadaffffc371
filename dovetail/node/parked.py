"""State of a party's runs between two letters: so that its process may end after each of them.

Over a network a party's process stays, and what it holds in memory is written when the driver says
``Save``. A party that joins by mailbox may be a job that runs at night: after each letter all that
its next answers depend on is written here, and the next process goes on from there, bit for bit.

    shop.site/checkpoints/DRIVER/RUN/ALGORITHM/parked-MARK.safetensors

MARK is that of the mailbox's journal; a file whose mark is not in the journal yet is of an answer
that has not left, and is not gone on from. Some of what a party may be in the middle of is written
nowhere: a key of one secret sum, codes whose gradient is due. While there is such a thing the
party is *busy*, and its process stays for the next letter. So it does in an alignment, which is
written after each letter, too, if it is not large, and when the process is asked to end: encrypted
under a key of the site's secret, until the alignment is over.

    shop.site/mailbox/DRIVER.aligning-MARK
"""

from __future__ import annotations

import logging
import math
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

#: A longer state of an alignment, of more than about 150,000 ids, is not written at each letter.
_MOST_BYTES = 1 << 24

_log = logging.getLogger(__name__)


class Parkable(Protocol):
    """The party of one run, as it is hosted."""

    driver: str
    touched: bool  # since it was parked last

    def unsaved(self) -> str:
        """Description of what it is in the middle of and cannot be written; "" for nothing."""

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
        self._large: WeakSet[Any] = WeakSet()  # whose alignment is

    def begin(self, marks: Mapping[str, int]) -> None:
        """Driver -> mark of the last answer in its journal, before anything is asked."""
        self._marks = dict(marks)
        for driver, mark in marks.items():
            self._forget(driver, mark)

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
        for driver, mark in self._marks.items():
            if not self._aligning(driver, mark).exists() and not self._align(driver, mark):
                self._forget(driver)
                continue
            self._forget(driver, mark)
            left = True
        return left

    def _align(self, driver: str, mark: int, most: float = math.inf) -> bool:
        """Write a driver's alignment as that of this mark, if one of so many bytes is under way."""
        # First what was asked last: another may be of a driver's process that is gone.
        for each in sorted(self._of(driver), key=lambda each: not each.touched):
            if each in self._large and most < math.inf:
                continue
            state = each.alignment()
            if state is None:
                continue
            each.touched = False
            data = written_state({"run": self._runs[each], "in": state})
            if len(data) > most:
                self._large.add(each)
            else:
                nonce = os.urandom(12)
                sealed = ChaCha20Poly1305(self._key()).encrypt(nonce, data, driver.encode())
                write_private(self._aligning(driver, mark), nonce + sealed)
                return True
        return False

    def take_up(self, driver: str, run: str, party: Any) -> None:
        """Have a party go on with an alignment that an earlier process was in."""
        path = self._aligning(driver, self._marks.get(driver, 0))
        if not path.exists():
            return
        try:
            data, cipher = path.read_bytes(), ChaCha20Poly1305(self._key())
            kept = read_state(cipher.decrypt(data[:12], data[12:], driver.encode()))
            if kept["run"] == run:
                party.restore(kept["in"])
        except (DovetailError, InvalidTag, KeyError, ValueError) as error:
            _log.warning("%s: the alignment in it is not gone on with: %r", path, error)

    def _aligning(self, driver: str, mark: int) -> Path:
        return self._folder / f"{certificate_name(driver)}.aligning-{mark}"

    def _forget(self, driver: str, but: int = -1) -> None:
        """Alignments of other marks: older, or of an answer that has not left."""
        kept = self._aligning(driver, but)
        for path in self._folder.glob("*.aligning-*"):
            if path.stem == kept.stem and path != kept:
                path.unlink(missing_ok=True)

    def newest(self, folder: Path, driver: str) -> Path | None:
        """The newest state of a run of a driver that its journal knows of."""
        for mark, path in _files(folder):
            if mark <= self._marks.get(driver, 0):
                return path
        return None

    def busy(self, driver: str) -> str:
        """Description of this driver's runs that cannot be written now."""
        return next(filter(None, (each.unsaved() for each in self._of(driver))), "")

    def park(self, driver: str, mark: int) -> None:
        """Write what has changed since the last call, as that of this mark.

        What cannot be written is reported in the log, and this process must not end before its run.
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
        self._forget(driver, committed)
        try:
            self._align(driver, mark, _MOST_BYTES)
        except OSError as error:
            _log.warning(
                "the alignment with %s is not written, so do not end it: %s", driver, error
            )

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
