"""Methods of installed packages, Dovetail's own companions among them: see docs/own-method.md."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from dovetail import entries
from dovetail.errors import ConfigError
from dovetail.methods.settings import RECORDS
from dovetail.methods.settings.shared import FileRecord


@cache
def installed() -> Mapping[str, FileRecord]:
    """The methods that installed packages register; imports what files say of each.

    Raises:
        ConfigError: one that cannot be loaded, or has a name that is taken, naming its package.
    """
    found = {}
    for name, entry in entries.registered("methods").items():
        if name in RECORDS:
            raise ConfigError(
                f"an installed package has a method {name!r}, and so has Dovetail; rename it"
            )
        record = entries.load("methods", name)
        if not (isinstance(record, type) and issubclass(record, FileRecord)):
            raise ConfigError(
                f"{entries.where('methods', entry)} names {record!r}; it is to name a subclass of "
                "Method"
            )
        record.name = name
        found[name] = record()
    return found
