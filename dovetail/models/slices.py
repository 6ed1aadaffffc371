"""A server's model of all blocks, and a party's part of it, as vectors and as layers.

A party's weights travel as two vectors: its extractors, block after block in its own order of
blocks, and its classifier, layer after layer, each layer as (outputs, inputs + 1) with the bias
last. The server has its blocks in an order of its own.

Letters: E weights of a party's extractors, W of its classifier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.models import matching


@dataclass(frozen=True)
class Layout:
    """Which numbers of a vector or of a layer are whose.

    Attributes:
        features: block -> D, of all blocks in the server's order.
        num_outputs: of every classifier.
    """

    features: Mapping[str, int]
    num_outputs: int

    @property
    def sizes(self) -> list[int]:
        """D of each block."""
        return list(self.features.values())

    def spans(self) -> dict[str, slice]:
        """Block -> where its features are among all."""
        ends = np.cumsum(self.sizes).tolist()
        begins = [0, *ends[:-1]]
        return dict(zip(self.features, map(slice, begins, ends), strict=True))

    def indices(self, blocks: Sequence[str]) -> tuple[int, ...]:
        """P_m: which of the server's blocks a party has, rising."""
        return tuple(i for i, block in enumerate(self.features) if block in blocks)

    def classifier(
        self, vector_W: Tensor, blocks: Sequence[str], widths: Sequence[int]
    ) -> matching.Classifier:
        """w_m of a party's vector, its features in the server's order of blocks."""
        sizes = [sum(self.features[block] for block in blocks), *widths, self.num_outputs]
        parts = vector_W.split([after * (before + 1) for before, after in pairwise(sizes)])
        layers = [
            part.numpy().reshape(after, -1) for part, after in zip(parts, sizes[1:], strict=True)
        ]
        layers[0] = layers[0][:, self._columns(blocks, to_party=False)]
        return matching.Classifier(self.indices(blocks), tuple(layers))

    def slice_of(
        self,
        classifier: Sequence[np.ndarray],
        blocks: Sequence[str],
        assignment: matching.Assignment,
    ) -> Tensor:
        """(W,) Pi_m w_0, in the party's order of blocks."""
        layers = matching.matched_slice(classifier, self.indices(blocks), assignment, self.sizes)
        layers[0] = layers[0][:, self._columns(blocks, to_party=True)]
        return flattened(layers)

    def _columns(self, blocks: Sequence[str], *, to_party: bool) -> np.ndarray:
        """Columns of a first layer, from the server's order of blocks to the party's, or back."""
        ordered = [block for block in self.features if block in blocks]
        source, wanted = (ordered, blocks) if to_party else (blocks, ordered)
        begins = dict(
            zip(source, np.cumsum([0, *(self.features[b] for b in source)]), strict=False)
        )
        spans = [np.arange(begins[b], begins[b] + self.features[b]) for b in wanted]
        return np.concatenate([*spans, [sum(self.features[b] for b in source)]])


def flattened(layers: Sequence[np.ndarray]) -> Tensor:
    """(W,) float32: layer after layer."""
    return torch.from_numpy(np.concatenate([layer.ravel() for layer in layers])).float()


def split_blocks(
    vector_E: Tensor, blocks: Sequence[str], extractors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Block -> its part of a party's extractors; ``extractors`` says how long each is."""
    parts = vector_E.split([len(extractors[block]) for block in blocks])
    return dict(zip(blocks, parts, strict=True))


@dataclass
class ServerModel:
    """Model of a server, and which of its neurons are whose.

    Attributes:
        extractors: Theta_0, block -> its extractor's weights.
        classifier: w_0, layer after layer.
        assignments: Pi, party -> its neurons' indices among the server's.
    """

    extractors: dict[str, Tensor] = field(default_factory=dict)
    classifier: list[np.ndarray] = field(default_factory=list)
    assignments: dict[str, matching.Assignment] = field(default_factory=dict)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the hidden layers."""
        return tuple(len(layer) for layer in self.classifier[:-1])

    def state(self) -> dict[str, Any]:
        """As tensors."""
        return {
            "extractors": dict(self.extractors),
            "classifier": [torch.from_numpy(layer) for layer in self.classifier],
            "assignments": {
                party: [torch.from_numpy(indices) for indices in assignment]
                for party, assignment in self.assignments.items()
            },
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to there."""
        self.extractors = dict(state["extractors"])
        self.classifier = [layer.numpy() for layer in state["classifier"]]
        self.assignments = {
            party: tuple(indices.numpy() for indices in assignment)
            for party, assignment in state["assignments"].items()
        }
