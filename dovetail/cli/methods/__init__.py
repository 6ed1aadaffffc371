"""The methods that a run file can name: the only table of names.

Each is a file of this package with what ``Method`` lists; its section of the run file is a field of
``RunFile``. An installed package can bring more (``own.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from dovetail import data as dd
from dovetail.cli.methods import apfed, chfl, fedoptimus, hyfem
from dovetail.cli.methods.members import Maker
from dovetail.cli.methods.own import OwnMethod, installed
from dovetail.cli.sections import Section
from dovetail.errors import ConfigError
from dovetail.evaluation import Setup

if TYPE_CHECKING:
    from dovetail.cli.driver import Coordinator, Driver
    from dovetail.cli.partyfile import Site
    from dovetail.cli.runfile import RunFile
    from dovetail.cli.setup import Loaded


class Method(Protocol):
    """What a method's file has.

    Attributes:
        STAGES: what can be trained, methods and rulers -> what a table calls it.
        SCORES: other names under which its stages are scored -> what a table calls them.
        PARTITIONS: the kinds of partition that it is simulated on.
        DRIVEN_BY: who drives it over a network: the "active" party, or a "coordinator" without
            data; None: it is trained in one process only.
    """

    @property
    def STAGES(self) -> Mapping[str, str]: ...  # noqa: N802
    @property
    def SCORES(self) -> Mapping[str, str]: ...  # noqa: N802
    @property
    def PARTITIONS(self) -> Collection[str]: ...  # noqa: N802
    @property
    def DRIVEN_BY(self) -> str | None: ...  # noqa: N802

    def check(self, run: RunFile, *, where: str) -> None:
        """Refuse what the sections' types allow and the method does not.

        Raises:
            ConfigError: naming the file and the section.
        """

    def resolved(self, run: RunFile) -> dict[str, Any]:
        """Its keys of the run file whose defaults the run file itself does not write out."""

    def load_sites(
        self, run: RunFile, sites: Mapping[str, Site], *, where: str, show_progress: bool
    ) -> tuple[dd.Partitioned, dd.Alignment | None, dd.Alignment | None]:
        """Party files: training and test data, and how each is aligned, where that matters."""

    def members(self, site: Site, allowed: Collection[str]) -> Mapping[str, Maker]:
        """Algorithm (a message's prefix) -> what makes a party's side of its runs.

        Of its own algorithms, those among ``allowed``. Mistakes in the table are told now.
        """

    def describe(self, site: Site, agreed: Collection[str]) -> Iterable[str]:
        """Lines on what a party does that agrees to these algorithms, by their policy's names."""

    def load_driver(
        self, run: RunFile, driver: Driver | Coordinator, *, where: str
    ) -> tuple[dd.Partitioned, dd.Alignment | None, dd.Alignment | None]:
        """What a driver has whose partners are elsewhere: as of ``load_sites``."""

    def setup(self, run: RunFile, loaded: Loaded, device: torch.device) -> Setup:
        """Everything that one seed's run is a function of."""


#: Where two have a stage of one name, ``method =`` means the first's.
METHODS: dict[str, Method] = {
    "apfed": apfed,
    "chfl": chfl,
    "hyfem": hyfem,
    "fedoptimus": fedoptimus,
}


def every() -> dict[str, Method]:
    """These, and those of installed packages.

    Raises:
        ConfigError: an installed one that cannot be loaded, or has a name that is taken.
    """
    global _looked
    if not _looked:
        for name, method in installed().items():
            if name in _OF_DOVETAIL:
                raise ConfigError(
                    f"an installed package has a method {name!r}, and so has Dovetail; rename it"
                )
            METHODS.setdefault(name, method)  # a script that is being run has put in its own
        _looked = True
    return METHODS


_OF_DOVETAIL = frozenset(METHODS)
_looked = False


def sections() -> dict[str, type[Section]]:
    """Method -> its section of the run file, of those that are not part of Dovetail."""
    return {
        name: method.SECTION for name, method in every().items() if isinstance(method, OwnMethod)
    }


def stages() -> dict[str, str]:
    """Every stage that a run file can name, and what a table calls it."""
    return {name: title for method in every().values() for name, title in method.STAGES.items()}


def method_of(stage: str) -> Method:
    """The method that this stage is of."""
    return next(method for method in every().values() if stage in method.STAGES)


def coordinated(stage: str) -> bool:
    """Whether a driver without data trains this over a network."""
    return method_of(stage).DRIVEN_BY == "coordinator"


def title(method: str, name: str) -> str:
    """What a table calls a score of a run of this method."""
    found = method_of(method)
    return {**found.SCORES, **found.STAGES}[name]


def check(run: RunFile, *, where: str) -> None:
    """Refuse a run whose method does not go with its rulers, partition or sections.

    Raises:
        ConfigError: naming the file and the key.
    """
    method = method_of(run.method)
    for ruler in run.rulers:
        if ruler not in method.STAGES:
            raise ConfigError(
                f"{where}: {ruler!r} is no ruler beside {run.method!r}; there are "
                f"{', '.join(method.STAGES)}"
            )
    if run.engine.kind != "inprocess" and method.DRIVEN_BY is None:
        raise ConfigError(
            f"{where}: {run.method!r} trains in one process only so far; leave [engine] out"
        )
    if run.data is not None and run.data.partition.kind not in method.PARTITIONS:
        raise ConfigError(
            f"{where}: {run.method!r} is not simulated on the partition "
            f"{run.data.partition.kind!r}; it takes {', '.join(method.PARTITIONS)}"
        )
    method.check(run, where=where)
