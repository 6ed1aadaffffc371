"""A new party that takes part in a finished run, as ``dovetail invite`` asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from dovetail.models import Model


class Invited(Protocol):
    """Of a method whose run leaves a model of all blocks."""

    def __call__(self, model: Model, party: str, blocks: Mapping[str, Sequence[str]], /) -> Model:
        """A new party's part of that model.

        Args:
            blocks: of the party: block -> its columns; none where they are not known.

        Raises:
            ConfigError: the model has no such blocks.
        """
