"""What a saved network is rebuilt from, and the one table of the kinds there are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

from torch import Tensor, nn

from dovetail.errors import ModelError
from dovetail.models.as_json import AsJson
from dovetail.models.blocks import BlocksSpec
from dovetail.models.columns import ColumnsSpec
from dovetail.models.learners.assisted_joint import AssistedSpec
from dovetail.models.learners.joint import StacksSpec
from dovetail.models.learners.specs import EnsembleSpec
from dovetail.models.networks import (
    EncoderSpec,
    Head,
    Shape,
    output_shape,
)
from dovetail.models.owners import OwnersSpec, TopSpec


class NetworkSpec(Protocol):
    """A frozen dataclass of numbers and names, entered in ``KINDS`` below.

    Loading a model first builds the network without memory (``torch.device("meta")``), so that
    ``build`` may look at the shapes of tensors but not at their values.
    """

    kind: ClassVar[str]

    def build(self) -> nn.Module:
        """The network, with random weights from torch's global generator."""

    def to_json(self) -> dict[str, Any]:
        """What ``from_json`` reads, with "kind"."""

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """The spec that ``to_json`` stored.

        Raises:
            ModelError, KeyError, TypeError, ValueError: fields that are missing or cannot be.
        """


class EncoderHeadNetwork(nn.Module):
    """(B, ...) rows -> ``encoder`` -> (B, D) flattened codes -> ``head`` -> (B, outputs)."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.encoder(x).flatten(1))
        return outputs


@dataclass(frozen=True)
class EncoderHead(AsJson):
    """An encoder and the head on its codes."""

    kind: ClassVar[str] = "encoder-head"

    encoder: EncoderSpec
    head: Head
    input_shape: Shape
    num_outputs: int

    def build(self) -> EncoderHeadNetwork:
        encoder = self.encoder.encoder(self.input_shape)
        device = next(encoder.parameters()).device
        code_width = math.prod(output_shape(encoder, self.input_shape, device))
        return EncoderHeadNetwork(encoder, self.head.build(code_width, self.num_outputs))


#: Every kind of network that a model can be saved with.
KINDS: Mapping[str, type[NetworkSpec]] = {
    spec.kind: spec
    for spec in (
        EncoderHead,
        BlocksSpec,
        ColumnsSpec,
        TopSpec,
        OwnersSpec,
        EnsembleSpec,
        StacksSpec,
        AssistedSpec,
    )
}


def spec_from_json(stored: Mapping[str, Any]) -> NetworkSpec:
    """The spec that ``to_json`` stored.

    Raises:
        ModelError: an unknown kind.
        KeyError, TypeError, ValueError: fields that are missing or cannot be.
    """
    kind = stored.get("kind")
    if kind == "custom":
        raise ModelError("its network is one of your own: load(folder, network=...)")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ModelError(f"a network is of a kind among {', '.join(KINDS)}, got {kind!r}")
    return KINDS[kind].from_json(stored)
