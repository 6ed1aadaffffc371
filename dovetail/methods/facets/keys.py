"""Facet of keys: a method's keys of a run file for a search, and for parties with files of their
own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from dovetail.methods.base import Run


@dataclass(frozen=True)
class Keys:
    """The keys of a method.

    Attributes:
        tried: key -> values that a search tries where the run file names none.
        of_parties: those that are in every party's own file, where it has one.
    """

    tried: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    of_parties: Collection[str] = ()

    def searched(self, run: Run) -> Mapping[str, Sequence[Any]]:
        """The values that a search of this run tries."""
        return self.tried

    def party_sections(self, run: Run, *, where: str) -> Mapping[str, BaseModel]:
        """Party -> what a simulation sets that is in its own file, when files are made of it.

        Raises:
            ConfigError: settings of a party that is not there.
        """
        return {}
