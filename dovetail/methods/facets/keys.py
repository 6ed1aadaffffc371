"""What a run file's keys of a method are to a search, and to parties with files of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel

from dovetail.methods.base import Run


class Keys:
    """The keys of a method.

    Attributes:
        of_parties: those that stand in every party's own file, where it has one.
    """

    of_parties: ClassVar[Collection[str]] = ()

    def searched(self, run: Run) -> Mapping[str, Sequence[Any]]:
        """Key -> values that a search tries where the run file names none."""
        return {}

    def party_sections(self, run: Run, *, where: str) -> Mapping[str, BaseModel]:
        """Party -> what a simulation sets that stands in its own file, when files are made of it.

        Raises:
            ConfigError: settings of a party that is not there.
        """
        return {}
