"""Facets that a method declares: keys that a search tries, what proposals print of it, what was
measured of it, and how a finished run of it is used by new parties and together with old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel
from torch import Tensor

from dovetail.methods.base import Run, Site
from dovetail.methods.inference import Question
from dovetail.models import Model
from dovetail.network.quota import Quota


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


@dataclass(frozen=True, kw_only=True)
class Reported:
    """Reported figures of one variant; what nobody has measured is left out.

    Attributes:
        shows: what receivers learn by default settings, and the verdict, as audits found.
        gain: what it gained, in points of AUC or accuracy, the median over settings.
        bounds: keys of a run file that bound what its messages reveal.
        letters: letters to each partner beside those of rounds, and letters a round, where it can
            be trained by letter.
        also: other variants that this holds for.
    """

    shows: tuple[str, ...] = ()
    gain: str = ""
    bounds: tuple[str, ...] = ()
    letters: tuple[int, int] | None = None
    also: tuple[str, ...] = ()


class Invited(Protocol):
    """Of a method whose run leaves a model of all blocks."""

    def __call__(self, model: Model, party: str, blocks: Mapping[str, Sequence[str]], /) -> Model:
        """A new party's part of that model.

        Args:
            blocks: of the party: block -> its columns; none where they are not known.

        Raises:
            ConfigError: the model has no such blocks.
        """


class Together(Protocol):
    """Of a method with such models."""

    def __call__(self, spec: Any, keys: Callable[[], Mapping[str, Tensor]], /) -> Question | None:
        """Question to parties for a model of this spec; None: it is none of the method's.

        Args:
            spec: of the model.
            keys: reads what decrypts parties' answers, where they are encrypted.

        Raises:
            ModelError: a key that is missing.
        """


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
