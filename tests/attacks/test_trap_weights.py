"""A server of HyFEM, or a coordinator of CHFL, sends weights of its own making, by which a party's
rows come back to it.

Each neuron of the first layer fires above another threshold along one direction, so that two that
are neighbours differ by the rows between their thresholds, and by one row where thresholds are
close: Fowl et al., "Robbing the Fed", ICLR 2022.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dovetail.data import Classification, PartyData, table_from_arrays
from dovetail.federated import Local
from dovetail.methods import hyfem
from dovetail.methods.chfl import layers as chfl
from dovetail.models import Perceptron
from dovetail.models.vectors import load_extractors, weights_of
from dovetail.settings.privacy import PrivateSteps

NUM_ROWS, NUM_COLUMNS, NEURONS = 500, 12, 2048
TASK = Classification(("no", "yes"))


def trap(parameters: Iterable[nn.Parameter]) -> None:
    """Make these, of a layer and the two above it, tell rows apart."""
    weight, bias, mixed, shift, last, constant = parameters
    with torch.no_grad():
        direction = torch.randn(NUM_COLUMNS, generator=torch.Generator().manual_seed(1))
        weight[:] = direction / direction.norm()
        quantiles = torch.linspace(0.0005, 0.9995, NEURONS)
        bias[:] = -torch.distributions.Normal(0, 1).icdf(quantiles)
        mixed.fill_(0.01)
        shift.fill_(1.0)
        last.zero_()[0] = 0.1
        constant.zero_()


def guesses(before: Iterable[Tensor], after: Iterable[Tensor]) -> Tensor:
    """(M, F) rows that the first layer's weights and biases tell by how they have moved."""
    moved_weight, moved_bias = (
        (one - other).detach().double().diff(dim=0)
        for one, other in zip(before, after, strict=True)
    )
    rows = (moved_weight / moved_bias[:, None]).float()
    return rows[(moved_bias.abs() > 1e-9) & rows.isfinite().all(dim=1)]


def asked_of_hyfem(x_NF: Tensor, private: PrivateSteps | None) -> Tensor:
    """What one message with one step on all rows tells of them: (M, F) guesses."""
    labels = (x_NF[:, 0] > 0).long()
    data = PartyData("clinic", np.arange(len(x_NF)), {"block": x_NF}, labels)
    local_data = hyfem.HyfemData(data, TASK, widths=(16,), private=private)
    party = hyfem.Member(local_data, Local("clinic"))
    spec = Perceptron((NEURONS,))
    settings = hyfem.Settings(local_steps=1, batch_size=len(x_NF), learning_rate=1e4)
    extractors = (json.dumps(spec.to_json()),)
    task = json.dumps(TASK.to_json())
    party.handle(hyfem.Begin(settings.model_dump_json(), extractors, ("",), task, 0, 1))
    network = copy.deepcopy(party.network)
    trap((*network.extractors.parameters(), *network.classifier.parameters()))
    answer = party.handle(hyfem.Train(*weights_of(network), 1))
    assert isinstance(answer, hyfem.Trained)
    assert (answer.loss == 0) == (private is not None)  # an exact one tells of single rows, too
    came = copy.deepcopy(network)
    load_extractors(came.extractors, answer.extractors)
    return guesses(network.extractors.parameters(), came.extractors.parameters())


def asked_of_chfl(x_NF: Tensor, private: PrivateSteps | None) -> Tensor:
    """What a common column gives away to trap weights."""
    names = [f"c{index}" for index in range(NUM_COLUMNS)]
    table = table_from_arrays("clinic", dict(zip(names, x_NF.double().numpy().T, strict=True)))
    labels = (x_NF[:, 0] > 0).long()
    data = PartyData("clinic", np.arange(len(x_NF)), labels=labels, tables={chfl.BLOCK: table})
    member = chfl.Member(chfl.ChflData(data, TASK, names, private=private), Local("clinic"))
    settings = chfl.Config(
        method="common",
        widths=(NEURONS, 16),
        local_epochs=1,
        batch_size=len(x_NF),
        optimizer="sgd",
        learning_rate=1e4,
    )
    kinds = [dict(kind="number", name=n, median=0, mean=0, scale=1, flag=False) for n in names]
    agreed = json.dumps({"party": "all", "columns": kinds})
    member.handle(chfl.Begin(settings.model_dump_json(), 0, tuple(names), agreed))
    assert member.columns is not None
    sent = copy.deepcopy(member.columns.common)
    trap(sent.parameters())
    member.handle(chfl.Average(0, 0, nn.utils.parameters_to_vector(sent.parameters()).detach()))
    answer = member.handle(chfl.Train(1))
    assert isinstance(answer, chfl.Trained)
    assert (answer.loss == 0) == (private is not None)
    came = copy.deepcopy(sent)
    nn.utils.vector_to_parameters(answer.common_P, came.parameters())
    return guesses([*sent.parameters()][:2], [*came.parameters()][:2])


@pytest.mark.parametrize("asked_once", [asked_of_hyfem, asked_of_chfl])
@pytest.mark.parametrize(
    ("private", "least", "most"),
    [(None, 200, NUM_ROWS), (PrivateSteps(clip=1.0, noise=1.0), 0, 0)],
)
def test_one_message_reads_half_of_the_rows_and_none_where_they_are_noised(
    asked_once: Callable[..., Tensor], private: PrivateSteps | None, least: int, most: int
) -> None:
    x_NF = torch.randn(NUM_ROWS, NUM_COLUMNS, generator=torch.Generator().manual_seed(0))
    away_MN = torch.cdist(asked_once(x_NF, private), x_NF)
    read = away_MN.argmin(dim=1)[away_MN.min(dim=1).values < 0.05].unique()
    assert least <= len(read) <= most, len(read)
