"""Every kind of network that a model can be saved with is rebuilt from its JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest
import torch

from dovetail.errors import ModelError
from dovetail.models import Convolutional, EncoderHead, Head, NetworkSpec, Perceptron, RandomStream
from dovetail.models.blocks import BlocksSpec, ResNet, SmallCnn, Unchanged
from dovetail.models.columns import ColumnsSpec
from dovetail.models.learners.assisted_joint import Answers, AssistedSpec
from dovetail.models.learners.boosting_model import BoostingSpec
from dovetail.models.learners.joint import Part, StacksSpec
from dovetail.models.learners.linear import LinearSpec
from dovetail.models.learners.specs import EnsembleSpec
from dovetail.models.learners.stacked import StackedSpec
from dovetail.models.owners import ColumnsMlp, OwnerResNet, OwnersSpec, StripCnn, TopSpec
from dovetail.models.specs import spec_from_json

SPECS: list[NetworkSpec] = [
    EncoderHead(Perceptron((5, 4)), Head((3,), 0.25), (6,), 2),
    EncoderHead(Convolutional((3,), (3,), (2,)), Head(), (1, 4, 6), 3),
    ColumnsSpec((0, 2), (1,), (4,), 2, 0.5),
    BlocksSpec(
        ("age", "scan", "photo", "blood"),
        ((2,), (1, 4, 4), (3, 8, 8), (3,)),
        (Perceptron((3,)), SmallCnn((2, 3)), ResNet(2), Unchanged()),
        (5,),
        3,
    ),
    TopSpec(4, (3,), 2),
    TopSpec(4, (3,), 2, skip=True),
    OwnersSpec(
        ("strip", "scan", "bank"),
        ((1, 2, 6), (1, 4, 4), (3,)),
        (StripCnn(2, hidden=3), OwnerResNet(2), ColumnsMlp((4,))),
        TopSpec(4, (3,), 2),
    ),
    EnsembleSpec(
        (
            LinearSpec(4, 3),
            BoostingSpec(4, 3, 100, 3),
            EnsembleSpec((StackedSpec(2, 4, 5, (6, 3), 3, False),), 3),
        ),
        3,
        temperature=1.5,
    ),
    StacksSpec(
        block="own",
        num_features=5,
        own=(Part(4, 3, (6, 2), 3), Part(4, 0, (), 3)),
        partners=("lab", "shop"),
        parts=((Part(4, 0, (2,), 3), Part(4, 0, (), 3)), (Part(4, 0, (5,), 3), Part(4, 0, (), 3))),
        copies=2,
        used=(0, 1),
        temperature=1.25,
        partial=True,
        regression=False,
        solo=EnsembleSpec((LinearSpec(5, 3),), 3),
    ),
    AssistedSpec(
        block="own",
        num_features=5,
        partners=("lab", "shop"),
        partial=True,
        regression=False,
        solo=EnsembleSpec((LinearSpec(5, 3),), 3),
        alone=EnsembleSpec((LinearSpec(5, 3), LinearSpec(5, 3)), 3),
        own=0.5,
        numbers=(3, 6),
        answers=(Answers(40, 2, 8, 2, 1e-6), Answers(30, 2, 4, 1, 2e-6)),
        teachers=2,
        folds=4,
        temperature=1.5,
    ),
]


def test_there_is_an_example_of_every_kind() -> None:
    assert {spec.kind for spec in SPECS} == {kind.kind for kind in get_args(NetworkSpec)}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
def test_a_spec_is_what_its_json_says(spec: NetworkSpec) -> None:
    stored = spec.to_json()
    assert spec_from_json(json.loads(json.dumps(stored))) == spec
    assert stored["kind"] == spec.kind


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
def test_a_network_is_a_function_of_its_spec_and_torchs_generator(spec: NetworkSpec) -> None:
    def weights() -> list[torch.Tensor]:
        with RandomStream(0, "test"):
            return list(spec.build().parameters())

    for one, two in zip(weights(), weights(), strict=True):
        assert torch.equal(one, two)


def test_encoder_and_head_are_one_network() -> None:
    network = EncoderHead(Convolutional((3,), (3,), (2,)), Head((5,)), (1, 4, 6), 3).build().eval()
    x = torch.randn(2, 1, 4, 6)
    assert torch.equal(network(x), network.head(network.encoder(x).flatten(1)))
    assert network(x).shape == (2, 3)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ModelError, match=r"a kind among encoder-head, .*, got 'forest'"):
        spec_from_json({"kind": "forest"})


def test_a_joint_model_that_does_not_lead_says_the_mean_of_both() -> None:
    """Where a partner answered; elsewhere the solo model speaks alone."""
    spec = next(each for each in SPECS if isinstance(each, AssistedSpec))
    whole = spec.build().eval()
    for each in (*whole.parameters(), *whole.buffers()):
        each.data.copy_(torch.rand(each.shape) + 0.1)
    halved = replace(spec, halved=True).build().eval()
    halved.load_state_dict(whole.state_dict())
    blocks = {"own": torch.randn(4, 5), "lab": torch.randn(4, 3), "shop": torch.randn(4, 6)}
    blocks["lab"][3:], blocks["shop"][3:] = torch.nan, torch.nan
    with torch.no_grad():
        joint, both, solo = whole(blocks), halved(blocks), whole.solo(blocks["own"])
    mean = (joint[:3].softmax(dim=1) + solo[:3].softmax(dim=1)) / 2
    torch.testing.assert_close(both[:3].softmax(dim=1), mean)
    torch.testing.assert_close(both[3:], solo[3:])
    assert (joint[:3] - both[:3]).abs().max() > 1e-3
