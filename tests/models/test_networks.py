"""Networks have the shapes and the weights of the papers' tables."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dovetail.data.saving import of_kind
from dovetail.errors import ConfigError, ModelError
from dovetail.models import (
    TABLE_3,
    TABLE_4,
    Convolutional,
    EncoderSpec,
    Head,
    Perceptron,
    network_input,
    output_shape,
)
from dovetail.models.optimizers import Optimizer
from dovetail.settings.models import OptimizerConfig

CPU = torch.device("cpu")

#: Setting m-i of APFed: images of H x W pixels, strips of floor(H / m) rows.
STRIPS = {
    "MNIST 2-x": (TABLE_3, (1, 14, 28), (64, 10, 24)),  # 14 -> 12 -> 10
    "MNIST 3-x": (TABLE_3, (1, 9, 28), (64, 5, 24)),
    "CIFAR 2-x": (TABLE_4, (3, 16, 32), (64, 5, 13)),  # 16 -> 14 -> 7 -> 5
    "CIFAR 3-x": (TABLE_4, (3, 10, 32), (64, 2, 13)),
}


def num_weights(network: nn.Module) -> int:
    return sum(weights.numel() for weights in network.parameters())


@pytest.mark.parametrize(("layers", "strip", "code"), STRIPS.values(), ids=STRIPS)
def test_a_strip_becomes_a_code_and_the_code_a_strip(
    layers: Convolutional, strip: tuple[int, ...], code: tuple[int, ...]
) -> None:
    encoder, decoder = layers.encoder(strip), layers.decoder(code, strip)
    assert output_shape(encoder, strip, CPU) == code
    rows = encoder(torch.rand(2, *strip))
    assert decoder(rows.flatten(1)).shape == (2, *strip)


def test_table_3_has_the_papers_weights() -> None:
    conv1, conv2 = 1 * 32 * 5 * 5 + 32, 32 * 64 * 5 * 5 + 64
    deconv1, deconv2 = 64 * 32 * 5 * 5 + 32, 32 * 1 * 5 * 5 + 1
    assert num_weights(TABLE_3.encoder((1, 14, 28))) == conv1 + conv2 == 52_096
    assert num_weights(TABLE_3.decoder((64, 10, 24), (1, 14, 28))) == deconv1 + deconv2
    d = 64 * 10 * 24
    assert num_weights(Head((256,)).build(d, 10)) == (d * 256 + 256) + (256 * 10 + 10)


def test_table_4_has_the_papers_weights() -> None:
    conv1, conv2, conv3 = 3 * 16 * 25 + 16, 16 * 32 * 16 + 32, 32 * 64 * 25 + 64
    deconv1, deconv2, deconv3 = 64 * 32 * 25 + 32, 32 * 16 * 16 + 16, 16 * 3 * 25 + 3
    assert num_weights(TABLE_4.encoder((3, 16, 32))) == conv1 + conv2 + conv3 == 60_704
    decoder = TABLE_4.decoder((64, 5, 13), (3, 16, 32))
    assert num_weights(decoder) == deconv1 + deconv2 + deconv3
    d = 64 * 5 * 13
    assert num_weights(Head((50,)).build(d, 100)) == (d * 50 + 50) + (50 * 100 + 100)


def test_layers_are_convolution_and_relu_and_nothing_is_pooled() -> None:
    kinds = [type(layer) for layer in TABLE_4.encoder((3, 16, 32))]
    assert kinds == [nn.Conv2d, nn.ReLU] * 3
    kinds = [type(layer) for layer in TABLE_4.decoder((64, 5, 13), (3, 16, 32))]
    assert kinds == [nn.Unflatten, *[nn.ConvTranspose2d, nn.ReLU] * 2, nn.ConvTranspose2d]


@pytest.mark.parametrize("height", range(8, 14))
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_what_a_stride_rounds_down_the_decoder_puts_back(height: int, stride: int) -> None:
    layers = Convolutional((2, 3), (3, 4), (1, stride))
    image = (1, height, height + 1)
    code = output_shape(layers.encoder(image), image, CPU)
    assert layers.decoder(code, image)(torch.rand(2, math.prod(code))).shape == (2, *image)


def test_a_perceptron_is_linear_and_relu_for_each_width() -> None:
    encoder = Perceptron((8, 6)).encoder((4,))
    assert num_weights(encoder) == (4 * 8 + 8) + (8 * 6 + 6)
    x = torch.randn(3, 4)
    by_hand = (x @ encoder[1].weight.T + encoder[1].bias).relu()
    by_hand = (by_hand @ encoder[3].weight.T + encoder[3].bias).relu()
    torch.testing.assert_close(encoder(x), by_hand)


def test_a_perceptron_flattens_images_and_decodes_to_their_shape() -> None:
    layers = Perceptron((8, 6))
    assert layers.encoder((3, 2, 5))(torch.rand(2, 3, 2, 5)).shape == (2, 6)
    decoder = layers.decoder((6,), (3, 2, 5))
    assert decoder(torch.rand(2, 6)).shape == (2, 3, 2, 5)
    assert num_weights(decoder) == (6 * 8 + 8) + (8 * 30 + 30)  # the widths backwards


def test_a_perceptron_of_one_width_decodes_in_one_layer() -> None:
    assert num_weights(Perceptron((6,)).decoder((6,), (4,))) == 6 * 4 + 4


def test_a_perceptron_decodes_image_codes() -> None:
    decoder = Perceptron((16, 8)).decoder((64, 2, 13), (3, 10, 32))
    assert decoder(torch.rand(2, 64 * 2 * 13)).shape == (2, 3, 10, 32)


def test_a_head_is_linear_relu_and_dropout_for_each_width_then_linear() -> None:
    head = Head((5, 4), dropout=0.25).build(6, 3)
    hidden = [nn.Linear, nn.ReLU, nn.Dropout]
    assert [type(layer) for layer in head] == [*hidden, *hidden, nn.Linear]
    assert [layer.p for layer in head if isinstance(layer, nn.Dropout)] == [0.25, 0.25]
    assert head(torch.rand(2, 6)).shape == (2, 3)
    assert [type(layer) for layer in Head().build(6, 3)] == [nn.Linear]


@pytest.mark.parametrize(
    "spec",
    [Perceptron((3,)), Perceptron((8, 6)), TABLE_3, TABLE_4, Convolutional((1,), (2,), (3,))],
)
def test_an_encoder_comes_back_from_json(spec: EncoderSpec) -> None:
    assert of_kind(EncoderSpec, spec.to_json()) == spec


def test_an_encoder_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ModelError, match=r"got 'custom'; copy the whole folder again"):
        of_kind(EncoderSpec, {"kind": "custom"})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Perceptron(()), r"one or more positive widths, got \(\)"),
        (lambda: Perceptron((8, 0)), r"one or more positive widths, got \(8, 0\)"),
        (lambda: Head((-1,)), r"hidden widths must be positive, got \(-1,\)"),
        (lambda: Convolutional((), (), ()), "one channel, kernel and stride a layer"),
        (lambda: Convolutional((4, 4), (3,), (1, 1)), "one channel, kernel and stride a layer"),
        (lambda: Convolutional((4,), (3,), (0,)), "positive channels, kernels and strides"),
        (lambda: Convolutional((0,), (3,), (1,)), "positive channels, kernels and strides"),
        (lambda: Convolutional((4,), (3,), (1,), padding=-1), "padding -1"),
        (lambda: TABLE_3.encoder((10,)), r"images of shape \(C, H, W\), .* \(10,\); .*widths"),
        (lambda: TABLE_4.encoder((3, 4, 32)), r"shape \(3, 4, 32\) are too small for kernels"),
        (
            lambda: TABLE_3.decoder((64, 5, 24), (1, 14, 28)),
            r"\(64, 10, 24\), but the active party's codes have shape \(64, 5, 24\); .*widths",
        ),
    ],
)
def test_networks_that_cannot_be_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_images_are_scaled_to_0_1_and_numbers_stay() -> None:
    pixels = torch.tensor([0, 51, 255], dtype=torch.uint8)
    torch.testing.assert_close(network_input(pixels), torch.tensor([0.0, 0.2, 1.0]))
    assert pixels.tolist() == [0, 51, 255]
    numbers = torch.tensor([0.0, 300.0])
    assert network_input(numbers).tolist() == [0.0, 300.0]
    assert network_input(numbers.double()).dtype == torch.float32


def test_a_shape_without_memory_is_the_shape_with_it() -> None:
    for layers in (Perceptron((5,)), Perceptron((5, 4)), TABLE_3):
        encoder = layers.encoder((1, 9, 28))
        assert output_shape(encoder.to("meta"), (1, 9, 28), torch.device("meta")) == output_shape(
            layers.encoder((1, 9, 28)), (1, 9, 28), CPU
        )
    with pytest.raises(RuntimeError, match=r"cannot be multiplied|same reduction dim|contract"):
        output_shape(Perceptron((5,)).encoder((3,)).to("meta"), (4,), torch.device("meta"))


def test_asking_for_a_shape_changes_nothing() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.norm(x)
            return out

    network = Counts()
    assert output_shape(network, (4,), CPU) == (4,)
    assert network.training
    assert network.norm.num_batches_tracked == 0
    network.eval()
    output_shape(network, (4,), CPU)
    assert not network.training


def test_optimizers_have_these_settings() -> None:
    weights = [nn.Parameter(torch.ones(2))]
    config = OptimizerConfig(learning_rate=0.1, momentum=0.8, weight_decay=0.01)
    sgd = Optimizer.of(config, weights)
    assert (sgd.kind, sgd.learning_rate, sgd.momentum, sgd.weight_decay) == ("sgd", 0.1, 0.8, 0.01)
    adam = Optimizer.of(OptimizerConfig(optimizer="adam", learning_rate=0.1), weights)
    assert (adam.kind, adam.learning_rate) == ("adam", 0.1)
