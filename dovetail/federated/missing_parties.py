"""Warnings about parties without which the run trains: immediately, then periodically."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from dovetail.errors import DovetailError, PartyError
from dovetail.network import Engine, Message
from dovetail.network.counting import Counted

_log = logging.getLogger(__name__)


class LeftOut:
    """Reports the 1st, 10th, 100th, ... step or round that a party is left out of."""

    def __init__(self) -> None:
        self._counted: dict[str, Counted] = {}  # a name with a number in it is no kind of another

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
        count = self._counted.setdefault(party, Counted()).once_more()
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
