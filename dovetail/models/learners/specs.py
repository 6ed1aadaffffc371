"""What a learner's model is rebuilt from: members, and the mean of what they say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from dovetail.errors import ModelError
from dovetail.models.learners.boosting_model import BoostingSpec
from dovetail.models.learners.linear_model import LinearSpec
from dovetail.models.learners.stacked import StackedSpec, mean_outputs


class MemberSpec(Protocol):
    """A frozen dataclass of numbers; ``build`` gives (B, F) -> (B, C)."""

    kind: ClassVar[str]

    def build(self) -> nn.Module: ...

    def to_json(self) -> dict[str, Any]: ...

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self: ...


class Ensemble(nn.Module):
    """(B, ...) -> (B, C) the logarithm of the mean probability over T, or the mean value."""

    def __init__(
        self, members: Sequence[nn.Module], *, temperature: float, regression: bool
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.temperature = temperature
        self.regression = regression

    def forward(self, x: Tensor) -> Tensor:
        x_BF = x.flatten(1)  # images, too
        return mean_outputs(
            torch.stack([member(x_BF) for member in self.members]), regression=self.regression
        ) / (1.0 if self.regression else self.temperature)


@dataclass(frozen=True)
class EnsembleSpec:
    """Members of any kind, and their mean."""

    kind: ClassVar[str] = "ensemble"

    members: tuple[MemberSpec, ...]
    num_outputs: int
    regression: bool = False
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.members:
            raise ModelError("an ensemble has one member or more; copy the whole folder again")
        if not (0 < self.temperature < math.inf):
            raise ModelError(
                f"an ensemble's temperature is above 0, got {self.temperature}; copy the whole "
                "folder again"
            )

    def build(self) -> Ensemble:
        return self.around([member.build() for member in self.members])

    def around(self, members: Sequence[nn.Module]) -> Ensemble:
        """The ensemble of these members, which are built already."""
        return Ensemble(members, temperature=self.temperature, regression=self.regression)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "members": [member.to_json() for member in self.members],
            "num_outputs": self.num_outputs,
            "regression": self.regression,
            "temperature": self.temperature,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> EnsembleSpec:
        return cls(
            tuple(_member(member) for member in stored["members"]),
            int(stored["num_outputs"]),
            bool(stored["regression"]),
            float(stored["temperature"]),
        )


#: Every kind of member of an ensemble.
MEMBERS: Mapping[str, type[MemberSpec]] = {
    spec.kind: spec for spec in (LinearSpec, BoostingSpec, StackedSpec, EnsembleSpec)
}


def _member(stored: Mapping[str, Any]) -> MemberSpec:
    kind = stored.get("kind")
    if not isinstance(kind, str) or kind not in MEMBERS:
        raise ModelError(f"a member is of a kind among {', '.join(MEMBERS)}, got {kind!r}")
    return MEMBERS[kind].from_json(stored)
