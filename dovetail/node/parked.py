"""What a party's runs are in between two letters: so that its process may end after each of them.

Over a network a party's process stays, and what it holds in memory is written when the driver says
``Save``. A party that joins by mailbox may be a job that runs at night: after each letter all that
its next answers depend on is written here, and the next process goes on from there, bit for bit.

    shop.site/checkpoints/DRIVER/RUN/ALGORITHM/parked-MARK.safetensors

MARK is that of the mailbox's journal; a file whose mark is not in the journal yet is of an answer
that has not left, and is not gone on from. Some of what a party may be in the middle of is written
nowhere: an alignment's secret, a key of one secret sum, codes whose gradient is due. While there is
such a thing the party is *busy*, and its process stays for the next letter.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet

from dovetail.errors import DovetailError

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

    @property
    def parks_in(self) -> Path | None:
        """The folder; None of a party that keeps nothing between messages."""


class Parked:
    """Writes what runs are in, and finds it again."""

    def __init__(self) -> None:
        self._marks: dict[str, int] = {}
        self._letters: dict[str, str] = {}
        self._open: WeakSet[Any] = WeakSet()

    def begin(self, marks: Mapping[str, int]) -> None:
        """Driver -> mark of the last answer in its journal, before anything is asked."""
        self._marks = dict(marks)

    def take(self, driver: str, letter: str) -> None:
        """This letter of a driver's is about to be answered."""
        self._letters[driver] = letter

    def letter(self, driver: str) -> str:
        """The one that is being answered; a process that was killed may have begun to."""
        return self._letters.get(driver, "")

    def watch(self, party: Parkable) -> None:
        """From here on this party's states are written."""
        self._open.add(party)

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
