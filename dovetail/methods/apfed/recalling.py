"""Predicting with partners after APFed-D: each answers codes of rows that both have.

A partner keeps its networks of a run at home. The label owner, who drives, agrees with each on the
samples by private set intersection, for this prediction only, and asks for their codes. Rows that a
partner lacks, or where it does not answer, are NaN, and the solo model says them.

    label owner                         partner
    psi, as ``alignment/psi.py``  <-->  its row of each sample
    Recall                        ---->
                                  <---- Recalled

Letters: B rows of a message, N samples, E codes of a partner, all members'.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dovetail.data import SharedRows
from dovetail.errors import DataError, MessageError, ModelError
from dovetail.methods.base import Asked, Maker
from dovetail.methods.party import Site
from dovetail.models import Bottom, load_bottom
from dovetail.models.learners.joint import BottomsSpec
from dovetail.network import Engine, Message, State, check_shape
from dovetail.network.checkpoint import StatefulParty

_log = logging.getLogger(__name__)

# --- What crosses the boundary -----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Recall(Message):
    """Label owner -> partner: codes of these samples, by the networks that you kept of a run."""

    trained: str  # the run's id
    samples_B: Tensor  # int64, places in the order that the two have agreed on


@dataclass(frozen=True, eq=False)
class Recalled(Message):
    """Partner -> label owner: codes and linear parts of the samples asked for, all members'."""

    code_BE: Tensor


# --- What a partner executes -------------------------------------------------------------------


class Recalling:
    """A partner after training.

    Args:
        name: the party.
        rows_S: its row of each sample that it has agreed on with the label owner, -1: it has none.
        kept: id of a run -> its networks of that run, and all its rows as their inputs; raises
            where it keeps none.
    """

    accepts = (Recall,)

    def __init__(
        self, name: str, rows_S: Tensor, kept: Callable[[str], tuple[Bottom, Tensor]]
    ) -> None:
        self.name = name
        self._rows_S = rows_S
        self._kept = kept
        self._recalled: tuple[str, Bottom, SharedRows] | None = None

    def handle(self, message: Message) -> Message:
        assert isinstance(message, Recall)
        num = message.samples_B.numel()
        check_shape(message, "samples_B", (num,), torch.int64)
        if num > len(self._rows_S):
            raise MessageError(f"{message.wire_name()}: each sample once")
        if self._recalled is None or self._recalled[0] != message.trained:
            bottom, x = self._kept(message.trained)
            self._recalled = message.trained, bottom, SharedRows(self.name, x, self._rows_S)
        _, bottom, shared = self._recalled
        return Recalled(bottom.embed(shared[message.samples_B]))

    def state(self) -> State:
        """It keeps nothing between messages."""
        return {}

    def restore(self, state: State) -> None:
        """Nothing to restore."""


def maker(site: Site) -> Maker:
    """Makes a partner's side of a prediction, for the label owner who asks."""

    def of_run(asked: Asked) -> Callable[[], StatefulParty]:
        rows_S = asked.rows_S()

        def kept(trained: str) -> tuple[Bottom, Tensor]:
            folder = asked.kept(trained)
            try:
                own = load_bottom(folder)
                if not isinstance(own.spec, BottomsSpec) or own.input is None:
                    raise ModelError(f"{folder} is of another method")
                x = site.table.encoded(own.input).joined()
            except (ModelError, DataError) as error:  # names files and columns of this machine
                _log.warning("run %s: %s", asked.run, error)
                raise ModelError(
                    f"it keeps no networks of the run {trained!r} that fit its table; its log has "
                    "the details"
                ) from None
            return own, x

        return lambda: Recalling(site.name, rows_S, kept)

    return of_run


# --- What the label owner executes -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Asking:
    """Codes of samples.

    Attributes:
        codes: partner -> (N, E), NaN where it did not answer.
        missed: partner -> why it left out some that it has.
    """

    codes: Mapping[str, Tensor]
    missed: Mapping[str, str]

    @property
    def answered(self) -> dict[str, Tensor]:
        """Partner -> (N,) bool."""
        return {name: ~codes.isnan().any(dim=1) for name, codes in self.codes.items()}


def recall(
    network: Engine,
    trained: str,
    widths: Mapping[str, int],
    held: Mapping[str, Tensor],
    *,
    timeout_s: float | None = None,
    batch_size: int = 1024,
) -> Asking:
    """Every partner's codes of the samples that it has; one that fails is not asked for further.

    Args:
        network: reaches the partners, each a ``Recalling``.
        trained: id of the run whose networks are meant.
        widths: partner -> E.
        held: partner -> (N,) bool, which samples it has.
        timeout_s: how long a partner may take for a message.
        batch_size: samples a message.
    """
    codes = {
        name: torch.full((len(held_N), widths[name]), torch.nan) for name, held_N in held.items()
    }
    missed: dict[str, str] = {}
    for batch in torch.arange(max(map(len, held.values()), default=0)).split(batch_size):
        asked = {name: batch[held_N[batch]] for name, held_N in held.items() if name not in missed}
        requests = {
            name: Recall(trained, samples) for name, samples in asked.items() if len(samples)
        }
        replies = network.ask(requests, Recalled, timeout_s=timeout_s)
        missed |= {name: failure.cause for name, failure in replies.failures.items()}
        for name, reply in replies.items():
            shape = len(asked[name]), widths[name]
            try:
                check_shape(reply, "code_BE", shape, torch.float32)
                if not reply.code_BE.sum().isfinite():
                    raise MessageError(f"{reply.wire_name()}: codes that are not finite")
            except MessageError as cause:
                missed[name] = str(cause)
                continue
            codes[name][asked[name]] = reply.code_BE
    return Asking(codes, missed)
