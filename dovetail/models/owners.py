"""Bottom networks of data owners, the top network of a label owner, and both in one.

Shrivastava et al., "FedOptimus", section 3.2: a data owner has one convolution and two fully
connected layers (or a ResNet-18), a label owner two fully connected layers. A label owner reads
the mean of the embeddings: one that is not given is left out of that mean.

Letters: B rows, C channels, H height, W width, E embedding width, D data owners.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.data.preprocessing import Input, input_from_json
from dovetail.data.saving import Saved, of_kind
from dovetail.errors import ConfigError, DataError, ModelError
from dovetail.models.blocks import ResNet
from dovetail.models.folders import read_folder, rebuilding, rebuilt, write_folder
from dovetail.models.kept_smoothing import SmoothingSpec
from dovetail.models.learners.joint import BottomsSpec
from dovetail.models.learners.stacked import PiecewiseLinear, Stack, mean_outputs
from dovetail.models.networks import OwnNetwork, Shape, network_input, output_shape, rowwise

# --- Bottom networks ---------------------------------------------------------------------------


class DenseNetwork(nn.Module):
    """A convolution with ReLU, if any, then linear layers with ReLU between them.

    Args:
        conv: (B, C, H, W) -> (B, C', H', W'); None: rows are flattened.
        widths: of the first linear layer's inputs, and of every layer's outputs.
        skip: one more linear layer, from the first inputs to the last outputs, which are summed.
    """

    def __init__(
        self, conv: nn.Conv2d | None, widths: Sequence[int], *, skip: bool = False
    ) -> None:
        super().__init__()
        self.conv = conv
        self.linears = nn.ModuleList(
            nn.Linear(inputs, outputs) for inputs, outputs in itertools.pairwise(widths)
        )
        self.skip = nn.Linear(widths[0], widths[-1], bias=False) if skip else None

    def forward(self, x: Tensor) -> Tensor:
        if self.conv is not None:
            x = F.relu(self.conv(x))
        first = x = x.flatten(1)
        for index, linear in enumerate(self.linears):
            x = linear(F.relu(x) if index else x)
        return x if self.skip is None else x + self.skip(first)


class EncodedNetwork(nn.Module):
    """(B, F) rows -> (B, E): bins of their numbers, then a dense network.

    Args:
        encoding: placed once, before training.
        dense: what is trained.
    """

    def __init__(self, encoding: PiecewiseLinear, dense: DenseNetwork) -> None:
        super().__init__()
        self.encoding = encoding
        self.dense = dense

    def forward(self, x: Tensor) -> Tensor:
        embedding_BE: Tensor = self.dense(self.encoding(x.flatten(1)))
        return embedding_BE


@dataclass(frozen=True)
class StripCnn(Saved):
    """A convolution and two fully connected layers, for a strip of an image.

    Attributes:
        channels: of the convolution.
        kernel: odd; the strip is padded by half of it.
        stride: along the height and the width.
        hidden: width of the first fully connected layer; the second one's is E.
    """

    kind: ClassVar[str] = "strip-cnn"

    channels: int = 16
    kernel: int = 3
    stride: tuple[int, int] = (1, 1)
    hidden: int = 64

    def __post_init__(self) -> None:
        if min(self.channels, self.kernel, *self.stride, self.hidden) < 1 or self.kernel % 2 == 0:
            raise ConfigError(
                "a strip's CNN needs positive channels, strides and hidden width and an odd "
                f"kernel, got {self.channels}, {self.stride}, {self.hidden} and {self.kernel}"
            )

    def build(self, input_shape: Shape, embedding: int) -> DenseNetwork:
        """(B, C, H, W) -> (B, E).

        Raises:
            ConfigError: the input is no image.
        """
        if len(input_shape) != 3:
            raise ConfigError(
                "a strip's CNN needs images of shape (C, H, W), got rows of shape "
                f"{tuple(input_shape)}; columns take widths, such as bottom = [64]"
            )
        inputs, height, width = input_shape
        positions = (-(-height // self.stride[0])) * (-(-width // self.stride[1]))
        conv = nn.Conv2d(inputs, self.channels, self.kernel, self.stride, self.kernel // 2)
        return DenseNetwork(conv, (self.channels * positions, self.hidden, embedding))


@dataclass(frozen=True)
class ColumnsMlp(Saved):
    """Linear and ReLU for each of ``widths``, then one linear layer; for columns."""

    kind: ClassVar[str] = "columns-mlp"

    widths: tuple[int, ...] = (64,)

    def __post_init__(self) -> None:
        if min(self.widths, default=1) < 1:
            raise ConfigError(f"the widths of an MLP are positive, got {self.widths}")

    def build(self, input_shape: Shape, embedding: int) -> DenseNetwork:
        """(B, ...) -> (B, E)."""
        return DenseNetwork(None, (math.prod(input_shape), *self.widths, embedding))


@dataclass(frozen=True)
class EncodedMlp(Saved):
    """A ``ColumnsMlp`` on numbers as bins beside themselves, and a linear layer beside both.

    Attributes:
        widths: of hidden layers.
        bins: of one number, at the most.
        num_bins: of all numbers together, when ``fitted`` has placed them.
    """

    kind: ClassVar[str] = "encoded-mlp"

    widths: tuple[int, ...] = (64,)
    bins: int = 16
    num_bins: int = 0

    def __post_init__(self) -> None:
        if min(self.widths, default=1) < 1 or min(self.bins, self.num_bins) < 0:
            raise ConfigError(
                f"the widths of an MLP are positive and bins none or more, got {self.widths}, "
                f"{self.bins} and {self.num_bins}"
            )

    def fitted(self, x_NF: Tensor) -> tuple[EncodedMlp, PiecewiseLinear]:
        """The network with bins placed by these rows."""
        few = x_NF[:: max(1, len(x_NF) // _ROWS_FOR_BINS)]
        rows = network_input(few, torch.device("cpu")).flatten(1)
        encoding = PiecewiseLinear.fit(rows, bins=self.bins)
        return replace(self, num_bins=len(encoding.column_M)), encoding

    def build(
        self, input_shape: Shape, embedding: int, encoding: PiecewiseLinear | None = None
    ) -> EncodedNetwork:
        """(B, ...) -> (B, E), with bins that are placed, or yet to be loaded."""
        encoding = encoding or PiecewiseLinear(math.prod(input_shape), self.num_bins)
        widths = (encoding.num_outputs, *self.widths, embedding)
        return EncodedNetwork(encoding, DenseNetwork(None, widths, skip=True))


@dataclass(frozen=True)
class MembersSpec(Saved):
    """Several networks of one kind, each of which gives its part of the embedding.

    Attributes:
        member: each of them.
        members: how many.
    """

    kind: ClassVar[str] = "members"

    member: BottomSpec
    members: int

    def __post_init__(self) -> None:
        if self.members < 1:
            raise ConfigError(f"members are 1 or more, got {self.members}")
        if isinstance(self.member, MembersSpec | BottomsSpec | SmoothingSpec):
            raise ConfigError(f"members are single networks, got {self.member.kind!r}")

    def build(self, input_shape: Shape, embedding: int) -> MembersNetwork:
        """(B, ...) -> (B, E)."""
        width = embedding // self.members
        return MembersNetwork([self.member.build(input_shape, width) for _ in range(self.members)])


class MembersNetwork(nn.Module):
    """(B, ...) -> (B, E): one member's embedding after the other's."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([member(x) for member in self.members], dim=1)


#: Quantiles of so many rows, or up to twice as many, are as good as those of all.
_ROWS_FOR_BINS = 20_000


@dataclass(frozen=True)
class OwnerResNet(Saved):
    """A ResNet-18 for small images and a linear layer; for a GPU.

    Attributes:
        width: channels of the first stage.
    """

    kind: ClassVar[str] = "owner-resnet"

    width: int = 64

    def __post_init__(self) -> None:
        ResNet(self.width)

    def build(self, input_shape: Shape, embedding: int) -> nn.Sequential:
        """(B, C, H, W) -> (B, E).

        Raises:
            ConfigError: the input is no image.
        """
        features = ResNet(self.width).encoder(input_shape)
        return nn.Sequential(features, nn.Linear(8 * self.width, embedding))


@dataclass(frozen=True)
class OwnBottom(Saved):
    """A network of a data owner's own, and a linear layer from what it gives.

    Attributes:
        network: gives a code.
    """

    kind: ClassVar[str] = "own-bottom"

    network: OwnNetwork

    def build(self, input_shape: Shape, embedding: int) -> nn.Sequential:
        """(B, ...) -> (B, E)."""
        encoder = self.network.encoder(input_shape)
        width = math.prod(output_shape(encoder, input_shape, torch.empty(0).device))
        return nn.Sequential(encoder, nn.Flatten(), nn.Linear(width, embedding))

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.network.name}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> OwnBottom:
        return cls(OwnNetwork.again(str(stored["name"])))


#: Of FedOptimus' data owners, and of partners of APFed-D and APFed-S.
BottomSpec = (
    StripCnn
    | ColumnsMlp
    | EncodedMlp
    | OwnerResNet
    | OwnBottom
    | MembersSpec
    | BottomsSpec
    | SmoothingSpec
)


# --- The top network ---------------------------------------------------------------------------


@dataclass(frozen=True)
class TopSpec(Saved):
    """ReLU and Linear for each hidden width, then once more to the outputs.

    The mean of the embeddings passes a ReLU first: without it the bottoms' last layer and this
    one's first would be one linear layer.

    Attributes:
        embedding: E.
        widths: of hidden layers.
        num_outputs: classes, or 1.
        skip: one more linear layer, from the mean embedding to the outputs, which are summed: with
            bottoms that have one too, part of the model is linear in the columns.
        members: tops, each of which reads its part of the embedding; what they say is averaged.
        values: members' outputs are averaged as they are, as several labels' are, and not as
            probabilities of classes; one output always is.
    """

    kind: ClassVar[str] = "top"
    unsaid: ClassVar[tuple[str, ...]] = ("skip", "members", "values")

    embedding: int
    widths: tuple[int, ...]
    num_outputs: int
    skip: bool = False
    members: int = 1
    values: bool = False

    def __post_init__(self) -> None:
        if min(self.embedding, *self.widths, self.num_outputs, self.members) < 1:
            raise ConfigError(
                f"widths of a top network are positive, got {self.embedding}, {self.widths} and "
                f"{self.num_outputs}"
            )
        if self.embedding % self.members:
            raise ConfigError(
                f"{self.members} members share an embedding of width {self.embedding} evenly; "
                "choose a multiple"
            )

    def build(self) -> nn.Module:
        """(B, E) mean embeddings -> (B, outputs)."""
        if self.skip or self.members > 1:
            return MembersTop(self)
        widths = (self.embedding, *self.widths, self.num_outputs)
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.ReLU(), nn.Linear(inputs, outputs)]
        return nn.Sequential(*layers)


class MembersTop(nn.Module):
    """K tops side by side, each of its part of the embedding, with or without a linear layer."""

    def __init__(self, spec: TopSpec) -> None:
        super().__init__()
        width = spec.embedding // spec.members
        sizes = (width, *spec.widths, spec.num_outputs)
        self.layers = nn.ModuleList(
            Stack(spec.members, inputs, outputs) for inputs, outputs in itertools.pairwise(sizes)
        )
        self.skip = Stack(spec.members, width, spec.num_outputs) if spec.skip else None
        self._members = spec.members
        self._values = spec.values or spec.num_outputs == 1

    def each(self, mean_BE: Tensor) -> Tensor:
        """(K, B, outputs) what every member says."""
        mean_KBE = mean_BE.unflatten(1, (self._members, -1)).transpose(0, 1)
        outputs_KBC: Tensor = mean_KBE
        for layer in self.layers:
            outputs_KBC = layer(F.relu(outputs_KBC))
        if self.skip is not None:
            outputs_KBC = outputs_KBC + self.skip(mean_KBE)
        return outputs_KBC

    def forward(self, mean_BE: Tensor) -> Tensor:
        outputs_KBC = self.each(mean_BE)
        return mean_outputs(outputs_KBC, regression=self._values)


# --- Bottoms and a top in one process ----------------------------------------------------------


class OwnersNetwork(nn.Module):
    """Dict data owner -> (B, ...) rows, or the tensor of the only one, to (B, outputs).

    Args:
        owners: names of the data owners.
        bottoms: their networks.
        top: reads the mean of those embeddings that are there.
    """

    #: A data owner that is not given is left out of the mean.
    any_blocks = True

    def __init__(self, owners: Sequence[str], bottoms: Sequence[nn.Module], top: nn.Module) -> None:
        super().__init__()
        self.owners = tuple(owners)
        self.bottoms = nn.ModuleList(bottoms)
        self.top = top

    def forward(self, x: Tensor | Mapping[str, Tensor]) -> Tensor:
        if isinstance(x, Tensor):
            x = {self.owners[0]: x}
        embeddings = [
            bottom(x[owner])
            for owner, bottom in zip(self.owners, self.bottoms, strict=True)
            if owner in x
        ]
        outputs: Tensor = self.top(mean_embedding(embeddings))
        return outputs


def mean_embedding(embeddings: Sequence[Tensor]) -> Tensor:
    """The mean of one or more embeddings, summed first to last (Algorithm 1, line 10)."""
    total = embeddings[0]
    for index, other in enumerate(embeddings[1:]):
        # In place from the second on: the first sum is a tensor of our own.
        total = total.add_(other) if index and not total.requires_grad else total + other
    return total / len(embeddings)


@dataclass(frozen=True)
class OwnersSpec(Saved):
    """Spec that rebuilds an ``OwnersNetwork`` without its weights.

    Attributes:
        owners: names of the data owners.
        shapes: of one row of each.
        bottoms: their networks.
        top: the label owner's.
    """

    kind: ClassVar[str] = "owners"

    owners: tuple[str, ...]
    shapes: tuple[Shape, ...]
    bottoms: tuple[BottomSpec, ...]
    top: TopSpec

    def __post_init__(self) -> None:
        if not self.owners or len(set(self.owners)) < len(self.owners):
            raise ConfigError(f"data owners are one or more, with names that differ: {self.owners}")
        if not len(self.owners) == len(self.shapes) == len(self.bottoms):
            raise ConfigError("each data owner has one shape and one bottom network")

    def build(self) -> OwnersNetwork:
        bottoms = [
            spec.build(shape, self.top.embedding)
            for spec, shape in zip(self.bottoms, self.shapes, strict=True)
        ]
        return OwnersNetwork(self.owners, bottoms, self.top.build())


# --- What a data owner keeps -------------------------------------------------------------------

BOTTOM_FORMAT = 1
_BOTTOM_KEYS = ("format", "party", "network", "shape", "embedding", "input")


@dataclass(eq=False)
class Bottom:
    """A data owner's trained network: turns its rows into embeddings, predicts nothing alone.

    Attributes:
        party: whose it is.
        network: (B, ...) -> (B, E).
        spec: what the network is built from.
        shape: of one row of network input.
        embedding: E.
        input: how raw columns or images become that row; None where only tensors are given.
        about: more to keep with it, JSON-ready.
    """

    party: str
    network: nn.Module
    spec: BottomSpec
    shape: Shape
    embedding: int
    input: Input | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def embed(self, x: Tensor, *, batch_size: int = 1024) -> Tensor:
        """(N, E) embeddings of (N, ...) rows of network input.

        Raises:
            DataError: rows of another shape.
        """
        if tuple(x.shape[1:]) != tuple(self.shape):
            raise DataError(
                f"the network of data owner {self.party!r} takes rows of shape {self.shape}, got "
                f"{tuple(x.shape[1:])}"
            )
        return rowwise(self.network, x, batch_size=batch_size, width=self.embedding)

    def save(self, folder: str | Path) -> Path:
        """Write ``bottom.safetensors`` and ``bottom.json``; an older one there is replaced.

        Raises:
            ModelError: the folder exists and holds something else.
        """
        description = {
            "format": BOTTOM_FORMAT,
            "party": self.party,
            **self.about,
            "network": self.spec.to_json(),
            "shape": list(self.shape),
            "embedding": self.embedding,
            "input": None if self.input is None else self.input.to_json(),
        }
        return write_folder(folder, "bottom", description, self.network)


def load_bottom(folder: str | Path) -> Bottom:
    """The bottom network in a folder that ``Bottom.save`` wrote.

    Raises:
        ModelError: none there, or files that cannot be read or do not belong together.
    """
    folder = Path(folder)
    absent = "holds no data owner's network: {} is missing"
    description, weights = read_folder(folder, "bottom", format=BOTTOM_FORMAT, absent=absent)
    with rebuilding(folder, "bottom"):
        spec: BottomSpec = of_kind(BottomSpec, description["network"])
        shape, embedding = tuple(description["shape"]), description["embedding"]
        if not all(type(size) is int and size > 0 for size in (*shape, embedding)):
            raise ModelError(f"sizes are positive whole numbers, got {shape}")
        tensors = safetensors.torch.load(weights)
        network = rebuilt(lambda: spec.build(shape, embedding), tensors)
        stored = description["input"]
        return Bottom(
            description["party"],
            network.eval(),
            spec,
            shape,
            embedding,
            None if stored is None else input_from_json(stored),
            {name: value for name, value in description.items() if name not in _BOTTOM_KEYS},
        )
