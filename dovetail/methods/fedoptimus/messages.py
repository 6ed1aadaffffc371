"""FedOptimus' messages beside those of Algorithm 1's steps, which are the page's.

With ``BeginData`` and ``BeginLabels`` a run starts; with ``FinishData`` and ``FinishLabels`` it
ends. ``Averaged`` and ``TopTaken`` are receipts.

How good a label owner's model is, it reports without telling a single label: the driver asks data
owners for embeddings (``Embed``) and hands their mean to the label owner (``Measure``,
``Validate``), which answers with sums over all of its samples.

Of times to an event label owners agree on intervals, and each keeps a baseline of its own:

    coordinator                                label owner
    BeginLabels                    -------->
                                   <--------   LabelsReady, with the ends that would suit its times
    TakeTimes, the agreed ends     -------->   fits its own baseline hazards in them
                                   <--------   TimesTaken

The ends of an owner's are rounded up to two digits (``alignment/times.py``). The top's one output
moves the log odds of all intervals alike, so that no count of an interval leaves an owner.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor

from dovetail.errors import MessageError, PartyError
from dovetail.network import Doubles, Integers, Message, Numbers, Values

#: Gradients of embeddings; whoever reads them refuses what is not finite.
Top = Annotated[Tensor, Values(torch.float32, "P", finite=False, means="weights")]
Gradients = Annotated[Tensor, Values(torch.float32, "GE", finite=False)]


class OfFedOptimus(Message):
    """A message that a layer adds to the algorithm."""

    family = "fedoptimus"


class BeginLabels(OfFedOptimus):
    """Coordinator -> label owner: training starts. ``settings`` is the ``Config`` as JSON.

    ``start`` is what all tops' first weights are drawn from, beside the seed: hexadecimal digits
    that label owners get and data owners do not, who could else read labels out of the first
    gradients. "" in simulation.
    """

    settings: str
    seed: int
    start: str

    def secret(self) -> bytes | None:
        """Bytes that are mixed into w_0 of the tops.

        Raises:
            MessageError: no hexadecimal digits.
        """
        try:
            return bytes.fromhex(self.start) or None
        except ValueError:
            raise MessageError(f"{self.wire_name()}: its start is no hexadecimal number") from None


class LabelsReady(OfFedOptimus):
    """Label owner -> coordinator: its shard's size, and what its labels say.

    ``num_samples`` and ``num_test`` count the orders that it shares with the data owners.
    """

    num_rows: int
    num_samples: int
    num_test: int
    task: str  # as JSON


class TakeTimes(OfFedOptimus):
    """Coordinator -> label owner: the intervals that all agreed on end here."""

    ends_Q: Doubles


class TimesTaken(OfFedOptimus):
    """Label owner -> coordinator: it learns in these intervals."""


class BeginData(OfFedOptimus):
    """Coordinator -> data owner: training starts, with these label owners."""

    settings: str
    seed: int
    label_owners: tuple[str, ...]
    num_samples: tuple[int, ...]
    num_rows: tuple[int, ...]


class DataReady(OfFedOptimus):
    """Data owner -> coordinator: it holds all of those samples."""


class FinishLabels(OfFedOptimus):
    """Coordinator -> label owner: training is over."""


class FinishData(OfFedOptimus):
    """Coordinator -> data owner, of those whose embeddings the tops know: training is over."""


class Finished(OfFedOptimus):
    """Any owner -> coordinator: it has its model."""


class Averaged(OfFedOptimus):
    """Data owner -> coordinator: its replicas are one model again."""

    round: int


class TopTaken(OfFedOptimus):
    """Label owner -> coordinator: it goes on from there."""

    round: int


class Embeddings(OfFedOptimus):
    """Data owner -> coordinator, or a label owner who predicts: embeddings of these samples."""

    embedding_BE: Numbers


class Embed(OfFedOptimus):
    """Driver -> data owner: embed these samples with the model as it is; nothing is learned.

    ``test``: samples of the test table, in the order shared with that label owner.
    """

    label_owner: str
    samples_B: Integers
    test: bool


class Measure(OfFedOptimus):
    """Coordinator -> label owner: the mean embedding of its test samples; how good is the top?

    They come in its order, ``SCORED_AT_ONCE`` at a time and the rest; see ``Measured``.
    """

    samples_B: Integers
    mean_BE: Numbers


class Measured(OfFedOptimus):
    """Label owner -> coordinator: sums over all samples, with the last; before it zeros.

    Those of a few samples would reveal their labels. ``num_right`` is 0 of other labels than
    classes.
    """

    loss: float
    num_right: int
    num_rows: int

    def of(self, owner: str, num: int) -> Measured:
        """These sums, if they can be of so many samples.

        Raises:
            PartyError: they cannot.
        """
        if self.num_rows != num or not 0 <= self.num_right <= num or not math.isfinite(self.loss):
            raise PartyError(owner, f"{self.wire_name()}: sums that cannot be")
        return self


class GiveHeldOut(OfFedOptimus):
    """Coordinator -> label owner: which samples did you keep out of training?"""


class HeldOut(OfFedOptimus):
    """Label owner -> coordinator: these places of its shared order."""

    samples_N: Integers


class Validate(OfFedOptimus):
    """Coordinator -> label owner: the mean embedding of samples that it kept out; decide by all.

    They come once, in its order, ``SCORED_AT_ONCE`` at a time and the rest. With the last it
    chooses what its settings ask for.
    """

    samples_B: Integers
    mean_BE: Numbers
