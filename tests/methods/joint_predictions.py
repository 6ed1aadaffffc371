"""Predictions of FedOptimus by messages, while its parties are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dovetail.errors import ConfigError
from dovetail.methods.fedoptimus.messages import Embed
from dovetail.methods.fedoptimus.requests import Requests
from dovetail.models import Model, TopSpec
from dovetail.models.prediction import Prediction
from dovetail.network import Engine


@dataclass(frozen=True, eq=False)
class Joint:
    """A prediction that data owners and a label owner made together.

    Attributes:
        outputs: (n, C) logits, or (n, 1) standardised values.
        prediction: what they say.
        answered: data owners that were in every mean.
        missed: data owner -> why it was left out of some.
    """

    outputs: Tensor
    prediction: Prediction
    answered: tuple[str, ...]
    missed: Mapping[str, str]


def predict(
    network: Engine,
    top: Model,
    label_owner: str,
    samples: Tensor,
    *,
    data_owners: Sequence[str] | None = None,
    test: bool = True,
    timeout_s: float | None = None,
    batch_size: int = 1024,
) -> Joint:
    """What the top says of these samples, with the data owners that answer.

    Args:
        network: reaches the data owners; its driver has the top.
        top: ``LabelOwner.model()``, perhaps saved and loaded.
        label_owner: whose order the samples are places in.
        samples: (n,) int64.
        data_owners: None: all parties of the network.
        test: of the test table, else of the training table.

    Raises:
        ConfigError: the model is no top.
        TrainingError: no data owner answers.
    """
    if not isinstance(top.spec, TopSpec):
        raise ConfigError(f"the model of party {top.party!r} is no label owner's top")
    names = tuple(network.parties if data_owners is None else data_owners)
    requests, width = Requests(network, timeout_s), top.spec.embedding
    parts = [torch.empty(0, width)]
    for samples_B in samples.split(batch_size):
        if len(samples_B):
            asked = dict.fromkeys(names, Embed(label_owner, samples_B, test))
            parts.append(requests.mean(asked, len(samples_B), width)[0])
    mean_NE = torch.cat(parts)
    return Joint(
        top.outputs(mean_NE),
        top.predictions(mean_NE),
        tuple(name for name in names if name not in requests.missed),
        requests.missed.reasons,
    )
