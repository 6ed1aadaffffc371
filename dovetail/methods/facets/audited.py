"""Facet that an audit asks of a method: what one side sees of the other, as its messages reveal it;
the truth that attacks are scored against; and peers that break its protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from dovetail.data import PartyData, Task
from dovetail.data.preprocessing import Input, TableEncoder
from dovetail.methods.facets.defences import Grid
from dovetail.methods.limits import Limits
from dovetail.methods.training import Training
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


@dataclass(frozen=True, eq=False)
class Holding:
    """Data of a party in a scene.

    Attributes:
        x_NF: its columns as its network reads them, flattened; None: it has none.
        columns: (F,) their names.
        labels_N: its labels; None: it has none.
    """

    x_NF: Tensor | None
    columns: tuple[str, ...] = ()
    labels_N: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Scene:
    """Everything that attacks on one run are scored against.

    Attributes:
        task: what the labels say.
        parties: name -> what it has.
        orders: order of samples -> party -> (S,) its row of each sample, -1 where it has none.
        reading: of the method's messages.
        candidates: party -> (rows it trained on, rows it did not), each with columns and labels:
            of whom a model or weights may say that they were there.
    """

    task: Task
    parties: Mapping[str, Holding]
    orders: Mapping[str, Mapping[str, Tensor]]
    reading: Reading
    candidates: Mapping[str, tuple[PartyData, PartyData]] = field(default_factory=dict)

    def num_samples(self) -> dict[str, int]:
        """Order -> how many samples it has."""
        return {name: len(next(iter(rows.values()))) for name, rows in self.orders.items()}

    def columns_of(self, party: str, order: str, samples: Tensor) -> Tensor | None:
        """(K, F) what this party knows of these samples; None where it has no columns of them."""
        rows = self.orders[order].get(party)
        held = self.parties.get(party)
        if rows is None or held is None or held.x_NF is None or (rows[samples] < 0).any():
            return None
        return held.x_NF[rows[samples]]

    def labels_of(self, party: str, order: str, samples: Tensor) -> Tensor | None:
        """(K,) its labels of these samples, missing ones as they are marked."""
        rows = self.orders[order].get(party)
        held = self.parties.get(party)
        if rows is None or held is None or held.labels_N is None or (rows[samples] < 0).any():
            return None
        return held.labels_N[rows[samples]]


def candidates(
    party_data: Mapping[str, tuple[PartyData, PartyData | None]],
) -> dict[str, tuple[PartyData, PartyData]]:
    """Party -> rows that it trained on, and rows that it did not, of those with test labels."""
    return {
        name: (train.take(train.labelled_rows()), test)
        for name, (train, test) in party_data.items()
        if test is not None and test.labels is not None
    }


def flat(x: Tensor) -> Tensor:
    """(N, F) as numbers, images in 0..1."""
    x = x.flatten(1)
    return x.float() / 255 if x.dtype == torch.uint8 else x.float()


def names_of(given: Input | None, x: Tensor) -> tuple[str, ...]:
    """(F,) names of flattened columns: features of a table, places of an image."""
    if isinstance(given, TableEncoder) and given.num_features == x.flatten(1).shape[1]:
        return given.feature_names
    if x.ndim == 4:
        _, channels, height, width = x.shape
        return tuple(
            f"pixel {row}, {column}" + (f" of channel {channel}" if channels > 1 else "")
            for channel in range(channels)
            for row in range(height)
            for column in range(width)
        )
    return tuple(f"column {index}" for index in range(x.flatten(1).shape[1]))


def holding(data: PartyData, given: Input | None = None) -> Holding:
    """Data of a party of a federation."""
    if not data.blocks:
        return Holding(None, (), data.labels)
    x = data.joined()
    return Holding(flat(x), names_of(given, x), data.labels)


#: Rows of the other side that an inversion is given.
KNOWN = 100


@dataclass(frozen=True)
class Threat:
    """Assumptions of an attack.

    Attributes:
        attack: its name.
        paper: where it is from.
        given: what the attacker has beside the messages.
        baseline: what the same attacker does without them.
        metric: what is scored; 1 is the best.
    """

    attack: str
    paper: str
    given: str
    baseline: str
    metric: str


@dataclass(frozen=True, eq=False)
class Steered:
    """Result of a driver that sends what it likes.

    Attributes:
        observer, owner: who steers, and whose columns are looked for.
        views: name -> (K, D) what was sent about each sample.
        samples: (K,) whose they are.
        threat: what is assumed.
        channel: what was seen.
        known: rows of the other side that the inversion is given.
    """

    observer: str
    owner: str
    views: Mapping[str, Tensor]
    samples: Tensor
    threat: Threat
    channel: str
    known: int = KNOWN


@dataclass(frozen=True, eq=False)
class Poisoned:
    """The run with a partner that steers whoever drives.

    Attributes:
        training: to be trained, and listened to.
        observer: who steers.
        name: what it sends.
    """

    training: Training
    observer: str
    name: str


class Audited:
    """A method whose messages can be attacked.

    Attributes:
        tried: variants whose defences can be tried.
    """

    tried: ClassVar[tuple[str, ...]] = ()

    def scene(self, training: Training) -> Scene:
        """Scene of a run: which party has what, and what reads its messages."""
        raise NotImplementedError

    def decrypted(self, driver: Any) -> Iterable[Seen]:
        """Messages that crossed encrypted, as the driver of the run reads them when it is over."""
        return ()

    def grid(self, training: Training) -> Grid:
        """How defences of a variant among ``tried`` are tried."""
        raise NotImplementedError

    def steered(
        self, training: Training, scene: Scene, variant: str, seed: int, limits: Limits
    ) -> Iterator[Steered | Poisoned]:
        """Findings of a peer that breaks the protocol, within these limits of a partner."""
        return iter(())
