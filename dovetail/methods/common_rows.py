"""Rows and labels that a driver trains with, and what parties exchange about rows that all have.

``Targets`` is a layer of every method whose driver has the labels: they may be missing for some
rows, be randomised (``privacy/labels.py``), and count by class. The rest is of methods that train
on rows only that every party has: batches keep what partners' policies answer, and codes and
gradients are looked at before they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from dovetail.data import Alignment, Classification, Minibatches, PartyData, Task
from dovetail.data.stored import put_tensor_away
from dovetail.errors import ConfigError, MessageError, PartyError, TrainingError
from dovetail.federated import Local
from dovetail.methods.limits import Limits
from dovetail.methods.settings.shared import EpochSettings, TargetSettings
from dovetail.models import network_input
from dovetail.models.decisions import class_weights, on, supervised_loss
from dovetail.models.optimizers import gradient_of
from dovetail.network import Message, State
from dovetail.privacy import potential_energy, randomised

M = TypeVar("M", bound=Message)

#: No code that a network gives, and no gradient of one, has larger numbers, unless whoever sends it
#: is out of hand.
MAX_CODE = 1e6


class CommonRows:
    """Batches of the label owner's rows that have a label and a match at every party.

    Args:
        labelled: (L,) rows with a label.
        alignment: rows by shared sample.
        settings: of the label owner.
        local: its context, which draws the batches.

    Attributes:
        rows_S: (S,) its row of each shared sample.
        samples: those that train, in the order of its rows.
        batches: of ``samples``.

    Raises:
        ConfigError: there is no such row.
    """

    def __init__(
        self, labelled: Tensor, alignment: Alignment, settings: EpochSettings, local: Local
    ) -> None:
        self._settings, self._local, self._min_rows = settings, local, 1
        self.rows_S = alignment.rows[local.name]
        everywhere = alignment.shared(*alignment.rows)
        samples = everywhere[torch.isin(self.rows_S[everywhere], labelled)]
        # In the order of its rows: numbers of samples are random in each alignment, batches not.
        self.samples = samples[self.rows_S[samples].argsort()]
        if not len(self.samples):
            raise ConfigError(
                f"no row of {local.name!r} has both a label and a match at every party; "
                "classic vertical learning needs such rows"
            )
        self.batches = self._draw()

    def _draw(self) -> Minibatches:
        size, least = self._settings.batch_size, self._min_rows
        return self._local.batches(self.samples, size, "labelled batches", least=least)

    @property
    def steps_per_epoch(self) -> int:
        return self._settings.steps_per_epoch or self.batches.steps_per_pass

    @property
    def min_rows(self) -> int:
        """The fewest samples that every party answers about."""
        return self._min_rows

    def open(self, limits: Mapping[str, Limits]) -> None:
        """Keep what these parties answer.

        Raises:
            ConfigError: there is no party, or a run that would not keep a party's limits.
        """
        if not limits:
            raise ConfigError("the baseline 'tvfl' needs at least one party beside the active one")
        self._min_rows = max(each.min_rows for each in limits.values())
        if self._min_rows > 1:
            self.batches = self._draw()
        settings = self._settings
        passes = settings.epochs * self.steps_per_epoch / self.batches.steps_per_pass
        for party, each in limits.items():
            size = settings.batch_size
            each.check_run(party, len(self.samples), batch_size=size, passes=passes)

    def draw(self) -> tuple[Tensor, Tensor]:
        """(B,) samples of the next batch, and the label owner's rows of them."""
        samples_B = next(self.batches)
        return samples_B, self.rows_S[samples_B]

    def parts(self, num_rows: int) -> list[int]:
        """Sizes of the messages that ask about so many rows, to predict."""
        return parts(num_rows, 512, self._min_rows)

    def state(self) -> State:
        return self.batches.state()

    def restore(self, state: State) -> None:
        """Go on from there, after ``open``."""
        self.batches.restore(dict(state))


def parts(num: int, most: int, least: int) -> list[int]:
    """Sizes of consecutive parts; a last one that is too small joins the one before.

    >>> parts(1030, 512, 16), parts(1030, 512, 1), parts(5, 512, 16)
    ([512, 518], [512, 512, 6], [5])
    """
    whole, rest = divmod(num, most)
    sizes = [most] * whole
    if rest >= least or not sizes:
        return [*sizes, rest] if rest else sizes
    return [*sizes[:-1], most + rest]


# --- What parties send ---------------------------------------------------------------------------


class _Width(Protocol):
    @property
    def code_width(self) -> int: ...


def leaves(
    replies: Mapping[str, Message], opened: Mapping[str, _Width], local_BD: Tensor
) -> dict[str, Tensor]:
    """Party -> its (B, D_p) codes, as leaves of the label owner's graph.

    Args:
        replies: party -> a message with a field ``code_BD``.
        opened: party -> how wide its codes are.
        local_BD: the label owner's codes of the same samples.

    Raises:
        PartyError: codes of another shape, or that are not finite, or above ``MAX_CODE``.
    """
    codes = {}
    for party, reply in replies.items():
        try:
            reply.check(B=len(local_BD), D=opened[party].code_width)
        except MessageError as cause:
            raise PartyError(party, str(cause)) from None
        code_BD = reply.tensors()["code_BD"]
        largest = code_BD.abs().max() if len(code_BD) else torch.zeros(())
        if not largest <= MAX_CODE:
            what = f"above {MAX_CODE:g}" if largest.isfinite() else "not finite"
            raise PartyError(party, f"its codes are {what}; lower its learning_rate")
        codes[party] = code_BD.detach().to(local_BD.device).requires_grad_()
    return codes


def released(
    local: Local, samples_B: Tensor, codes: Mapping[str, Tensor], message: Callable[[Tensor], M]
) -> dict[str, M]:
    """Party -> the gradient of its codes, as it may leave, with what that has cost.

    Args:
        local: of the label owner.
        samples_B: whose codes they are.
        codes: party -> leaves, after a backward pass.
        message: makes the message.
    """
    messages = {}
    for party, code_BD in codes.items():
        gradient_BD = local.release(
            "gradients", party, samples_B, gradient_of(code_BD), or_zeros=True
        )
        messages[party] = local.with_cost(message(gradient_BD), "gradients", party)
    return messages


def due(sent: list[Tensor], message: Message) -> Tensor:
    """The codes that were sent last, whose gradient the message is.

    Args:
        sent: they, once; emptied.
        message: with a field ``gradient_BD``.

    Raises:
        TrainingError: none are due, or the gradient is out of hand.
        MessageError: it has another shape.
    """
    if not sent:
        raise TrainingError("it was sent a gradient for codes it did not send")
    code_BD = sent.pop()
    message.check(B=len(code_BD), D=code_BD.shape[1])
    if not message.tensors()["gradient_BD"].abs().max() <= MAX_CODE:
        raise TrainingError(f"it was sent a gradient that is not finite, or above {MAX_CODE:g}")
    return code_BD


class Targets:
    """Labels on the device, and losses against them.

    Args:
        data: the driver's rows and labels.
        task: what the labels say.
        settings: what is done with them.
        local: of the party: its device, and what it draws.

    Attributes:
        task: what the labels say.
        rows: (L,) rows with a label, in order.
        labels: (N,) on the device, randomised if that is set.
        class_weights_C: on the device; None: all classes count alike.

    Raises:
        ConfigError: no labelled row, or settings for classes and a label that is a number.
    """

    def __init__(
        self,
        data: PartyData,
        task: Task,
        settings: TargetSettings,
        local: Local,
    ) -> None:
        self.task, self._spread = task, settings.spread
        self.rows = put_tensor_away(data.labelled_rows(), data.name)
        labels = data.labels
        if labels is None or not len(self.rows):
            raise ConfigError(
                f"party {data.name!r} has no labelled row; the party that drives has labels"
            )
        for name in ("spread", "label_epsilon"):
            if getattr(settings, name) and not isinstance(task, Classification):
                raise ConfigError(
                    f"party {data.name!r}: {name} is for classes, its label is a number; leave it "
                    "out"
                )
        if settings.label_epsilon is not None:
            labels = randomised(
                labels,
                network_input(data.joined()),
                task.num_outputs,
                settings.label_epsilon,
                local.generator("randomised labels"),
                stages=settings.label_stages,
            )
        self.labels = labels.to(local.device)
        self.class_weights_C = on(local.device, class_weights(settings.loss_weights, task, labels))

    def of(self, rows_B: Tensor) -> Tensor:
        """(B,) labels of these rows, on the device."""
        return self.labels[rows_B.to(self.labels.device)]

    def loss(self, outputs_BC: Tensor, rows_B: Tensor) -> Tensor:
        """Mean cross entropy, or squared error, of a batch's outputs."""
        return supervised_loss(self.task, outputs_BC, self.of(rows_B), self.class_weights_C)

    def loss_of(self, outputs_BC: Tensor, labels_B: Tensor) -> Tensor:
        """The loss of a batch of one row; a mean over it would undo the weight of its class."""
        weights_C = self.class_weights_C
        return supervised_loss(self.task, outputs_BC, labels_B, weights_C, reduction="sum")

    def spread(self, loss: Tensor, codes_BD: list[Tensor], rows_B: Tensor) -> Tensor:
        """The loss, with codes of one class pushed apart (``privacy/spread.py``) if that is set."""
        if not self._spread:
            return loss
        labels_B = self.of(rows_B)
        energies = [potential_energy(code_BD, labels_B) for code_BD in codes_BD]
        return loss + self._spread * torch.stack(energies).sum()
