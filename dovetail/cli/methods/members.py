"""A party's side of a method's runs, as ``dovetail join`` makes it at the party's home."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from dovetail.models import Model
from dovetail.models.owners import Bottom
from dovetail.network import Message, State
from dovetail.network.checkpoint import StatefulParty


@dataclass(frozen=True, eq=False)
class Asked:
    """A run that a driver begins.

    Attributes:
        device: where the party computes.
        rows_S: its rows of the samples that it shares with the driver; raises AlignmentError where
            it has none of the alignment that the run is of.
        keep: saves what the party can use, and says how it scores on its own test rows.
        kept: id of a run -> the folder where ``keep`` saved what came of it.
        run: its id.
        aligned: a folder for rows of alignments that this driver carries between parties.
    """

    device: torch.device
    rows_S: Callable[[], Tensor]
    keep: Callable[[Model | Bottom, Mapping[str, float]], None]
    kept: Callable[[str], Path]
    run: str
    aligned: Path


class Maker(Protocol):
    """Makes a party's side of a run."""

    def __call__(self, asked: Asked, /) -> Callable[[], StatefulParty]:
        """What makes it afresh, each time it is called.

        Raises:
            AlignmentError: it has no rows of the run's alignment.
        """


class Finishing:
    """A party whose model is kept as soon as training is over.

    Args:
        party: what answers.
        finish: the message after which its model is whole.
        keep: called then.
    """

    def __init__(
        self, party: StatefulParty, finish: type[Message], keep: Callable[[], None]
    ) -> None:
        self.accepts = party.accepts
        self._party = party
        self._finish = finish
        self._keep = keep

    def handle(self, message: Message) -> Message:
        answer = self._party.handle(message)
        if isinstance(message, self._finish):
            self._keep()
        return answer

    def state(self) -> State:
        return self._party.state()

    def restore(self, state: State) -> None:
        self._party.restore(state)
