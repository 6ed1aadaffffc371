"""Kaplan and Meier's estimator and the log-rank test, of counts that may be sums over parties.

    n_k   rows seen until the end of interval k - 1, at risk in k;  d_k  events in k
    S_k = prod_{j<=k} (1 - d_j / n_j)                              Kaplan & Meier 1958
    s_k^2 = sum_{j<=k} d_j / (n_j (n_j - d_j))                     Greenwood 1926, of log S_k
    S_k^exp(-+ 1.96 s_k / log S_k)                                 95 % limits on the log-log scale
    U_g = sum_k d_gk - n_gk d_k / n_k                              log-rank, Mantel 1966
    V_gh = sum_k d_k (n_k - d_k) / (n_k - 1) (n_gk / n_k) ([g = h] - n_hk / n_k)

A time counts as the end of its interval, and a row that is censored there is still at risk in it:
these are the estimators of times rounded up to the grid. Where every time is an end of an interval,
they are those of the times themselves.

Letters: N rows, G groups, K intervals, C = 2 K + 1 counts of a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

#: Of a 95 % interval.
_WIDTH = 1.959963984540054


def counts(
    signed_N: np.ndarray, groups_N: np.ndarray, num_groups: int, times_K: np.ndarray
) -> np.ndarray:
    """(G, C) of each group: events in each interval, rows censored there, rows seen beyond.

    A row adds 1 to one of them.

    Args:
        signed_N: times, below zero of rows that were censored.
        groups_N: indices of groups; below zero of rows in none.
        times_K: where intervals end.
    """
    size = len(times_K)
    interval_N = np.searchsorted(times_K, np.abs(signed_N), side="left")
    places_N = np.where(np.signbit(signed_N), size + interval_N, interval_N)
    places_N = np.where(interval_N == size, 2 * size, places_N)
    cells_N = (groups_N * (2 * size + 1) + places_N)[groups_N >= 0]
    cells: np.ndarray = np.bincount(cells_N, minlength=num_groups * (2 * size + 1))
    return cells.reshape(num_groups, -1)


@dataclass(frozen=True, eq=False)
class Counts:
    """Counts of the rows that went through, of each group.

    Attributes:
        groups: their names.
        times_K: where intervals end.
        events_GK, censored_GK: in each interval.
        beyond_G: rows that were seen after the last.
    """

    groups: tuple[str, ...]
    times_K: np.ndarray
    events_GK: np.ndarray
    censored_GK: np.ndarray
    beyond_G: np.ndarray

    @classmethod
    def of(cls, groups: tuple[str, ...], times_K: np.ndarray, counts_GC: np.ndarray) -> Counts:
        """Of counts as ``counts`` gives them; noise may have moved some below zero."""
        size = len(times_K)
        cells = np.clip(counts_GC, 0, None)
        events, censored = cells[:, :size], cells[:, size : 2 * size]
        return cls(groups, times_K, events, censored, cells[:, -1])

    @property
    def at_risk(self) -> np.ndarray:
        """Rows that came into each interval."""
        left = np.concatenate([self.events_GK + self.censored_GK, self.beyond_G[:, None]], axis=1)
        before: np.ndarray = np.cumsum(left[:, ::-1], axis=1)[:, ::-1][:, :-1]
        return before

    def merged(self, least: int) -> Counts:
        """Intervals joined with the next until no group has 1 to ``least - 1`` events or censored
        rows in one; the last joins those before it."""
        ends: list[int] = []
        start = 0
        for end in range(1, len(self.times_K) + 1):
            cells = [each[:, start:end].sum(axis=1) for each in (self.events_GK, self.censored_GK)]
            if all(((cell == 0) | (cell >= least)).all() for cell in cells):
                ends.append(end)
                start = end
        ends = [*ends[:-1], len(self.times_K)] if ends else [len(self.times_K)]
        starts = [0, *ends[:-1]]
        events, censored = (
            np.add.reduceat(each, starts, axis=1) for each in (self.events_GK, self.censored_GK)
        )
        times = self.times_K[np.array(ends) - 1]
        return Counts(self.groups, times, events, censored, self.beyond_G)

    def rows(self) -> list[dict[str, Any]]:
        """A line for each group and interval: group, time, at_risk, events, censored, survival, low
        and high, its 95 % limits."""
        lines = []
        for group, at_risk, events, censored in zip(
            self.groups, self.at_risk, self.events_GK, self.censored_GK, strict=True
        ):
            survival, low, high = _curve(at_risk, events)
            columns = self.times_K, at_risk, events, censored, survival, low, high
            names = ("time", "at_risk", "events", "censored", "survival", "low", "high")
            lines += [
                {"group": group, **dict(zip(names, map(float, row), strict=True))}
                for row in zip(*columns, strict=True)
            ]
        return lines

    def medians(self) -> dict[str, float | None]:
        """Group -> the first time by which half have had the event; None: not within the grid."""
        found: dict[str, float | None] = {}
        for group, at_risk, events in zip(self.groups, self.at_risk, self.events_GK, strict=True):
            reached = np.flatnonzero(_curve(at_risk, events)[0] <= 0.5 + 1e-12)
            found[group] = float(self.times_K[reached[0]]) if len(reached) else None
        return found

    def log_rank(self) -> dict[str, float] | None:
        """Chi square, its degrees of freedom and p; None of one group."""
        from scipy.special import chdtrc

        if len(self.groups) < 2:
            return None
        at_risk, events = self.at_risk, self.events_GK
        n_K, d_K = at_risk.sum(axis=0), events.sum(axis=0)
        seen = n_K > 1
        share = at_risk[:, seen] / n_K[seen]
        spread = d_K[seen] * np.clip(n_K[seen] - d_K[seen], 0, None) / (n_K[seen] - 1)
        away = (events[:, seen] - share * d_K[seen]).sum(axis=1)
        variance = np.diag(share @ spread) - (share * spread) @ share.T
        value = float(away @ np.linalg.pinv(variance) @ away)
        degrees = len(self.groups) - 1
        return {"chi2": value, "degrees": degrees, "p": float(chdtrc(degrees, value))}


def _curve(at_risk_K: np.ndarray, events_K: np.ndarray) -> tuple[np.ndarray, ...]:
    """(K,) survival, and its lower and upper limit."""
    n, d = np.maximum(at_risk_K, 1e-12), np.minimum(events_K, at_risk_K)
    survival = np.cumprod(1 - d / n)
    with np.errstate(divide="ignore", invalid="ignore"):
        deviation = np.sqrt(np.cumsum(d / (n * (n - d))))
        power = np.exp(_WIDTH * deviation / np.log(survival))
        low, high = survival ** (1 / power), survival**power
    certain = (survival <= 0) | (survival >= 1)
    return survival, np.where(certain, survival, low), np.where(certain, survival, high)
