"""A peer that breaks a method's protocol, as an audit tries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from dovetail.methods.training import Training

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
