"""Sections of files for each method, read without torch: the table of their settings."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.methods.settings.apfed import ApfedRecord
from dovetail.methods.settings.chfl import ChflRecord
from dovetail.methods.settings.fedoptimus import FedOptimusRecord
from dovetail.methods.settings.hyfem import HyfemRecord
from dovetail.methods.settings.shared import FileRecord

#: Dovetail's own; where two have a variant of one name, ``method =`` means the first's.
RECORDS: Mapping[str, FileRecord] = {
    record.name: record
    for record in (ApfedRecord(), ChflRecord(), HyfemRecord(), FedOptimusRecord())
}
