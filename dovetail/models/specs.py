"""Specs of saved networks, and the one table of the kinds there are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from dovetail.data.saving import Saved, of_kind
from dovetail.errors import ModelError
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
class EncoderHead(Saved):
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


#: Every kind of network that a model can be saved with. Loading a model first builds the network
#: without memory (``torch.device("meta")``), so that ``build`` may look at the shapes of tensors
#: but not at their values.
NetworkSpec = (
    EncoderHead
    | BlocksSpec
    | ColumnsSpec
    | TopSpec
    | OwnersSpec
    | EnsembleSpec
    | StacksSpec
    | AssistedSpec
)


def spec_from_json(stored: Mapping[str, Any]) -> NetworkSpec:
    """The spec that ``to_json`` stored.

    Raises:
        ModelError: an unknown kind, or fields that are missing or cannot be.
    """
    if stored.get("kind") == "custom":
        raise ModelError("its network is one of your own: load(folder, network=...)")
    spec: NetworkSpec = of_kind(NetworkSpec, stored)
    return spec
