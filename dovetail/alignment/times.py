"""Alignment of times: intervals that suit all parties' events, and no party's time as it was.

    driver                                     party
    Describe                       -------->
                                   <--------   where intervals of as many events each would end
    agree_times: quantiles of all
    those ends                     -------->   these intervals

Each end of a party's has the same number of its events before it, so the ends of all, pooled, are
quantiles of all events. They are rounded up to two digits: what the driver learns of a party is how
many events it has, in multiples of that number, and roughly when they came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dovetail.errors import PartyError

#: The most ends that a party offers.
MOST_ENDS = 100


def offered_ends(signed_N: np.ndarray, events_each: int) -> np.ndarray:
    """(Q,) where intervals of so many events each would end, rising; none of fewer events.

    Args:
        signed_N: a party's times, below zero of rows that were censored.
        events_each: events of an interval, or more.

    >>> offered_ends(np.array([3.0, 14.2, -9.0, 151.0, 152.0]), 2)
    array([ 15., 160.])
    """
    times = np.abs(signed_N[~np.signbit(signed_N)]).astype(np.float64)
    number = min(MOST_ENDS, len(times) // max(1, events_each))
    if not number:
        return np.empty(0)
    shares = np.arange(1, number + 1) / number
    return rounded_up(np.quantile(times, shares, method="inverted_cdf"))


def agree_times(offered: Mapping[str, Sequence[float]], most: int) -> tuple[float, ...]:
    """At most so many ends of intervals with as many of all parties' events each.

    Raises:
        PartyError: a party whose ends do not rise from 0 on, or are more than ``MOST_ENDS``.

    >>> agree_times({"a": [10, 30], "b": [20, 40]}, 2)
    (20.0, 40.0)
    """
    for party, ends in offered.items():
        rise = np.diff(np.asarray(ends, float), prepend=0) >= 0
        if len(ends) > MOST_ENDS or not (np.isfinite(ends).all() and rise.all()):
            raise PartyError(
                party,
                f"offers ends of intervals that do not rise from 0 on, at most {MOST_ENDS}; ask "
                "its owner which version runs there",
            )
    pooled = np.sort(np.concatenate([np.asarray(each, float) for each in offered.values()]))
    pooled = pooled[pooled > 0]
    if not len(pooled):
        return ()
    number = min(most, len(pooled))
    ends = np.quantile(pooled, np.arange(1, number + 1) / number, method="inverted_cdf")
    return tuple(float(each) for each in np.unique(ends))


def rounded_up(times: np.ndarray) -> np.ndarray:
    """To two digits."""
    steps = 10.0 ** (np.floor(np.log10(np.maximum(times, 1e-12))) - 1)
    rounded: np.ndarray = np.ceil(times / steps - 1e-9) * steps
    return rounded
