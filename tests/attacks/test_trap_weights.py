"""A server of HyFEM sends weights of its own making, by which a party's rows come back to it.

Each neuron of the first layer fires above another threshold along one direction, so that two that
are neighbours differ by the rows between their thresholds, and by one row where thresholds are
close: Fowl et al., "Robbing the Fed", ICLR 2022. CHFL's common column answers alike.
"""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from torch import Tensor

from dovetail.data import Classification, PartyData
from dovetail.methods import hyfem
from dovetail.models import Perceptron
from dovetail.privacy import PrivateSteps

NUM_ROWS, NUM_COLUMNS, NEURONS = 500, 12, 2048
TASK = Classification(("no", "yes"))


def asked_once(x_NF: Tensor, private: PrivateSteps | None) -> Tensor:
    """What one message with one step on all rows tells of them: (M, F) guesses."""
    labels = (x_NF[:, 0] > 0).long()
    data = PartyData("clinic", np.arange(len(x_NF)), {"block": x_NF}, labels)
    party = hyfem.Member(hyfem.Home(data, TASK, widths=(16,), private=private))
    spec = Perceptron((NEURONS,))
    settings = hyfem.Config(local_steps=1, batch_size=len(x_NF), learning_rate=1e4)
    extractors = (json.dumps(spec.to_json()),)
    task = json.dumps(TASK.to_json())
    party.handle(hyfem.Begin(settings.model_dump_json(), extractors, ("",), task, 0, 1))
    network = copy.deepcopy(party.network)
    assert network is not None
    with torch.no_grad():
        weight, bias = network.extractors.parameters()
        direction = torch.randn(NUM_COLUMNS, generator=torch.Generator().manual_seed(1))
        weight[:] = direction / direction.norm()
        quantiles = torch.linspace(0.0005, 0.9995, NEURONS)
        bias[:] = -torch.distributions.Normal(0, 1).icdf(quantiles)
        mixed, shift, last, constant = network.classifier.parameters()
        mixed.fill_(0.01)
        shift.fill_(1.0)
        last.zero_()[0] = 0.1
        constant.zero_()
    sent = hyfem.extractors_vector(network.extractors), hyfem.classifier_vector(network.classifier)
    answer = party.handle(hyfem.Train(*sent, 1))
    assert isinstance(answer, hyfem.Trained)
    came = copy.deepcopy(network)
    hyfem.load_extractors(came.extractors, answer.extractors)
    moved_weight, moved_bias = (
        (before - after).double().diff(dim=0)
        for before, after in zip(
            network.extractors.parameters(), came.extractors.parameters(), strict=True
        )
    )
    guesses = (moved_weight / moved_bias[:, None]).float()
    return guesses[(moved_bias.abs() > 1e-9) & guesses.isfinite().all(dim=1)]


@pytest.mark.parametrize(
    ("private", "least", "most"),
    [(None, 200, NUM_ROWS), (PrivateSteps(clip=1.0, noise=1.0), 0, 0)],
)
def test_one_message_reads_half_of_the_rows_and_none_where_they_are_noised(
    private: PrivateSteps | None, least: int, most: int
) -> None:
    x_NF = torch.randn(NUM_ROWS, NUM_COLUMNS, generator=torch.Generator().manual_seed(0))
    away_MN = torch.cdist(asked_once(x_NF, private), x_NF)
    read = away_MN.argmin(dim=1)[away_MN.min(dim=1).values < 0.05].unique()
    assert least <= len(read) <= most, len(read)
