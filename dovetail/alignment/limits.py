"""How often, and with how many ids, a driver may compare: counted in the party's site.

    alignments.json    of each driver, the alignments that began in the last 24 hours, and its last

An alignment is written down before it is answered, and the file is on the disk before the answer
leaves: a party that is killed and started anew has forgotten none. Where the file can neither be
read nor written, no alignment is answered.

**What no limit can prevent.** Who may align may ask about ids that it guesses, and learns which of
them are there; the limits bound how many a day. A point tells nothing of its id, by design:
random points cannot be told from ids, so that a small set can be padded to any size, nor a guessed
id from a customer's. Whom a party aligns with is a matter of trust (policy.drivers).

**Two sets that differ little** tell of the ids in which they differ whether they are shared, even
where only sizes are found out. Points have a fresh secret each time, so sets cannot be compared.
What is seen are sizes: where a set, or the part of it that is shared, has 1 to ``NEAR`` more or
fewer ids than one of the same driver before, the party is told, in its terminal and log. Who
exchanges one id for another in counting is not noticed.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from dovetail.errors import AlignmentError
from dovetail.network.retry import open_private

#: Seconds that an alignment counts for.
DAY_S = 24 * 3600.0

#: Sets whose sizes differ by so many at most are told of.
NEAR = 5

#: The most alignments that a party takes part in with a driver in a day.
MAX_ALIGNMENTS = 20

_log = logging.getLogger(__name__)


def default_max_ids(num_local: int) -> int:
    """How many ids a driver may compare in a day, unless the party says: five times its own and
    10,000.

    >>> default_max_ids(14_286)
    81430
    """
    return 5 * num_local + 10_000


class Guard(Protocol):
    """Told what one driver does; raises ``AlignmentError`` to refuse."""

    def begins(self, initiator: str, mode: str, num_ids: int) -> None:
        """An alignment is asked for that is refused for no other reason."""

    def shares(self, num_shared: int) -> None:
        """It has ended with so many proven rows."""

    def unproven(self) -> None:
        """It has ended with claims that are not true."""


class _Entry(BaseModel):
    """One alignment."""

    model_config = ConfigDict(extra="forbid")

    at: float  # seconds since 1970
    run: str
    initiator: str
    mode: str
    num_ids: int
    num_shared: int | None = None  # of an intersection that has ended
    unproven: bool = False


class _Counts(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    drivers: dict[str, list[_Entry]] = {}


class Limits:
    """Counts what drivers ask for, and refuses what is too much.

    Args:
        path: the file.
        max_alignments: of a driver, in 24 hours.
        max_ids: that a driver may compare in 24 hours, in all its alignments together.
        print_line: shows a line to whoever watches.
        together: both are of all drivers together.
        now: seconds since 1970.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_alignments: int,
        max_ids: int,
        print_line: Callable[[str], None],
        together: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._max_alignments = max_alignments
        self._max_ids = max_ids
        self._print = print_line
        self._together = together
        self._now = now
        self._lock = threading.Lock()

    def of(self, driver: str, run: str, *, watched: bool = True) -> Guard:
        """The guard of one run.

        Args:
            driver: who asks, as the network has verified it.
            run: the id.
            watched: tell of sets that differ little. Predictions ask for other rows each time, and
                are told of each which are there; none of them counts, so counts are watched.
        """
        return _OfDriver(self, driver, run, watched)

    def begins(self, driver: str, entry: _Entry, *, watched: bool) -> None:
        """Count an alignment.

        Raises:
            AlignmentError: one too many, or with too many ids, or it cannot be counted.
        """
        with self._lock:
            counts = self._read()
            entries = counts.drivers.setdefault(driver, [])
            since = self._now() - DAY_S
            today = [each for each in entries if each.at > since]  # those of a later clock, too
            counted = today
            if self._together:
                others = (
                    each for name, held in counts.drivers.items() if name != driver for each in held
                )
                counted = [*today, *(each for each in others if each.at > since)]
            self._check(driver, entry, today, counted)
            before = [each for each in entries if watched and _alike(each, entry)]
            counts.drivers[driver] = [*(today or entries[-1:]), entry]
            self._write(counts)
        self._warn_if_near(driver, "its set has", entry.num_ids, [each.num_ids for each in before])

    def ended(self, driver: str, run: str, *, num_shared: int | None, watched: bool) -> None:
        """Write down how the driver's last alignment ended; None: with claims that are not true."""
        with self._lock:
            counts = self._read()
            entries = counts.drivers.get(driver, [])
            mine = [each for each in entries if each.run == run][-1:]
            if not mine:
                return
            (entry,) = mine
            entry.num_shared, entry.unproven = num_shared, num_shared is None
            before = [
                each.num_shared
                for each in entries
                if watched and each is not entry and _alike(each, entry)
            ]
            self._write(counts)
        if num_shared is not None:
            self._warn_if_near(driver, "it shares", num_shared, [each for each in before if each])

    def _check(
        self, driver: str, entry: _Entry, today: list[_Entry], counted: list[_Entry]
    ) -> None:
        who = repr(driver) + (", with all drivers together," if self._together else "")
        if any(each.unproven for each in today):
            raise AlignmentError(
                f"{driver!r} has claimed rows that it could not prove to share; this party aligns "
                f"with it no more within 24 hours of that (its {self._path.name} has it)"
            )
        if len(counted) >= self._max_alignments:
            raise AlignmentError(
                f"{who} has aligned {len(counted)} times within 24 hours; this party's "
                f"policy.max_alignments allows {self._max_alignments}: wait, or ask it to allow "
                "more"
            )
        num_ids = entry.num_ids + sum(each.num_ids for each in counted)
        if num_ids > self._max_ids:
            raise AlignmentError(
                f"{who} would have compared {num_ids} ids within 24 hours; this party's "
                f"policy.max_ids allows {self._max_ids} together: wait, or ask it to allow more"
            )

    def _warn_if_near(self, driver: str, what: str, num: int, before: list[int]) -> None:
        near = [each for each in before if 0 < abs(each - num) <= NEAR]
        if near:
            line = (
                f"{driver!r} aligns again, and {what} {num:,} ids where one of its alignments "
                f"before had {near[-1]:,}: two sets that differ in a few ids tell about these few; "
                "ask what for, if it goes on"
            )
            _log.warning("%s", line)
            self._print(line)

    def _read(self) -> _Counts:
        try:
            return _Counts.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return _Counts()
        except (OSError, ValidationError) as error:
            _log.error("alignments cannot be counted: %s: %s", self._path, error)
            raise AlignmentError(
                f"it cannot read {self._path.name} in its site, where alignments are counted, and "
                "takes part in none that is not counted; its log has the details"
            ) from None

    def _write(self, counts: _Counts) -> None:
        fresh = self._path.with_name(f"{self._path.name}.new")
        try:
            handle = open_private(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(counts.model_dump(), file)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
        except OSError as error:
            _log.error("alignments cannot be counted: %s: %s", self._path, error)
            raise AlignmentError(
                f"it cannot write {self._path.name} in its site, where alignments are counted, and "
                "takes part in none that is not counted; its log has the details"
            ) from None


def _alike(one: _Entry, other: _Entry) -> bool:
    return (one.initiator, one.mode) == (other.initiator, other.mode)


class _OfDriver:
    """A driver's run."""

    def __init__(self, limits: Limits, driver: str, run: str, watched: bool) -> None:
        self._limits = limits
        self._driver = driver
        self._run = run
        self._watched = watched

    def begins(self, initiator: str, mode: str, num_ids: int) -> None:
        entry = _Entry(
            at=self._limits._now(),
            run=self._run,
            initiator=initiator[:200],
            mode=mode,
            num_ids=num_ids,
        )
        watched = self._watched or not mode.startswith("intersection")
        self._limits.begins(self._driver, entry, watched=watched)

    def shares(self, num_shared: int) -> None:
        self._limits.ended(self._driver, self._run, num_shared=num_shared, watched=self._watched)

    def unproven(self) -> None:
        self._limits.ended(self._driver, self._run, num_shared=None, watched=self._watched)
