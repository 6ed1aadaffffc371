"""A row's outputs are the same bits, whatever rows are computed beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dovetail.models.learners import Best, Boosting, Linear, Network, Rows, hard_targets, make_folds
from dovetail.models.learners.stacked import Bottom, StackedSpec
from dovetail.models.networks import TABLE_4, Head, Perceptron, rowwise

_SIZES = (1, 2, 3, 5, 8, 15, 16, 17, 33, 63, 64, 100, 511, 512, 700)


def check(network: nn.Module, shape: tuple[int, ...], width: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(1500, *shape)
    whole = rowwise(network, x, batch_size=512, width=width)
    assert whole.shape == (1500, width)
    for size in _SIZES:
        rows = torch.randperm(len(x))[:size]
        for batch_size in (512, 100):
            some = rowwise(network, x[rows], batch_size=batch_size, width=width)
            torch.testing.assert_close(some, whole[rows], rtol=0, atol=0)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 10, 17, 33])
@pytest.mark.parametrize("features", [1, 7, 49, 300])
def test_networks_of_a_table(features: int, width: int) -> None:
    torch.manual_seed(1)
    stacked = StackedSpec(4, features, 0, (64, 20), width, width == 1).build()
    assert isinstance(stacked.bottom, Bottom)
    nn.init.normal_(stacked.bottom.linear)
    check(stacked, (features,), width)
    encoder = Perceptron((50, 31)).encoder((features,))
    check(nn.Sequential(encoder, Head((9,)).build(31, width)), (features,), width)
    check(nn.Sequential(nn.Linear(features, width), nn.Sigmoid()), (features,), width)


def test_networks_of_images() -> None:
    torch.manual_seed(1)
    network = nn.Sequential(TABLE_4.encoder((3, 16, 16)), nn.Flatten(), nn.LazyLinear(3))
    network(torch.zeros(2, 3, 16, 16))
    check(network, (3, 16, 16), 3)


def test_layers_are_in_training_again_afterwards() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).train()
    network[0].eval()
    check(network, (2,), 2)
    assert [module.training for module in network.modules()] == [True, False, True]


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("learner", [Linear(), Boosting(), Network(), Best()])
def test_learners(learner: Linear | Boosting | Network | Best, num_classes: int) -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(240, 11))).float()
    classes = torch.from_numpy(rng.integers(0, num_classes, 240))
    folds = make_folds(classes, 2, seed=0)
    rows = Rows(x, hard_targets(classes, num_classes, regression=False), folds)
    check(learner.fit(rows, seed=0, encode_on=x).network, (11,), num_classes)
