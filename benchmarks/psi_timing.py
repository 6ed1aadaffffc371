"""Does the time that a party takes to answer a count tell what it counts?

    python -m benchmarks.psi_timing

Set intersections that tell a size only (``count_overlap``, ``count_by_keys``): 400 rows a side, of
two kinds in turn, 20 of each. Thread time of the party that answers, by message: processor time
has what a clock on the line would see, and less noise. t is Welch's; beyond 3 or so the time would
tell the two apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.stats import ttest_ind

from benchmarks import _results
from dovetail.alignment import (
    KeyResponder,
    MatchFormats,
    Responder,
    count_by_keys,
    count_overlap,
)
from dovetail.alignment.matchkeys import KeyValues, key_values, match_key
from dovetail.data import table_from_arrays
from dovetail.network import InProcess, Message

NUM, TRIALS = 400, 20


class Timed:
    """A party whose answers are timed."""

    def __init__(self, party: Any) -> None:
        self.accepts, self._party = party.accepts, party
        self.seconds: dict[str, float] = {}

    def handle(self, message: Message) -> Message:
        before = time.thread_time()
        answer: Message = self._party.handle(message)
        name = type(message).__name__
        self.seconds[name] = self.seconds.get(name, 0.0) + time.thread_time() - before
        return answer


def ids_of(turn: int, shared: bool) -> dict[str, float]:
    """Message -> seconds of the party that answers about ids."""
    local = [f"P-{turn:03d}-{index:06d}" for index in range(NUM)]
    theirs = local if shared else [f"Q-{turn:03d}-{index:06d}" for index in range(NUM)]
    timed = Timed(Responder("shop", list(theirs)))
    count_overlap(InProcess({"shop": timed}, driver="bank"), local)
    return timed.seconds


def keys_of(names: list[str | None]) -> list[KeyValues]:
    """The only match key of a table of names."""
    table = table_from_arrays("t", {"name": np.array(names, dtype=object)})
    return [key_values(match_key(["text(name)"]), {"name": table.column("name")}, MatchFormats())]


def matched(turn: int, shared: bool) -> dict[str, float]:
    """The same about names, by a match key."""
    local: list[str | None] = [f"P {turn} {index}" for index in range(NUM)]
    theirs = local if shared else [f"Q {turn} {index}" for index in range(NUM)]
    timed = Timed(KeyResponder("shop", keys_of([*theirs])))
    count_by_keys(InProcess({"shop": timed}, driver="bank"), keys_of(local))
    return timed.seconds


def missing(turn: int, whole: bool) -> dict[str, float]:
    """The same; nobody is shared, and half of the party's names are missing, or none."""
    theirs = [f"Q {turn} {index}" if whole or index % 2 else None for index in range(NUM)]
    timed = Timed(KeyResponder("shop", keys_of(theirs)))
    count_by_keys(
        InProcess({"shop": timed}, driver="bank"),
        keys_of([f"P {turn} {index}" for index in range(NUM)]),
    )
    return timed.seconds


def rows(what: str, trial: Callable[[int, bool], dict[str, float]]) -> list[dict[str, Any]]:
    """A row a message."""
    found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for turn in range(2 * TRIALS + 2):
        case = turn % 2 == 0
        seconds = trial(turn, case)
        if turn > 1:  # the first two warm up
            found[case].append(seconds | {"all": sum(seconds.values())})
    table = []
    for name in found[True][0]:
        second, first = (np.array([each[name] for each in found[case]]) for case in (True, False))
        t, _ = ttest_ind(second, first, equal_var=False)
        table.append(
            {
                "what differs": what,
                "message": name,
                "first, ms": round(1000 * float(first.mean()), 3),
                "second, ms": round(1000 * float(second.mean()), 3),
                "spread, ms": round(1000 * float(first.std()), 3),
                "t": round(float(t), 1),
            }
        )
    return table


def main() -> None:
    reported = [
        *rows("ids: none or all shared", ids_of),
        *rows("match keys: none or all shared", matched),
        *rows("match keys: half of the names missing, or none", missing),
    ]
    _results.write("psi_timing", "Set intersection: does time tell the count?", reported)


if __name__ == "__main__":
    main()
