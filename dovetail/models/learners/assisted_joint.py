"""The joint model of APFed-S as it is kept: own model, weights of partners' numbers, solo model.

What partners answer is encrypted; with whose key it is read is kept apart from the model.

Letters: B rows, M teachers, K folds, C outputs, F inputs (C of the own model, then every number).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from dovetail.data.saving import Saved
from dovetail.errors import ModelError
from dovetail.models.learners.assisted import Assisted, Inputs
from dovetail.models.learners.joint import JointSpec, WithPartners, blended
from dovetail.models.learners.specs import EnsembleSpec
from dovetail.models.learners.stacked import mean_outputs


@dataclass(frozen=True)
class Answers(Saved):
    """How a partner's encrypted answers of one run are read.

    Attributes:
        labelled, columns, block, classes: how targets lie in ciphertexts.
        unit: what a whole number of the targets stands for.
        middle: of each column's numbers, in units; () where they were made around 0.
    """

    labelled: int
    columns: int
    block: int
    classes: int
    unit: float
    middle: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if (
            min(self.labelled, self.columns, self.block, self.classes) < 1
            or not 0 < self.unit < float("inf")
            or len(self.middle) not in (0, self.columns)
        ):
            raise ModelError(f"answers cannot be read by {self}; copy the folder again")


class AssistedJoint(WithPartners):
    """Joint model that APFed-S keeps.

    Args:
        spec: the sizes.
        alone: whose outputs the numbers correct.
        solo: what needs nobody.
    """

    weights_MKCF: Tensor
    biases_MKC: Tensor
    z_Z: Tensor
    fill_FZ: Tensor

    def __init__(self, spec: AssistedSpec, alone: nn.Module, solo: nn.Module) -> None:
        super().__init__(spec, solo)
        self.spec = spec
        self.alone = alone
        num, width = spec.alone.num_outputs, sum(spec.numbers)
        shape = spec.teachers, spec.folds, num
        self.register_buffer("weights_MKCF", torch.zeros(*shape, num + width))
        self.register_buffer("biases_MKC", torch.zeros(shape))
        self.register_buffer("z_Z", torch.ones(width))
        self.register_buffer("fill_FZ", torch.zeros(num + 1, width))

    @classmethod
    def of(
        cls,
        spec: AssistedSpec,
        alone: nn.Module,
        solo: nn.Module,
        inputs: Inputs,
        teachers: Sequence[Assisted],
    ) -> AssistedJoint:
        """The network of these teachers."""
        self = cls(spec, alone, solo)
        self.weights_MKCF.copy_(torch.stack([each.weights_KCF for each in teachers]))
        self.biases_MKC.copy_(torch.stack([each.biases_KC for each in teachers]))
        self.z_Z.copy_(inputs.z_Z)
        self.fill_FZ.copy_(inputs.fill_FZ)
        return self

    def together(self, x: Tensor, codes: Sequence[Tensor]) -> Tensor:
        return self.from_numbers(self.alone(x.flatten(1)), torch.cat(list(codes), dim=1))

    def from_numbers(self, local_BC: Tensor, z_BZ: Tensor) -> Tensor:
        """(B, C) from own outputs and every number; one that is NaN is not there."""
        spec, regression = self.spec, self.spec.regression
        inputs_BF = Inputs(spec.own, self.z_Z, self.fill_FZ, regression).of(local_BC, z_BZ)
        each_MKBC = [
            Assisted(weights, biases).outputs(inputs_BF)
            for weights, biases in zip(self.weights_MKCF, self.biases_MKC, strict=True)
        ]
        return mean_outputs(
            blended(each_MKBC, regression=regression) / spec.temperature, regression=regression
        )


@dataclass(frozen=True, kw_only=True)
class AssistedSpec(JointSpec):
    """The sizes of an ``AssistedJoint``.

    Attributes:
        alone: whose outputs the numbers correct.
        own: what these are divided by.
        numbers: of each partner, how many of a row.
        answers: of each partner, how they are read.
        teachers: M.
        folds: K.
        temperature: of the teacher.
    """

    kind: ClassVar[str] = "joint-assisted"

    alone: EnsembleSpec
    own: float
    numbers: tuple[int, ...]
    answers: tuple[Answers, ...]
    teachers: int
    folds: int
    temperature: float

    def __post_init__(self) -> None:
        if (
            not len(self.partners) == len(self.numbers) == len(self.answers) > 0
            or min(*self.numbers, self.teachers, self.folds) < 1
            or not (self.own > 0 and self.temperature > 0)
        ):
            raise ModelError("a joint model's parts do not fit each other; copy the folder again")

    @property
    def widths(self) -> dict[str, int]:
        return dict(zip(self.partners, self.numbers, strict=True))

    def build(self) -> AssistedJoint:
        return AssistedJoint(self, self.alone.build(), self.solo.build())
