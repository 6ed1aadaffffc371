"""The best learner by its held-out rows: what a party would train alone."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from dovetail.models.learners.base import Fitted, Learner
from dovetail.models.learners.boosting import Boosting
from dovetail.models.learners.linear import Linear
from dovetail.models.learners.network import Network
from dovetail.models.learners.rows import Rows, fitting_temperature, mean_loss, row_losses
from dovetail.models.learners.stacked import mean_outputs

#: Name -> learner, as users choose it.
LEARNERS: Mapping[str, Learner] = {
    learner.name: learner for learner in (Linear(), Boosting(), Network())
}


@dataclass(frozen=True)
class Best:
    """The learner among ``candidates`` whose held-out loss is least, or a mean that is better."""

    name: ClassVar[str] = "best"

    candidates: Sequence[Learner] = field(default_factory=lambda: tuple(LEARNERS.values()))

    def fit(
        self, rows: Rows, *, seed: int, encode_on: Tensor | None = None, refit: bool = True
    ) -> Fitted:
        """Trains all of them; the result has the name of what was chosen, such as "linear"."""
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
    """Name -> what each of them learnt."""
    return {
        learner.name: learner.fit(rows, seed=seed, encode_on=encode_on, refit=refit)
        for learner in learners
    }


def best_of(fitted: Mapping[str, Fitted], rows: Rows) -> Fitted:
    """The one with the least loss on held-out rows, or the mean of several that is clearly better.

    Clearly: by more than the standard error of the difference, row by row. By accuracy or AUC of
    held-out rows the choice would be worse, in accuracy and AUC of others: of a hundred rows these
    say less than the loss.
    """
    single = min(fitted.values(), key=lambda each: held_out_loss(each, rows))
    several = [
        mean_of(chosen, rows)
        for size in range(2, len(fitted) + 1)
        for chosen in itertools.combinations(fitted.values(), size)
    ]
    for mean in sorted(several, key=lambda each: held_out_loss(each, rows)):
        gain, error = _gain(single, mean, rows)
        if gain > error:
            return mean
    return single


def _gain(over: Fitted, fitted: Fitted, rows: Rows) -> tuple[float, float]:
    """By how much ``fitted`` has less held-out loss than ``over``, and the standard error."""
    judged = rows.folds_N >= 0
    before, after = (
        row_losses(
            each.held_out_NC[judged], rows.targets_NC[judged], regression=rows.regression
        ).double()
        for each in (over, fitted)
    )
    weights = rows.weights()[judged].double()
    gains = (before - after) * weights / weights.mean()
    error = float(gains.std()) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
    return float(gains.mean()), error


def mean_of(fitted: Sequence[Fitted], rows: Rows) -> Fitted:
    """One model that says the mean of what these say, calibrated on held-out rows."""
    first = fitted[0].spec
    held_out_NC = mean_outputs(
        torch.stack([each.held_out_NC for each in fitted]), regression=rows.regression
    )
    judged, temperature = rows.folds_N >= 0, 1.0
    if not rows.regression:
        temperature = fitting_temperature(
            held_out_NC[judged], rows.targets_NC[judged], rows.weights()[judged]
        )
    spec = replace(first, members=tuple(each.spec for each in fitted), temperature=temperature)
    return Fitted(
        "+".join(each.learner for each in fitted),
        spec,
        spec.around([each.network for each in fitted]),
        held_out_NC / temperature,
        {each.learner: each.settings for each in fitted},
    )


def held_out_loss(fitted: Fitted, rows: Rows) -> float:
    """The mean loss of the rows of a fold by models that did not see them."""
    return mean_loss(
        fitted.held_out_NC,
        rows.targets_NC,
        regression=rows.regression,
        weights_N=rows.weights(),
    )
