"""Record of a method in files: the part that is read without a library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel

from dovetail.settings.models import LEARNER_TITLES
from dovetail.settings.section import Section

#: What a party can train alone beside any method, and what a table calls it (``baselines.py``).
BASELINES: Mapping[str, str] = {
    "best-alone": "best local model (chosen on held-out rows)",
    **LEARNER_TITLES,
    "majority": "majority class, or mean",
}


class FileRecord:
    """Names, settings and variants of a method; ``Method`` has the rest of its record.

    Attributes:
        plugin: "module:class" of the whole method; "": this class is a ``Method`` itself.
        command: what runs it, as ``dovetail COMMAND RUN``.
        name: its section of both files.
        Settings: the section of a run file; every key has a default.
        PartySettings: the section of a party file, likewise; None: it has none.
        variants: what can be trained, the method and its baselines -> what a table calls it.
        driven_by: who drives it over a network: the "active" party, or a "coordinator" without
            data; None: it is trained in one process only.
    """

    name: ClassVar[str]
    plugin: ClassVar[str] = ""
    command: ClassVar[str] = "train"
    Settings: ClassVar[type[BaseModel]] = Section
    PartySettings: ClassVar[type[BaseModel] | None] = None
    variants: ClassVar[Mapping[str, str]]
    driven_by: ClassVar[str | None] = None
