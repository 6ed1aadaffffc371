"""Scores of times to an event: Harrell's and Uno's C, integrated Brier score, calibration.

Uno's C and the Brier score are scikit-survival's, weighted by the censoring of the rows that are
judged. Harrell's C is here, too, as draws of rows with replacement ask for it hundreds of times.

Letters: N rows, B draws of them, K intervals, T times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from dovetail.data.survival import Survival

#: Rows of more pairs than this are drawn from, where rows are drawn anew.
_MOST_ROWS = 3000
#: Risks that differ by less are alike, as in scikit-survival.
_TIED = 1e-8
#: Points of a curve, groups of rows in a calibration, horizons as shares of the events.
_POINTS, _GROUPS, _HORIZONS = 60, 5, (0.25, 0.5, 0.75)


def split(labels_N: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """(N,) times, and whether the event came."""
    numbers = labels_N.double().numpy()
    return np.abs(numbers), ~np.signbit(numbers)


def headline(task: Survival) -> str:
    """The score that tables show first."""
    return "c_index"


class Concordance:
    """Harrell's C of rows that count by weights.

    Args:
        time_N, event_N, risk_N: of the rows; a higher risk has its event earlier.
    """

    def __init__(self, time_N: np.ndarray, event_N: np.ndarray, risk_N: np.ndarray) -> None:
        self._first = np.flatnonzero(event_N)
        later, ahead = _pairs(time_N, event_N, risk_N, self._first)
        self._later, self._ahead = later.astype(np.float32), ahead.astype(np.float32)

    def __call__(self, weights_BN: np.ndarray) -> np.ndarray:
        """(B,); NaN of rows of which no two can be compared."""
        weights = weights_BN.astype(np.float32)
        first = weights[:, self._first]
        right, all_ = (
            ((first @ pairs) * weights).sum(axis=1, dtype=np.float64)
            for pairs in (self._ahead, self._later)
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            share: np.ndarray = right / all_
        return share


def c_index(time_N: np.ndarray, event_N: np.ndarray, risk_N: np.ndarray) -> float:
    """Harrell's C: the share of comparable pairs whose risks are in the order of their events."""
    right = total = 0.0
    first = np.flatnonzero(event_N)
    for part in np.array_split(first, max(1, len(first) * len(time_N) // 4_000_000)):
        later, ahead = _pairs(time_N, event_N, risk_N, part)
        right, total = right + float(ahead.sum()), total + float(later.sum())
    return right / total if total else float("nan")


def _pairs(
    time_N: np.ndarray, event_N: np.ndarray, risk_N: np.ndarray, first_M: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(M, N) whether a row is known to be later than each of these events, and which of those are
    in the order of their risks; a half of equal ones."""
    time_M1, risk_M1 = time_N[first_M, None], risk_N[first_M, None]
    later = (time_N > time_M1) | ((time_N == time_M1) & ~event_N)
    more = risk_M1 - risk_N
    return later, later * ((more > _TIED) + 0.5 * (np.abs(more) <= _TIED))


def score(task: Survival, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """c_index; absent where no two rows can be compared."""
    time, event = split(labels)
    found = c_index(time, event, task.risk(task.survival(outputs.numpy())))
    return {} if np.isnan(found) else {"c_index": found}


def all_scores(task: Survival, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """c_index, c_uno, brier_integrated and calibration_at_times, as far as the rows allow.

    ``c_uno`` and ``brier_integrated`` look at times between the tenth and the ninetieth per cent of
    the events; weights are by the censoring of these rows. ``calibration_at_times`` is the mean
    distance of what was predicted and Kaplan and Meier's estimate in fifths of the rows, at
    horizons of a quarter, half and three quarters of the events.
    """
    from sksurv import metrics
    from sksurv.util import Surv

    scores = score(task, outputs, labels)
    time, event = split(labels)
    said = task.survival(outputs.numpy())
    times = _times(time, event)
    if len(times) < 2:
        return scores
    truth = Surv.from_arrays(event, np.maximum(time, 1e-9))
    try:
        scores["c_uno"] = float(
            metrics.concordance_index_ipcw(truth, truth, task.risk(said), tau=times[-1])[0]
        )
        scores["brier_integrated"] = float(
            metrics.integrated_brier_score(truth, truth, task.at(said, times), times)
        )
    except ValueError:  # too few rows are followed as long
        return scores
    bins = [each for horizon in calibration(task, said, time, event) for each in horizon["groups"]]
    if bins:
        scores["calibration_at_times"] = float(
            np.average([abs(each["said"] - each["was"]) for each in bins])
        )
    return scores


def details(task: Survival, outputs: Tensor, labels: Tensor) -> dict[str, Any]:
    """Of a report: mean curve said and Kaplan and Meier's, and calibration at horizons."""
    time, event = split(labels)
    said = task.survival(outputs.numpy())
    times = np.linspace(0, task.cuts[-1], _POINTS)
    return {
        "curves": {
            "times": [round(float(each), 6) for each in times],
            "said": task.at(said, times).mean(axis=0).round(6).tolist(),
            "was": kaplan_meier(time, event, times).round(6).tolist(),
        },
        "calibration": calibration(task, said, time, event),
    }


def at_ends(task: Survival, outputs: Tensor, labels: Tensor) -> dict[str, Any]:
    """Of a card: at the ends of intervals the mean share without event that was predicted, and
    Kaplan
    and Meier's; and calibration at horizons."""
    time, event = split(labels)
    said, ends = task.survival(outputs.numpy()), np.array(task.cuts)
    curve = zip(ends, said.mean(axis=0), kaplan_meier(time, event, ends), strict=True)
    return {
        "curve": [{"time": float(t), "said": float(s), "was": float(w)} for t, s, w in curve],
        "calibration": calibration(task, said, time, event),
    }


def calibration(
    task: Survival, survival_NK: np.ndarray, time_N: np.ndarray, event_N: np.ndarray
) -> list[dict[str, Any]]:
    """Of each horizon groups of rows: how many, the mean share without event that was predicted,
    and
    Kaplan and Meier's."""
    found = []
    ends = _quantiles(time_N, event_N, _HORIZONS)
    for end in np.unique(ends[ends <= task.cuts[-1]]):
        said = task.at(survival_NK, np.array([end]))[:, 0]
        order = np.argsort(said, kind="stable")
        groups = [rows for rows in np.array_split(order, _GROUPS) if len(rows) >= 5]
        found.append(
            {
                "time": float(end),
                "groups": [
                    {
                        "rows": len(rows),
                        "said": float(said[rows].mean()),
                        "was": float(kaplan_meier(time_N[rows], event_N[rows], np.array([end]))[0]),
                    }
                    for rows in groups
                ],
            }
        )
    return found


def kaplan_meier(time_N: np.ndarray, event_N: np.ndarray, times_T: np.ndarray) -> np.ndarray:
    """(T,) the share without event until these times (Kaplan & Meier 1958)."""
    ends = np.unique(time_N[event_N])
    at_risk = len(time_N) - np.searchsorted(np.sort(time_N), ends, side="left")
    died = np.array([(time_N[event_N] == end).sum() for end in ends])
    steps = np.append(1.0, np.cumprod(1 - died / at_risk)) if len(ends) else np.ones(1)
    shares: np.ndarray = steps[np.searchsorted(ends, times_T, side="right")]
    return shares


def measure(task: Survival, outputs: Tensor, labels: Tensor) -> Callable[..., dict[str, Any]]:
    """Of (B, N) weights of the rows, or of many of some of them: score -> (B,)."""
    rows = np.arange(len(labels))
    if len(rows) > _MOST_ROWS:
        rows = np.sort(np.random.default_rng(0).choice(rows, _MOST_ROWS, replace=False))
    time, event = split(labels)
    risk = task.risk(task.survival(outputs.numpy()))
    concordance = Concordance(time[rows], event[rows], risk[rows])
    return lambda weights_BN: {"c_index": concordance(weights_BN[:, rows])}


def _quantiles(time_N: np.ndarray, event_N: np.ndarray, shares: tuple[float, ...]) -> np.ndarray:
    if not event_N.any():
        return np.empty(0)
    ends: np.ndarray = np.quantile(time_N[event_N], shares)
    return ends


def _times(time_N: np.ndarray, event_N: np.ndarray) -> np.ndarray:
    """Times at which rows are judged; those that somebody was followed beyond."""
    ends = _quantiles(time_N, event_N, (0.1, 0.9))
    if not len(ends):
        return ends
    last = min(ends[1], np.nextafter(time_N.max(), 0))
    return np.linspace(ends[0], last, _POINTS) if ends[0] < last else ends[:0]
