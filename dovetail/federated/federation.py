"""The driver's context: an engine that knows who is missing, and what all have sent on average."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from dovetail.network import Engine, Message, Pending, Replies
from dovetail.network.engine import R

M = TypeVar("M", bound=Message)


class Federation(Engine):
    """The parties of a run, as its driver reaches them.

    Args:
        engine: carries the messages.
        timeout_s: how long a question waits for answers unless it says otherwise; None: as long as
            it takes.

    Attributes:
        missing: party -> why it had no part in the round that is being played. ``train`` warns of
            them, puts them into the round's line of metrics, and clears them.
    """

    def __init__(self, engine: Engine, *, timeout_s: float | None = None) -> None:
        self.engine = engine
        self.driver = engine.driver
        self.ledger = engine.ledger
        self.run = engine.run
        self.timeout_s = timeout_s
        self.missing: dict[str, str] = {}

    @property
    def parties(self) -> tuple[str, ...]:
        return self.engine.parties

    def send(
        self, requests: Mapping[str, Message], reply: type[R], *, timeout_s: float | None = None
    ) -> Pending[R]:
        return self.engine.send(
            requests, reply, timeout_s=self.timeout_s if timeout_s is None else timeout_s
        )

    def ask(
        self,
        requests: Mapping[str, Message] | Message,
        reply: type[R],
        *,
        to: Collection[str] | None = None,
        timeout_s: float | None = None,
        of_party: Mapping[str, Mapping[str, int]] | None = None,
        **sizes: int,
    ) -> Replies[R]:
        """The answers of those that answered as asked; who did not is ``missing`` in this round.

        Args:
            requests: party -> message, or one message for all.
            reply: the type that answers.
            to: of one message for all, whom to ask; None: every party.
            timeout_s: seconds until a party that has not answered counts as missing.
            of_party: party -> more sizes, of its own reply.
            sizes: letter of a shape -> its size; see ``Message.check``.
        """
        if isinstance(requests, Message):
            requests = dict.fromkeys(self.parties if to is None else to, requests)
        replies = (
            self.send(requests, reply, timeout_s=timeout_s).replies().fitting(of_party, **sizes)
        )
        for party, failure in replies.failures.items():
            self.missing.setdefault(party, failure.cause)
        return replies

    def mean(
        self, replies: Mapping[str, M], field: str, weights: Mapping[str, float] | None = None
    ) -> Tensor:
        """Weighted mean of one field of these replies, summed in double precision.

        Args:
            replies: party -> reply.
            field: a tensor of each.
            weights: party -> weight; None: all alike.
        """
        total: Tensor | None = None
        for party, reply in replies.items():
            values = getattr(reply, field)
            if total is None:
                total = torch.zeros(values.shape, dtype=torch.float64)
            total.add_(values.double(), alpha=weights[party] if weights else 1 / len(replies))
        assert total is not None
        return total.float()

    def notify(self, party: str, why: str) -> None:
        self.engine.notify(party, why)
