"""A linear model as it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn


@dataclass(frozen=True)
class LinearSpec:
    """One weight a feature and output, and an intercept an output."""

    kind: ClassVar[str] = "linear"

    num_features: int
    num_outputs: int

    def build(self) -> nn.Linear:
        return nn.Linear(self.num_features, self.num_outputs)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "num_features": self.num_features,
            "num_outputs": self.num_outputs,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> LinearSpec:
        return cls(int(stored["num_features"]), int(stored["num_outputs"]))
