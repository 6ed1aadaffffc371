"""Facet of proposals: what a proposal of a run, and a party that joins one, print of its method."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar

from dovetail.methods.base import Run
from dovetail.methods.party import Site
from dovetail.network.quota import Quota


class Proposed:
    """Facet of proposals: what parties must agree to, in their policies' words.

    Attributes:
        aligns: whether their rows are aligned first.
    """

    aligns: ClassVar[bool] = False

    def asks(self, run: Run, policies: Sequence[str]) -> tuple[str, ...]:
        """Algorithms that policies must agree to for a run's variants; ``policies`` are all of the
        method."""
        return (*(("align",) if self.aligns else ()), *policies)

    def numbers(self, run: Run) -> int:
        """The fewest numbers of a row that a run of it asks for, where these are counted."""
        return 0

    def check_numbers(self, site: Site, numbers: int) -> None:
        """Refuse so many numbers of every row.

        Raises:
            ConfigError: naming the policy's key.
        """

    def use_up(self, site: Site, quota: Quota, driver: str, answered: Mapping[str, int]) -> None:
        """Count as used up what a ledger does not say: message -> how often it was answered."""

    def describe(self, site: Site, agreed: Collection[str]) -> Iterable[str]:
        """Lines on what a party does that agrees to these."""
        return ()
