"""How good a label owner's model is, by messages that reveal no single label.

The driver asks data owners for embeddings and hands their mean to the label owner, in its order,
``SCORED_AT_ONCE`` samples at a time. The label owner answers with sums over all of its samples, and
only with the last: sums of a few would reveal their labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dovetail.data import Classification, Task
from dovetail.errors import MessageError
from dovetail.methods.fedoptimus.messages import Embed, Measure, Measured, Validate
from dovetail.methods.fedoptimus.requests import Requests, check_finite
from dovetail.methods.settings.fedoptimus import Config
from dovetail.models.decisions import supervised_loss
from dovetail.network import check_shape

#: Samples of a ``Measure`` or ``Validate``, but for the last.
SCORED_AT_ONCE = 1024


class InOrder:
    """Outputs of a label owner's top for samples that come in order, some at a time.

    Args:
        samples_N: (N,) int64.

    Attributes:
        samples_N: as given.
        outputs: (n, C) each, of those that came.
    """

    def __init__(self, samples_N: Tensor) -> None:
        self.samples_N = samples_N
        self.outputs: list[Tensor] = []

    @property
    def num_done(self) -> int:
        return sum(map(len, self.outputs))

    @property
    def is_done(self) -> bool:
        return self.num_done == len(self.samples_N)

    def due(self) -> Tensor:
        """The samples that come next."""
        return self.samples_N[self.num_done : self.num_done + SCORED_AT_ONCE]

    @torch.no_grad()
    def take(
        self,
        message: Measure | Validate,
        top: nn.Module,
        task: Task,
        labels_S: Tensor,
        *,
        embedding: int,
        device: torch.device,
    ) -> Measured:
        """Note what the top says of the samples that are due; with the last, how good it is.

        Raises:
            MessageError: other samples, or embeddings that cannot be.
        """
        due = self.due()
        if not len(due) or not torch.equal(message.samples_B, due):
            raise MessageError(
                f"{message.wire_name()}: its {len(self.samples_N)} samples come in order, "
                f"{SCORED_AT_ONCE} at a time, and once; {self.num_done} came"
            )
        check_shape(message, "mean_BE", (len(due), embedding), torch.float32)
        check_finite(message, "mean_BE")
        self.outputs.append(top(message.mean_BE.to(device)).cpu())
        if not self.is_done:
            return Measured(0.0, 0, 0)
        outputs_NC, labels_N = torch.cat(self.outputs), labels_S[self.samples_N]
        loss = supervised_loss(task, outputs_NC, labels_N, reduction="sum").item()
        num_right = 0
        if isinstance(task, Classification):
            num_right = int((outputs_NC.argmax(dim=1) == labels_N).sum())
        return Measured(loss, num_right, len(labels_N))


def asked_sums(
    message: type[Measure | Validate],
    label_owner: str,
    samples_N: Tensor,
    data_owners: Sequence[str],
    config: Config,
    round_requests: Requests,
) -> Measured:
    """How good a label owner's top is on all these samples, by messages.

    Args:
        message: ``Measure`` of test samples, ``Validate`` of those that it kept out of training.

    Raises:
        PartyError: it does not answer, or not with what can be.
        TrainingError: no data owner answers.
    """
    measured = Measured(0.0, 0, 0)
    for first in range(0, len(samples_N), SCORED_AT_ONCE):
        part = samples_N[first : first + SCORED_AT_ONCE]
        request = Embed(label_owner, part, test=message is Measure)
        requests = dict.fromkeys(data_owners, request)
        mean_BE, _ = round_requests.mean(requests, len(part), config.embedding)
        asked = {label_owner: message(part, mean_BE)}
        replies = round_requests.network.ask(asked, Measured, timeout_s=config.timeout_s).or_raise()
        is_last = first + len(part) == len(samples_N)
        measured = replies[label_owner].of(label_owner, len(samples_N) if is_last else 0)
    return measured
