"""What a driver may ask of a party over time, counted in its site and not forgotten (``Quota``).

A run begins ``policy.max_begins`` times. A driver that fell before anything was saved may begin it
anew: its new process says ``Restore`` first, is told that there is nothing, and that counts as one
more run of the day. ``Restore`` in the middle of a run is refused: it would let a driver ask
another question of a network that it has asked already.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from dovetail.federated import MAX_USES
from dovetail.methods.limits import LimitError, Limits, Uses, asked_for
from dovetail.methods.party import Algorithm
from dovetail.methods.settings.party import PolicySection
from dovetail.network import Message
from dovetail.network.checkpoint import Restore, Restored, State
from dovetail.network.costs import releases_of
from dovetail.network.quota import Change, Quota

#: Seconds of the day that runs are counted over.
DAY_S = 24 * 3600.0

#: Bytes of samples after which how often each was asked about is written in their place.
_MOST_ASKED = 2**22

#: Runs that are kept in memory; the longest idle one is read again if it is asked.
_MOST_RUNS = 64

#: Driver, run and algorithm.
Key = tuple[str, str, str]

_OF_RUN = "WHERE driver = ? AND run = ? AND algorithm = ?"
_ANEW = f"SELECT anew FROM begins {_OF_RUN}"


@dataclass(eq=False)
class RunLimits:
    """Counts what drivers ask of one party.

    Attributes:
        quota: of the party's site.
        policy: what it agrees to.
        clock: seconds since the epoch.
        print_line: tells whoever watches.
        letter: driver -> the letter that is being answered; "" where messages come on a line. One
            that was counted, and not answered as its process was killed, is not counted again.
    """

    quota: Quota
    policy: PolicySection
    clock: Callable[[], float] = time.time
    print_line: Callable[[str], None] = lambda line: None
    letter: Callable[[str], str] = lambda driver: ""
    _runs: OrderedDict[Key, Guard] = field(default_factory=OrderedDict)

    def restarted(self, driver: str) -> None:
        """The driver is another process than before, and may take up its runs."""
        for (name, *_), guard in self._runs.items():
            if name == driver:
                guard.heard = False

    def of(self, driver: str, run: str, name: str, algorithm: Algorithm) -> Guard:
        """What checks the messages of one run.

        Args:
            driver: who asks.
            run: its id.
            name: the part of its messages' wire names before the dot.
            algorithm: what they belong to.
        """
        key = (driver, run, name)
        guard = self._runs.get(key) or Guard(self, key, algorithm)
        self._runs[key] = guard
        self._runs.move_to_end(key)
        while len(self._runs) > _MOST_RUNS:
            self._runs.popitem(last=False)
        return guard

    def forget(self, driver: str, saved: Collection[str]) -> None:
        """Drop uses and releases of runs that nothing can go on: no state is saved, none open."""
        kept = {*saved, *(run for name, run, _ in self._runs if name == driver)}
        found = self.quota.read(
            "SELECT run FROM uses WHERE driver = ? UNION SELECT run FROM releases WHERE driver = ?",
            *(driver, driver),
        )
        runs = [(driver, run) for (run,) in found if run not in kept]
        if runs:
            gone = "WHERE driver = ? AND run = ?"
            self.quota.write_all(
                (f"DELETE FROM uses {gone}", runs), (f"DELETE FROM releases {gone}", runs)
            )

    def admit_begin(self, key: Key, *, anew: bool) -> None:
        """Refuse to begin.

        Raises:
            LimitError: naming the policy's key.
        """
        policy, (driver, run, _) = self.policy, key
        if self._has_begun_by_letter(key):
            return
        begins = 0
        for (was_anew,) in self.quota.read(f"{_ANEW} ORDER BY number", *key):
            begins = 1 if was_anew else begins + 1
        if begins >= policy.max_begins and not anew:
            raise LimitError(
                f"refuses to begin the run {run!r} again: it has begun {begins} times, and "
                f"its policy.max_begins is {policy.max_begins}; a driver that fell goes on with "
                "--resume"
            )
        self.admit_day(driver)

    def admit_day(self, driver: str, runs: int = 1) -> None:
        """Refuse to begin so many more runs in these 24 hours.

        Raises:
            LimitError: naming the policy's key.
        """
        policy, now = self.policy, self.clock()
        later = self.quota.count_later_as_now(now)
        if later:
            self.print_line(
                f"the clock here went back: {later} runs and alignments that are later than now "
                "count as of now, for 24 hours; check the time of this machine"
            )
        ((today,),) = self.quota.read(
            "SELECT count(*) FROM begins WHERE at > ? AND (driver = ? OR ?)",
            *(now - DAY_S, driver, policy.together),
        )
        if today + runs > policy.max_runs_per_day:
            who = repr(driver) + (", with all drivers together," if policy.together else "")
            raise LimitError(
                f"refuses a new run: {who} has begun {today} in 24 hours, and its "
                f"policy.max_runs_per_day is {policy.max_runs_per_day}; wait, or ask its owner to "
                "raise it"
            )

    def begun(self, key: Key, *, anew: bool) -> None:
        """Write down that a run has begun.

        Raises:
            QuotaError: it cannot be, so the answer is not given.
        """
        driver = key[0]
        if self._has_begun_by_letter(key):
            return
        number = self._last(driver)[0] + 1
        row = (*key, number, self.clock(), anew, self.letter(driver))
        changes: list[Change] = [("INSERT INTO begins VALUES (?, ?, ?, ?, ?, ?, ?)", [row])]
        if anew:  # with other networks
            changes.append((f"DELETE FROM uses {_OF_RUN}", [key]))
        self.quota.write_all(*changes)

    def _has_begun_by_letter(self, key: Key) -> bool:
        """Whether the letter that is being answered was counted by a process that was killed."""
        letter = self.letter(key[0])
        sql = f"SELECT 1 FROM begins {_OF_RUN} AND letter = ?"
        return bool(letter) and bool(self.quota.read(sql, *key, letter))

    def number(self, driver: str) -> int:
        """Which run of this driver's the next that begins will be, from 1."""
        last, letter = self._last(driver)
        is_again = bool(letter) and letter == self.letter(driver)
        return last + (not is_again)

    def _last(self, driver: str) -> tuple[int, str]:
        """Number and letter of the last run that began."""
        sql = "SELECT number, letter FROM begins WHERE driver = ? ORDER BY number DESC LIMIT 1"
        return next(iter(self.quota.read(sql, driver)), (0, ""))

    def admit_few(self, driver: str, run: str, message: str, most: int) -> None:
        """Refuse what a run has been answered as often as it needs, whatever it went back to.

        Raises:
            LimitError: saying how often.
        """
        answered, letter = self._answered(driver, run, message)
        is_again = bool(letter) and letter == self.letter(driver)
        if is_again or answered < (most or self.policy.max_uses):
            return
        start = f"refuses {message!r} in the run {run!r}: it has answered {answered:,} times, and "
        if most == MAX_USES:
            raise LimitError(f"{start}its policy.max_uses is {self.policy.max_uses:,}")
        raise LimitError(
            f"{start}a run that keeps the rules asks {most} times at most, however often it is "
            "resumed"
        )

    def answered(self, driver: str, run: str, message: str) -> None:
        """Write down an answer of which a run needs few, before it leaves.

        Raises:
            QuotaError: it cannot be, so the answer is not given.
        """
        letter = self.letter(driver)
        self.quota.write(
            "INSERT INTO answers VALUES (?, ?, ?, 1, ?) ON CONFLICT DO UPDATE SET "
            "times = times + (letter = '' OR letter != excluded.letter), letter = excluded.letter",
            *(driver, run, message, letter),
        )

    def _answered(self, driver: str, run: str, message: str) -> tuple[int, str]:
        sql = "SELECT times, letter FROM answers WHERE driver = ? AND run = ? AND message = ?"
        return next(iter(self.quota.read(sql, driver, run, message)), (0, ""))

    def releases(self, key: Key) -> int:
        """How often a sample was released in this run: a state of its may be older."""
        found = self.quota.read(f"SELECT times FROM releases {_OF_RUN}", *key)
        return int(found[0][0]) if found else 0

    def released(self, key: Key, times: int) -> None:
        """Write down how often one was.

        Raises:
            QuotaError: it cannot be, so the answer is not given.
        """
        self.quota.write("INSERT OR REPLACE INTO releases VALUES (?, ?, ?, ?)", *key, times)

    def used(self, key: Key) -> np.ndarray:
        """(S,) int32, how often each sample was asked about."""
        found = self.quota.read(f"SELECT samples, counts FROM uses {_OF_RUN}", *key)
        asked = b"".join(samples or b"" for samples, _ in found)
        used = [np.bincount(np.frombuffer(asked, dtype="<i4"))]
        used += [np.frombuffer(counts, dtype="<i4") for _, counts in found if counts]
        used_S = np.zeros(max(map(len, used)), dtype=np.int32)
        for each in used:
            used_S[: len(each)] += each.astype(np.int32)
        return used_S

    def asked(self, key: Key, samples: torch.Tensor) -> int:
        """Write down which samples an answer is about, before it leaves; gives their bytes.

        Raises:
            QuotaError: it cannot be, so the answer is not given.
        """
        written = samples.numpy().astype("<i4").tobytes()
        self.quota.write("INSERT INTO uses VALUES (?, ?, ?, ?, NULL)", *key, written)
        return len(written)

    def shorten(self, key: Key) -> None:
        """How often each was asked about, in the place of who was in each answer."""
        counts = self.used(key).astype("<i4").tobytes()
        self.quota.write_all(
            (f"DELETE FROM uses {_OF_RUN}", [key]),
            ("INSERT INTO uses VALUES (?, ?, ?, NULL, ?)", [(*key, counts)]),
        )


class Guard:
    """Checks and counts the messages of one run; see ``RunLimits.of``.

    Attributes:
        heard: whether the driver's process, as it is now, was answered.
    """

    def __init__(self, limits: RunLimits, key: Key, algorithm: Algorithm) -> None:
        self._limits = limits
        self._key = key
        self._algorithm = algorithm
        self._releases = limits.releases(key)  # of the sample that its driver was told most of
        self._asked_bytes = 0
        self._uses: Uses | None = None
        if algorithm.samples:
            self._uses = Uses(
                Limits.of(limits.policy), {"train": torch.from_numpy(limits.used(key))}
            )
        self._forgotten = False  # ``Restore`` has found nothing
        self.heard = False

    def answer(self, message: Message, handle: Callable[[Message], Message]) -> Message:
        """The answer, if the limits allow it.

        Raises:
            LimitError: they do not.
            QuotaError: it cannot be counted.
        """
        limits, uses = self._limits, self._uses
        driver, run, _ = self._key
        name = message.wire_name()
        asked = asked_for(message) if uses is not None else None
        if asked is not None:  # a site has one order, of rows that train and of others
            asked = replace(asked, order="train")
        begins, few = name in self._algorithm.begins, self._algorithm.few.get(name)
        if isinstance(message, Restore) and self.heard:
            raise LimitError(
                "refuses to go back to an earlier state in the middle of a run; a driver that fell "
                "does so when it resumes, first of all"
            )
        if begins:
            limits.admit_begin(self._key, anew=self._forgotten)
        if few is not None:
            limits.admit_few(driver, run, name, few)
        if asked is not None and uses is not None:
            uses.check(asked)
        answer = handle(message)
        self.heard = True
        if begins:
            limits.begun(self._key, anew=self._forgotten)
            if self._forgotten and uses is not None:
                uses.forget()
            self._forgotten = False
        releases = releases_of(answer)
        if releases > self._releases:
            self._releases = releases
            limits.released(self._key, releases)
        if few is not None and getattr(answer, "num_rows", None) != 0:
            limits.answered(driver, run, name)
        if asked is not None and uses is not None:
            self._asked_bytes += limits.asked(self._key, uses.count(asked))
            if self._asked_bytes > _MOST_ASKED:
                limits.shorten(self._key)
                self._asked_bytes = 0
        if isinstance(answer, Restored) and answer.done == 0:
            self._forgotten = True
        return answer if uses is None else uses.limits.write_into(answer)

    def park(self) -> State:
        """What is to be kept where this process may end now."""
        return {"heard": self._conversation() if self.heard else "", "forgotten": self._forgotten}

    def resume(self, state: State) -> None:
        """Go on where ``park`` was called."""
        self.heard = state["heard"] == self._conversation()  # else its driver is another process
        self._forgotten = bool(state["forgotten"])

    def _conversation(self) -> str:
        """Which of the driver's processes has written the letter that is being answered."""
        return self._limits.letter(self._key[0]).partition("/")[0]


@dataclass(frozen=True)
class GivenSums:
    """The rounds of a run in which a party gave its share, and to which sum; on its disk.

    Apart from the run's states, which a driver may have restored or dropped.
    """

    quota: Quota
    driver: str
    run: str

    def get(self, number: int) -> str | None:
        """The sum that a share was given of in this round."""
        sql = "SELECT digest FROM sums WHERE driver = ? AND run = ? AND round = ?"
        found = self.quota.read(sql, self.driver, self.run, number)
        return str(found[0][0]) if found else None

    def note(self, number: int, digest: str) -> None:
        """Write down that a share of this sum leaves.

        Raises:
            QuotaError: it cannot be written, and the share must not leave.
        """
        sql = "INSERT OR IGNORE INTO sums VALUES (?, ?, ?, ?)"
        self.quota.write(sql, self.driver, self.run, number, digest, for_good=True)
