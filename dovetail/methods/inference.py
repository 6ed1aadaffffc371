"""After training: a party answers from the network that it kept of a run, at its site."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ClassVar, Protocol

from torch import Tensor

from dovetail.data import SharedRows
from dovetail.errors import DataError, MessageError, ModelError
from dovetail.federated import Local, Party
from dovetail.methods.base import Asked
from dovetail.methods.party import Site
from dovetail.models import Bottom, load_bottom
from dovetail.models.learners.joint import JointSpec
from dovetail.network import Message

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


def kept_at(site: Site, asked: Asked, fits: Callable[[Bottom], bool]) -> Kept:
    """What a party keeps at its site, of runs whose networks fit."""

    def kept(trained: str) -> tuple[Bottom, Tensor]:
        folder = asked.kept(trained)
        try:
            bottom = load_bottom(folder)
            if bottom.input is None or not fits(bottom):
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

    return kept


# --- What the label owner executes -------------------------------------------------------------


class Question(Protocol):
    """What partners of a joint model are asked for, and how their answers are read."""

    reply: ClassVar[type[Message]]

    @property
    def spec(self) -> JointSpec:
        """Spec of the joint model."""

    def message(self, trained: str, samples_B: Tensor) -> Message:
        """Asks about these samples."""

    def read(self, party: str, reply: Message, num_rows: int) -> Tensor:
        """(B, E), NaN of rows that say nothing.

        Raises:
            MessageError: not what was asked for.
        """
