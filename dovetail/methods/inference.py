"""After training: a party answers from the network that it kept of a run, at its site."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from dovetail.data import SharedRows
from dovetail.errors import DataError, MessageError, ModelError
from dovetail.federated import Local, Party
from dovetail.methods.base import Asked, Maker, Site
from dovetail.models import Bottom, load_bottom
from dovetail.network import Engine, Message
from dovetail.network.checkpoint import StatefulParty

_log = logging.getLogger(__name__)

#: Id of a run -> a party's network of that run, and all its rows as that network's inputs; raises
#: where it keeps none.
Kept = Callable[[str], tuple[Bottom, Tensor]]


class Recaller(Party):
    """A party that embeds and learns nothing; a subclass says which message asks for that.

    Args:
        rows_S: its row of each sample that it has agreed on with the label owner, -1: it has none.
        kept: what it keeps.
        local: its context.
    """

    def __init__(self, rows_S: Tensor, kept: Kept, local: Local) -> None:
        self._rows_S = rows_S
        self._kept = kept
        self._recalled: tuple[str, Bottom, SharedRows] | None = None

    def embed(self, trained: str, samples_B: Tensor) -> Tensor:
        """(B, E) of these samples, by its network of this run.

        Raises:
            MessageError: more samples than there are.
            ModelError: it keeps no such network.
        """
        if len(samples_B) > len(self._rows_S):
            raise MessageError("more samples than are shared: each sample once")
        if self._recalled is None or self._recalled[0] != trained:
            bottom, x = self._kept(trained)
            self._recalled = trained, bottom, SharedRows(self.name, x, self._rows_S)
        _, bottom, shared = self._recalled
        return bottom.embed(shared[samples_B])


def recalling(
    site: Site,
    fits: Callable[[Bottom, Asked], bool],
    make: Callable[[Asked], Callable[[Tensor, Kept], StatefulParty]],
) -> Maker:
    """Makes a party's side of predictions, for whoever asks.

    Args:
        site: keeps networks of its runs.
        fits: whether it may answer whoever asks by this one.
        make: of whoever asks, what makes the party of its rows and networks.
    """

    def of_run(asked: Asked) -> Callable[[], StatefulParty]:
        party = make(asked)
        rows_S = asked.rows_S()

        def kept(trained: str) -> tuple[Bottom, Tensor]:
            folder = asked.kept(trained)
            try:
                bottom = load_bottom(folder)
                if bottom.input is None or not fits(bottom, asked):
                    raise ModelError(f"{folder} is of another method, or driver")
                x = site.table.encoded(bottom.input).joined()
            except (ModelError, DataError) as error:  # names files and columns of this machine
                _log.warning("run %s: %s", asked.run, error)
                raise ModelError(
                    f"it keeps no network of the run {trained!r} that fits its table; its log has "
                    "the details"
                ) from None
            bottom.network.to(asked.local().device)
            return bottom, x

        return lambda: party(rows_S, kept)

    return of_run


# --- What the label owner executes -------------------------------------------------------------


def missing_text(missed: Mapping[str, str]) -> str:
    """Text on which parties are missing, and why."""
    return "; ".join(f"{name} ({why})" for name, why in missed.items())


class Question(Protocol):
    """Question to parties about rows, and the reader of their answers."""

    reply: ClassVar[type[Message]]

    def width(self, party: str) -> int:
        """E, numbers of a row's answer; 0 of who is no party of the model's run."""

    def message(self, trained: str, samples_B: Tensor) -> Message:
        """Asks about these samples."""

    def read(self, party: str, reply: Message, num_rows: int) -> Tensor:
        """(B, E), NaN of rows that say nothing.

        Raises:
            MessageError: not what was asked for.
        """

    def here(self, bottom: Bottom, x: Tensor) -> Tensor:
        """(N, E) of rows of a party whose network is in this process."""


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers of parties about samples.

    Attributes:
        codes: party -> (N, E), NaN where it did not answer.
        missed: party -> why it left out some that it has.
    """

    codes: Mapping[str, Tensor]
    missed: Mapping[str, str]

    @property
    def answered(self) -> dict[str, Tensor]:
        """Party -> (N,) bool."""
        return {name: ~codes.isnan().any(dim=1) for name, codes in self.codes.items()}

    def mean(self) -> Tensor:
        """(N, E) the mean of each sample over those that answered; zeros where nobody did."""
        total_NE = sum(codes.nan_to_num() for codes in self.codes.values())
        num_N = sum(answered.long() for answered in self.answered.values())
        return torch.as_tensor(total_NE) / torch.as_tensor(num_N).clamp(min=1).unsqueeze(1)

    def of(self, sample_N: Tensor, missed: Mapping[str, str]) -> Answers:
        """Of each row, whose sample this is; with these missed."""
        return Answers({name: codes[sample_N] for name, codes in self.codes.items()}, missed)


def ask(
    network: Engine,
    trained: str,
    question: Question,
    held: Mapping[str, Tensor],
    *,
    timeout_s: float | None = None,
    batch_size: int = 1024,
) -> Answers:
    """Answers of every party about the samples that it has; one that fails is not asked for
    further.

    Args:
        network: reaches the parties, each of which keeps its network.
        trained: id of the run whose networks are meant.
        question: of the model.
        held: party -> (N,) bool, which samples it has.
        timeout_s: how long a party may take for a message.
        batch_size: samples a message.
    """
    codes = {
        name: torch.full((len(held_N), question.width(name)), torch.nan)
        for name, held_N in held.items()
    }
    missed: dict[str, str] = {}
    for batch in torch.arange(max(map(len, held.values()), default=0)).split(batch_size):
        asked = {name: batch[held_N[batch]] for name, held_N in held.items() if name not in missed}
        requests = {
            name: question.message(trained, samples)
            for name, samples in asked.items()
            if len(samples)
        }
        replies = network.ask(requests, question.reply, timeout_s=timeout_s)
        missed |= {name: failure.cause for name, failure in replies.failures.items()}
        for name, reply in replies.items():
            try:
                codes[name][asked[name]] = question.read(name, reply, len(asked[name]))
            except MessageError as cause:
                missed[name] = str(cause)
    return Answers(codes, missed)
