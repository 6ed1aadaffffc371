"""What a driver may ask of a party over time, counted in the party's site and not forgotten.

    shop.site/runs.jsonl            a line for each time that a run began here, and for each answer
                                    of a kind that a run needs few of (``handles(most=...)``)
    shop.site/checkpoints/DRIVER/RUN/ALGORITHM.uses
                                    how often each sample was asked about in that run
    shop.site/checkpoints/DRIVER/RUN/ALGORITHM.asked
                                    the samples of each answer since that was written: a party that
                                    is killed forgets none
    shop.site/checkpoints/DRIVER/RUN/ALGORITHM.spent
                                    how often a sample was released with noise

A run begins ``policy.max_begins`` times. A driver that fell before anything was saved may begin it
anew: its new process says ``Restore`` first, is told that there is nothing, and that counts as one
more run of the day. ``Restore`` in the middle of a run is refused: it would let a driver ask
another question of a network that it has asked already.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dovetail.errors import CheckpointError, ConfigError
from dovetail.federated import MAX_USES
from dovetail.methods.limits import LimitError, Uses, asked_for
from dovetail.methods.party import Algorithm, PolicySection
from dovetail.network import Message
from dovetail.network.checkpoint import (
    Restore,
    Restored,
    Save,
    State,
    load_state,
    save_state,
)
from dovetail.network.costs import releases_of
from dovetail.network.retry import open_private, patiently, write_text

#: Seconds of the day that runs are counted over.
DAY_S = 24 * 3600.0

#: Lines that are read; of more, half as many of runs that began are kept, and answers added up.
_MOST_LINES = 100_000

#: Bytes of ``.asked`` after which the counts are written anew.
_MOST_ASKED = 2**22

#: Runs whose uses are kept in memory; the longest idle one's are written to its folder.
_MOST_RUNS = 64

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Run:
    """One run of one algorithm, as far as it was asked."""

    uses: Uses | None = None
    path: Path | None = None
    begins: int = 0  # since it was last forgotten
    number: int = 0  # which run of its driver's, from 1; 0: it has not begun
    heard: bool = False  # of the driver's process as it is now
    forgotten: bool = False  # ``Restore`` has found nothing
    spent: Path | None = None  # where ``releases`` is kept, beside the states that it is of
    releases: int = 0  # of the sample that its driver was told most of, with noise


@dataclass
class _Begins:
    """What is known of a driver from ``runs.jsonl``."""

    number: int = 0  # of its last run
    times: list[float] = field(default_factory=list)
    of: Counter[tuple[str, str]] = field(default_factory=Counter)
    few: Counter[tuple[str, str]] = field(default_factory=Counter)  # (run, message) -> answers
    # (run, algorithm or message) -> the letter of the last of these
    letters: dict[tuple[str, str], str] = field(default_factory=dict)


class RunLimits:
    """Counts what drivers ask of one party.

    Args:
        site_folder: the party's folder.
        policy: what it agrees to.
        clock: seconds since the epoch.
        letter: driver -> the letter that is being answered; "" where messages come on a line. One
            that was counted, and not answered as its process was killed, is not counted again.
    """

    def __init__(
        self,
        site_folder: Path,
        policy: PolicySection,
        *,
        clock: Callable[[], float] = time.time,
        letter: Callable[[str], str] = lambda driver: "",
    ) -> None:
        self._letter = letter
        self._path = site_folder / "runs.jsonl"
        self._policy = policy
        self._clock = clock
        self._drivers: dict[str, _Begins] = {}
        self._runs: OrderedDict[tuple[str, str, str], _Run] = OrderedDict()
        self._read()

    def _read(self) -> None:
        if not self._path.exists():
            return
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{self._path} cannot be read ({error}), so nobody knows how often runs began "
                "here; put it back, or delete it"
            ) from None
        for line in lines:
            try:
                written = json.loads(line)
                driver, number, began = (
                    written["driver"],
                    int(written["number"]),
                    float(written["time"]),
                )
                run = str(written["run"]), str(written["algorithm"])
                message = str(written.get("answered", ""))
                letter = str(written.get("letter", ""))
            except (ValueError, KeyError, TypeError):  # cut off as the machine went down
                continue
            known = self._drivers.setdefault(driver, _Begins())
            known.letters[run[0], message or run[1]] = letter
            if message:
                known.few[run[0], message] += int(written.get("count", 1))
                continue
            known.number = max(known.number, number)
            known.times.append(began)
            known.of[run] = 0 if written.get("anew") else known.of[run]
            known.of[run] += 1
        if len(lines) > _MOST_LINES:
            self._shorten(lines)

    def _shorten(self, lines: list[str]) -> None:
        """One line for all answers of a kind in a run: who asks on drives none out of the file."""
        kept = [line for line in lines if '"answered"' not in line][-_MOST_LINES // 2 :]
        for driver, known in self._drivers.items():
            for (run, message), count in known.few.items():
                line = {"time": 0.0, "driver": driver, "run": run, "algorithm": "", "number": 0}
                kept.append(json.dumps({**line, "answered": message, "count": count}) + "\n")
        write_text(self._path, "".join(kept))

    def restarted(self, driver: str) -> None:
        """The driver is another process than before, and may take up its runs."""
        for (name, _, _), run in self._runs.items():
            if name == driver:
                run.heard = False

    def of(
        self,
        driver: str,
        run: str,
        name: str,
        algorithm: Algorithm,
        *,
        folder: Path,
    ) -> Guard:
        """What checks the messages of one run.

        Args:
            driver: who asks.
            run: its id.
            name: the part of its messages' wire names before the dot.
            algorithm: what they belong to.
            folder: where the run's states are kept.
        """
        key = (driver, run, name)
        kept = self._runs.get(key)
        if kept is None:
            begun = self._drivers.setdefault(driver, _Begins())
            spent = folder / f"{name}.spent"
            kept = _Run(
                begins=begun.of[run, name],
                number=begun.number,
                spent=spent,
                releases=_releases(spent),
            )
            if algorithm.samples:
                kept.path = folder / f"{name}.uses"
                kept.uses = Uses(self._policy.limits, _used(kept.path))
        self._runs[key] = kept
        self._runs.move_to_end(key)
        while len(self._runs) > _MOST_RUNS:
            _, oldest = self._runs.popitem(last=False)
            _write(oldest)
        return Guard(self, driver, run, name, algorithm, kept)

    def _is_counted(self, driver: str, run: str, what: str) -> bool:
        """Whether the letter that is being answered was counted by a process that was killed."""
        letter = self._letter(driver)
        return bool(letter) and self._drivers[driver].letters.get((run, what)) == letter

    def admit_begin(self, driver: str, run: str, name: str, kept: _Run) -> None:
        """Refuse to begin.

        Raises:
            LimitError: naming the policy's key.
        """
        policy = self._policy
        if self._is_counted(driver, run, name):
            return
        if kept.begins >= policy.max_begins and not kept.forgotten:
            raise LimitError(
                f"refuses to begin the run {run!r} again: it has begun {kept.begins} times, and "
                f"its policy.max_begins is {policy.max_begins}; a driver that fell goes on with "
                "--resume"
            )
        now = self._clock()
        counted = list(self._drivers.values()) if policy.together else [self._drivers[driver]]
        who = repr(driver) + (", with all drivers together," if policy.together else "")
        today = sum(
            abs(now - each) < DAY_S
            for known in counted
            for each in known.times[-policy.max_runs_per_day :]
        )
        if today >= policy.max_runs_per_day:
            raise LimitError(
                f"refuses a new run: {who} has begun {today} in 24 hours, and its "
                f"policy.max_runs_per_day is {policy.max_runs_per_day}; wait, or ask its owner to "
                "raise it"
            )

    def begun(self, driver: str, run: str, name: str, kept: _Run) -> None:
        """Write down that a run has begun.

        Raises:
            LimitError: it cannot be, so the answer is not given.
        """
        known = self._drivers[driver]
        if self._is_counted(driver, run, name):
            kept.number, kept.forgotten = known.number, False
            return
        now = self._clock()
        self._note(driver, run, name, now, **({"anew": True} if kept.forgotten else {}))
        known.number += 1
        known.times.append(now)
        kept.begins = 1 if kept.forgotten else kept.begins + 1
        known.of[run, name] = kept.begins
        kept.number = known.number
        if kept.forgotten and kept.uses is not None:
            kept.uses.forget()
            _write(kept)
        kept.forgotten = False

    def releases(self, driver: str, run: str, name: str, *, folder: Path) -> int:
        """How often a sample was released in this run: a state of its may be older."""
        kept = self._runs.get((driver, run, name))
        return _releases(folder / f"{name}.spent") if kept is None else kept.releases

    def admit_few(self, driver: str, run: str, message: str, most: int) -> None:
        """Refuse what a run has been answered as often as it needs, whatever it went back to.

        Raises:
            LimitError: saying how often.
        """
        answered = self._drivers[driver].few[run, message]
        if self._is_counted(driver, run, message) or answered < (most or self._policy.max_uses):
            return
        start = f"refuses {message!r} in the run {run!r}: it has answered {answered:,} times, and "
        if most == MAX_USES:
            raise LimitError(f"{start}its policy.max_uses is {self._policy.max_uses:,}")
        raise LimitError(
            f"{start}a run that keeps the rules asks {most} times at most, however often it is "
            "resumed"
        )

    def answered(self, driver: str, run: str, name: str, message: str) -> None:
        """Write down an answer of which a run needs few, before it leaves.

        Raises:
            LimitError: it cannot be, so the answer is not given.
        """
        if self._is_counted(driver, run, message):
            return
        self._note(driver, run, name, self._clock(), answered=message)
        self._drivers[driver].few[run, message] += 1

    def _note(self, driver: str, run: str, name: str, now: float, **more: Any) -> None:
        """A line of what a driver was given."""
        number = self._drivers[driver].number + 1
        line = {"time": now, "driver": driver, "run": run, "algorithm": name, "number": number}
        letter = self._letter(driver)
        line |= {**more, **({"letter": letter} if letter else {})}

        def write() -> None:
            handle = open_private(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            with os.fdopen(handle, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

        try:
            patiently(write)
        except OSError as error:
            _log.error("%s: %s", self._path, error)
            raise LimitError(
                "cannot write down what a run was given; its log has the details"
            ) from None
        self._drivers[driver].letters[run, more.get("answered", name)] = letter

    def number(self, driver: str) -> int:
        """Which run of this driver's the next that begins will be, from 1."""
        known = self._drivers.setdefault(driver, _Begins())
        letter = self._letter(driver)
        is_again = bool(letter) and letter in known.letters.values()
        return known.number + (not is_again)


class Guard:
    """Checks and counts the messages of one run; see ``RunLimits.of``."""

    def __init__(
        self,
        limits: RunLimits,
        driver: str,
        run: str,
        name: str,
        algorithm: Algorithm,
        kept: _Run,
    ) -> None:
        self._limits = limits
        self._driver = driver
        self._run = run
        self._name = name
        self._algorithm = algorithm
        self._kept = kept

    def answer(self, message: Message, handle: Callable[[Message], Message]) -> Message:
        """The answer, if the limits allow it.

        Raises:
            LimitError: they do not.
        """
        kept = self._kept
        asked = asked_for(message) if kept.uses is not None else None
        if asked is not None:  # a site has one order, of rows that train and of others
            asked = replace(asked, order="train")
        begins = message.wire_name() in self._algorithm.begins
        if isinstance(message, Restore) and kept.heard:
            raise LimitError(
                "refuses to go back to an earlier state in the middle of a run; a driver that fell "
                "does so when it resumes, first of all"
            )
        if begins:
            self._limits.admit_begin(self._driver, self._run, self._name, kept)
        name = message.wire_name()
        few = self._algorithm.few.get(name)
        if few is not None:
            self._limits.admit_few(self._driver, self._run, name, few)
        if asked is not None and kept.uses is not None:
            kept.uses.check(asked)
        answer = handle(message)
        kept.heard = True
        if begins:
            self._limits.begun(self._driver, self._run, self._name, kept)
        releases = releases_of(answer)
        if releases > kept.releases:
            kept.releases = releases
            _note_releases(kept)
        if few is not None and getattr(answer, "num_rows", None) != 0:
            self._limits.answered(self._driver, self._run, self._name, name)
        if asked is not None and kept.uses is not None:
            _note_asked(kept, kept.uses.count(asked))
        if isinstance(answer, Restored) and answer.done == 0:
            kept.forgotten = True
        if isinstance(message, Save):
            _write(kept)
            _note_releases(kept)
        return answer if kept.uses is None else kept.uses.limits.write_into(answer)

    def park(self) -> State:
        """What is to be kept where this process may end now; what is counted is written down."""
        _write(self._kept)
        _note_releases(self._kept)
        return {"heard": self._kept.heard, "forgotten": self._kept.forgotten}

    def resume(self, state: State) -> None:
        """Go on where ``park`` was called."""
        self._kept.heard = bool(state["heard"])
        self._kept.forgotten = bool(state["forgotten"])


def _releases(path: Path) -> int:
    """How often a sample was released, as far as it was written down."""
    try:
        return int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as error:
        raise LimitError(
            f"cannot read how often it has released rows in this run ({type(error).__name__}), and "
            "answers no more in it"
        ) from None


def _note_releases(run: _Run) -> None:
    """Write them down beside the states that a run may go back to, if there are any.

    Raises:
        LimitError: it cannot be, so the answer is not given.
    """
    if not run.releases or run.spent is None or not run.spent.parent.is_dir():
        return
    try:
        write_text(run.spent, str(run.releases))
    except OSError as error:
        _log.error("%s: %s", run.spent, error)
        raise LimitError("cannot write down what it has released; its log says why") from None


def _used(path: Path) -> dict[str, torch.Tensor]:
    """How often each sample was asked about, as far as it was written down."""
    used: dict[str, torch.Tensor] = {}
    if path.exists():
        try:
            stored = load_state(path)[0]["used"]
            if isinstance(stored, dict):
                used = stored
        except (CheckpointError, KeyError) as error:
            _log.warning("%s", error)
    asked_path = path.with_suffix(".asked")
    if asked_path.exists():
        whole = asked_path.read_bytes()
        since = np.bincount(np.frombuffer(whole[: len(whole) // 4 * 4], dtype="<i4"))
        before = used.get("train", torch.zeros(0, dtype=torch.int32)).numpy()
        used_S = np.zeros(max(len(since), len(before)), dtype=np.int32)
        used_S[: len(before)] = before
        used_S[: len(since)] += since.astype(np.int32)
        used["train"] = torch.from_numpy(used_S)
    return used


def _write(run: _Run) -> None:
    """Write down how often each sample was asked about, beside the states that it is of."""
    if run.uses is None or run.path is None or not run.path.parent.is_dir():
        return
    try:
        save_state(run.path, {"used": dict(run.uses.used)}, {})
        run.path.with_suffix(".asked").unlink(missing_ok=True)
    except (CheckpointError, OSError) as error:
        _log.warning("%s", error)


def _note_asked(run: _Run, samples: torch.Tensor) -> None:
    """Write down which samples an answer is about, before it leaves, where there is a state that a
    party that is killed goes back to.

    Raises:
        LimitError: it cannot be, so the answer is not given.
    """
    if run.path is None or not run.path.parent.is_dir():
        return
    path = run.path.with_suffix(".asked")

    def write() -> int:
        handle = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with os.fdopen(handle, "ab") as file:
            file.write(samples.numpy().astype("<i4").tobytes())
            return file.tell()

    try:
        if patiently(write) > _MOST_ASKED:
            _write(run)
    except OSError as error:
        _log.error("%s: %s", path, error)
        raise LimitError("cannot write down what it was asked; its log says why") from None
