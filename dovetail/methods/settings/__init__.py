"""What files say of each method, which is read without torch: the table of their settings."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points

from dovetail.methods.settings.apfed import ApfedRecord
from dovetail.methods.settings.chfl import ChflRecord
from dovetail.methods.settings.fedoptimus import FedOptimusRecord
from dovetail.methods.settings.hyfem import HyfemRecord
from dovetail.methods.settings.record import GROUP, FileRecord
from dovetail.methods.settings.survival import SurvivalRecord

#: Where two have a variant of one name, ``method =`` means the first's.
RECORDS: Mapping[str, FileRecord] = {
    record.name: record
    for record in (ApfedRecord(), ChflRecord(), HyfemRecord(), FedOptimusRecord(), SurvivalRecord())
}


def records() -> Mapping[str, FileRecord]:
    """Method -> what files say of it; of installed packages' and a script's methods, too.

    Raises:
        ConfigError: an installed one that cannot be loaded, or has a name that is taken.
    """
    if "dovetail.methods.table" not in sys.modules and not _others_are_installed():
        return RECORDS
    from dovetail.methods.table import every  # reads the methods, and with them torch

    return every()


@cache
def _others_are_installed() -> bool:
    return bool(entry_points(group=GROUP))


def variants() -> dict[str, str]:
    """Every variant that a run file can name, and what a table calls it."""
    return {name: title for each in records().values() for name, title in each.variants.items()}


def coordinated(variant: str) -> bool:
    """Whether a driver without data trains this over a network."""
    record = next(each for each in records().values() if variant in each.variants)
    return record.driven_by == "coordinator"
