"""Checks of what a partner sends before it moves anything: shape, size, finite values."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from dovetail.errors import ConfigError, MessageError, PartyError, TrainingError
from dovetail.methods.apfed.questions import Question
from dovetail.methods.apfed.unify import Help, TradeOff, weight_of
from dovetail.methods.common_rows import MAX_CODE
from dovetail.network import Replies
from dovetail.network.engine import R

_log = logging.getLogger(__name__)


def check_kind(asked: str, kind: str) -> None:
    """Refuse a run of another loss than the party's own, which no message changes.

    Raises:
        ConfigError: both, and what to write.
    """
    if asked not in ("", kind):
        raise ConfigError(
            f"its own loss is {kind!r} (loss below [apfed] in its file), and the run is of "
            f'{asked!r}; write loss = "{asked}" there, or train method = "apfed-mixed", of each '
            "party's own loss"
        )


def check_codes(code_BD: Tensor) -> None:
    """Refuse codes that are out of hand.

    Raises:
        TrainingError: numbers above ``MAX_CODE``.
    """
    if len(code_BD) and MAX_CODE < code_BD.detach().abs().max() < math.inf:
        raise TrainingError(f"it was sent codes above {MAX_CODE:g}")


def check_loss(loss: Tensor, code_BD: Tensor, party: str, kind: str, rate: float) -> None:
    """Refuse to learn from a loss that is not finite, and say at its site whose fault it is.

    Args:
        loss: of a batch.
        code_BD: what it is of.
        party: who learns.
        kind: which loss it is.
        rate: the learning rate.

    Raises:
        TrainingError: it is not finite.
    """
    if loss.isfinite():
        return
    if not code_BD.isfinite().all():
        raise TrainingError("it was sent codes that are not finite")
    words = "party %r: its %s loss is %s; lower its learning_rate (%s)"
    _log.warning(words, party, kind, loss.item(), rate)
    raise TrainingError("its loss is not finite; lower its learning_rate")


class Bound:
    """Cuts rows of partners' gradients off that are far larger than the task's own.

    Args:
        clip: the largest row, in multiples of ``usual``; None: any finite one.
        batch_size: of a step.
        device: where gradients are.
        measures: whether the task's own rows may be looked at.

    Attributes:
        usual: the largest median row of dL_A/dh so far, or a tenth of a row's share of a mean.
        cut: party -> rows that were cut off in this epoch.
    """

    def __init__(
        self, clip: float | None, batch_size: int, device: torch.device, *, measures: bool
    ) -> None:
        self._clip = clip
        self._measures = measures and clip is not None
        self.usual = torch.tensor(0.1 / batch_size, device=device)
        self.cut: dict[str, int] = {}

    def measure(self, gradient_BD: Tensor) -> None:
        """Remember how large rows of dL_A/dh are: what others' are compared with."""
        if self._measures:
            rows_B = _largest(gradient_BD)
            self.usual = torch.maximum(self.usual, rows_B.median())

    def helps(
        self,
        gradient_BD: Tensor,
        asked: Mapping[str, Question],
        replies: Replies[R],
        trade_off: TradeOff,
    ) -> list[Help]:
        """Help that partners returned as it was asked for; a reply that is not becomes a failure.

        A contrast depends on codes' directions alone, so behind a random projection from D to d
        numbers its gradient by the code is sqrt(D / d) times as long: lambda_p is divided by that,
        and pulls as hard as without one. The other losses of a projection, vicreg and
        clustering, are scaled alike: how long their gradients are depends on more than that.

        Args:
            gradient_BD: dL_A/dh.
            asked: party -> its question.
            replies: party -> a message with a field ``gradient_BD``.
            trade_off: lambda_p, one for all or by party.
        """
        self.measure(gradient_BD)
        helps = []
        for party, reply in replies.items():
            question = asked[party]
            narrowed = math.sqrt(question.code_BD.shape[1] / gradient_BD.shape[1])
            try:
                reply.check(B=len(question.code_BD), D=question.code_BD.shape[1])
                returned = reply.tensors()["gradient_BD"].to(question.code_BD.device)
                bounded_BD = self.bounded(party, returned)
            except MessageError as cause:
                replies.failures[party] = PartyError(party, str(cause))
                continue
            helps.append(
                Help(
                    weight_of(trade_off, party) * narrowed,
                    question.rows_B,
                    question.code_BD,
                    bounded_BD,
                    question.projected,
                )
            )
        return helps

    def bounded(self, party: str, gradient_BD: Tensor) -> Tensor:
        """The gradient; rows out of bounds are cut off, and the party is named.

        Raises:
            MessageError: it is not finite.
        """
        rows_B = _largest(gradient_BD)
        bound = math.inf if self._clip is None else self._clip * self.usual
        if bool((rows_B <= bound).all()) and (self._clip or rows_B.isfinite().all()):
            return gradient_BD
        if not rows_B.isfinite().all():
            raise MessageError("apfed.CodeGradient: the gradient is not finite")
        beyond_B = rows_B > bound
        if party not in self.cut:
            _log.warning(
                "party %r: %d rows of its gradient are up to %.3g, more than apfed.clip = %g times "
                "the task's own; they are cut off, here and from now on",
                party,
                int(beyond_B.sum()),
                rows_B.max(),
                self._clip,
            )
        self.cut[party] = self.cut.get(party, 0) + int(beyond_B.sum())
        # To nothing: at the bound, which is generous, they would still push codes far away.
        return gradient_BD.masked_fill(beyond_B.unsqueeze(1), 0.0)

    def taken(self) -> dict[str, int]:
        """Party -> rows that were cut off in this epoch, which ends."""
        cut = {party: count for party, count in self.cut.items() if count}
        self.cut = dict.fromkeys(self.cut, 0)
        return cut

    def state(self) -> dict[str, Tensor]:
        return {"usual": self.usual}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from there."""
        self.usual = state["usual"].to(self.usual.device)


def _largest(gradient_BD: Tensor) -> Tensor:
    """(B,) the largest absolute value of each row; the infinity norm takes 20 times as long."""
    return gradient_BD.abs().amax(dim=1)
