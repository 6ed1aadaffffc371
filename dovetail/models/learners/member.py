"""What one member of an ensemble is rebuilt from."""

from __future__ import annotations

from torch import nn

from dovetail.models.as_json import AsJson


class MemberSpec(AsJson):
    """A frozen dataclass of numbers; its subclasses are the kinds of member that there are."""

    def build(self) -> nn.Module:
        """(B, F) -> (B, C)."""
        raise NotImplementedError
