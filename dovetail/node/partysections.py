"""Sections of a party file: [party], [policy], and the party's own settings of each method.

Read without torch, so that a mistake is reported at once; ``partyfile.py`` opens what it names.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, create_model

from dovetail import methods
from dovetail.errors import ConfigError
from dovetail.files import read_toml
from dovetail.methods.settings.party import PartySection, PolicySection
from dovetail.methods.validation import validate
from dovetail.settings.section import Section


class PartyFile(Section):
    """A whole party file, but for the methods' sections."""

    party: PartySection
    policy: PolicySection = PolicySection()


def party_file() -> type[PartyFile]:
    """The party file with a section for each method that has settings at a party."""
    return _of_sections(
        tuple(
            (name, method.PartySettings)
            for name, method in methods.records().items()
            if method.PartySettings is not None
        )
    )


@cache
def _of_sections(sections: tuple[tuple[str, type[BaseModel]], ...]) -> type[PartyFile]:
    fields: Any = {name: (section, section()) for name, section in sections}
    return create_model("PartyFile", __base__=PartyFile, **fields)


def read_party_file(path: Path) -> PartyFile:
    """A party file, whose table is not read.

    Raises:
        ConfigError: a file that cannot be read, or does not fit.
    """
    return validate(party_file(), party_values(path), where=str(path))


def party_values(path: Path) -> dict[str, Any]:
    """The tables of a party file.

    Raises:
        ConfigError: a file that cannot be read, or another.
    """
    values = read_toml(path)
    if "party" not in values:
        raise ConfigError(f"{path} is no party file: it has no [party] table; add one")
    return values
