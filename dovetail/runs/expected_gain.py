"""Expected gain of a label owner from help, by its own rows alone: how its score grows with labels.

A linear model is judged by cross-validation on all of its labelled rows and on halves of them. If
the second half of the labels still added much, what a partner teaches about shared rows without a
label may add, too. No partner is asked and no test row set apart, so it is a weak hint, and its
sentences say how often it was right (``MEASURED``). ``dovetail train`` measures.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dovetail.data import Classification, Task
from dovetail.models.learners import Rows, make_folds
from dovetail.models.learners.linear import Linear
from dovetail.models.losses import loss_of, targets_of
from dovetail.models.metrics import SCORES, headline, score
from dovetail.models.threads import one_thread

#: No more labelled rows than this are looked at.
MAX_ROWS = 4000

#: Fewer in all, or of a class, and nothing is said.
MIN_ROWS, MIN_OF_CLASS = 20, 4

#: Coarser steps than the learner's own: a curve needs no best penalty.
_LINEAR = Linear(penalties=(1.0, 0.1, 0.01, 1e-3))

_FOLDS = 5
_PAIRS = 2  # of halves, drawn and averaged

#: A score that grew by more than this with the second half of the labels still rises.
_RISES = 0.01

#: A score of own columns alone that is seldom honest.
_PERFECT = 0.999


Kind = Literal["perfect", "flat", "uncounted", "rising", "few unlabelled"]

#: Kind -> in how many settings, of how many, the solo model gained a point or more over the best
#: local model (``python -m benchmarks.forecast``; a test compares).
MEASURED: Mapping[Kind, tuple[int, int]] = {
    "rising": (17, 34),
    "flat": (12, 33),
    "few unlabelled": (0, 3),
}


@dataclass(frozen=True)
class Expected:
    """Observations on a label owner's own rows.

    Attributes:
        owner: whose rows.
        score: which score: auc, accuracy or r2; more is better.
        labels: labelled rows that were looked at.
        at_half, at_all: the score with half of them, which is that with all less what all add on
            a half's rows, and with all.
        spread: standard deviation of what all add.
        unlabelled: shared rows without a label; None where that was not counted.
    """

    owner: str
    score: str
    labels: int
    at_half: float
    at_all: float
    spread: float
    unlabelled: int | None

    @property
    def rises(self) -> bool:
        return self.at_all - self.at_half > max(_RISES, self.spread)

    @property
    def kind(self) -> Kind:
        """Kind of the curve and the shared rows."""
        if self.at_all >= _PERFECT:
            return "perfect"
        if not self.rises:
            return "flat"
        if self.unlabelled is None:
            return "uncounted"
        return "rising" if self.unlabelled >= self.labels else "few unlabelled"

    def sentences(self) -> tuple[str, str]:
        """Sentences on what was seen, and what it hints at."""
        seen = (
            f"{self.owner} alone (a linear model, {_FOLDS} folds): {self.score} "
            f"{self.at_half:.3f} with {self.labels // 2:,} labels, {self.at_all:.3f} with "
            f"{self.labels:,}."
        )
        hint = {
            "perfect": (
                "That is nearly perfect, so expect little of partners. If it is a surprise, look "
                "for a column that is known only once the label is, and leave it out of columns."
            ),
            "flat": "More labels hardly raise the score.",
            "uncounted": (
                "More labels raise the score. Partners help most if many shared rows have none; "
                "how many was not counted."
            ),
            "rising": (
                f"More labels raise the score, and {self.unlabelled or 0:,} shared rows have none."
            ),
            "few unlabelled": (
                f"More labels raise the score, but only {self.unlabelled or 0:,} shared rows have "
                "none."
            ),
        }[self.kind]
        gained = MEASURED.get(self.kind)
        if gained is not None:
            hint += (
                f" In {gained[0]} of {gained[1]} measured settings like this the solo model gained "
                "a point or more."
            )
        return seen, hint


@one_thread()
def expected(
    owner: str, x_NF: Tensor, labels_N: Tensor, task: Task, *, unlabelled: int | None
) -> Expected | None:
    """How a party's score grows with its labels; None where it has too few to say.

    Args:
        owner: whose rows.
        x_NF: encoded rows that have a label.
        labels_N: class indices or values of them.
        task: what is predicted.
        unlabelled: shared rows without a label.
    """
    regression = not isinstance(task, Classification)
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(labels_N), generator=generator)[:MAX_ROWS]
    x, labels = x_NF[chosen].flatten(1).float(), labels_N[chosen]
    classes = (
        torch.empty(0, dtype=torch.int64) if regression else labels.unique(return_counts=True)[1]
    )
    enough = len(classes) > 1 and int(classes.min()) >= MIN_OF_CLASS
    if len(labels) < MIN_ROWS or not (regression or enough):
        return None
    name = headline(task)
    name = "r2" if name == "rmse" else name
    if not SCORES[name]:  # a deviance: no forecast was ever compared with one
        return None

    def held_out(rows: Tensor) -> Tensor | None:
        folds = make_folds(labels[rows], _FOLDS, seed=0, regression=regression)
        targets = targets_of(task, labels[rows])
        if not regression and len(labels[rows].unique()) < len(classes):
            return None
        return _LINEAR.held_out(Rows(x[rows], targets, folds, loss=loss_of(task)))

    whole = held_out(torch.arange(len(labels)))
    at_all = None if whole is None else score(task, whole, labels).get(name)
    gains = []
    middle = len(labels) // 2
    drawn = [torch.randperm(len(labels), generator=generator) for _ in range(_PAIRS)]
    for rows in (half for order in drawn for half in (order[:middle], order[middle:])):
        half = held_out(rows)
        if whole is None or half is None:
            continue
        at_half = score(task, half, labels[rows]).get(name)
        same = score(task, whole[rows], labels[rows]).get(name)  # of one set of rows: less noise
        if at_half is not None and same is not None:
            gains.append(same - at_half)
    if at_all is None or len(gains) < 2:
        return None
    at_half = at_all - statistics.fmean(gains)
    # Each row is in as many of them, so their mean varies as that of two: measured, 0.6 to 0.9.
    spread = statistics.stdev(gains) / math.sqrt(2)
    return Expected(owner, name, len(labels), at_half, at_all, spread, unlabelled)
