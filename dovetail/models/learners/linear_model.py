"""A linear model as it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from dovetail.models.learners.member import MemberSpec


@dataclass(frozen=True)
class LinearSpec(MemberSpec):
    """Linear model: a weight a feature and output, and an intercept an output."""

    kind: ClassVar[str] = "linear"

    num_features: int
    num_outputs: int

    def build(self) -> nn.Linear:
        return nn.Linear(self.num_features, self.num_outputs)
