"""Views of one side on the other: what a method's messages reveal, as an audit reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from dovetail.network.messages import Message

#: Of so many samples what was said is kept.
MAX_ROWS = 4000

#: What is seen: a view of rows, how it is to move, the owner's part of an output, distances; of
#: APFed-S what the owner decrypts, and what its partner cannot.
What = Literal[
    "codes", "gradients", "gradients beside its codes", "codes behind gradients",
    "output gradients", "logits", "distances",
    "numbers", "ciphertexts",
]  # fmt: skip


@dataclass(frozen=True, order=True)
class Channel:
    """Channel: a kind of thing that one side is shown of another.

    Attributes:
        observer: who is shown it.
        owner: whose columns or labels it is a function of.
        what: see ``What``.
        order: the order of samples that it is numbered in.
    """

    observer: str
    owner: str
    what: What
    order: str = ""


@dataclass(frozen=True, eq=False)
class Seen:
    """Content of a message about some samples; ``samples_B`` are places in the channel's order."""

    channel: Channel
    samples_B: Tensor
    values_BD: Tensor


@dataclass(frozen=True, eq=False)
class Logits:
    """The owner's part of a member's logits in one step, as the receiver works it out.

    ``value_BC`` is against the first class; NaN in rows that say nothing.
    """

    channel: Channel
    member: int
    samples_B: Tensor
    value_BC: Tensor


@dataclass(frozen=True, eq=False)
class Weights:
    """A network's weights after training at one party, and what it began from."""

    observer: str
    owner: str
    round: int
    before: Mapping[str, Tensor]
    after: Mapping[str, Tensor]


class Reading(Protocol):
    """Reads one method's messages.

    Only what a message's receiver can see is read. The mapping from places in a shared order to
    rows serves to score attacks, not to make them.
    """

    def __call__(
        self, driver: str, party: str, request: Message, answer: Message
    ) -> Iterable[Seen | Logits | Weights]: ...
