"""A method with partners that can be worth something, as ``dovetail value`` asks of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from dovetail.data import Classification, Counts, MultiLabel, MultiTarget, SharedRows, Task
from dovetail.errors import DataError
from dovetail.methods import selection
from dovetail.methods.outcome import Scores
from dovetail.methods.training import Training
from dovetail.models.metrics import headline
from dovetail.network import InProcess, Party

#: Rows that mutual information is estimated on, drawn by the seed.
INFORMATION_ROWS = 1000

#: Before the name of a joint model's score.
JOINT = "joint "

NO_TEST = (
    "the run has no test rows, and a coalition is worth its test score: set data.test (or test, "
    "with parties), or rank by mutual information alone with --by mi"
)


@dataclass(frozen=True, eq=False)
class Game:
    """A run, seen as partners who may or may not take part.

    Attributes:
        setup: the run with all of them.
    """

    setup: Training

    @property
    def partners(self) -> tuple[str, ...]:
        """Names of the parties that may take part."""
        raise NotImplementedError

    @property
    def owners(self) -> tuple[str, ...]:
        """Names of the parties that have labels and are scored."""
        raise NotImplementedError

    @property
    def task(self) -> Task:
        """Task that fits the labels."""
        raise NotImplementedError

    @property
    def metric(self) -> str:
        """The score that counts, unless another is asked for."""
        return headline(self.task)

    @property
    def leaves(self) -> bool:
        """Whether partners leave after training, so that a joint model is another one."""
        return False

    def train(self, coalition: Collection[str], seed: int, *, joint: bool = False) -> Scores:
        """Test scores of the run with these partners; their mean over several owners.

        With ``joint`` also those of the joint model, called "joint NAME".

        Raises:
            ConfigError: there is no test row.
        """
        raise NotImplementedError

    def information(self, partners: Collection[str], seed: int) -> dict[str, float]:
        """Partner -> nats that its columns reveal about the labels."""
        raise NotImplementedError


class Valued:
    """A method whose partners can be valued.

    Attributes:
        variants: those that have partners.
    """

    variants: ClassVar[tuple[str, ...]]
    game: ClassVar[type[Game]]  # a run, seen as partners who may or may not take part

    def joint(self, method: str) -> str | None:
        """Variant that is trained besides, for the partners' value while they are there."""
        return None


# --- What games share ----------------------------------------------------------------------------


def silent(variant: str, total: int, line: dict[str, Any]) -> None:
    pass


def columns_of(shared: Mapping[str, SharedRows]) -> selection.Features:
    """Raw columns by label owner and sample."""
    return lambda owner, samples_B: shared[owner][samples_B]


def classes_of(task: Task, labels: torch.Tensor) -> torch.Tensor:
    """Labels that mutual information can be estimated with: numbers by tenths of the rows, counts
    of an exposure for one of it; of several labels what a row says of all, numbers by whether they
    are above their mean."""
    if isinstance(task, MultiLabel | MultiTarget):
        high_NL = (labels > labels.nanmean(dim=0)).long()
        said_NL = high_NL.masked_fill(labels.isnan(), 2).numpy()
        return torch.from_numpy(np.unique(said_NL, axis=0, return_inverse=True)[1].reshape(-1))
    if isinstance(task, Counts) and task.exposure is not None:
        labels = labels[:, 0] / labels[:, 1]
    return labels if isinstance(task, Classification) else selection.binned(labels)


def information(
    parties: Mapping[str, Party], partners: Sequence[str], owners: Sequence[str], seed: int
) -> dict[str, float]:
    """Partner -> nats, each by itself."""
    config = selection.Config(groups=0, rows=INFORMATION_ROWS)
    network = InProcess(parties, driver="value")
    scores = selection.score(network, partners, owners, config, seed=seed)
    for name in partners:
        if name in scores.missed:
            raise DataError(f"party {name!r}: {scores.missed[name]}")
    return dict(scores.values)
