"""A network with one extractor for each block, and a classifier over all their features.

Zhang et al., TMLR 2024, Eq. (2) and Figure 3b. A block that is not given counts as features of
zero, as P_m^T pads them in Eq. (14): so one network serves all subsets of its blocks. A row of NaN
lacks a block of columns, and trains only the extractors of those that it has.

Letters: B rows, C channels, H height, W width, D features, K blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.data.saving import Saved
from dovetail.errors import ConfigError
from dovetail.models.networks import (
    EncoderSpec,
    Shape,
    output_shape,
)


@dataclass(frozen=True)
class SmallCnn(Saved):
    """Convolution with stride 2 and ReLU for each of ``channels``, then one pooling layer.

    The stride does what max pooling does elsewhere, in a third to a half of the time.

    Attributes:
        channels: of each layer.
        kernel: odd.
        pool: the side of the pooled map; D is its square times the last channels.
        centred: pixels, of 0 to 1, are made -2 to 2 first: they have a mean near 0 and a deviation
            near 1 then, with which a few hundred gradient steps learn far more.
    """

    kind: ClassVar[str] = "small-cnn"

    channels: tuple[int, ...] = (16, 32)
    kernel: int = 3
    pool: int = 2
    centred: bool = False

    def __post_init__(self) -> None:
        if not self.channels or min(*self.channels, self.kernel, self.pool) < 1:
            raise ConfigError(
                "a small CNN needs one or more positive channels, a kernel and a pool, got "
                f"{self.channels}, {self.kernel} and {self.pool}"
            )
        if self.kernel % 2 == 0:
            raise ConfigError(f"a small CNN's kernel is odd, got {self.kernel}")

    def encoder(self, input_shape: Shape) -> nn.Sequential:
        """(B, C, H, W) -> (B, D).

        Raises:
            ConfigError: the input is no image.
        """
        before = _image(input_shape, "a small CNN")[0]
        layers: list[nn.Module] = [_Centre()] if self.centred else []
        for after in self.channels:
            layers += [nn.Conv2d(before, after, self.kernel, 2, self.kernel // 2), nn.ReLU()]
            before = after
        return nn.Sequential(*layers, _Pool(self.pool), nn.Flatten())


class _Centre(nn.Module):
    """0..1 -> -2..2."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 4 - 2


class _Pool(nn.Module):
    """Mean over a grid of ``side`` x ``side`` parts of the map."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        if height % self.side or width % self.side:
            return F.adaptive_avg_pool2d(x, self.side)
        # The same, in a half to a third of the time.
        return F.avg_pool2d(x, (height // self.side, width // self.side))


@dataclass(frozen=True)
class ResNet(Saved):
    """He et al. 2016 without its head, and one pooling layer; for a GPU.

    Attributes:
        width: channels of the first stage; the last has eight times as many, which is D.
        stem: "small" is a convolution of width 3, for images of 64 pixels and less; "large" is the
            one for ImageNet, of width 7 and stride 2, then max pooling.
        kind: of 18 layers or of 34, by how many pairs of convolutions a stage has.
    """

    kinds: ClassVar[tuple[str, ...]] = ("resnet-18", "resnet-34")

    width: int = 64
    stem: Literal["small", "large"] = "small"
    kind: Literal["resnet-18", "resnet-34"] = "resnet-18"  # type: ignore[misc]

    def __post_init__(self) -> None:
        if self.width < 1 or self.stem not in ("small", "large"):
            raise ConfigError(
                "a ResNet-18 has a positive width and the stem 'small' or 'large', got "
                f"{self.width} and {self.stem!r}"
            )

    def encoder(self, input_shape: Shape) -> nn.Sequential:
        """(B, C, H, W) -> (B, 8 width).

        Raises:
            ConfigError: the input is no image.
        """
        channels = _image(input_shape, "a ResNet-18")[0]
        kernel, stride = (3, 1) if self.stem == "small" else (7, 2)
        layers: list[nn.Module] = [
            nn.Conv2d(channels, self.width, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(self.width),
            nn.ReLU(),
        ]
        if self.stem == "large":
            layers.append(nn.MaxPool2d(3, 2, 1))
        before = self.width
        for stage, pairs in enumerate(_PAIRS[self.kind]):
            after = self.width * 2**stage
            layers.append(_Residual(before, after, 1 if stage == 0 else 2))
            layers += [_Residual(after, after, 1) for _ in range(pairs - 1)]
            before = after
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


#: Pairs of convolutions in each stage, He et al. 2016, Table 1.
_PAIRS = {"resnet-18": (2, 2, 2, 2), "resnet-34": (3, 4, 6, 3)}


class _Residual(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


@dataclass(frozen=True)
class Unchanged(Saved):
    """Features are the block itself, flattened (Theta_m = I in Remark 3.1): nothing to train."""

    kind: ClassVar[str] = "unchanged"

    def encoder(self, input_shape: Shape) -> nn.Flatten:
        """(B, ...) -> (B, D)."""
        return nn.Flatten()


Extractor = EncoderSpec | SmallCnn | ResNet | Unchanged


def num_features(extractor: Extractor, input_shape: Shape) -> int:
    """D of one block."""
    with torch.device("meta"):
        network = extractor.encoder(input_shape)
        return math.prod(output_shape(network, input_shape, torch.device("meta")))


def classifier(num_inputs: int, widths: Sequence[int], num_outputs: int) -> nn.Sequential:
    """Linear and ReLU for each hidden width, then Linear."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(num_inputs, width), nn.ReLU()]
        num_inputs = width
    return nn.Sequential(*layers, nn.Linear(num_inputs, num_outputs))


class BlocksNetwork(nn.Module):
    """Dict block -> (B, ...) tensor, or the tensor of its only block, to (B, outputs).

    Args:
        blocks: names, in the order of their features.
        extractors: of each block; their outputs are flattened.
        features: D of each block.
        classifier: from all features to outputs.
        of: how many blocks there are in all: features are multiplied by ``of`` over those given, so
            that sums over some blocks are as large as over all; 0: they are not.
    """

    #: A block that is not given counts as features of zero.
    any_blocks = True

    #: Whether a row that trains may lack a block; False saves looking for one in each batch.
    rows_lack = True

    def __init__(
        self,
        blocks: Sequence[str],
        extractors: Iterable[nn.Module],
        features: Sequence[int],
        classifier: nn.Module,
        of: int = 0,
    ) -> None:
        super().__init__()
        self.blocks = tuple(blocks)
        self.extractors = nn.ModuleList(extractors)
        self.features = tuple(features)
        self.classifier = classifier
        self.of = of

    def forward(self, x: Tensor | Mapping[str, Tensor]) -> Tensor:
        if isinstance(x, Tensor):
            x = {self.blocks[0]: x}
        joined = self.joined(x)
        if self.of:
            joined = joined * self.scale(x)
        logits: Tensor = self.classifier(joined)
        return logits

    def scale(self, x: Mapping[str, Tensor]) -> Tensor | float:
        """How many blocks there are in all over those that are given, or (B, 1) a row has."""
        given = [name for name in x if name in self.blocks]
        having = self.having(x)
        if not having:
            return self.of / len(given)
        rows = torch.stack([having[name] for name in having]).sum(dim=0)
        return self.of / (rows + (len(given) - len(having))).clamp(min=1)

    def having(self, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Block of columns -> (B, 1) whether a row has it; nothing where every row does."""
        if self.training and not self.rows_lack:
            return {}
        return {
            name: ~block[:, :1].isnan()
            for name, block in x.items()
            if name in self.blocks and block.ndim == 2
        }

    def joined(self, x: Mapping[str, Tensor]) -> Tensor:
        """(B, D) features of all blocks side by side; zeros of one that is not given, or that a
        row lacks (NaN)."""
        given, having = {b: rows for b, rows in x.items() if b in self.blocks}, self.having(x)
        for name, rows in having.items():
            given[name] = torch.where(rows, given[name], 0.0)
        extracted = self._extract(given)
        for name, rows in having.items():
            extracted[name] = torch.where(rows, extracted[name], 0.0)  # nothing flows back
        some = next(iter(extracted.values()))
        features = [
            extracted[name] if name in extracted else some.new_zeros(len(some), width)  # Eq. (14)
            for name, width in zip(self.blocks, self.features, strict=True)
        ]
        return torch.cat(features, dim=1)

    def _extract(self, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Block -> (B, D) features.

        Small CNNs of one kind run side by side, as one convolution with a group for each block:
        on a CPU a quarter to a half less time than one after the other.
        """
        alike: dict[tuple[Any, ...], list[str]] = {}
        for name in x:
            key = _kind(self._of(name)) or (name,)
            alike.setdefault((*key, *x[name].shape[1:]), []).append(name)
        extracted = {}
        for names in alike.values():
            if len(names) == 1:
                extracted[names[0]] = self._of(names[0])(x[names[0]]).flatten(1)
            else:
                together = _extract_together(
                    [self._of(name) for name in names], [x[name] for name in names]
                )
                extracted.update(zip(names, together, strict=True))
        return extracted

    def _of(self, block: str) -> nn.Module:
        return self.extractors[self.blocks.index(block)]


def _small_cnn_layers(extractor: nn.Module) -> list[nn.Conv2d] | None:
    """The convolutions of what ``SmallCnn.encoder`` made; None of anything else."""
    if not isinstance(extractor, nn.Sequential) or len(extractor) < 4:
        return None
    *body, pool, flat = extractor
    if isinstance(body[0], _Centre):
        del body[0]
    convolutions = [layer for layer in body[::2] if isinstance(layer, nn.Conv2d)]
    if (
        len(convolutions) * 2 != len(body)
        or not all(isinstance(layer, nn.ReLU) for layer in body[1::2])
        or not isinstance(pool, _Pool)
        or not isinstance(flat, nn.Flatten)
    ):
        return None
    return convolutions


def _kind(extractor: nn.Module) -> tuple[Any, ...] | None:
    """A key that small CNNs share if only their weights differ; None of anything else."""
    layers = _small_cnn_layers(extractor)
    if layers is None:
        return None
    assert isinstance(extractor, nn.Sequential)
    sizes = ((each.in_channels, each.out_channels, each.kernel_size) for each in layers)
    return (*sizes, extractor[-2].side, isinstance(extractor[0], _Centre))


def _extract_together(extractors: Sequence[nn.Module], x: Sequence[Tensor]) -> list[Tensor]:
    """(B, D) features of each of K blocks by small CNNs of one kind."""
    first_extractor = extractors[0]
    assert isinstance(first_extractor, nn.Sequential)
    together = torch.cat(list(x), dim=1).contiguous(memory_format=torch.channels_last)
    if isinstance(first_extractor[0], _Centre):
        together = first_extractor[0](together)
    columns = [_small_cnn_layers(extractor) for extractor in extractors]
    for layers in zip(*(column for column in columns if column is not None), strict=True):
        weight = torch.cat([layer.weight for layer in layers])
        bias = torch.cat([layer.bias for layer in layers])
        first = layers[0]
        together = F.conv2d(
            together, weight, bias, first.stride, first.padding, groups=len(extractors)
        ).relu_()
    pooled: Tensor = first_extractor[-2](together)
    return [part.flatten(1) for part in pooled.chunk(len(extractors), dim=1)]


@dataclass(frozen=True)
class BlocksSpec(Saved):
    """Spec that rebuilds a ``BlocksNetwork`` without its weights.

    Attributes:
        blocks: names, in the order of their features.
        shapes: of one row of each block.
        extractors: of each block.
        widths: hidden widths of the classifier; none: it is linear.
        num_outputs: C.
        of: see ``BlocksNetwork``.
    """

    kind: ClassVar[str] = "blocks"
    unsaid: ClassVar[tuple[str, ...]] = ("of",)

    blocks: tuple[str, ...]
    shapes: tuple[Shape, ...]
    extractors: tuple[Extractor, ...]
    widths: tuple[int, ...]
    num_outputs: int
    of: int = 0

    def __post_init__(self) -> None:
        if not self.blocks or len(set(self.blocks)) < len(self.blocks):
            raise ConfigError(f"a network has one block or more, of different names: {self.blocks}")
        if not len(self.blocks) == len(self.shapes) == len(self.extractors):
            raise ConfigError(
                f"{len(self.blocks)} blocks have {len(self.shapes)} shapes and "
                f"{len(self.extractors)} extractors; each has one of each"
            )
        if min(self.num_outputs, *self.widths, 1) < 1:
            raise ConfigError(
                f"a classifier needs positive widths, got {self.widths} and "
                f"{self.num_outputs} outputs"
            )

    def features(self) -> tuple[int, ...]:
        """D of each block."""
        return tuple(map(num_features, self.extractors, self.shapes))

    def build(self) -> BlocksNetwork:
        """The network with random weights, block after block and then the classifier."""
        features = self.features()
        extractors = [
            extractor.encoder(shape)
            for extractor, shape in zip(self.extractors, self.shapes, strict=True)
        ]
        return BlocksNetwork(
            self.blocks,
            extractors,
            features,
            classifier(sum(features), self.widths, self.num_outputs),
            self.of,
        )


def _image(input_shape: Shape, what: str) -> Shape:
    if len(input_shape) != 3:
        raise ConfigError(
            f"{what} needs images of shape (C, H, W), got rows of shape {tuple(input_shape)}; "
            "columns take widths, such as [64, 32]"
        )
    return input_shape
