"""A party as its own file describes it: its table, what it agrees to, its settings of each method.

``node/partyfile.py`` reads the file; every method is given what stands here, whether the party is
simulated, in this process, or answers a driver from its site.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from pydantic import BaseModel

from dovetail import data as dd
from dovetail.alignment import (
    Aligned,
    KeyResponder,
    Keys,
    Overlap,
    Reading,
    Responder,
    Workers,
    align,
    align_by_keys,
    count_by_keys,
    count_overlap,
    key_values,
)
from dovetail.alignment.limits import Alignments, default_max_ids
from dovetail.cluster import computing_at
from dovetail.errors import ConfigError
from dovetail.methods.limits import names_samples
from dovetail.methods.section import check_run_id
from dovetail.methods.settings.party import PartySection, PolicySection
from dovetail.network import Engine, Message
from dovetail.network.addresses import check_driver
from dovetail.network.checkpoint import REQUESTS
from dovetail.network.quota import Quota

S = TypeVar("S", bound=BaseModel)


@dataclass(frozen=True)
class Algorithm:
    """Description of a party's side, for its policy to read.

    Attributes:
        policy: its name in a policy.
        messages: the wire names that it comes in.
        goes_on, predicts: as of ``Party``.
        starts: wire names of the messages with which training starts.
        samples: whether its messages name samples whose number and uses the policy limits.
        few: wire name -> how often such a message is answered in one run; see ``handles``.
    """

    policy: str
    messages: tuple[str, ...]
    goes_on: bool = True
    begins: tuple[str, ...] = ()
    samples: bool = False
    few: Mapping[str, int] = field(default_factory=dict)
    predicts: bool = False


def algorithm(policy: str, *sides: Any, also: tuple[type[Message], ...] = ()) -> Algorithm:
    """Description of a party whose side is one of these classes.

    Args:
        policy: its name in a policy.
        sides: classes that have ``accepts``; a ``Party`` says more.
        also: messages that it answers besides.
    """
    accepts = dict.fromkeys([*(kind for side in sides for kind in side.accepts), *also])
    return Algorithm(
        policy,
        tuple(kind.wire_name() for kind in accepts),
        goes_on=all(getattr(side, "goes_on", True) for side in sides),
        begins=tuple(kind.wire_name() for side in sides for kind in getattr(side, "begins", ())),
        samples=any(names_samples(kind) for kind in accepts),
        few={
            kind.wire_name(): most
            for side in sides
            for kind, most in getattr(side, "few", {}).items()
        },
        predicts=any(getattr(side, "predicts", False) for side in sides),
    )


class Header(Protocol):
    """Header of a message, which is read before anything else of it."""

    @property
    def type(self) -> str:
        """Wire name of the message."""

    @property
    def run(self) -> str:
        """The run's id."""


#: The part before the dot of the messages with which a driver shows a proposal. They tell nothing
#: of a table, so any driver that may ask at all may show one.
PROPOSALS = "agreements"

#: Messages that any algorithm may come with: they save and restore a party's state at its site.
_OF_ANY = tuple(message.__qualname__ for message in REQUESTS)


@dataclass(frozen=True)
class Policy:
    """Decides what a party answers, from its file alone.

    A message cannot change it. No field of a message is a network, a loss, a rate or a table, but
    for ``Begin`` of CHFL, HyFEM and FedOptimus: what is learned together has the coordinator's
    settings, so a party must allow these by name (they are not among the defaults).

    Attributes:
        section: the party's choice.
        algorithms: the part of a message's wire name before the dot -> what it belongs to.
    """

    section: PolicySection
    algorithms: Mapping[str, Algorithm]

    def check(self, algorithm: str, driver: str) -> None:
        """Refuse an algorithm, or whoever asks for it.

        Raises:
            ConfigError: what was asked and what is allowed.
        """
        if algorithm not in self.section.algorithms:
            allowed = ", ".join(self.section.algorithms) or "nothing"
            raise ConfigError(f"refuses {algorithm!r}: its policy allows {allowed}")
        self.check_driver(driver)

    def check_driver(self, driver: str) -> None:
        """Refuse whoever asks.

        Raises:
            ConfigError: who asked and who may.
        """
        check_driver(self.section.drivers, driver)

    def admit(self, header: Header, driver: str) -> None:
        """Refuse a message before it is decoded.

        Raises:
            ConfigError: what was asked and what is allowed.
        """
        check_run_id(header.run)
        prefix, _, kind = header.type.partition(".")
        if prefix == PROPOSALS:
            self.check_driver(driver)
            return
        algorithm = self.algorithms.get(prefix)
        self.check(algorithm.policy if algorithm else prefix[:100], driver)
        if algorithm is not None and kind in _OF_ANY:
            return
        if algorithm is None or header.type not in algorithm.messages:
            raise ConfigError(f"refuses {header.type[:100]!r}: no such message is known here")
        if self.section.messages is not None and header.type not in self.section.messages:
            allowed = ", ".join(self.section.messages) or "nothing"
            raise ConfigError(f"refuses {header.type!r}: its policy allows {allowed}")


@dataclass(frozen=True, eq=False)
class Site:
    """A party file that was read, and its table.

    Attributes:
        path: the file; what it names is relative to it, and its site is beside it.
        party: whose table it is.
        policy: what it agrees to.
        sections: method -> the party's settings of it.
        table: its rows.
        where: what errors call it: the file, or what made it from Python.
    """

    path: Path
    party: PartySection
    policy: Policy
    sections: Mapping[str, BaseModel]
    table: dd.PartyTable
    where: str

    @property
    def name(self) -> str:
        return self.party.name

    def settings(self, method: str, kind: type[S]) -> S:
        """The party's settings of a method, which are of this kind."""
        section = self.sections[method]
        assert isinstance(section, kind)
        return section

    def computing(self) -> AbstractContextManager[None]:
        """While open, its heavy parts are computed on its own cluster, where it has one."""
        return computing_at(self.party.compute, f"{self.where}: party.compute")

    def fit_input(self, table: dd.PartyTable | None = None) -> dd.Input:
        """Encoder that turns its raw rows into network inputs, fitted on these rows of it (or on
        all)."""
        return (table or self.table).fit_input(
            categorical=self.party.categorical, max_categories=self.party.max_categories
        )

    def responder(self, workers: Workers | None = None) -> Responder:
        """Responder of an alignment, with what its policy agrees to.

        Raises:
            AlignmentError: ids that cannot be compared.
        """
        policy = self.policy.section
        agreed: dict[str, Any] = {
            "modes": policy.align_modes,
            "min_ids": policy.min_ids,
            "max_ids": self.max_ids,
            "checked": policy.check_places,
            "workers": workers,
        }
        if self.party.match:
            return KeyResponder(self.name, self.match_values(), **agreed)
        return Responder(self.name, self.table.ids, id_as=self.party.id_as, **agreed)

    def match_values(self) -> Keys:
        """Every row's match keys, in the order in which they are tried.

        Raises:
            ConfigError: a library that is missing.
        """
        reading = Reading(self.party.match_dates, self.party.match_region)
        columns = self.table.matching
        return Keys(key_values(key, columns, reading) for key in self.party.match_keys())

    def compared(self, parts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray | Keys]:
        """Part -> what its rows are compared by: their ids, or their match keys.

        Raises:
            ConfigError: a library that is missing.
        """
        if self.party.match:
            keys = self.match_values()
            return {part: keys.of(rows) for part, rows in parts.items()}
        return {part: self.table.ids[rows] for part, rows in parts.items()}

    def align(
        self,
        engine: Engine,
        *,
        workers: Workers | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Aligned:
        """Alignment that the party starts: by ids, or by match keys.

        Raises:
            AlignmentError: ids that cannot be compared.
            PartyError: a partner refused, or did not follow the protocol.
        """
        if self.party.match:
            return align_by_keys(engine, self.match_values(), workers=workers, progress=progress)
        return align(
            engine,
            self.table.ids,
            id_as=self.party.id_as,
            workers=workers,
            progress=progress,
        )

    def count(
        self,
        engine: Engine,
        *,
        workers: Workers | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> dict[str, Overlap]:
        """How many rows each partner has and shares, by ids or by match keys; nobody learns which.

        Raises:
            AlignmentError: ids that cannot be compared.
            PartyError: a partner refused, or did not follow the protocol.
        """
        if self.party.match:
            return count_by_keys(engine, self.match_values(), workers=workers, progress=progress)
        return count_overlap(
            engine,
            self.table.ids,
            id_as=self.party.id_as,
            workers=workers,
            progress=progress,
        )

    @property
    def max_ids(self) -> int:
        """The most ids that a driver may compare with its own in a day."""
        max_ids = self.policy.section.max_ids
        return default_max_ids(self.table.num_rows) if max_ids is None else max_ids

    def alignments(self, quota: Quota, print_line: Callable[[str], None]) -> Alignments:
        """Counter of alignments, in its site."""
        policy = self.policy.section
        return Alignments(
            quota,
            max_alignments=policy.max_alignments,
            max_ids=self.max_ids,
            print_line=print_line,
            together=policy.together,
        )

    def check_policy(self, algorithm: str, driver: str) -> None:
        """Refuse what the party's file does not allow, where the party is in this process.

        Raises:
            ConfigError: naming the party, what was asked and what it allows.
        """
        try:
            self.policy.check(algorithm, driver)
        except ConfigError as refusal:
            named = algorithm in self.policy.section.algorithms
            hint = (
                "" if named else f"; its owner may add {algorithm!r} to algorithms of its [policy]"
            )
            raise ConfigError(f"party {self.name!r} {refusal} ({self.where}){hint}") from None
