"""Data of every learner: encoded rows, soft targets, folds.

A learner sees encoded rows and soft targets; hard labels are targets of zeros and ones. It is
trained fold by fold, so that each row that is in a fold gets outputs of models that did not see
it: from these everything is chosen, never from test rows.

Letters: N rows, F features (as ``TableEncoder`` gives them), C outputs (a logit per class, or one
standardised value), K folds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.errors import DataError
from dovetail.models.losses import CLASSES, Loss

#: The fold of a row that trains every fold's model and is never held out.
NO_FOLD = -1


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows to learn from.

    Attributes:
        x_NF: features.
        targets_NC: (N, T) as ``loss`` has them: of classes the probability of each.
        folds_N: int64, the fold that holds the row out, or ``NO_FOLD``.
        weights_N: how much a row counts; 1 for all if None.
        loss: how outputs are read, and what a row loses.

    Raises:
        DataError: lengths that differ, no fold, or a fold that leaves no row to train on.
    """

    x_NF: Tensor
    targets_NC: Tensor
    folds_N: Tensor
    weights_N: Tensor | None = None
    loss: Loss = CLASSES

    def __post_init__(self) -> None:
        lengths = {len(self.x_NF), len(self.targets_NC), len(self.folds_N)}
        if self.weights_N is not None:
            lengths.add(len(self.weights_N))
        if len(lengths) > 1:
            raise DataError(
                f"features, targets, folds and weights differ in rows: {sorted(lengths)}"
            )
        if self.num_folds < 1:
            raise DataError("no row is held out: give at least one row a fold of 0 or more")
        for fold in range(self.num_folds):
            held_out = int((self.folds_N == fold).sum())
            if not 0 < held_out < len(self.x_NF):
                raise DataError(
                    f"fold {fold} holds out {held_out} of {len(self.x_NF)} rows; each fold needs "
                    "rows to hold out and rows to train on"
                )

    @property
    def num_folds(self) -> int:
        return int(self.folds_N.max()) + 1 if len(self.folds_N) else 0

    @property
    def num_outputs(self) -> int:
        return self.loss.num_outputs(self.targets_NC.shape[1])

    @property
    def regression(self) -> bool:
        """Whether outputs are averaged as they are."""
        return self.loss.regression

    def no_outputs(self) -> Tensor:
        """(N, S) of NaN."""
        return torch.full((len(self.targets_NC), self.num_outputs), torch.nan)

    def judged(self, held_out_NC: Tensor) -> tuple[Tensor, float, float]:
        """Outputs of held-out rows, calibrated; by which temperature; and their mean loss."""
        judged, weights_N = self.folds_N >= 0, self.weights()
        temperature = fitting_temperature(
            held_out_NC[judged],
            self.targets_NC[judged],
            weights_N[judged],
            regression=self.regression,
        )
        calibrated_NC = held_out_NC / temperature
        loss = mean_loss(calibrated_NC, self.targets_NC, loss=self.loss, weights_N=weights_N)
        return calibrated_NC, temperature, loss

    def weights(self) -> Tensor:
        """(N,) float32."""
        return torch.ones(len(self.x_NF)) if self.weights_N is None else self.weights_N.float()


def hard_targets(labels_N: Tensor, num_outputs: int, *, regression: bool) -> Tensor:
    """(N, C) targets of class indices, or (N, 1) of values."""
    if regression:
        return labels_N.float()[:, None]
    return nn.functional.one_hot(labels_N.long(), num_outputs).float()


def make_folds(labels_N: Tensor, num_folds: int, *, seed: int, regression: bool = False) -> Tensor:
    """(N,) folds of even size and, for classes, of even shares of each class.

    A class's rows are split over the folds in turn, each class going on where the last one stopped,
    so that a class with fewer rows than folds is no error.

    Raises:
        DataError: fewer rows than folds.
    """
    if len(labels_N) < num_folds or num_folds < 2:
        raise DataError(
            f"{len(labels_N)} labelled rows cannot be dealt to {num_folds} folds; label more rows"
        )
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels_N))
    if not regression:
        order = order[np.argsort(labels_N.numpy()[order], kind="stable")]
    folds = np.empty(len(labels_N), dtype=np.int64)
    folds[order] = np.arange(len(labels_N)) % num_folds
    return torch.from_numpy(folds)


#: Of a party's labelled rows, one in so many chooses a threshold and a calibration, and judges.
HELD_OUT_ONE_IN = 5


def hold_out(
    rows_N: Tensor, labels_N: Tensor, *, seed: int, regression: bool
) -> tuple[Tensor, Tensor]:
    """Labelled rows that train, and those that nothing is trained on."""
    num_folds = min(HELD_OUT_ONE_IN, len(rows_N))
    folds = make_folds(labels_N, num_folds, seed=seed, regression=regression)
    return rows_N[folds != 0], rows_N[folds == 0]


def first_fold_only(folds_N: Tensor) -> Tensor:
    """Folds in which the rows of all but fold 0 always train: one model instead of K."""
    return torch.where(folds_N == 0, 0, NO_FOLD)


def mean_loss(
    outputs_NC: Tensor, targets_NC: Tensor, *, loss: Loss, weights_N: Tensor | None = None
) -> float:
    """The weighted mean over the rows that have outputs; infinity where none has."""
    judged = ~outputs_NC.isnan().any(dim=1)
    losses = loss.rows(outputs_NC[judged], targets_NC[judged]).double()
    weights = torch.ones_like(losses) if weights_N is None else weights_N[judged].double()
    total = float(weights.sum())
    return float((losses * weights).sum()) / total if total else math.inf


def fitting_temperature(
    outputs_NC: Tensor,
    targets_NC: Tensor,
    weights_N: Tensor | None = None,
    *,
    regression: bool = False,
) -> float:
    """The T at which ``outputs / T`` have the least cross-entropy (Guo et al. 2017, Sec. 4.2).

    On a grid of 41 between a fifth and five: more exact than so few rows can say. 1 of numbers.
    """
    if regression:
        return 1.0
    grid = torch.logspace(math.log10(0.2), math.log10(5), 41).tolist()
    losses = [
        mean_loss(outputs_NC / t, targets_NC, loss=CLASSES, weights_N=weights_N) for t in grid
    ]
    return float(grid[int(np.argmin(losses))])
