"""A method that is not part of Dovetail: what it inherits, and how an installed one is found.

A run file names a method and nothing else: it cannot make this process import anything that was
not installed here, by whoever may install things here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import torch

from dovetail.cli.sections import Section
from dovetail.errors import ConfigError
from dovetail.evaluation.own import Round, RoundsSetup

if TYPE_CHECKING:
    from dovetail.cli.driver import Coordinator, Driver
    from dovetail.cli.methods import Method
    from dovetail.cli.methods.members import Maker
    from dovetail.cli.partyfile import Site
    from dovetail.cli.runfile import RunFile
    from dovetail.cli.setup import Loaded

#: Where a package says in its pyproject.toml that it has methods: name = "module:class".
GROUP = "dovetail.methods"


class OwnMethod:
    """Base of a method of your own: one that is simulated, in one process.

    A subclass has the first three attributes and ``rounds``. Over a network a method needs more,
    see ``Method``.

    Attributes:
        STAGES: what can be trained, the method and its rulers -> what a table calls it.
        PARTITIONS: the kinds of partition that it is simulated on.
        SECTION: its settings, the section of the run file that has the method's name; every key
            has a default.
    """

    STAGES: ClassVar[Mapping[str, str]]
    PARTITIONS: ClassVar[Collection[str]]
    SECTION: ClassVar[type[Section]] = Section
    SCORES: ClassVar[Mapping[str, str]] = {}
    DRIVEN_BY: ClassVar[str | None] = None

    def rounds(self, stage: str, data: Any, settings: Any, seed: int) -> Iterator[Round]:
        """Train one stage; give each round as it ends.

        Args:
            stage: one of ``STAGES``.
            data: who has what, as the partition deals it out (``dovetail.data.Partitioned``).
            settings: the section of the run file, a ``SECTION``.
            seed: of everything random.
        """
        raise NotImplementedError(f"{type(self).__name__} has no rounds")

    def setup(self, run: RunFile, loaded: Loaded, device: torch.device) -> RoundsSetup:
        """Everything that one seed's run is a function of."""
        from dovetail.cli.methods import METHODS  # which imports this file

        if device.type != "cpu":
            raise ConfigError(f"{run.method!r} computes on the cpu only; leave device out")
        section = next(getattr(run, name) for name, method in METHODS.items() if method is self)
        return RoundsSetup(
            method=run.method,
            rulers=run.rulers,
            data=loaded.data,
            rounds=lambda stage, seed: self.rounds(stage, loaded.data, section, seed),
            evaluate_every=run.evaluate_every,
        )

    def check(self, run: RunFile, *, where: str) -> None:
        """Refuse what the section's types allow and the method does not."""

    def resolved(self, run: RunFile) -> dict[str, Any]:
        """Keys of the run file whose defaults it does not write out itself: none."""
        return {}

    def members(self, site: Site, allowed: Collection[str]) -> Mapping[str, Maker]:
        """What makes a party's side of its runs: nothing, over a network."""
        return {}

    def describe(self, site: Site, agreed: Collection[str]) -> tuple[str, ...]:
        """Lines on what a party does over a network: none."""
        return ()

    def load_sites(
        self, run: RunFile, sites: Mapping[str, Site], *, where: str, show_progress: bool
    ) -> NoReturn:
        """Refuse party files."""
        raise ConfigError(f"{where}: {run.method!r} is simulated only; give [data], not parties")

    def load_driver(self, run: RunFile, driver: Driver | Coordinator, *, where: str) -> NoReturn:
        """Refuse partners who are elsewhere."""
        raise ConfigError(f"{where}: {run.method!r} is simulated only; leave [engine] out")


def installed() -> dict[str, Method]:
    """The methods that installed packages have; runs their code.

    Raises:
        ConfigError: one that cannot be loaded, naming its package.
    """
    found: dict[str, Method] = {}
    for entry in entry_points(group=GROUP):
        package = entry.dist.name if entry.dist is not None else entry.value
        where = f"the method {entry.name!r} of the installed package {package!r}"
        if entry.name in found:
            raise ConfigError(f"{where}: another package has a method of that name; uninstall one")
        try:
            method = entry.load()
        except Exception as error:  # whatever importing somebody's code can raise
            raise ConfigError(
                f"{where} cannot be loaded ({type(error).__name__}: {error}); mend or uninstall it"
            ) from None
        if not (isinstance(method, type) and issubclass(method, OwnMethod)):
            raise ConfigError(f"{where} names {method!r}; it is to name a subclass of OwnMethod")
        found[entry.name] = method()
    return found


def _is_a_method(own: OwnMethod) -> Method:
    """For the type checker: what ``Method`` asks for, ``OwnMethod`` has."""
    return own
