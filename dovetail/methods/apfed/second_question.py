"""APFed-S, asked twice: one number a row at first, and more where held-out rows say that it pays.

The first answer is enough on most tables. Where the teacher that it makes is well ahead of the own
model on held-out rows, the partner has much to say, and is asked once more: by more smoothers, of
the same samples and targets, which it has. So the second question is a few words.

    label owner                             partner
    More(kernels, ridges)             ---->  products with the ciphertexts it has
                                      <----  Answered(numbers)

No more numbers are asked for than the partner's policy gives, which its first answer says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from dovetail.errors import MessageError, ModelError
from dovetail.federated import handles
from dovetail.methods.apfed import sealed
from dovetail.methods.apfed.sealed_checks import within_policy
from dovetail.methods.settings.apfed import MAX_SMOOTHERS
from dovetail.models.learners import Fitted
from dovetail.models.smoothers import Smoother, smoother_of
from dovetail.network import Engine, Message

# --- What crosses the boundary -----------------------------------------------------------------


class More(Message):
    """Label owner -> partner: numbers of the same samples by more smoothers."""

    family: ClassVar[str] = "sealed"

    kernels: tuple[str, ...]
    ridges: tuple[float, ...]


# --- What a partner executes -------------------------------------------------------------------


class Partner(sealed.Partner):
    """A partner that may be asked once more."""

    finish_with = (sealed.Begin, More)

    @handles(most=1)
    def more(self, message: More) -> sealed.Answered:
        """Numbers by more smoothers, from the targets that it has."""
        num = len(self.smoothing.smoothers)
        if not 0 < len(message.kernels) == len(message.ridges) <= MAX_SMOOTHERS - num:
            raise MessageError(
                f"{message.wire_name()}: expected 1 to {MAX_SMOOTHERS - num} more smoothers, got "
                f"{len(message.kernels)} kernels and {len(message.ridges)} ridges"
            )
        smoothers = tuple(map(smoother_of, message.kernels, message.ridges))
        numbers = len(smoothers) * self.product.layout.columns
        before = self.asked.numbers if self.given is None else 0  # else they are counted
        within_policy(self.name, self.limits, self.given, self.asked.cells, before + numbers)
        self.smoothing.smoothers += smoothers
        return self.answered(replace(self.asked, numbers=numbers))


# --- What the label owner executes -------------------------------------------------------------


class Active(sealed.Active):
    """A label owner that may ask once more.

    Args:
        more: smoothers of the second question.
        fill: whether labelled rows that no partner has are learnt from, where these are many.

    Attributes:
        asked_more: partners that were asked twice.
        alone: own models, and the best of them, where these are trained already.
    """

    saved: ClassVar[tuple[str, ...]] = (*sealed.Active.saved, "asked_more")

    family: ClassVar[str] = "sealed"

    def __init__(
        self, *arguments: Any, more: Sequence[Smoother] = (), fill: bool = True, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.fill = fill
        self.more, self.asked_more = tuple(more), list[str]()
        self.alone: tuple[dict[str, Fitted], Fitted] | None = None

    def aligned(self) -> Tensor:
        """(R,) bool: rows of which a partner said something."""
        held = [~each.isnan().any(dim=1) for each in self.numbers.values()]
        return torch.stack(held).any(dim=0)

    def ask_more(self, network: Engine) -> None:
        """Ask everybody who answered, within its policy; who does not answer has said enough."""
        requests = {}
        for party, (begin, _) in self.made.items():
            smoothers = self.more[: self.left.get(party, 0) // begin.columns]
            if party in self.numbers and smoothers:
                requests[party] = More(
                    tuple(each.kernel for each in smoothers),
                    tuple(each.ridge for each in smoothers),
                )
        replies = network.ask(requests, sealed.Answered, timeout_s=self.timeout_s).fitting()
        for party, reply in replies.items():
            try:
                self.read(party, len(requests[party].kernels), reply)
            except (MessageError, ModelError):
                continue
            self.asked_more.append(party)
