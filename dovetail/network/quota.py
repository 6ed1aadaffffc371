"""Counts of what a party's site has answered, in one file that no message reaches: ``site.sqlite``.

    alignments      when which driver aligned, with how many ids   alignment/limits.py
    starts          when a run began                               node/limits.py
    answers         of a kind that a run needs few of
    uses            samples of each answer, or how often each      (``counts``: of all before)
    releases        of one sample with noise, at most
    numbers, given  of each row, and which: APFed-S                methods/apfed/numbers.py
    sums            rounds that a share was given of, and which    node/limits.py
    agreed          which runs began on a proposal                 node/agreements.py
    reserved        how to give back what is counted of answers that have not left

An answer is counted before it is computed: ``decide`` reads and writes in one transaction, so that
threads and processes that ask at once cannot have the last number twice. ``work`` gives back what
was counted of an answer that came to nothing; ``give_back_unfinished`` does when a party starts
that was killed in the middle of one.

What is written is in the file before the answer leaves: a party that is killed at any moment has
forgotten nothing of it. What must outlive the machine's fall, too, is written ``for_good``: it is
on the disk. Where the file can neither be read nor written, nothing is answered.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError
from dovetail.network.retry import open_private, patiently

#: The file, in a party's site folder.
FILE = "site.sqlite"

#: ``PRAGMA user_version`` of this schema.
_VERSION = 2

_RUN = "driver, run, algorithm"
_SCHEMA = (
    "TABLE alignments (driver, at, run, initiator, mode, num_ids, num_shared, unproven)",
    f"TABLE begins ({_RUN}, number, at, anew, letter, PRIMARY KEY (driver, number))",
    "TABLE answers (driver, run, message, times, letter, PRIMARY KEY (driver, run, message))",
    f"TABLE uses ({_RUN}, samples, counts)",
    f"INDEX uses_of_run ON uses ({_RUN})",
    f"TABLE releases ({_RUN}, times, PRIMARY KEY ({_RUN}))",
    "TABLE numbers (driver, id, times, PRIMARY KEY (driver, id))",
    "TABLE given (driver, number, PRIMARY KEY (driver, number))",
    "TABLE sums (driver, run, round, digest, PRIMARY KEY (driver, run, round))",
    "TABLE agreed (proposal, time, driver, run, variant, samples, salt)",
    "TABLE reserved (id INTEGER PRIMARY KEY, back)",
)

#: Pages of the log of writes after which it is merged into the file, which waits for the disk.
_MERGED_PAGES = 4000

#: Seconds to wait for another process that writes.
_WAIT_S = 10.0

#: A change: SQL, and what it is executed with, once each.
Change = tuple[str, Sequence[Sequence[Any]]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Count:
    """Counts that are written down of an answer.

    Attributes:
        changes: all of them are made, or none.
        back: what undoes them; none: they stay, whatever comes of the answer.
        survives: whether they are undone, too, where the process is killed meanwhile.
    """

    changes: Sequence[Change]
    back: Sequence[Change] = ()
    survives: bool = True


@dataclass
class _Work:
    """Answer that is being computed."""

    reserved: list[int] = field(default_factory=list)
    undo: list[Change] = field(default_factory=list)
    for_good: bool = False


class QuotaError(ConfigError):
    """Error: a question cannot be counted, so it is not answered."""


class Quota:
    """The counts of one site.

    Args:
        site_folder: the party's folder.

    Raises:
        ConfigError: the file cannot be read, or is of a newer version.
    """

    def __init__(self, site_folder: Path) -> None:
        self.path = site_folder / FILE
        self._lock = threading.RLock()
        self._work = threading.local()  # ``now``: the answer that this thread computes
        try:
            os.close(open_private(self.path, os.O_RDWR | os.O_CREAT))
            self._connection = sqlite3.connect(
                self.path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
            )
            weakref.finalize(self, self._connection.close)
            self._open()
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"{self.path} cannot be read ({error}), so nobody knows what was answered here; "
                "put it back, or count anew from the ledger: dovetail ledger "
                f"{site_folder} --rebuild"
            ) from None

    def _open(self) -> None:
        execute = self._connection.execute
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = NORMAL")
        execute(f"PRAGMA wal_autocheckpoint = {_MERGED_PAGES}")
        ((state,),) = execute("PRAGMA quick_check(1)")
        if state != "ok":
            raise sqlite3.DatabaseError(f"it is damaged: {' '.join(state.split())}")
        with self._connection:  # all of it or nothing
            execute("BEGIN IMMEDIATE")
            ((version,),) = execute("PRAGMA user_version")
            if version > _VERSION:
                raise ConfigError(f"{self.path} is of a newer version of Dovetail; use that one")
            if version < _VERSION:
                for each in _SCHEMA:
                    kind, what = each.split(" ", 1)
                    execute(f"CREATE {kind} IF NOT EXISTS {what}")
                execute(f"PRAGMA user_version = {_VERSION}")

    def count_later_as_now(self, now: float) -> int:
        """Runs and alignments whose time is later than now are of now; how many these were.

        A clock that went back starts no new day, and one that was ahead for a moment ends one.

        Raises:
            QuotaError: they can neither be read nor written.
        """
        later = 0
        for table in ("begins", "alignments"):
            ((num,),) = self.read(f"SELECT count(*) FROM {table} WHERE at > ?", now)
            if num:
                self.write(f"UPDATE {table} SET at = ? WHERE at > ?", now, now)
            later += num
        return later

    def read(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows that a query finds.

        Raises:
            QuotaError: the file cannot be read.
        """
        with self._lock:
            try:
                return self._connection.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise self._unusable("read", error) from None

    def write(self, sql: str, *values: Any, for_good: bool = False) -> None:
        """Change one row; see ``write_all``."""
        self.write_all((sql, [values]), for_good=for_good)

    def write_all(self, *changes: Change, for_good: bool = False) -> None:
        """All of these changes, or none; see ``decide``."""
        self.decide(lambda: Count(changes), for_good=for_good)

    def decide(self, decision: Callable[[], Count], *, for_good: bool = False) -> int | None:
        """Write what a decision on the read counts says, with nobody between.

        Gives the number of what ``give_back`` undoes, within ``work``.

        Args:
            decision: reads, and gives what is written, or raises: then nothing is.
            for_good: it is on the disk when this returns, not in the system's memory alone.

        Raises:
            QuotaError: the file cannot be written, so what was asked must not be answered.
        """
        with self._lock:
            try:
                return patiently(partial(self._decide, decision, for_good))
            except OSError as error:
                raise self._unusable("write", error) from None

    @contextmanager
    def work(self) -> Iterator[None]:
        """Context whose counts of this thread are given back if an error ends it."""
        outer, work = getattr(self._work, "now", None), _Work()
        self._work.now = work
        try:
            yield
        except BaseException:
            with suppress(QuotaError):  # it stays counted until the party starts again
                self.give_back(work.reserved)
                if work.undo:
                    self.write_all(*reversed(work.undo))
            raise
        else:
            self._settle(work.reserved, for_good=work.for_good)
        finally:
            self._work.now = outer

    def give_back(self, reserved: Sequence[int]) -> None:
        """Undo what was counted of answers that do not leave, the last first."""
        work: _Work | None = getattr(self._work, "now", None)
        for number in sorted(reserved, reverse=True):
            for (back,) in self.read("SELECT back FROM reserved WHERE id = ?", number):
                changes = [(sql, rows) for sql, rows in json.loads(back)]
                self.write_all(*changes, ("DELETE FROM reserved WHERE id = ?", [(number,)]))
            if work is not None and number in work.reserved:
                work.reserved.remove(number)

    def give_back_unfinished(self) -> None:
        """Undo what a process counted that was killed before its answer left.

        Nobody else may answer from this site meanwhile.
        """
        self.give_back([number for (number,) in self.read("SELECT id FROM reserved")])

    def _settle(self, reserved: Sequence[int], *, for_good: bool) -> None:
        """From here on it is counted for ever: the answer leaves."""
        if reserved:
            rows = [(number,) for number in reserved]
            self.write_all(("DELETE FROM reserved WHERE id = ?", rows), for_good=for_good)

    def _decide(self, decision: Callable[[], Count], for_good: bool) -> int | None:
        execute, work = self._connection.execute, getattr(self._work, "now", None)
        number = None
        try:
            if for_good:
                execute("PRAGMA synchronous = FULL")
            with self._connection:
                execute("BEGIN IMMEDIATE")
                count = decision()
                for sql, rows in count.changes:
                    self._connection.executemany(sql, rows)
                if work is not None and count.back and count.survives:
                    back = json.dumps(count.back)
                    number = execute("INSERT INTO reserved (back) VALUES (?)", [back]).lastrowid
        except sqlite3.Error as error:
            is_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            raise OSError(errno.ENOSPC if is_full else errno.EIO, str(error)) from None
        finally:
            if for_good:
                with suppress(sqlite3.Error):
                    execute("PRAGMA synchronous = NORMAL")
        if work is not None and not count.survives:
            work.undo.extend(count.back)
        if work is not None and number is not None:
            work.reserved.append(number)
            work.for_good |= for_good
        return number

    def _unusable(self, what: str, error: Exception) -> QuotaError:
        _log.error("what is answered cannot be counted: %s: %s", self.path, error)
        return QuotaError(
            f"it cannot {what} {FILE} in its site, where what it answers is counted, and answers "
            "nothing that is not counted; its owner may look for the cause in join.log there"
        )
