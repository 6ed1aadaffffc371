"""Which round was the best so far: at the driver its number, at a party its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from torch import Tensor, nn

from dovetail.errors import MessageError, TrainingError
from dovetail.federated.party import SavedAttributes
from dovetail.network import Message
from dovetail.settings.models import Choose

#: Said where a loss is no number.
LARGEST_LOSS = 1e30


class Scored(Message):
    """Party -> driver: its model on its validation rows; 0 of 0 rows without any."""

    accuracy: float
    num_rows: int
    loss: float  # their mean, where rounds are compared by it; else 0

    @classmethod
    def of(cls, accuracy: float, num_rows: int, loss: float) -> Self:
        """Score with a loss that may be no number."""
        return cls(accuracy, num_rows, loss if math.isfinite(loss) else LARGEST_LOSS)

    def check(self, **sizes: int) -> None:
        """Refuse what is no share of rows."""
        if not 0 <= self.accuracy <= 1 or self.num_rows < 0:
            what = f"{self.accuracy} of {self.num_rows} rows is no accuracy"
            raise MessageError(f"{self.wire_name()}: {what}")
        if not self.loss >= 0:
            raise MessageError(f"{self.wire_name()}: {self.loss} is no mean loss")


@dataclass
class BestRound:
    """The round of the largest figure, as a driver saves it.

    Attributes:
        patience: stop after so many rounds without a better; None: never.
        choose: what ``judge`` compares rounds by.
        number: the best round; 0: none yet.
        figure: its figure: the mean accuracy, or less the loss.
        improved: the last round in which what counts got better.
        figures: party -> its own best accuracy, with "each".
        accuracies: party -> accuracy on its validation rows, in the best round.
    """

    patience: int | None = None
    choose: Choose = "mean"
    number: int = 0
    figure: float = -math.inf
    improved: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    accuracies: dict[str, float] = field(default_factory=dict)

    def note(self, number: int, figure: float) -> bool:
        """Whether this round is the best so far; if so it is remembered."""
        if not figure > self.figure:
            return False
        self.number = self.improved = number
        self.figure = figure
        return True

    def judge(self, number: int, replies: Mapping[str, Scored]) -> dict[str, float]:
        """Metrics of a round from these scores: "validation", and "validation_loss" if that counts.
        Remembers the best round.

        The loss is a mean over rows, so that a party of five does not count as one of fifty.
        """
        scored = {party: reply for party, reply in replies.items() if reply.num_rows}
        if not scored:
            self.improved = self.number = number  # nothing to stop or to choose by
            return {}
        accuracies = {party: reply.accuracy for party, reply in scored.items()}
        means = {"validation": sum(accuracies.values()) / len(accuracies)}
        figure = means["validation"]
        if self.choose == "loss":
            rows = sum(reply.num_rows for reply in scored.values())
            loss = sum(reply.loss * reply.num_rows for reply in scored.values()) / rows
            means["validation_loss"], figure = loss, -loss
        improved = self.improved
        self.note(number, figure)
        if self.choose == "each":
            self.improved = improved
            for party, accuracy in accuracies.items():
                if accuracy > self.figures.get(party, -1.0):
                    self.figures[party] = accuracy
                    self.improved = number
        if self.choose == "last":
            self.number = number
        if self.number == number:
            self.accuracies = accuracies
        return means

    def before(self, number: int) -> int:
        """The best round before this one; 0: there is none."""
        return self.number if self.number < number else 0

    def ended(self, number: int) -> bool:
        """Whether to stop before this round."""
        return self.patience is not None and number - self.improved > self.patience


class Snapshots(SavedAttributes):
    """A party's weights after the last round, and after the best: the driver says which it was.

    Attributes:
        latest, best: the round and its weights; None: there is none.
    """

    saved = ("latest", "best")

    def __init__(self) -> None:
        self.latest: tuple[int, dict[str, Tensor]] | None = None
        self.best: tuple[int, dict[str, Tensor]] | None = None

    def take(self, number: int, network: nn.Module) -> None:
        """These are the weights after this round."""
        self.latest = number, {name: value.clone() for name, value in network.state_dict().items()}

    def keep(self, number: int) -> None:
        """The round of this number was the best; 0: nothing is printed."""
        if number and self.latest is not None and self.latest[0] == number:
            self.best = self.latest

    def put_back(self, network: nn.Module) -> int:
        """Gives the network the best weights, else the latest; their round.

        Raises:
            TrainingError: there are none.
        """
        kept = self.best or self.latest
        if kept is None:
            raise TrainingError("has no finished round to keep")
        self.best = kept
        network.load_state_dict(kept[1])
        return kept[0]
