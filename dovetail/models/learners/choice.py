"""The best learner by its held-out rows: what a party would train alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from dovetail.models.learners.base import Fitted, Learner
from dovetail.models.learners.boosting import Boosting
from dovetail.models.learners.linear import Linear
from dovetail.models.learners.network import Network
from dovetail.models.learners.rows import Rows, mean_loss

#: Name -> learner, as users choose it.
LEARNERS: Mapping[str, Learner] = {
    learner.name: learner for learner in (Linear(), Boosting(), Network())
}


@dataclass(frozen=True)
class Best:
    """The learner among ``candidates`` whose held-out loss is least."""

    name: ClassVar[str] = "best"

    candidates: Sequence[Learner] = field(default_factory=lambda: tuple(LEARNERS.values()))

    def fit(
        self, rows: Rows, *, seed: int, encode_on: Tensor | None = None, refit: bool = True
    ) -> Fitted:
        """Trains all of them; the result keeps the name of the one that was chosen."""
        fitted = fit_all(self.candidates, rows, seed=seed, encode_on=encode_on, refit=refit)
        return best_of(fitted, rows)

    def narrowed(self, fitted: Fitted) -> Learner:
        (chosen,) = [each for each in self.candidates if each.name == fitted.learner]
        return chosen.narrowed(fitted)


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
    """The one with the least mean loss on held-out rows; of equal ones the first."""
    return min(fitted.values(), key=lambda each: held_out_loss(each, rows))


def held_out_loss(fitted: Fitted, rows: Rows) -> float:
    """The mean loss of the rows of a fold by models that did not see them."""
    return mean_loss(
        fitted.held_out_NC,
        rows.targets_NC,
        regression=rows.regression,
        weights_N=rows.weights(),
    )
