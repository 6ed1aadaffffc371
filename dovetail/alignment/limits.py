"""How often, and with how many ids, a driver may compare: counted in the party's site (``Quota``).

Of each driver, the alignments that began in the last 24 hours are kept, and its last. An alignment
is on the disk before its first answer leaves: a party that is killed and started again has
forgotten none.

**What no limit can prevent.** Who may align may ask about ids that it guesses, and learns which of
them are there; the limits bound how many a day. A point reveals nothing of its id, by design:
random points cannot be told from ids, so that a small set can be padded to any size, nor a guessed
id from a customer's. Whom a party aligns with is a matter of trust (policy.drivers).

**Two sets that differ little** reveal whether the ids in which they differ are shared, even
where only sizes are found out. Points have a fresh secret each time, so sets cannot be compared.
What is seen are sizes: where a set, or the part of it that is shared, has 1 to ``NEAR`` more or
fewer ids than one of the same driver before, the party is warned, in its terminal and log. Who
exchanges one id for another in counting is not noticed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from dovetail.errors import AlignmentError
from dovetail.network.quota import Count, Quota

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


_ALIKE = "FROM alignments WHERE driver = ? AND initiator = ? AND mode = ?"
_LAST = "FROM alignments WHERE driver = ? AND run = ? ORDER BY rowid DESC LIMIT 1"
_NEWEST = "SELECT max(rowid) FROM alignments"
_MINE = "driver = ? AND run = ? AND at = ?"
_DROP = "DELETE FROM alignments WHERE driver = ? AND at <= ? AND rowid <"


@dataclass(frozen=True)
class Alignments:
    """Counts what drivers ask for, and refuses what is too much with ``AlignmentError``.

    Attributes:
        quota: of the party's site.
        max_alignments: of a driver, in 24 hours.
        max_ids: that a driver may compare in 24 hours, in all its alignments together.
        print_line: shows a line to whoever watches.
        together: both are of all drivers together.
        now: seconds since 1970.
        driver: who asks, as the network has verified it.
        run: the id of its alignment.
        watched: warns of sets that differ little. Predictions ask for other rows each time, and
            learn of each which are there; none of them counts, so counts are watched.
    """

    quota: Quota
    max_alignments: int
    max_ids: int
    print_line: Callable[[str], None]
    together: bool = False
    now: Callable[[], float] = time.time
    driver: str = ""
    run: str = ""
    watched: bool = True

    def of(self, driver: str, run: str, *, watched: bool = True) -> Alignments:
        """Those of one driver's run."""
        return replace(self, driver=driver, run=run, watched=watched)

    def begins(self, initiator: str, mode: str, num_ids: int) -> None:
        """Count an alignment that is refused for no other reason, before it is answered."""
        driver, now, which = self.driver, self.now(), (initiator[:200], mode)
        before: list[tuple[int]] = []

        def decide() -> Count:
            self._check(num_ids, now - DAY_S)
            before[:] = self.quota.read(f"SELECT num_ids {_ALIKE}", driver, *which)
            row, mine = (driver, now, self.run, *which, num_ids), (driver, self.run, now)
            return Count(
                [
                    (f"{_DROP} ({_NEWEST} WHERE driver = ?)", [(driver, now - DAY_S, driver)]),
                    ("INSERT INTO alignments VALUES (?, ?, ?, ?, ?, ?, NULL, 0)", [row]),
                ],
                [(f"DELETE FROM alignments WHERE rowid = ({_NEWEST} WHERE {_MINE})", [mine])],
            )

        self.quota.decide(decide, for_good=True)
        if self.watched or not mode.startswith("intersection"):
            self._warn_if_near("its set has", num_ids, before)

    def shares(self, num_shared: int) -> None:
        """It has ended with so many proven rows."""
        before = self._ended(num_shared)
        if self.watched:
            self._warn_if_near("it shares", num_shared, before)

    def unproven(self) -> None:
        """It has ended with claims that are not true."""
        self._ended(None)

    def _ended(self, num_shared: int | None) -> list[tuple[int]]:
        """Write it down; gives how many those before it shared. None: its claims are not true."""
        before: list[tuple[int]] = []

        def decide() -> Count:
            found = self.quota.read(f"SELECT rowid, initiator, mode {_LAST}", self.driver, self.run)
            if not found:
                return Count([])
            ((mine, *which),) = found
            sql = f"SELECT num_shared {_ALIKE} AND rowid != ? AND num_shared"
            before[:] = self.quota.read(sql, self.driver, *which, mine)
            sql = "UPDATE alignments SET num_shared = ?, unproven = ? WHERE rowid = ?"
            return Count([(sql, [(num_shared, num_shared is None, mine)])])

        self.quota.decide(decide, for_good=True)
        return before

    def _check(self, num_ids: int, since: float) -> None:
        driver = self.driver
        ((num, compared, is_unproven),) = self.quota.read(
            "SELECT count(*), ifnull(sum(num_ids), 0), ifnull(max(unproven AND driver = ?), 0) "
            "FROM alignments WHERE at > ? AND (driver = ? OR ?)",  # those of a later clock, too
            *(driver, since, driver, self.together),
        )
        who = repr(driver) + (", with all drivers together," if self.together else "")
        if is_unproven:
            raise AlignmentError(
                f"{driver!r} has claimed rows that it could not prove to share; this party aligns "
                "with it no more within 24 hours of that: ask its owner"
            )
        if num >= self.max_alignments:
            raise AlignmentError(
                f"{who} has aligned {num} times within 24 hours; this party's "
                f"policy.max_alignments allows {self.max_alignments}: wait, or ask it to allow "
                "more"
            )
        if num_ids + compared > self.max_ids:
            raise AlignmentError(
                f"{who} would have compared {num_ids + compared} ids within 24 hours; this party's "
                f"policy.max_ids allows {self.max_ids} together: wait, or ask it to allow more"
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
            self.print_line(line)
