"""Several labels of a row at once, yes or no, or numbers; a row may lack some of them.

Networks see (N, L) of them, NaN where one is missing, and have an output for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from dovetail.data.saving import Number, Positive, Saved
from dovetail.errors import DataError


@dataclass(frozen=True)
class _Labels(Saved):
    """Labels of a network with one output for each.

    Attributes:
        labels: their names.
        mean, scale: of what is explained: outputs as they are, log odds or standard deviations.
    """

    labels: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=2)]

    mean: ClassVar[float] = 0.0
    scale: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("labels have names that differ")

    @property
    def num_outputs(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class MultiLabel(_Labels):
    """Labels that are yes or no each; a network's outputs are their log odds."""

    kind: ClassVar[str] = "multilabel"
    predicts: ClassVar[str] = "several labels"

    def encode(self, numbers: np.ndarray) -> np.ndarray:
        """(N, L) as networks see them: as they are."""
        return numbers

    def values(self, outputs_NL: np.ndarray) -> np.ndarray:
        """(N, L) the probability of each."""
        said: np.ndarray = 1 / (1 + np.exp(-np.clip(outputs_NL, -500, 500)))
        return said


@dataclass(frozen=True)
class MultiTarget(_Labels):
    """Labels that are numbers; networks see each standardised.

    Attributes:
        means, scales: (L,) of the training rows.
    """

    means: tuple[Number, ...]
    scales: tuple[Positive, ...]
    kind: ClassVar[str] = "multitarget"

    predicts: ClassVar[str] = "several numbers"

    def encode(self, numbers: np.ndarray) -> np.ndarray:
        """(N, L) as networks see them."""
        encoded: np.ndarray = (numbers - np.array(self.means)) / np.array(self.scales)
        return encoded

    def values(self, outputs_NL: np.ndarray) -> np.ndarray:
        """(N, L) what outputs say, in each label's own unit."""
        said: np.ndarray = outputs_NL * np.array(self.scales) + np.array(self.means)
        return said

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.labels) == len(self.means) == len(self.scales):
            raise ValueError("each label has one mean and one scale")


Several = MultiLabel | MultiTarget


def fit_several(values_NL: np.ndarray, labels: Sequence[str], *, kind: str) -> Several:
    """The task that training rows pose.

    Args:
        values_NL: raw labels, NaN where missing.
        labels: their names.
        kind: "multilabel" or "multitarget".

    Raises:
        DataError: a label that no row has, or, of yes and no, that says one of them only.
    """
    means, scales = [], []
    for name, column in zip(labels, values_NL.T, strict=True):
        present = column[~np.isnan(column)]
        if not len(present):
            raise DataError(f"label {name!r} has no value in the training rows")
        different = np.unique(present)
        if kind == "multilabel":
            check_yes_or_no(name, different)
        if kind == "multilabel" and len(different) < 2:
            raise DataError(
                f"label {name!r} is {'yes' if different[0] else 'no'} in all {len(present)} "
                "training rows that have it; leave it out"
            )
        means.append(float(present.mean()))
        scales.append(float(present.std()) or 1.0)
    if kind == "multilabel":
        return MultiLabel(tuple(labels))
    return MultiTarget(tuple(labels), tuple(means), tuple(scales))


def check_yes_or_no(label: str, present: np.ndarray) -> None:
    """Refuse values of one of several labels that are neither 1 nor 0.

    Raises:
        DataError: naming one.
    """
    odd = present[~np.isin(present, (0, 1))]
    if len(odd):
        raise DataError(
            f"label {label!r} has {odd[0]:g}: several labels are 1 or 0 (or yes or no) each; to "
            'predict numbers, give task = "regression"; yes or no and a number are two runs'
        )
