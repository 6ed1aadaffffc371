"""The joint model as it is kept: the label owner's part, each partner's part, and the solo model.

A partner's part (``Bottoms``) turns its rows into codes and stays with it. The label owner's
(``Joint``) takes its own features and a block of codes for each partner; a row that a partner did
not answer has NaN there, and the solo model says it.

Letters: B rows, F features, K members, D code width, C outputs, E codes of a party, all members'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from dovetail.data.saving import Saved
from dovetail.errors import ModelError
from dovetail.models.learners.specs import EnsembleSpec
from dovetail.models.learners.stacked import Bottom, PiecewiseLinear, Top, mean_outputs


class Bottoms(nn.Module):
    """Encodings and bottoms of a party for every stack: (B, ...) -> (B, E)."""

    def __init__(self, encodings: Sequence[PiecewiseLinear], bottoms: Sequence[Bottom]) -> None:
        super().__init__()
        self.encodings = nn.ModuleList(encodings)
        self.bottoms = nn.ModuleList(bottoms)

    def forward(self, x: Tensor) -> Tensor:
        x_BF = x.flatten(1)
        return torch.cat(
            [
                bottom(encoding(x_BF)).movedim(0, 1).flatten(1)
                for encoding, bottom in zip(self.encodings, self.bottoms, strict=True)
            ],
            dim=1,
        )


@dataclass(frozen=True)
class Part(Saved):
    """The sizes of one stack's bottom at one party.

    Attributes:
        members: K.
        bins: of all numbers together.
        widths: of hidden layers, the last one being D; () where there is no code.
        num_outputs: C.
    """

    members: int
    bins: int
    widths: tuple[int, ...]
    num_outputs: int

    def __post_init__(self) -> None:
        if min(self.members, self.num_outputs, *self.widths) < 1 or self.bins < 0:
            raise ModelError(f"a bottom's sizes are 1 or more, got {self}; copy the folder again")

    @property
    def code_width(self) -> int:
        return self.widths[-1] if self.widths else 0

    @property
    def embedding(self) -> int:
        """Width of its part of E."""
        return self.members * (self.code_width + self.num_outputs)

    def build(self, num_features: int) -> tuple[PiecewiseLinear, Bottom]:
        encoding = PiecewiseLinear(num_features, self.bins)
        return encoding, Bottom(self.members, encoding.num_outputs, self.widths, self.num_outputs)

    @classmethod
    def of(cls, encoding: PiecewiseLinear, bottom: Bottom, widths: Sequence[int]) -> Part:
        members, _, num_outputs = bottom.linear.shape
        return cls(members, len(encoding.column_M), tuple(widths), num_outputs)


def _bottoms(parts: Sequence[Part], num_features: int) -> Bottoms:
    built = [part.build(num_features) for part in parts]
    return Bottoms([encoding for encoding, _ in built], [bottom for _, bottom in built])


@dataclass(frozen=True)
class BottomsSpec(Saved):
    """The sizes of a partner's ``Bottoms``; stands where a data owner's network does."""

    kind: ClassVar[str] = "stacked-bottoms"

    parts: tuple[Part, ...]

    def build(self, input_shape: tuple[int, ...], embedding: int) -> Bottoms:
        """(B, ...) -> (B, E).

        Raises:
            ModelError: codes of another width.
        """
        if not self.parts or embedding != sum(part.embedding for part in self.parts):
            raise ModelError(f"its codes are not {embedding} wide; copy the whole folder again")
        return _bottoms(self.parts, torch.Size(input_shape).numel())


class WithPartners(nn.Module):
    """Block -> rows in, (B, C) out: all together where partners answered, the solo model elsewhere.

    Args:
        spec: who is asked.
        solo: needs the label owner's block only.
    """

    any_blocks = True

    def __init__(self, spec: JointSpec, solo: nn.Module) -> None:
        super().__init__()
        self.solo = solo
        self._who = spec

    def forward(self, blocks: Mapping[str, Tensor]) -> Tensor:
        spec = self._who
        if spec.block not in blocks:
            raise ModelError(f"it needs the label owner's own columns (block {spec.block!r})")
        x = blocks[spec.block]
        solo_BC: Tensor = self.solo(x.flatten(1))
        held = {name: blocks[name] for name in spec.partners if name in blocks}
        if not held or (len(held) < len(spec.partners) and not spec.partial):
            return solo_BC
        answered = {name: ~codes.isnan().any(dim=1) for name, codes in held.items()}
        codes = [
            held[name] if name in held else x.new_full((len(x), width), torch.nan)
            for name, width in spec.widths.items()
        ]
        joint_BC = self.tempered(self.together(x, codes), solo_BC)
        present = torch.stack(list(answered.values()))
        use_B = present.any(dim=0) if spec.partial else present.all(dim=0)
        return torch.where(use_B[:, None], joint_BC, solo_BC)

    def together(self, x: Tensor, codes: Sequence[Tensor]) -> Tensor:
        """(B, C) from own rows and every partner's (B, E), NaN where it did not answer."""
        raise NotImplementedError

    def tempered(self, joint_BC: Tensor, solo_BC: Tensor) -> Tensor:
        """(B, C) outputs where partners answered."""
        if not self._who.halved:
            return joint_BC
        return blended([joint_BC, solo_BC], regression=self._who.regression)


class Joint(WithPartners):
    """Joint model that APFed-D keeps.

    Args:
        spec: the sizes.
        bottoms: the label owner's bottoms.
        tops: of every stack.
        solo: needs the label owner's block only.
    """

    def __init__(
        self, spec: StacksSpec, bottoms: Bottoms, tops: Sequence[Top], solo: nn.Module
    ) -> None:
        super().__init__(spec, solo)
        self.own = bottoms
        self.tops = nn.ModuleList(tops)
        self._spec = spec

    def together(self, x: Tensor, codes: Sequence[Tensor]) -> Tensor:
        filled = [each.masked_fill(each.isnan().any(dim=1, keepdim=True), 0) for each in codes]
        return self._joint([self.own(x), *filled])

    def _joint(self, codes: Sequence[Tensor]) -> Tensor:
        """(B, C) of the teacher, from every party's (B, E)."""
        spec = self._spec
        parties = (spec.own, *spec.parts)
        starts = [0] * len(parties)
        blends = []
        for stack, top in enumerate(self.tops):
            parts_KBD = []
            for index, (parts, codes_BE) in enumerate(zip(parties, codes, strict=True)):
                part = parts[stack]
                stop = starts[index] + part.embedding
                local_BE = codes_BE[:, starts[index] : stop]
                parts_KBD.append(local_BE.unflatten(1, (part.members, -1)).movedim(1, 0))
                starts[index] = stop
            if stack in spec.used:
                outputs_KBC = top(parts_KBD)
                blends.append(fold_means(outputs_KBC, spec.copies, regression=spec.regression))
        outputs_KBC = blended(blends, regression=spec.regression) / spec.temperature
        return mean_outputs(outputs_KBC, regression=spec.regression)


def fold_means(outputs_KBC: Tensor, copies: int, *, regression: bool) -> Tensor:
    """(folds, B, C) the mean of each fold's copies."""
    return torch.stack(
        [mean_outputs(each, regression=regression) for each in outputs_KBC.split(copies)]
    )


def blended(outputs: Sequence[Tensor], *, regression: bool) -> Tensor:
    """The mean of several teachers' (folds, B, C); one is itself."""
    return (
        outputs[0]
        if len(outputs) == 1
        else mean_outputs(torch.stack(list(outputs)), regression=regression)
    )


@dataclass(frozen=True, kw_only=True)
class JointSpec(Saved):
    """Spec of a model that predicts with partners.

    Attributes:
        block: the label owner's own.
        num_features: F of that block, flattened.
        partners: who is asked.
        partial: whether rows that lack a partner were learnt from.
        solo: the model that needs nobody.
        halved: whether it says the mean of its own word and the solo model's.
    """

    block: str
    num_features: int
    partners: tuple[str, ...]
    partial: bool
    regression: bool
    solo: EnsembleSpec
    halved: bool = False

    @property
    def widths(self) -> dict[str, int]:
        """Partner -> E of what it answers."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class StacksSpec(JointSpec):
    """The sizes of a ``Joint``.

    Attributes:
        own: its bottoms, one a stack.
        parts: the partners', in their order.
        copies: members of each fold.
        used: which stacks speak; where several do, their mean.
        temperature: of the teacher.
    """

    kind: ClassVar[str] = "joint"

    own: tuple[Part, ...]
    parts: tuple[tuple[Part, ...], ...]
    copies: int
    used: tuple[int, ...]
    temperature: float

    def __post_init__(self) -> None:
        stacks = range(len(self.own))
        if (
            not self.used
            or not set(self.used) <= set(stacks)
            or len(self.partners) != len(self.parts)
            or any(len(parts) != len(self.own) for parts in self.parts)
            or not self.temperature > 0
            or self.copies < 1
        ):
            raise ModelError("a joint model's parts do not fit each other; copy the folder again")

    @property
    def widths(self) -> dict[str, int]:
        """Partner -> E of the codes that it answers."""
        return {
            name: sum(part.embedding for part in parts)
            for name, parts in zip(self.partners, self.parts, strict=True)
        }

    def build(self) -> Joint:
        tops = [
            Top(
                part.members,
                1 + len(self.partners),
                [part.code_width, *(parts[stack].code_width for parts in self.parts)],
                part.num_outputs,
            )
            for stack, part in enumerate(self.own)
        ]
        return Joint(self, _bottoms(self.own, self.num_features), tops, self.solo.build())
