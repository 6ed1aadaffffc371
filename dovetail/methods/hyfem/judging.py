"""Rows that a party keeps out of training, by which its model is judged.

A run's threshold and calibration of probabilities are decided on them (``decide``), and a search
asks for the score on them once training is over.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from dovetail.data import Classification
from dovetail.errors import MessageError
from dovetail.federated import handles
from dovetail.methods.hyfem.serving import ServedCoordinator, ServedMember
from dovetail.methods.outcome import goodness
from dovetail.methods.settings.hyfem import Settings
from dovetail.models import derive_seed
from dovetail.models.learners import hold_out
from dovetail.network import Engine, Message


class GiveScore(Message):
    """Server -> party: how good is your model, on rows that you kept out of training?"""

    family: ClassVar[str] = "hyfem"


class Score(Message):
    """Party -> server: accuracy on so many rows; of numbers 1 / (1 + mean squared error)."""

    family: ClassVar[str] = "hyfem"

    goodness: float
    num_rows: int

    def check(self, **sizes: int) -> None:
        """Refuse what is no score."""
        if not 0 <= self.goodness <= 1 or self.num_rows < 0:
            what = f"{self.goodness} of {self.num_rows} rows is no score"
            raise MessageError(f"{self.wire_name()}: {what}")


class JudgedMember(ServedMember):
    """A party that keeps rows out of training where a run decides something on them.

    Attributes:
        judged: (N,) those rows.
    """

    config: Settings
    judged: Tensor

    def training_rows(self) -> Tensor:
        rows = super().training_rows()
        self.judged = rows[:0]
        if self.config.decide is not None:
            rows, self.judged = hold_out(
                rows,
                self.labels[rows.to(self.device)].cpu(),
                seed=derive_seed(0, self.name, "threshold"),
                regression=not isinstance(self.task, Classification),
            )
        return rows

    def held_out(self) -> tuple[Tensor, Tensor] | None:
        """Outputs and labels of the rows that did not train; None without any."""
        if not len(self.judged):
            return None
        x = {name: block[self.judged] for name, block in self.blocks.items()}
        return self.model().outputs(x), self.labels[self.judged.to(self.device)].cpu()

    @handles(most=3)  # a trial asks once; one that falls as it finishes asks again
    def give_score(self, message: GiveScore) -> Score:
        """How good its model is on rows that did not train; nothing within a budget."""
        held = self.held_out() if self.local.budget is None else None
        return Score(0.0, 0) if held is None else Score(goodness(self.task, *held), len(held[1]))


class JudgingCoordinator(ServedCoordinator):
    """A server that asks for scores once training is over."""

    def judged(self, network: Engine) -> dict[str, float]:
        """Party -> how good its model is on rows that it kept out of training."""
        replies = self.ask(network, GiveScore(), Score)
        return {party: reply.goodness for party, reply in replies.items() if reply.num_rows}
