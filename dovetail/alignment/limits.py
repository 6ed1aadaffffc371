"""How often, and with how many ids, a driver may compare: counted in the party's site (``Quota``).

Of each driver, the alignments that began in the last 24 hours are kept, and its last. An alignment
is on the disk before its first answer leaves: a party that is killed and started anew has forgotten
none.

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

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dovetail.errors import AlignmentError
from dovetail.network.quota import Quota

#: Seconds that an alignment counts for.
DAY_S = 24 * 3600.0

#: Sets whose sizes differ by so many at most are told of.
NEAR = 5

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


_ALIKE = "FROM alignments WHERE driver = ? AND initiator = ? AND mode = ?"
_LAST = "FROM alignments WHERE driver = ? AND run = ? ORDER BY rowid DESC LIMIT 1"
_DROP = "DELETE FROM alignments WHERE driver = ? AND at <= ? AND rowid <"


@dataclass(frozen=True)
class Limits:
    """Counts what drivers ask for, and refuses what is too much.

    Attributes:
        quota: of the party's site.
        max_alignments: of a driver, in 24 hours.
        max_ids: that a driver may compare in 24 hours, in all its alignments together.
        print_line: shows a line to whoever watches.
        together: both are of all drivers together.
        now: seconds since 1970.
    """

    quota: Quota
    max_alignments: int
    max_ids: int
    print_line: Callable[[str], None]
    together: bool = False
    now: Callable[[], float] = time.time

    def of(self, driver: str, run: str, *, watched: bool = True) -> Guard:
        """The guard of one run.

        Args:
            driver: who asks, as the network has verified it.
            run: the id.
            watched: tell of sets that differ little. Predictions ask for other rows each time, and
                are told of each which are there; none of them counts, so counts are watched.
        """
        return _Guard(self, driver, run, watched)


@dataclass(frozen=True)
class _Guard:
    """Of a driver's run."""

    limits: Limits
    driver: str
    run: str
    watched: bool

    def begins(self, initiator: str, mode: str, num_ids: int) -> None:
        quota, now, which = self.limits.quota, self.limits.now(), (initiator[:200], mode)
        with quota.lock:
            self._check(num_ids, now - DAY_S)
            before = quota.read(f"SELECT num_ids {_ALIKE}", self.driver, *which)
            row = (self.driver, now, self.run, *which, num_ids)
            old = (self.driver, now - DAY_S, self.driver)
            quota.write_all(
                (f"{_DROP} (SELECT max(rowid) FROM alignments WHERE driver = ?)", [old]),
                ("INSERT INTO alignments VALUES (?, ?, ?, ?, ?, ?, NULL, 0)", [row]),
                for_good=True,
            )
        if self.watched or not mode.startswith("intersection"):
            self._warn_if_near("its set has", num_ids, before)

    def shares(self, num_shared: int) -> None:
        before = self._ended(num_shared)
        if self.watched:
            self._warn_if_near("it shares", num_shared, before)

    def unproven(self) -> None:
        self._ended(None)

    def _ended(self, num_shared: int | None) -> list[tuple[int]]:
        """Write it down; gives how many those before it shared. None: its claims are not true."""
        quota = self.limits.quota
        with quota.lock:
            found = quota.read(f"SELECT rowid, initiator, mode {_LAST}", self.driver, self.run)
            if not found:
                return []
            ((mine, *which),) = found
            quota.write(
                "UPDATE alignments SET num_shared = ?, unproven = ? WHERE rowid = ?",
                *(num_shared, num_shared is None, mine),
                for_good=True,
            )
            sql = f"SELECT num_shared {_ALIKE} AND rowid != ? AND num_shared"
            return quota.read(sql, self.driver, *which, mine)

    def _check(self, num_ids: int, since: float) -> None:
        limits, driver = self.limits, self.driver
        ((num, compared, is_unproven),) = limits.quota.read(
            "SELECT count(*), ifnull(sum(num_ids), 0), ifnull(max(unproven AND driver = ?), 0) "
            "FROM alignments WHERE at > ? AND (driver = ? OR ?)",  # those of a later clock, too
            *(driver, since, driver, limits.together),
        )
        who = repr(driver) + (", with all drivers together," if limits.together else "")
        if is_unproven:
            raise AlignmentError(
                f"{driver!r} has claimed rows that it could not prove to share; this party aligns "
                "with it no more within 24 hours of that"
            )
        if num >= limits.max_alignments:
            raise AlignmentError(
                f"{who} has aligned {num} times within 24 hours; this party's "
                f"policy.max_alignments allows {limits.max_alignments}: wait, or ask it to allow "
                "more"
            )
        if num_ids + compared > limits.max_ids:
            raise AlignmentError(
                f"{who} would have compared {num_ids + compared} ids within 24 hours; this party's "
                f"policy.max_ids allows {limits.max_ids} together: wait, or ask it to allow more"
            )

    def _warn_if_near(self, what: str, num: int, before: list[tuple[int]]) -> None:
        near = [each for (each,) in before if 0 < abs(each - num) <= NEAR]
        if near:
            line = (
                f"{self.driver!r} aligns again, and {what} {num:,} ids where one of its alignments "
                f"before had {near[-1]:,}: two sets that differ in a few ids tell about these few; "
                "ask what for, if it goes on"
            )
            _log.warning("%s", line)
            self.limits.print_line(line)
