"""Networks of blocks: side by side is one after the other; a spec rebuilds what it describes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.data import Classification
from dovetail.data.saving import of_kind
from dovetail.errors import ConfigError, ModelError
from dovetail.models import Convolutional, Model, Perceptron, load
from dovetail.models.blocks import (
    BlocksNetwork,
    BlocksSpec,
    Extractor,
    ResNet,
    SmallCnn,
    Unchanged,
    classifier,
    num_features,
)

CNN = SmallCnn((3, 4))
SPEC = BlocksSpec(
    ("left", "right", "wide", "age", "other"),
    ((1, 8, 8), (1, 8, 8), (1, 8, 9), (4,), (2, 8, 8)),
    (CNN, CNN, CNN, Perceptron((5,)), SmallCnn((3,), pool=1)),
    (6,),
    3,
)


def inputs(spec: BlocksSpec, num_rows: int = 4) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(0)
    return {
        name: torch.rand(num_rows, *shape, generator=rng)
        for name, shape in zip(spec.blocks, spec.shapes, strict=True)
    }


def one_by_one(network: BlocksNetwork, x: dict[str, Tensor]) -> Tensor:
    features = [
        extractor(x[name]).flatten(1)
        for name, extractor in zip(network.blocks, network.extractors, strict=True)
    ]
    logits: Tensor = network.classifier(torch.cat(features, dim=1))
    return logits


@pytest.mark.parametrize("centred", [False, True], ids=["as they are", "centred"])
@pytest.mark.parametrize("pool", [1, 2, 3], ids=["mean", "even grid", "grid that does not divide"])
def test_small_cnns_side_by_side_are_the_same_one_after_the_other(pool, centred):
    cnn = SmallCnn((3, 4), pool=pool, centred=centred)
    spec = BlocksSpec(tuple("abc"), ((2, 9, 8),) * 3, (cnn,) * 3, (6,), 3)
    network, x = spec.build(), inputs(spec)
    results = []
    for outputs in (network(x), one_by_one(network, x)):
        network.zero_grad()
        outputs.square().sum().backward()
        results.append((outputs, [parameter.grad.clone() for parameter in network.parameters()]))
    (together, gradients), (apart, expected) = results
    torch.testing.assert_close(together, apart)
    for one, two in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_only_cnns_that_are_centred_see_centred_pixels():
    plain, centred = SmallCnn((3,)), SmallCnn((3,), centred=True)
    spec = BlocksSpec(("a", "b"), ((1, 8, 8),) * 2, (plain, centred), (), 2)
    network, x = spec.build(), inputs(spec)
    centred_cnn = network.extractors[1]
    assert isinstance(centred_cnn, nn.Sequential)
    torch.testing.assert_close(network(x), one_by_one(network, x))
    torch.testing.assert_close(centred_cnn(x["b"]), centred_cnn[1:](4 * x["b"] - 2))
    again = of_kind(Extractor, centred.to_json())
    assert (again, of_kind(Extractor, plain.to_json())) == (centred, plain)


def test_blocks_of_all_kinds_go_through_one_network():
    network, x = SPEC.build(), inputs(SPEC)
    torch.testing.assert_close(network(x), one_by_one(network, x))


def test_blocks_that_differ_in_their_grid_are_not_joined():
    spec = BlocksSpec(("a", "b"), ((1, 8, 8),) * 2, (SmallCnn((3,), pool=1), SmallCnn((3,))), (), 2)
    network, x = spec.build(), inputs(spec)
    torch.testing.assert_close(network(x), one_by_one(network, x))


def test_the_order_of_the_given_blocks_does_not_matter():
    network, x = SPEC.build(), inputs(SPEC)
    torch.testing.assert_close(network(dict(reversed(x.items()))), network(x))


def test_a_block_that_is_not_given_counts_as_features_of_zero():
    network, x = SPEC.build(), inputs(SPEC)
    features = [
        torch.zeros(4, width) if name == "right" else extractor(x[name])
        for name, extractor, width in zip(
            network.blocks, network.extractors, network.features, strict=True
        )
    ]
    expected = network.classifier(torch.cat(features, dim=1))
    del x["right"]
    torch.testing.assert_close(network(x), expected)


def test_the_only_block_may_be_given_as_it_is():
    spec = BlocksSpec(("age",), ((4,),), (Perceptron((5,)),), (), 2)
    network, x = spec.build(), inputs(spec)
    assert torch.equal(network(x["age"]), network(x))


@pytest.mark.parametrize(
    ("extractor", "shape", "width"),
    [
        (SmallCnn((4, 8), pool=2), (1, 14, 14), 32),
        (ResNet(width=4), (1, 16, 16), 32),
        (ResNet(width=4, stem="large"), (3, 33, 32), 32),
        (ResNet(width=4, kind="resnet-34"), (1, 16, 16), 32),
        (Perceptron((7, 5)), (3, 2), 5),
        (Convolutional((2,), (3,), (1,)), (1, 4, 4), 32),
        (Unchanged(), (2, 3), 6),
    ],
)
def test_an_extractor_comes_back_from_json_and_gives_as_many_features_as_said(
    extractor: Extractor, shape: tuple[int, ...], width: int
):
    assert of_kind(Extractor, extractor.to_json()) == extractor
    network = extractor.encoder(shape)
    assert network(torch.zeros(2, *shape)).flatten(1).shape == (2, width)
    assert num_features(extractor, shape) == width


@pytest.mark.parametrize(
    ("kind", "weights", "layers"), [("resnet-18", 11_689_512, 17), ("resnet-34", 21_797_672, 33)]
)
def test_a_resnet_has_the_weights_of_the_paper_less_its_head(kind, weights, layers):
    # He et al. 2016, Table 1, as torchvision counts it with a head of 512 x 1000 + 1000.
    network = ResNet(stem="large", kind=kind).encoder((3, 32, 32))
    assert sum(parameter.numel() for parameter in network.parameters()) == weights - 513_000
    assert sum(isinstance(layer, nn.Conv2d) for layer in network.modules()) == layers + 3


def plain_resnet(network: nn.Module, x: Tensor, pairs: tuple[int, ...], *, large: bool) -> Tensor:
    """He et al. 2016, section 3.3 and Table 1, once more, with the weights of ``network``."""
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    norms = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]

    def convolved(x: Tensor, stride: int) -> Tensor:
        w = convolutions.pop(0).weight
        x = F.conv2d(x, w, stride=stride, padding=w.shape[-1] // 2)
        norm = norms.pop(0)
        mean = x.mean((0, 2, 3), keepdim=True)
        spread = ((x - mean) ** 2).mean((0, 2, 3), keepdim=True)
        scale, shift = (each[None, :, None, None] for each in (norm.weight, norm.bias))
        return (x - mean) / (spread + 1e-5).sqrt() * scale + shift

    x = convolved(x, 2 if large else 1).clamp(min=0)
    if large:
        x = F.max_pool2d(x, 3, stride=2, padding=1)
    for stage, number in enumerate(pairs):
        for pair in range(number):
            stride = 2 if stage and not pair else 1
            y = convolved(convolved(x, stride).clamp(min=0), 1)
            if stride == 2:  # more channels on a smaller map: a projection, option B
                x = convolved(x, stride)
            x = (x + y).clamp(min=0)
    assert not convolutions
    return x.mean((2, 3))


@pytest.mark.parametrize(
    ("kind", "pairs"), [("resnet-18", (2, 2, 2, 2)), ("resnet-34", (3, 4, 6, 3))]
)
@pytest.mark.parametrize("stem", ["small", "large"])
def test_a_resnet_gives_what_the_papers_network_gives(kind, pairs, stem):
    # The widths of Table 1 (64 to 512), batch statistics, values and all gradients.
    torch.manual_seed(0)
    network = ResNet(stem=stem, kind=kind).encoder((3, 16, 16)).double()
    side = 64 if stem == "large" else 16
    x = torch.randn(3, 3, side, side, dtype=torch.float64)
    weights = list(network.parameters())
    here, there = network(x), plain_resnet(network, x, pairs, large=stem == "large")
    assert here.shape == (3, 512)
    torch.testing.assert_close(here, there, rtol=1e-9, atol=1e-9)
    direction = torch.randn_like(here)
    for one, two in zip(
        torch.autograd.grad(here, weights, direction),
        torch.autograd.grad(there, weights, direction),
        strict=True,
    ):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-8)


def test_a_model_of_blocks_is_saved_and_loaded(tmp_path: Path):
    torch.manual_seed(0)
    task = Classification(("a", "b", "c"))
    shapes = dict(zip(SPEC.blocks, SPEC.shapes, strict=True))
    model = Model("server", task, SPEC.build(), SPEC, shapes)
    again = load(model.save(tmp_path / "server"))
    assert again.spec == SPEC
    x = inputs(SPEC)
    assert torch.equal(again.outputs(x), model.outputs(x))
    assert again.any_blocks


def test_a_classifier_has_a_linear_layer_for_each_width_and_one_more():
    layers = [layer for layer in classifier(4, (3, 2), 5) if isinstance(layer, nn.Linear)]
    assert [tuple(layer.weight.shape) for layer in layers] == [(3, 4), (2, 3), (5, 2)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SmallCnn(()), "a small CNN needs one or more positive channels"),
        (lambda: SmallCnn(kernel=4), "kernel is odd, got 4"),
        (lambda: ResNet(width=0), "a ResNet-18 has a positive width"),
        (lambda: ResNet(stem="tiny"), "the stem 'small' or 'large', got 64 and 'tiny'"),
        (lambda: SmallCnn().encoder((5,)), r"needs images of shape \(C, H, W\), got rows of"),
        (lambda: BlocksSpec((), (), (), (), 2), "one block or more"),
        (lambda: BlocksSpec(("a",), ((2,),), (), (), 2), "1 blocks have 1 shapes and 0 extractors"),
        (lambda: BlocksSpec(("a",), ((2,),), (Unchanged(),), (0,), 2), "needs positive widths"),
    ],
)
def test_a_network_that_cannot_be_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    "broken",
    [{"shapes": None}, {"extractors": [{"kind": "magic"}]}, {"widths": [0]}, {"blocks": ["a"]}],
)
def test_a_stored_network_that_cannot_be_is_refused(broken):
    with pytest.raises(ModelError):
        BlocksSpec.from_json({**SPEC.to_json(), **broken})
