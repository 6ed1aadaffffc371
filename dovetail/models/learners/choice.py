"""The best learner by its held-out rows: what a party would train alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, get_args

import numpy as np
import torch
from torch import Tensor

from dovetail.cluster import current
from dovetail.models.learners.boosting import Boosting
from dovetail.models.learners.linear import Linear
from dovetail.models.learners.network import Network
from dovetail.models.learners.rows import Rows, mean_loss
from dovetail.models.learners.specs import Chosen, Fitted, Learner
from dovetail.models.learners.stacked import Weights, frozen, weighted_outputs
from dovetail.settings.models import LearnerName

#: Name -> learner, as users choose it.
LEARNERS: Mapping[str, Chosen] = {
    learner.name: learner for learner in (Linear(), Boosting(), Network())
}

assert LEARNERS.keys() == {*get_args(LearnerName)}

#: So many held-out rows more than there are say that all learners count alike. 5 had the best score
#: of 0, 2, 5, 10 and 20 on rows whose label the owner lacks, of tables of ``dovetail bench worth``.
_PRIOR_ROWS = 5.0
#: A learner that would count less is left out.
_LEAST_WEIGHT = 0.1


@dataclass(frozen=True)
class Best:
    """The mean of ``candidates``, weighted by held-out rows; see ``best_of``."""

    name: ClassVar[str] = "best"

    candidates: Sequence[Learner] = field(default_factory=lambda: tuple(LEARNERS.values()))

    def fit(
        self, rows: Rows, *, seed: int, encode_on: Tensor | None = None, refit: bool = True
    ) -> Fitted:
        """Trains all of them; the result has the names of those that count, joined by "+"."""
        fitted = fit_all(self.candidates, rows, seed=seed, encode_on=encode_on, refit=refit)
        return best_of(fitted, rows)

    def narrowed(self, fitted: Fitted) -> Learner:
        names = fitted.learner.split("+")
        several = [each for each in self.candidates if each.name in names]
        if len(several) == 1:
            return several[0].narrowed(fitted)
        return replace(self, candidates=tuple(several))


def fit_all(
    learners: Sequence[Learner],
    rows: Rows,
    *,
    seed: int,
    encode_on: Tensor | None = None,
    refit: bool = True,
) -> dict[str, Fitted]:
    """Name -> what each of them learnt, on the party's own cluster where it has one."""
    fit = partial(_fit, rows, seed, encode_on, refit)
    return {learner.name: fitted for learner, fitted in current().map(fit, learners)}


def _fit(
    rows: Rows, seed: int, encode_on: Tensor | None, refit: bool, learner: Learner
) -> tuple[Learner, Fitted]:
    return learner, learner.fit(rows, seed=seed, encode_on=encode_on, refit=refit)


def fit_each(
    learner: Learner,
    many: Sequence[Rows],
    *,
    seeds: Sequence[int],
    encode_on: Tensor | None = None,
) -> list[Fitted]:
    """Models of each of these rows, which have one fold each; none is trained once more."""
    if isinstance(learner, Network) and len(many) > 1:
        return learner.fit_each(many, seed=seeds[0], encode_on=encode_on)
    if isinstance(learner, Boosting):
        return learner.fit_each(many, seeds=seeds)
    return [
        learner.fit(rows, seed=seed, encode_on=encode_on, refit=False)
        for rows, seed in zip(many, seeds, strict=True)
    ]


def best_of(fitted: Mapping[str, Fitted], rows: Rows) -> Fitted:
    """The mean of these, weighted by what they say of held-out rows.

    The weights are those of which the mean has the least held-out loss, drawn towards equal ones
    as by ``_PRIOR_ROWS`` more rows: of a hundred rows the best learner is a guess. A single one is
    not preferred where its held-out loss is less than the mean's: on rows whose label the owner
    lacks, of tables of ``dovetail bench worth``, that choice was worse by up to a point, and the
    mean at most 0.35 behind the best learner as found out afterwards. By accuracy or AUC of
    held-out rows the choice would be worse still: of so few rows these say less than the loss.
    Of several labels each has weights of its own.
    """
    if len(fitted) == 1:
        return next(iter(fitted.values()))
    each = list(fitted.values())
    weights_KL = [
        [weight if weight >= _LEAST_WEIGHT else 0.0 for weight in of_each]
        for of_each in _weights(each, rows)
    ]
    several = [one for one, of_each in zip(each, weights_KL, strict=True) if any(of_each)]
    if len(several) == 1:
        return several[0]
    weights_KL = [of_each for of_each in weights_KL if any(of_each)]
    totals_L = [sum(of_label) for of_label in zip(*weights_KL, strict=True)]
    shares_KL = [
        [weight / total for weight, total in zip(of_each, totals_L, strict=True)]
        for of_each in weights_KL
    ]
    weights = shares_KL if rows.loss.separate else [of_each[0] for of_each in shares_KL]
    return mean_of(several, rows, weights=weights)


def _weights(fitted: Sequence[Fitted], rows: Rows) -> list[list[float]]:
    """(K, L) how much each says of a label in the mean that has the least loss of held-out rows
    (Wolpert 1992)."""
    from scipy.optimize import minimize

    judged = rows.folds_N >= 0
    outputs_KNC = torch.stack([each.held_out_NC[judged] for each in fitted]).double()
    targets_NC = rows.targets_NC[judged].double()
    counts_N = rows.weights()[judged].double()
    counts_N = counts_N / counts_N.mean()
    logs_KNC = outputs_KNC if rows.regression else outputs_KNC.log_softmax(dim=-1)
    shape = len(fitted), rows.num_outputs if rows.loss.separate else 1

    def loss_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
        free_KL = torch.tensor(flat.reshape(shape), dtype=torch.float64, requires_grad=True)
        logs_KL = free_KL.log_softmax(dim=0)
        if rows.regression:
            outputs_NC = (logs_KL.exp()[:, None] * logs_KNC).sum(dim=0)
            losses_N = rows.loss.rows(outputs_NC, targets_NC)
        else:
            outputs_NC = (logs_KL[:, None] + logs_KNC).logsumexp(dim=0)
            losses_N = -(targets_NC * outputs_NC).sum(dim=1)
        loss = (losses_N * counts_N).sum() - _PRIOR_ROWS * logs_KL.mean(dim=0).sum()
        loss.backward()
        assert free_KL.grad is not None
        return float(loss.detach()), free_KL.grad.numpy().ravel()

    start = np.zeros(math.prod(shape))
    optimum = minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B").x
    weights: list[list[float]] = torch.from_numpy(optimum.reshape(shape)).softmax(dim=0).tolist()
    return weights


def mean_of(fitted: Sequence[Fitted], rows: Rows, *, weights: Weights | None = None) -> Fitted:
    """Model whose outputs are the mean of these, calibrated on held-out rows.

    Args:
        fitted: two or more.
        rows: what they learnt from.
        weights: of each, or of each and output, 1 in all; None: alike.
    """
    first = fitted[0].spec
    held_out_NC = weighted_outputs(
        torch.stack([each.held_out_NC for each in fitted]), weights, regression=rows.regression
    )
    held_out_NC, temperature, _ = rows.judged(held_out_NC)
    shares = None if weights is None else frozen(weights)

    def by_fold(x_NF: Tensor) -> Tensor:
        of_each = zip(*(each.by_fold(x_NF) for each in fitted), strict=True)
        return (
            torch.stack(
                [
                    weighted_outputs(torch.stack(of_fold), weights, regression=rows.regression)
                    for of_fold in of_each
                ]
            )
            / temperature
        )

    spec = replace(
        first,
        members=tuple(each.spec for each in fitted),
        temperature=temperature,
        weights=shares,
    )
    return Fitted(
        "+".join(each.learner for each in fitted),
        spec,
        spec.around([each.network for each in fitted]),
        held_out_NC,
        {
            **{each.learner: each.settings for each in fitted},
            **({} if weights is None else {"weights": list(weights)}),
        },
        by_fold,
    )


def held_out_loss(fitted: Fitted, rows: Rows) -> float:
    """The mean loss of the rows of a fold by models that did not see them."""
    return mean_loss(
        fitted.held_out_NC,
        rows.targets_NC,
        loss=rows.loss,
        weights_N=rows.weights(),
    )
