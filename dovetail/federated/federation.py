"""The driver's context: an engine that knows who is missing, and what all have sent on average.

Warnings about parties without which the run trains: immediately, then periodically.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor

from dovetail.errors import DovetailError, PartyError, TrainingError
from dovetail.network import Engine, Message, Pending, Replies
from dovetail.network.counting import Tally
from dovetail.network.engine import R

_log = logging.getLogger(__name__)


class LeftOut:
    """Reports the 1st, 10th, 100th, ... step or round that a party is left out of."""

    def __init__(self) -> None:
        self._counted: dict[str, Tally] = {}  # a name with a number in it is no kind of another

    def warn(self, party: str, reason: str, network: Engine | None = None) -> None:
        """Once more; the reason starts with where: "epoch 3, step 12: its disk is full".

        With the engine, whoever watches that party hears of it, too.
        """
        so_far = self._so_far(party)
        if so_far is None:
            return
        _log.warning("%s", f"party {party!r} is left out of {reason}{so_far}")
        if network is not None:
            network.notify(party, f"leaves this party out of {reason}{so_far}")

    def notify(self, party: str, reason: str, network: Engine) -> None:
        """Note a missing party that the driver's user is warned of elsewhere."""
        so_far = self._so_far(party)
        if so_far is not None:
            network.notify(party, f"leaves this party out of {reason}{so_far}")

    def _so_far(self, party: str) -> str | None:
        """Text to add to the line this time; None if none is due."""
        count = self._counted.setdefault(party, Tally()).once_more()
        if not count:
            return None
        return f" (left out {count:,} times so far)" if count > 1 else ""


def in_round(number: int, why: str) -> str:
    """Where a party was left out, and why; one of an epoch's step says where already."""
    return why if why.startswith(("epoch ", "round ")) else f"round {number}: {why}"


@contextmanager
def ending_announced(network: Engine) -> Iterator[None]:
    """A party that the run cannot do without, and so ends of, hears of it."""
    try:
        yield
    except PartyError as failure:
        with suppress(DovetailError, OSError):  # why the run ends is told all the same
            network.notify(failure.party, f"ends the run: {failure.cause}")
        raise


def end(
    network: Engine,
    over: Mapping[str, Message],
    reply: type[Message],
    *,
    timeout_s: float | None = None,
) -> None:
    """Let parties know that training is over; who does not hear it has no model, and is named."""
    for failure in network.ask(over, reply, timeout_s=timeout_s).failures.values():
        missing = "was not there when training ended and keeps no model of this run"
        _log.warning("%s; it %s: train again with it there", failure, missing)


def scored_without(party: str, reason: str) -> None:
    """A party that others predict with is away while they are scored."""
    _log.warning("%s", f"scores are without {party!r} from here on: {reason}")


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
        number: the round that is being played.
        included: the parties of the last mean; none of a sum in secret that failed.
        only: the parties that its driver sees; None: all of the engine's.
    """

    def __init__(self, engine: Engine, *, timeout_s: float | None = None) -> None:
        self.engine = engine
        self.driver = engine.driver
        self.ledger = engine.ledger
        self.run = engine.run
        self.timeout_s = timeout_s
        self.missing: dict[str, str] = {}
        self.number = 0
        self.included: tuple[str, ...] = ()
        self.only: tuple[str, ...] | None = None

    @property
    def parties(self) -> tuple[str, ...]:
        return self.engine.parties if self.only is None else self.only

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
        self,
        replies: Mapping[str, M],
        field: str,
        weights: Mapping[str, float] | None = None,
        *,
        before: Tensor | None = None,
    ) -> Tensor:
        """Weighted mean of one field of these replies, summed in double precision.

        Args:
            replies: party -> reply.
            field: a tensor of each.
            weights: party -> weight, in any unit; None: all alike.
            before: what the mean stays where it cannot be known (a sum in secret that failed).

        Raises:
            TrainingError: there is no reply.
        """
        self.check_answered(replies)
        shares = normalised(tuple(replies), weights)
        first = next(iter(replies.values()))
        total = torch.zeros(getattr(first, field).shape, dtype=torch.float64)
        for party, reply in replies.items():
            total.add_(getattr(reply, field).double(), alpha=shares[party])
        self.included = tuple(replies)
        return total.float()

    @staticmethod
    def same(replies: Mapping[str, M], field: str) -> Any:
        """The one value that a field has in all replies.

        Raises:
            PartyError: naming a party that says otherwise than the first.
        """
        first, *others = replies
        value = getattr(replies[first], field)
        for party in others:
            if (value_there := getattr(replies[party], field)) != value:
                raise PartyError(party, f"says {field} = {value_there}, and {first!r} says {value}")
        return value

    def size(self, values_P: Tensor) -> int:
        """How many values each reply holds whose mean is this."""
        return len(values_P)

    def figures(self, replies: Mapping[str, M], *fields: str) -> dict[str, float]:
        """Field -> its mean over the parties of the last mean; over all, where it failed."""
        counted = [replies[party] for party in self.included or replies]
        return {
            name: sum(getattr(reply, name) for reply in counted) / len(counted) for name in fields
        }

    def check_answered(self, replies: Collection[str]) -> None:
        """Refuse a round in which nobody answered.

        Raises:
            TrainingError: naming who is missing, and why.
        """
        if not replies:
            reasons = "; ".join(f"{party}: {why}" for party, why in self.missing.items())
            raise TrainingError(f"no party finished round {self.number} ({reasons})")

    def end(self, message: Message, reply: type[R]) -> None:
        """Let every party know that training is over; who does not hear it keeps no model, and is
        named."""
        end(self.engine, dict.fromkeys(self.parties, message), reply, timeout_s=self.timeout_s)

    def notify(self, party: str, why: str) -> None:
        self.engine.notify(party, why)


def normalised(parties: tuple[str, ...], weights: Mapping[str, float] | None) -> dict[str, float]:
    """Party -> its share, of these; all together 1."""
    if weights is None:
        return dict.fromkeys(parties, 1 / len(parties))
    total = sum(weights[party] for party in parties)
    return {party: weights[party] / total for party in parties}
