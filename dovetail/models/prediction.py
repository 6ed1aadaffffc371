"""Predictions of a model, by name: values, probabilities, sets, intervals, and reasons why not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dovetail import data as dd
from dovetail.errors import ModelError
from dovetail.models.shown import html_table

#: Rows that a notebook shows.
_SHOWN_ROWS = 10


def _texts(values: np.ndarray) -> list[str]:
    """Cells of a column; numbers by four digits."""
    if values.dtype.kind == "f":
        return [f"{value:.4g}" for value in values.tolist()]
    return ["" if value is None else str(value) for value in values.tolist()]


@dataclass(frozen=True, eq=False)
class Prediction:
    """Prediction of a model for N rows, by name.

    Attributes:
        values: (N,) the class, as its label is written, or the number; of times to an event the
            median, NaN where it is after the last interval; of several labels (N, L).
        probabilities: (N, C) float32 in the order of ``classes``, or None for a regression; of
            several labels (N, L), how likely each is.
        classes: the C classes, or () for a regression and for several labels.
        labels: the L labels, where there are several.
        within: (N, C) bool, the classes of each row's conformal set; None unless asked for.
        low, high: (N,) each row's conformal interval; None unless asked for.
        named: more columns of a row: of times to an event "risk" and "S(time)", the share without
            event until then.
        errors: (N,) why a row is not predicted, "" where it is; None unless asked for. Such a row
            has the class None and the probability NaN, or the number NaN.
    """

    values: np.ndarray
    probabilities: np.ndarray | None = None
    classes: tuple[str | int, ...] = ()
    within: np.ndarray | None = None
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    errors: np.ndarray | None = None
    named: Mapping[str, np.ndarray] = field(default_factory=dict)
    labels: tuple[str, ...] = ()

    def columns(self, label: str = "prediction") -> dict[str, np.ndarray]:
        """Column -> (N,) values, as ``dovetail predict`` writes them; ``label`` names the first.

        The class and the probability of each class (``p(CLASS)``), or the number; of a coverage the
        ``set`` of classes, or ``low`` and ``high``. Of several labels a column each.
        """
        columns: dict[str, np.ndarray] = {label: self.values}
        if self.labels:
            columns = {name: self.values[:, index] for index, name in enumerate(self.labels)}
        if self.probabilities is not None:
            for index, name in enumerate(self.labels or self.classes):
                columns[f"p({name})"] = self.probabilities[:, index].astype(np.float64).round(6)
        if self.within is not None:
            names = [str(name) for name in self.classes]
            sets = [" ".join(itertools.compress(names, row)) for row in self.within]
            columns["set"] = np.array(sets, dtype=object)
        if self.low is not None and self.high is not None:
            columns |= {"low": self.low, "high": self.high}
        columns |= self.named
        if self.errors is not None:
            columns["error"] = self.errors
        return columns

    def probabilities_of(self, party: str) -> np.ndarray:
        """(N, C) probabilities; ``party`` is whose model gave them.

        Raises:
            ModelError: a model that predicts numbers.
        """
        if self.probabilities is None:
            raise ModelError(
                f"the model of party {party!r} predicts numbers, which have no probabilities; "
                "use predict"
            )
        return self.probabilities

    def times(self, exposure_N: np.ndarray | None) -> Prediction:
        """Rates as counts of these exposures; None: as they are, of one of exposure."""
        return self if exposure_N is None else replace(self, values=self.values * exposure_N)

    def conformal(self, radius: float) -> Prediction:
        """The prediction with sets or intervals; see ``calibration``."""
        if self.probabilities is None:
            return replace(self, low=self.values - radius, high=self.values + radius)
        return replace(self, within=self.probabilities.astype(np.float64) >= 1 - radius)

    def spread(self, refused: Mapping[int, str], num_rows: int) -> Prediction:
        """These predictions at their rows of ``num_rows``, and the reasons at the others.

        Args:
            refused: row -> why it is not among the predictions.
            num_rows: all of them.
        """
        rows = np.setdiff1d(np.arange(num_rows), np.fromiter(refused, np.int64, len(refused)))

        def at(values: np.ndarray, empty: object) -> np.ndarray:
            kind = values.dtype if isinstance(empty, (bool, float)) else object
            out = np.full((num_rows, *values.shape[1:]), empty, dtype=kind)
            out[rows] = values
            return out

        errors = np.full(num_rows, "", dtype=object)
        errors[list(refused)] = list(refused.values())
        return replace(self._each(at), errors=errors)

    def part(self, rows: slice) -> Prediction:
        """Those of some rows."""
        return self._each(lambda values, _: values[rows])

    def _each(self, change: Callable[[np.ndarray, object], np.ndarray]) -> Prediction:
        """With other rows of all values; ``change`` gets what is for nothing, too."""
        nothing = np.nan if self.probabilities is None else None
        empty = {"values": nothing, "probabilities": np.nan, "within": False}
        said: dict[str, Any] = {
            name: change(values, each)
            for name, each in (empty | {"low": np.nan, "high": np.nan}).items()
            if (values := getattr(self, name)) is not None
        }
        named = {name: change(values, np.nan) for name, values in self.named.items()}
        return replace(self, **said, named=named)

    def __len__(self) -> int:
        return len(self.values)

    def _repr_html_(self) -> str:
        columns = self.columns("prediction")
        shown = zip(*(_texts(values[:_SHOWN_ROWS]) for values in columns.values()), strict=True)
        rows = [(row, *cells) for row, cells in enumerate(shown)]
        more = len(self) - len(rows)
        return html_table(rows, head=("row", *columns), note=f"{more:,} more rows" if more else "")

    def __repr__(self) -> str:
        """How many rows, and the columns; not their values."""
        return f"<predictions for {len(self)} rows: {', '.join(self.columns('values'))}>"


def prediction_of(task: dd.Task, outputs_NS: np.ndarray) -> Prediction:
    """Prediction from outputs for a label that is no class, in its own unit."""
    if isinstance(task, dd.Survival):
        survival_NK = task.survival(outputs_NS)
        at_ends = {f"S({cut:g})": survival_NK[:, k].round(6) for k, cut in enumerate(task.cuts)}
        named = {"risk": task.risk(survival_NK), **at_ends}
        return Prediction(task.median(survival_NK), named=named)
    if isinstance(task, dd.Counts):
        return Prediction(task.values(outputs_NS)[:, 0])
    if isinstance(task, dd.Quantiles):
        said_NS = task.values(outputs_NS)
        named = {f"q{share:g}": said_NS[:, s] for s, share in enumerate(task.shares)}
        middle = min(range(task.num_outputs), key=lambda s: abs(task.shares[s] - 0.5))
        return Prediction(said_NS[:, middle], named=named)
    if isinstance(task, (dd.MultiLabel, dd.MultiTarget)):
        said_NL = task.values(outputs_NS)
        if isinstance(task, dd.MultiTarget):
            return Prediction(said_NL, labels=task.labels)
        is_so_NL = (said_NL >= 0.5).astype(np.int64)
        return Prediction(is_so_NL, said_NL.astype(np.float32), labels=task.labels)
    assert isinstance(task, dd.Regression)
    return Prediction(outputs_NS[:, 0] * task.scale + task.mean)
