"""FedOptimus with ``secure``: means of embeddings are taken under masks.

    coordinator                                data owner
    Step or Embed                  -------->   embeds, and keeps it
                                   <--------   Embeddings, of no rows
    a sum that outlives lost data owners (``federated/secret_mean.py``): GiveKeys, GiveParts,
    GiveMasked, GiveOpened and their answers, with the embeddings as values

The coordinator learns the mean and no data owner's part. What a data owner embeds once has a part
in one sum. What it does not hide: the difference of two sums over the same rows, of which one lacks
a data owner.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dovetail.errors import MessageError, PartyError, TrainingError
from dovetail.federated import secret_mean
from dovetail.federated.secret_mean import Lasting, LastingFederation
from dovetail.methods.fedoptimus.messages import Embeddings
from dovetail.methods.fedoptimus.requests import Requests, checked_embedding
from dovetail.network import Engine, Message
from dovetail.settings.privacy import QUORUM

#: Between the numbers of sums before and after a run is resumed.
_APART = 10**6


MESSAGES = secret_mean.lasting_messages("fedoptimus", __name__)
GiveKeys, PublicKeys, GiveParts, Parts, GiveMasked, Masked, GiveOpened, Opened = MESSAGES


# --- What a data owner sets ----------------------------------------------------------------------


@dataclass(frozen=True)
class SummingSettings:
    """How a data owner's embeddings are summed.

    Attributes:
        secure: take part only where they are.
        members: whom it sums with; None: anybody who is certified.
        quorum: the least that it sums with.
    """

    secure: bool = False
    members: tuple[str, ...] | None = None
    quorum: float = QUORUM


#: Of a data owner that asks for nothing.
UNASKED = SummingSettings()


# --- What a data owner executes ------------------------------------------------------------------


class Summing(Lasting):
    """A data owner's part of sums: what it embedded last, once."""

    renamed = MESSAGES

    def forget(self) -> None:
        """Nothing is there to be summed."""
        self._due: tuple[Tensor, str] | None = None
        self._number: int | None = None

    def hold(self, embedding_BE: Tensor, message: Message, *names: str) -> Embeddings:
        """Keep embeddings for a sum; the answer has none.

        Args:
            message: what they follow from; its fields ``names`` are the same at all data owners.
        """
        alike = [_plain(getattr(message, name)) for name in names]
        digest = hashlib.sha256(json.dumps(alike).encode()).hexdigest()
        self._due, self._number = (embedding_BE.detach().flatten().cpu(), digest), None
        return Embeddings(embedding_BE.new_empty(0, embedding_BE.shape[1]).cpu())

    def summed(self, number: int) -> tuple[Tensor, str]:
        """Embeddings that it computed last, to be summed."""
        if self._due is None or self._number not in (None, number):
            raise PartyError(
                self.name, f"has no embeddings for sum {number}: each is in one sum and no other"
            )
        self._number = number
        return self._due


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


# --- What the coordinator executes ---------------------------------------------------------------


class Numbered:
    """Numbers of sums: none twice, also when a run goes on from an older state."""

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        self.last += 1
        return self.last

    def resume(self, last: int) -> None:
        """Go on behind all that may have been given since this one."""
        self.last = last + _APART


class MaskedAsking(Requests):
    """Questions whose means are taken under masks.

    Args:
        quorum: more than this share of the data owners must answer to the end.
        numbers: of sums.
    """

    def __init__(
        self, network: Engine, timeout_s: float | None, where: str, quorum: float, numbers: Numbered
    ) -> None:
        super().__init__(network, timeout_s, where)
        self._quorum, self._numbers = quorum, numbers

    def mean(
        self, requests: Mapping[str, Message], num: int, embedding: int
    ) -> tuple[Tensor, tuple[str, ...]]:
        """(num, E) mean of the embeddings of those who stayed to the end; line 10.

        Raises:
            TrainingError: too few stay.
        """

        def check(party: str, answer: Embeddings) -> None:
            if len(answer.embedding_BE):
                raise MessageError(f"{answer.wire_name()}: rows in the clear, in a run with secure")
            checked_embedding(answer, 0, embedding)

        answers = self.ask(requests, Embeddings, check)
        self.need(answers, "data owner answered")
        federation = LastingFederation(
            self.network, MESSAGES, self._quorum, timeout_s=self.timeout_s
        )
        federation.number = self._numbers.next()
        mean_P = federation.mean(answers, "embedding_BE", before=torch.zeros(num * embedding))
        for party, reason in federation.missing.items():
            self.missed.note(party, reason)
        if not federation.included:
            raise TrainingError(
                f"too few data owners answered to the end of a secret sum{self.where} "
                f"({self.missed}); more than {self._quorum:g} of them, and three, are needed"
            )
        return mean_P.view(num, embedding), federation.included
