"""Spec of one member of an ensemble."""

from __future__ import annotations

from torch import nn

from dovetail.data.saving import Saved


class MemberSpec(Saved):
    """A frozen dataclass of numbers; its subclasses are the kinds of member that there are."""

    def build(self) -> nn.Module:
        """(B, F) -> (B, C)."""
        raise NotImplementedError
