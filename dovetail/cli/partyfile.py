"""The party file: what a party holds, what it agrees to, and its own settings."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from dovetail import data as dd
from dovetail.cli.runfile import PartyName, PassiveFields, Section, encoder_spec
from dovetail.cli.validation import read_toml, validate
from dovetail.errors import ConfigError


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


class PolicySection(Section):
    """What the party agrees to."""

    algorithms: tuple[str, ...] = ("align", "apfed", "tvfl")
    drivers: tuple[str, ...] | None = None  # names that may ask; None: any


class PartyFile(Section):
    """A whole party file."""

    party: PartySection
    policy: PolicySection = PolicySection()
    apfed: PassiveFields = PassiveFields()  # as a passive party: its black box


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

    def check_policy(self, algorithm: str, driver: str) -> None:
        """Refuse what the party's file does not allow.

        Raises:
            ConfigError: naming the party, what was asked and what it allows.
        """
        policy = self.file.policy
        if algorithm not in policy.algorithms:
            raise ConfigError(
                f"party {self.name!r} refuses {algorithm!r}: its policy allows "
                f"{', '.join(policy.algorithms) or 'nothing'} ({self.path})"
            )
        if policy.drivers is not None and driver not in policy.drivers:
            raise ConfigError(
                f"party {self.name!r} refuses the driver {driver!r}: its policy allows "
                f"{', '.join(policy.drivers) or 'nobody'} ({self.path})"
            )


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
