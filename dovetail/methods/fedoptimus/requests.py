"""How the coordinator asks in a round: it goes on without who does not answer, and says so.

What cannot be is refused, and its sender counts as missing; so one that lies is left out of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from dovetail.errors import MessageError, TrainingError
from dovetail.federated import Played
from dovetail.methods.fedoptimus.messages import Embeddings
from dovetail.models.owners import mean_embedding
from dovetail.network import Engine, Message, check_shape

M = TypeVar("M", bound=Message)

#: No embedding, gradient of one or weight has larger numbers, unless its sender is out of hand.
MAX_VALUE = 1e6


def check_finite(message: Message, name: str) -> None:
    """Refuse numbers that are not finite, or larger than ``MAX_VALUE``.

    Raises:
        MessageError: naming the field.
    """
    values: Tensor = getattr(message, name)
    if not values.numel():
        return
    least, most = values.aminmax()  # not a copy of them all, as by their abs()
    largest = torch.maximum(-least, most)
    if not largest <= MAX_VALUE:
        what = f"above {MAX_VALUE:g}" if largest.isfinite() else "not finite"
        raise MessageError(f"{message.wire_name()}: {name} is {what}")


def checked_embedding(reply: Embeddings, num: int, embedding: int) -> Tensor:
    """(num, E) embeddings of a reply, if they are as many and finite.

    Raises:
        MessageError: they are not.
    """
    check_shape(reply, "embedding_BE", (num, embedding), torch.float32)
    check_finite(reply, "embedding_BE")
    return reply.embedding_BE


class Missed(dict[str, int]):
    """Party -> how many times it was left out; ``reasons`` has why, the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: dict[str, str] = {}

    def note(self, party: str, reason: str) -> None:
        """Count the party once more."""
        self[party] = self.get(party, 0) + 1
        self.reasons.setdefault(party, reason)

    def __str__(self) -> str:
        return "; ".join(f"{party}: {reason}" for party, reason in self.reasons.items())


class Requests:
    """Questions of one round, or of one evaluation.

    Args:
        network: reaches the parties.
        timeout_s: how long a question waits for an answer.
        where: when it is asked, in an error's words: " in round 3".

    Attributes:
        missed: who was left out, how often and why.
        losses: label owner -> its losses so far.
    """

    def __init__(self, network: Engine, timeout_s: float | None, where: str = "") -> None:
        self.network = network
        self.timeout_s = timeout_s
        self.where = where
        self.missed = Missed()
        self.losses: dict[str, list[float]] = {}

    def ask(
        self,
        requests: Mapping[str, Message],
        reply: type[M],
        check: Callable[[str, M], object] = lambda party, answer: None,
    ) -> dict[str, M]:
        """Party -> its answer, of those that answered as asked, in the order of the requests.

        Args:
            check: of a party's name and answer; raises MessageError at what cannot be.
        """
        if not requests:
            return {}
        replies = self.network.ask(requests, reply, timeout_s=self.timeout_s)
        for party, failure in replies.failures.items():
            self.missed.note(party, failure.cause)
        answers = {}
        for party, answer in replies.items():
            try:
                check(party, answer)
            except MessageError as cause:
                self.missed.note(party, str(cause))
            else:
                answers[party] = answer
        return answers

    def need(self, answers: Mapping[str, Any], what: str) -> None:
        """Refuse to go on with nobody.

        Args:
            what: who did what, in an error's words: "label owner answered".

        Raises:
            TrainingError: there is no answer.
        """
        if not answers:
            raise TrainingError(f"no {what}{self.where} ({self.missed})")

    def mean(
        self, requests: Mapping[str, Message], num: int, embedding: int
    ) -> tuple[Tensor, tuple[str, ...]]:
        """(num, E) mean of the embeddings that came, and whose they are; line 10.

        Raises:
            TrainingError: nobody answers.
        """
        answers = self.ask(
            requests, Embeddings, lambda party, answer: checked_embedding(answer, num, embedding)
        )
        self.need(answers, "data owner answered")
        return mean_embedding([each.embedding_BE for each in answers.values()]), tuple(answers)


@dataclass(frozen=True, kw_only=True)
class Round(Played):
    """Result of one round.

    Attributes:
        missed: party -> how many times it was left out.
        reasons: party -> why, the first time in this round.
    """

    missed: Mapping[str, int]
    reasons: Mapping[str, str]

    def line(self) -> dict[str, Any]:
        return {"round": self.number, **self.metrics, "seconds": self.seconds}

    def left_out(self) -> dict[str, Any]:
        return {"missed": self.missed, "reasons": self.reasons} if self.missed else {}


@dataclass(frozen=True, kw_only=True)
class Averaging(Round):
    """A round of one run, at whose end weights are averaged.

    Attributes:
        losses: label owner -> mean loss over its minibatches of this round.
        participants: the data owners that were asked (line 5).
    """

    losses: Mapping[str, float]
    participants: tuple[str, ...]


def num_bytes(network: Engine) -> int:
    """Number of bytes that left all parties and the coordinator so far."""
    return sum(each["sent"] for each in network.ledger.bytes_by_party().values())
