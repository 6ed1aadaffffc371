"""Facet that an audit asks of a method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from dovetail.methods.facets.defences import Grid
from dovetail.methods.facets.scene import Scene
from dovetail.methods.facets.seen import Seen
from dovetail.methods.facets.steering import Poisoned, Steered
from dovetail.methods.limits import Limits
from dovetail.methods.training import Training


class Audited:
    """A method whose messages can be attacked.

    Attributes:
        tried: variants whose defences can be tried.
    """

    tried: ClassVar[tuple[str, ...]] = ()

    def scene(self, training: Training) -> Scene:
        """Scene of a run: which party has what, and what reads its messages."""
        raise NotImplementedError

    def decrypted(self, driver: Any) -> Iterable[Seen]:
        """Messages that crossed encrypted, as the driver of the run reads them when it is over."""
        return ()

    def grid(self, training: Training) -> Grid:
        """How defences of a variant among ``tried`` are tried."""
        raise NotImplementedError

    def steered(
        self, training: Training, scene: Scene, variant: str, seed: int, limits: Limits
    ) -> Iterator[Steered | Poisoned]:
        """Findings of a peer that breaks the protocol, within these limits of a partner."""
        return iter(())
