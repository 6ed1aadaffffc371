"""Time to an event: labels of two columns, intervals, and what hazards say.

A label is one number: the time, below zero where the row was censored then (as XGBoost writes it).
Survival(t) is the share that has no event until t; within an interval the hazard is constant.

Letters: N rows, K intervals, S outputs.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dovetail.data.saving import Number, Saved
from dovetail.errors import ConfigError, DataError

#: Intervals, unless the label says how many: one for so many events, at least and at most so many.
#: One alone would ask only whether an event came before the last.
_EVENTS_EACH, _FEWEST, MOST_INTERVALS = 20, 3, 10


@dataclass(frozen=True)
class Survival(Saved):
    """When an event comes, in discrete times (Gensheimer & Narasimhan 2019).

    Attributes:
        cuts: (K,) where the intervals end, in the label's own unit; the first starts at 0.
        base: (K,) log odds of the event in each interval, of all training rows at risk in it; of
            "log" the logarithm of the hazard, as Cox' model has it.
        link: of the hazards, which the outputs shift.
    """

    cuts: Annotated[tuple[Number, ...], Field(min_length=1)]
    base: tuple[Number, ...]
    link: Literal["logit", "log"] = "logit"
    kind: ClassVar[str] = "survival"
    unsaid: ClassVar[tuple[str, ...]] = ("link",)

    #: Networks see labels as they are, and what they say is in log odds.
    mean: ClassVar[float] = 0.0
    scale: ClassVar[float] = 1.0
    predicts: ClassVar[str] = "a time"
    num_outputs: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if len(self.cuts) != len(self.base):
            raise ValueError(f"{len(self.base)} odds of {len(self.cuts)} intervals")
        if any(low >= high for low, high in itertools.pairwise([0, *self.cuts])):
            raise ValueError(f"intervals that do not rise from 0: {self.cuts}")

    def encode(self, numbers: np.ndarray) -> np.ndarray:
        """(N,) as networks see them: as they are."""
        return numbers

    def targets(self, labels_N: Tensor) -> Tensor:
        """(N, 2 K): whether the event came in each interval, and whether the row was at risk in it.

        A row that is censored is at risk in an interval of which it saw half. One without a label
        is at risk in none.
        """
        time_N1, event_N1 = labels_N.abs()[:, None], ~torch.signbit(labels_N)[:, None]
        ends_K = torch.tensor(self.cuts, dtype=labels_N.dtype)
        starts_K = torch.cat([ends_K.new_zeros(1), ends_K[:-1]])
        within = (time_N1 > starts_K) & (time_N1 <= ends_K)
        within[:, 0] |= time_N1[:, 0] <= 0
        events = within & event_N1
        saw_half = time_N1 >= (starts_K + ends_K) / 2
        at_risk = (time_N1 > ends_K) | events | (within & saw_half)
        return torch.cat([events, at_risk], dim=1).float()

    def survival(self, outputs_NS: np.ndarray) -> np.ndarray:
        """(N, K) the share without event until the end of each interval."""
        shifted_NK = np.asarray(outputs_NS, np.float64) + np.array(self.base)
        if self.link == "log":
            with np.errstate(over="ignore"):
                of_log: np.ndarray = np.exp(-np.exp(shifted_NK).cumsum(axis=1))
            return of_log
        hazards = 1 / (1 + np.exp(-shifted_NK))
        shares: np.ndarray = np.cumprod(1 - hazards, axis=1)
        return shares

    def at(self, survival_NK: np.ndarray, times_T: np.ndarray) -> np.ndarray:
        """(N, T) survival at these times; beyond the last interval that of its end."""
        edges = np.array([0.0, *self.cuts])
        logs = np.log(np.clip(np.insert(survival_NK, 0, 1.0, axis=1), 1e-300, 1))
        times = np.clip(np.asarray(times_T, float), 0, edges[-1])
        after = np.clip(np.searchsorted(edges, times, side="left"), 1, len(edges) - 1)
        share = (times - edges[after - 1]) / (edges[after] - edges[after - 1])
        said: np.ndarray = np.exp(logs[:, after - 1] * (1 - share) + logs[:, after] * share)
        return said

    def median(self, survival_NK: np.ndarray) -> np.ndarray:
        """(N,) when half have had the event; NaN where that is after the last interval."""
        edges = np.array([0.0, *self.cuts])
        logs = np.log(np.clip(np.insert(survival_NK, 0, 1.0, axis=1), 1e-300, 1))
        half = math.log(0.5)
        reached = logs[:, -1] <= half
        after = np.where(reached, (logs <= half).argmax(axis=1), 1)
        rows = np.arange(len(logs))
        low, high = logs[rows, after - 1], logs[rows, after]
        share = (half - low) / np.where(high < low, high - low, -1.0)
        medians = edges[after - 1] + share * (edges[after] - edges[after - 1])
        return np.where(reached, medians, np.nan)

    @staticmethod
    def risk(survival_NK: np.ndarray) -> np.ndarray:
        """(N,) expected events by the ends of all intervals (Ishwaran et al. 2008, Eq. 4.1)."""
        risks: np.ndarray = -np.log(np.clip(survival_NK, 1e-300, 1)).sum(axis=1)
        return risks


def fit_survival(values: np.ndarray, *, label: str, intervals: int | None = None) -> Survival:
    """Intervals with as many events each, and how often the event comes in each.

    Args:
        values: (N,) times, below zero of rows that were censored.
        label: its name, for errors.
        intervals: K; None: one for twenty events, 3 to 10.

    Raises:
        ConfigError: scikit-survival is not installed.
        DataError: no event.
    """
    if importlib.util.find_spec("sksurv") is None:
        raise ConfigError(
            f"label {label!r} is a time to an event, whose scores need scikit-survival; "
            "pip install 'dovetail-fl[survival]'"
        )
    labels = torch.from_numpy(np.asarray(values, np.float32))
    times = labels[~torch.signbit(labels)].double().numpy()
    if not len(times):
        raise DataError(
            f"label {label!r} has no event in the {len(values)} training rows, all are censored; "
            "its event column is 1 where the event came"
        )
    wanted = intervals or min(MOST_INTERVALS, max(_FEWEST, len(times) // _EVENTS_EACH))
    ends = np.quantile(times, np.arange(1, wanted + 1) / wanted, method="inverted_cdf")
    cuts = tuple(float(end) for end in np.unique(ends) if end > 0)
    if not cuts:
        raise DataError(f"label {label!r}: every event is at time 0; times are above 0")
    return survival_of(cuts, labels)


def survival_of(cuts: tuple[float, ...], labels_N: Tensor) -> Survival:
    """These intervals, with how often the event comes in each to these rows."""
    task = Survival(cuts, (0.0,) * len(cuts))
    events, at_risk = task.targets(labels_N).double().sum(dim=0).chunk(2)
    # A half of an event more and less, so that no interval is certain.
    odds = ((events + 0.5) / (at_risk - events + 0.5)).log()
    return Survival(cuts, tuple(odds.tolist()))
