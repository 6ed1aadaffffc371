"""Does the time that a party takes to answer a count tell what it counts?

    python -m benchmarks.psi_timing

Set intersections that tell a size only (``count_overlap``): 400 ids a side, of which none or all
are shared, in turn, 20 of each. Thread time of the party that answers, by message: processor time
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
from dovetail.alignment import Responder, count_overlap
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


def trial(make: Callable[[list[str]], Any], ids: list[str], theirs: list[str]) -> dict[str, float]:
    """Message -> seconds of the party that answers."""
    timed = Timed(make(theirs))
    count_overlap(InProcess({"shop": timed}, driver="bank"), ids)
    return timed.seconds | {"all": sum(timed.seconds.values())}


def rows(what: str, make: Callable[[list[str]], Any]) -> list[dict[str, Any]]:
    """A row a message."""
    found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for turn in range(2 * TRIALS + 2):
        shared = turn % 2 == 0
        local = [f"P-{turn:03d}-{index:06d}" for index in range(NUM)]
        others = local if shared else [f"Q-{turn:03d}-{index:06d}" for index in range(NUM)]
        seconds = trial(make, local, list(others))
        if turn > 1:  # the first two warm up
            found[shared].append(seconds)
    table = []
    for name in found[True][0]:
        all_, none = (np.array([each[name] for each in found[case]]) for case in (True, False))
        t, _ = ttest_ind(all_, none, equal_var=False)
        table.append(
            {
                "ids": what,
                "message": name,
                "none shared, ms": round(1000 * float(none.mean()), 3),
                "all shared, ms": round(1000 * float(all_.mean()), 3),
                "spread, ms": round(1000 * float(none.std()), 3),
                "t": round(float(t), 1),
            }
        )
    return table


def main() -> None:
    reported = rows("as they are", lambda ids: Responder("shop", ids))
    _results.write("psi_timing", "Set intersection: does time tell the count?", reported)


if __name__ == "__main__":
    main()
