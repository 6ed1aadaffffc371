"""Calls that take turns, so that a busy machine slows all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def medians(
    calls: Mapping[str, Callable[[], object]],
    num: int,
    *,
    first: int,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """Name -> median seconds of its call.

    Args:
        calls: each is made once in a turn, in this order.
        num: turns that are timed.
        first: turns before them, which allocate.
        clock: seconds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(first + num):
        for name, call in calls.items():
            started = clock()
            call()
            if number >= first:
                seconds[name].append(clock() - started)
    return {name: statistics.median(times) for name, times in seconds.items()}
