"""What a proposal of a run, and a party that joins one, say of its method."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar

from dovetail.methods.base import Run
from dovetail.methods.party import Site


class Proposed:
    """What parties are asked to agree to, in their policies' words.

    Attributes:
        aligns: whether their rows are aligned first.
    """

    aligns: ClassVar[bool] = False

    def asks(self, run: Run, policies: Sequence[str]) -> tuple[str, ...]:
        """What policies must agree to for a run's variants; ``policies`` are all of the method."""
        return (*(("align",) if self.aligns else ()), *policies)

    def describe(self, site: Site, agreed: Collection[str]) -> Iterable[str]:
        """Lines on what a party does that agrees to these."""
        return ()
