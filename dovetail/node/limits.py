"""Limits on what a driver may ask of a party over time, counted in its site and not forgotten
(``Quota``).

All is counted before the work that it asks for, and given back where that comes to nothing.

A run starts ``policy.max_begins`` times. A driver that fell before anything was saved may start it
again: its new process says ``Restore`` first, learns that there is nothing, and that counts as one
more run of the day. ``Restore`` in the middle of a run is refused: it would let a driver ask
another question of a network that it has asked already.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from dovetail.federated import MAX_USES
from dovetail.methods.base import Algorithm
from dovetail.methods.limits import LimitError, Limits, Uses, asked_for
from dovetail.methods.settings.party import PolicySection
from dovetail.network import Message
from dovetail.network.checkpoint import Restore, Restored, State
from dovetail.network.costs import releases_of
from dovetail.network.quota import Count, Quota

#: Seconds of the day that runs are counted over.
DAY_S = 24 * 3600.0

#: Bytes of samples after which how often each was asked about is written in their place.
_MOST_ASKED = 2**22

#: Runs that are kept in memory; the longest idle one is read again if it is asked.
_MOST_RUNS = 64

#: Driver, run and algorithm.
Key = tuple[str, str, str]

_OF_RUN = "WHERE driver = ? AND run = ? AND algorithm = ?"
_FEW = "INSERT INTO answers VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
_ANEW = f"SELECT anew FROM begins {_OF_RUN}"


@dataclass(eq=False)
class RunLimits:
    """Counts what drivers ask of one party.

    Attributes:
        quota: of the party's site.
        policy: what it agrees to.
        clock: seconds since the epoch.
        print_line: reports to whoever watches.
        letter: driver -> the letter that is being answered; "" where messages come on a line. One
            that was counted, and not answered as its process was killed, is not counted again.
    """

    quota: Quota
    policy: PolicySection
    clock: Callable[[], float] = time.time
    print_line: Callable[[str], None] = lambda line: None
    letter: Callable[[str], str] = lambda driver: ""
    _runs: OrderedDict[Key, Guard] = field(default_factory=OrderedDict)
    _beginning: dict[tuple[str, str], int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def restarted(self, driver: str) -> None:
        """The driver is another process than before, and may take up its runs."""
        with self._lock:
            for (name, *_), guard in self._runs.items():
                if name == driver:
                    guard.heard = False

    def of(self, driver: str, run: str, name: str, algorithm: Algorithm) -> Guard:
        """Guard that checks the messages of one run.

        Args:
            driver: who asks.
            run: its id.
            name: the part of its messages' wire names before the dot.
            algorithm: what they belong to.
        """
        key = (driver, run, name)
        with self._lock:
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

    def begin(self, key: Key, *, anew: bool) -> None:
        """Count a run that is about to begin.

        Raises:
            LimitError: it may not, naming the policy's key.
            QuotaError: it cannot be counted.
        """
        driver, run, _ = key

        def decide() -> Count:
            if self._has_begun_by_letter(key):
                return Count([])
            self._admit(key, anew=anew)
            number = self._last(driver)[0] + 1
            self._beginning[driver, run] = number
            row = (*key, number, self.clock(), anew, self.letter(driver))
            return Count(
                [("INSERT INTO begins VALUES (?, ?, ?, ?, ?, ?, ?)", [row])],
                [("DELETE FROM begins WHERE driver = ? AND number = ?", [(driver, number)])],
            )

        self.look_at_clock()
        self.quota.decide(decide)

    def _admit(self, key: Key, *, anew: bool) -> None:
        policy, (driver, run, _) = self.policy, key
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

    def look_at_clock(self) -> None:
        """Have what is later than now count as of now, and report it.

        Raises:
            QuotaError: it can neither be read nor written.
        """
        later = self.quota.count_later_as_now(self.clock())
        if later:
            self.print_line(
                f"the clock here went back: {later} runs and alignments that are later than now "
                "count as of now, for 24 hours; check the time of this machine"
            )

    def admit_day(self, driver: str, runs: int = 1) -> None:
        """Refuse to begin so many more runs in these 24 hours.

        Raises:
            LimitError: naming the policy's key.
        """
        policy, now = self.policy, self.clock()
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

    def begun(self, key: Key) -> None:
        """A run has started, and says which it is no more."""
        self._beginning.pop(key[:2], None)

    def _has_begun_by_letter(self, key: Key) -> bool:
        """Whether the letter that is being answered was counted by a process that was killed."""
        letter = self.letter(key[0])
        sql = f"SELECT 1 FROM begins {_OF_RUN} AND letter = ?"
        return bool(letter) and bool(self.quota.read(sql, *key, letter))

    def number(self, driver: str, run: str) -> int:
        """Which run of this driver's it is that starts now, or that will be next, from 1."""
        last, letter = self._last(driver)
        is_again = bool(letter) and letter == self.letter(driver)
        return self._beginning.get((driver, run), last + (not is_again))

    def _last(self, driver: str) -> tuple[int, str]:
        """Number and letter of the last run that began."""
        sql = "SELECT number, letter FROM begins WHERE driver = ? ORDER BY number DESC LIMIT 1"
        return next(iter(self.quota.read(sql, driver)), (0, ""))

    def answer_few(self, driver: str, run: str, message: str, most: int) -> int | None:
        """Count an answer of which a run needs few, whatever it went back to; its number.

        Raises:
            LimitError: it has had them all.
            QuotaError: it cannot be counted.
        """
        which, letter = (driver, run, message), self.letter(driver)

        def decide() -> Count:
            sql = "SELECT times, letter FROM answers WHERE driver = ? AND run = ? AND message = ?"
            answered, before = next(iter(self.quota.read(sql, *which)), (0, ""))
            if letter and letter == before:
                return Count([])
            if answered >= (most or self.policy.max_uses):
                raise LimitError(self._why_no_more(run, message, answered, most))
            return Count(
                [(f"{_FEW} times = times + 1, letter = excluded.letter", [(*which, 1, letter)])],
                [(f"{_FEW} times = times - 1, letter = excluded.letter", [(*which, 0, before)])],
            )

        return self.quota.decide(decide)

    def _why_no_more(self, run: str, message: str, answered: int, most: int) -> str:
        start = f"refuses {message!r} in the run {run!r}: it has answered {answered:,} times, and "
        if most == MAX_USES:
            return f"{start}its policy.max_uses is {self.policy.max_uses:,}"
        return (
            f"{start}a run that keeps the rules asks {most} times at most, however often it is "
            "resumed"
        )

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
        count = Count(
            [("INSERT INTO uses VALUES (?, ?, ?, ?, NULL)", [(*key, written)])],
            [(f"DELETE FROM uses WHERE rowid = (SELECT max(rowid) FROM uses {_OF_RUN})", [key])],
            survives=False,  # of many a second; a run goes on from its last state in any case
        )
        self.quota.decide(lambda: count)
        return len(written)

    def anew(self, key: Key) -> None:
        """The run has started with other networks, which nobody was asked about."""
        self.quota.write(f"DELETE FROM uses {_OF_RUN}", *key)

    def shorten(self, key: Key) -> None:
        """How often each was asked about, instead of who was in each answer."""
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
        self._lock = threading.Lock()  # messages of a run come one after the other

    def answer(self, message: Message, handle: Callable[[Message], Message]) -> Message:
        """The answer, if the limits allow it.

        Raises:
            LimitError: they do not.
            QuotaError: it cannot be counted.
        """
        with self._lock, self._limits.quota.work():
            return self._answer(message, handle)

    def _answer(self, message: Message, handle: Callable[[Message], Message]) -> Message:
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
                "does so first of all: start it again with --resume"
            )
        one_of_few: int | None = None
        with ExitStack() as counted:
            if begins:
                limits.begin(self._key, anew=self._forgotten)
                counted.callback(limits.begun, self._key)
            if few is not None:
                one_of_few = limits.answer_few(driver, run, name, few)
            if asked is not None and uses is not None:
                counted.enter_context(uses.counted(asked))
                self._asked_bytes += limits.asked(self._key, asked.different)
            answer = handle(message)
        self.heard = True
        if begins and self._forgotten and uses is not None:
            uses.forget()
            limits.anew(self._key)
            if asked is not None:
                limits.asked(self._key, uses.count(asked))
        if begins:
            self._forgotten = False
        releases = releases_of(answer)
        if releases > self._releases:
            self._releases = releases
            limits.released(self._key, releases)
        if one_of_few is not None and getattr(answer, "num_rows", None) == 0:
            limits.quota.give_back([one_of_few])
        if self._asked_bytes > _MOST_ASKED:
            limits.shorten(self._key)
            self._asked_bytes = 0
        if isinstance(answer, Restored) and answer.done == 0:
            self._forgotten = True
        return answer if uses is None else uses.limits.write_into(answer)

    def park(self) -> State:
        """State to keep if this process may end now."""
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

    def only(self, number: int, digest: str) -> str:
        """The sum that this round's share is of: this one, written down now, or another before.

        Raises:
            QuotaError: it cannot be written, and the share must not leave.
        """
        which = (self.driver, self.run, number)
        sql = "FROM sums WHERE driver = ? AND run = ? AND round = ?"
        chosen = [digest]

        def decide() -> Count:
            found = self.quota.read(f"SELECT digest {sql}", *which)
            chosen[:] = [str(each) for (each,) in found] or [digest]
            if found:
                return Count([])
            row = (*which, digest)
            return Count(
                [("INSERT INTO sums VALUES (?, ?, ?, ?)", [row])], [(f"DELETE {sql}", [which])]
            )

        self.quota.decide(decide, for_good=True)
        return chosen[0]
