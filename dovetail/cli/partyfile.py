"""The party file: what a party holds, what it agrees to, and its own settings."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal, Protocol

import torch
from pydantic import Field, field_validator, model_validator

from dovetail import data as dd
from dovetail.algorithms import apfed, chfl, fedoptimus, hyfem, selection, vertical
from dovetail.algorithms.fedoptimus import predicting
from dovetail.alignment import Workers, psi, relay
from dovetail.cli.methods.apfed import PassiveFields
from dovetail.cli.methods.chfl import MemberSection
from dovetail.cli.methods.hyfem import MemberSection as HyfemMember
from dovetail.cli.methods.owners import OwnerSection
from dovetail.cli.sections import PartyName, Section, encoder_spec
from dovetail.cli.validation import read_toml, validate
from dovetail.errors import ConfigError
from dovetail.network import Message
from dovetail.network.checkpoint import REQUESTS


class PartySection(Section):
    """Whose table it is, where it is, and which columns mean what."""

    name: PartyName
    table: str  # .csv, .parquet, SELECT, database URL, .npz, folder of images
    query: str | None = None  # for a database URL
    id: str | tuple[str, ...]
    label: str | None = None
    task: Literal["classification", "regression"] = "classification"
    columns: tuple[str, ...] = ("*",)
    blocks: dict[str, tuple[str, ...]] | None = None  # block -> columns; instead of columns
    categorical: tuple[str, ...] = ()
    max_categories: int = Field(default=100, ge=1)
    lowercase_ids: bool = False  # compare ids without regard to case

    @model_validator(mode="after")
    def _columns_or_blocks(self) -> PartySection:
        if self.blocks is not None and self.columns != ("*",):
            raise ValueError("give columns or blocks, not both")
        if self.query is not None and not dd.is_database_url(self.table):
            raise ValueError("query is for a database URL; write the SELECT as table instead")
        return self


@dataclass(frozen=True)
class Algorithm:
    """What a party can be asked for.

    Attributes:
        policy: its name in a policy.
        messages: the wire names that it comes in.
        weights: whether its messages hold weights, in vectors that are no rows to count.
        goes_on: whether its driver goes on where a party is at an older step than it was: with a
            state that is the party's own (APFed, HyFEM), or told by the number of the round (CHFL).
            Classic vertical learning would go on with weights of no run, so its driver must say
            which step with ``Restore``.
    """

    policy: str
    messages: tuple[str, ...]
    weights: bool = False
    goes_on: bool = True


def _both(algorithm: ModuleType) -> tuple[type[Message], ...]:
    """What data owners and label owners answer."""
    return (*algorithm.DataOwner.accepts, *algorithm.LabelOwner.accepts)


#: The part of a message's wire name before the dot -> the algorithm.
ALGORITHMS: Mapping[str, Algorithm] = {
    prefix: Algorithm(policy, tuple(message.wire_name() for message in accepts), *about)
    for prefix, policy, accepts, *about in (
        ("psi", "align", psi.Responder.accepts),
        ("apfed", "apfed", apfed.Passive.accepts),
        ("vertical", "tvfl", vertical.Member.accepts, False, False),
        ("chfl", "chfl", chfl.Member.accepts, True),
        ("hyfem", "hyfem", hyfem.Member.accepts, True),
        ("fedoptimus", "fedoptimus", _both(fedoptimus)),
        ("predicting", "fedoptimus", predicting.Recalling.accepts),
        ("selection", "fedoptimus", _both(selection)),
        ("relay", "align", (*relay.Responder.accepts, *relay.Initiator.accepts[1:])),
    )
}


class PolicySection(Section):
    """What the party agrees to."""

    algorithms: tuple[str, ...] = ("align", "apfed", "tvfl")
    drivers: tuple[str, ...] | None = None  # names that may ask; None: any
    # Wire names; None: all that the algorithms declare. Save and Restore come with any algorithm:
    # they keep a state at the party's own home, so this list does not restrict them.
    messages: tuple[str, ...] | None = None
    max_message_mb: float = Field(default=256, gt=0, le=4096, allow_inf_nan=False)
    max_rows: int = Field(default=100_000, ge=1)  # in one message
    # Of all runs of a driver together: its networks in memory, and what is saved of them.
    max_memory_mb: float = Field(default=2048, gt=0, allow_inf_nan=False)
    max_disk_mb: float = Field(default=4096, gt=0, allow_inf_nan=False)
    align_modes: tuple[Literal["intersection", "cardinality"], ...] = (
        "intersection",
        "cardinality",
    )
    min_ids: int = Field(default=0, ge=0)  # the smallest set it lets its ids be compared with

    @field_validator("messages")
    @classmethod
    def _known(cls, messages: tuple[str, ...] | None) -> tuple[str, ...] | None:
        known = [name for algorithm in ALGORITHMS.values() for name in algorithm.messages]
        for name in messages or ():
            if name not in known:
                raise ValueError(f"{name!r} is no message; there are {', '.join(known)}")
        return messages

    @property
    def max_message_bytes(self) -> int:
        return int(self.max_message_mb * 2**20)


class Asked(Protocol):
    """What the header of a message says before anything else of it is read."""

    @property
    def type(self) -> str:
        """Its wire name."""

    @property
    def run(self) -> str:
        """The run's id."""


#: Messages that any algorithm may come with: they save and restore a party's state at its home.
_OF_ANY = tuple(message.__qualname__ for message in REQUESTS)

#: A run's id is part of file names.
_RUN = re.compile(r"(?=.{1,200}$)\w[\w.-]*(?:/\w[\w.-]*)*")


def check_run_id(run: str) -> None:
    """Refuse what cannot be part of a file's name.

    Raises:
        ConfigError: what an id is.
    """
    if not _RUN.fullmatch(run):
        raise ConfigError(
            f"refuses the run {run[:200]!r}: an id has at most 200 letters, digits, dots and "
            "dashes, with slashes between its parts"
        )


@dataclass(frozen=True)
class Policy:
    """Decides what a party answers, from its file alone.

    A message cannot change it. No field of a message is a network, a loss, a rate or a table, but
    for ``Begin`` of CHFL, HyFEM and FedOptimus: what is learned together has the coordinator's
    settings, so a party must allow these by name (they are not among the defaults).
    """

    section: PolicySection

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
        if self.section.drivers is not None and driver not in self.section.drivers:
            allowed = ", ".join(self.section.drivers) or "nobody"
            raise ConfigError(f"refuses the driver {driver!r}: its policy allows {allowed}")

    def admit(self, header: Asked, driver: str) -> None:
        """Refuse a message before it is decoded.

        Raises:
            ConfigError: what was asked and what is allowed.
        """
        check_run_id(header.run)
        prefix, _, kind = header.type.partition(".")
        algorithm = ALGORITHMS.get(prefix)
        self.check(algorithm.policy if algorithm else prefix[:100], driver)
        if algorithm is not None and kind in _OF_ANY:
            return
        if algorithm is None or header.type not in algorithm.messages:
            raise ConfigError(f"refuses {header.type[:100]!r}: no such message is known here")
        if self.section.messages is not None and header.type not in self.section.messages:
            allowed = ", ".join(self.section.messages) or "nothing"
            raise ConfigError(f"refuses {header.type!r}: its policy allows {allowed}")


_OPTIMIZED = set(apfed.PassiveConfig.model_fields)


class PartyFile(Section):
    """A whole party file."""

    party: PartySection
    policy: PolicySection = PolicySection()
    apfed: PassiveFields = PassiveFields()  # as a passive party: its black box
    chfl: MemberSection = MemberSection()  # as a member: what it offers as common
    hyfem: HyfemMember = HyfemMember()  # as a member: its classifier
    fedoptimus: OwnerSection = OwnerSection()  # as a data owner or a label owner


@dataclass(frozen=True, eq=False)
class Site:
    """A party file that was read, and its table."""

    path: Path
    file: PartyFile
    table: dd.PartyTable

    @property
    def name(self) -> str:
        return self.file.party.name

    def fit_input(self, table: dd.PartyTable | None = None) -> dd.Input:
        """What turns its raw rows into network inputs, fitted on these rows of it (or on all)."""
        section = self.file.party
        return (table or self.table).fit_input(
            categorical=section.categorical, max_categories=section.max_categories
        )

    @property
    def policy(self) -> Policy:
        return Policy(self.file.policy)

    def responder(self, workers: Workers | None = None) -> psi.Responder:
        """Its side of an alignment, with what its policy agrees to.

        Raises:
            AlignmentError: ids that cannot be compared.
        """
        policy = self.file.policy
        return psi.Responder(
            self.name,
            self.table.ids,
            lower=self.file.party.lowercase_ids,
            modes=policy.align_modes,
            min_ids=policy.min_ids,
            workers=workers,
        )

    def passive(self, shared: dd.SharedRows, device: torch.device | None = None) -> apfed.Passive:
        """Its side of APFed: network, loss and rate are those of its file."""
        section = self.file.apfed
        config = apfed.PassiveConfig(**section.model_dump(include=_OPTIMIZED))
        return apfed.Passive(shared, config, encoder_spec(section.encoder), device=device)

    def member(self, shared: dd.SharedRows, device: torch.device | None = None) -> vertical.Member:
        """Its side of classic vertical learning; test rows are asked for by the same numbers."""
        section = self.file.apfed
        config = apfed.PassiveConfig(**section.model_dump(include=_OPTIMIZED))
        return vertical.Member(shared, shared, config, encoder_spec(section.encoder), device=device)

    def check_policy(self, algorithm: str, driver: str) -> None:
        """Refuse what the party's file does not allow.

        Raises:
            ConfigError: naming the party, what was asked and what it allows.
        """
        try:
            self.policy.check(algorithm, driver)
        except ConfigError as refusal:
            raise ConfigError(f"party {self.name!r} {refusal} ({self.path})") from None


def open_sites(paths: tuple[Path, ...]) -> dict[str, Site]:
    """Party name -> site, of these party files; tables are read.

    Raises:
        ConfigError: a file that cannot be read, or two parties of one name.
        DataError: a table that cannot be used, naming the party.
    """
    sites: dict[str, Site] = {}
    for path in paths:
        site = open_site(path)
        if site.name in sites:
            raise ConfigError(
                f"{sites[site.name].path} and {path} are both party {site.name!r}; "
                "names must differ"
            )
        sites[site.name] = site
    return sites


def open_site(path: Path) -> Site:
    """One party file, with its table.

    Raises:
        ConfigError: a file that cannot be read, or does not fit.
        DataError: a table that cannot be used, naming the party.
    """
    values = read_toml(path)
    if "party" not in values:
        raise ConfigError(f"{path} is no party file: it has no [party] table")
    file = validate(PartyFile, values, where=str(path))
    section = file.party
    try:
        encoder_spec(file.apfed.encoder)
    except ConfigError as error:
        raise ConfigError(f"{path}, [apfed]: {error}") from None
    table = dd.read_party_table(
        section.name,
        section.table,
        id=section.id,
        label=section.label,
        columns=section.columns,
        blocks=section.blocks,
        query=section.query,
        folder=path.parent,  # paths are relative to the party file
    )
    return Site(path, file, table)


def fingerprints(paths: tuple[Path, ...]) -> dict[str, str]:
    """File -> SHA-256, of party files and of those tables that are files.

    Kept with a run's settings, so that a run is resumed only on what it began with.
    """
    found = {}
    for path in paths:
        table = read_toml(path).get("party", {}).get("table", "")
        beside = path.parent / str(table)
        for file in (path, beside):
            try:
                with file.open("rb") as opened:
                    found[str(file)] = hashlib.file_digest(opened, "sha256").hexdigest()
            except OSError:  # a folder, a query or a URL
                continue
    return found
