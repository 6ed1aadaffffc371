"""A method that is not part of Dovetail: what it inherits, and how an installed one is found.

A run file names a method and nothing else: it cannot make this process import anything that was
not installed here, by whoever may install things here.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any, ClassVar

import torch
from pydantic import BaseModel

from dovetail.errors import ConfigError
from dovetail.methods.base import Loaded, Method, Run
from dovetail.methods.rounds import Round, RoundsSetup
from dovetail.methods.section import Section

#: Where a package says in its pyproject.toml that it has methods: name = "module:class".
GROUP = "dovetail.methods"


class OwnMethod(Method):
    """Base of a method of your own: one that is simulated, in one process.

    A subclass has ``name``, ``stages``, ``partitions`` and ``rounds``, and ``Settings`` if it has
    any. Over a network a method needs more, see ``Method``.
    """

    Settings: ClassVar[type[BaseModel]] = Section

    def rounds(self, stage: str, data: Any, settings: Any, seed: int) -> Iterator[Round]:
        """Train one stage; give each round as it ends.

        Args:
            stage: one of ``stages``.
            data: who has what, as the partition deals it out (``dovetail.data.Partitioned``).
            settings: the section of the run file, a ``Settings``.
            seed: of everything random.
        """
        raise NotImplementedError(f"{type(self).__name__} has no rounds")

    def setup(self, run: Run, loaded: Loaded, device: torch.device) -> RoundsSetup:
        """Everything that one seed's run is a function of."""
        if device.type != "cpu":
            raise ConfigError(f"{run.method!r} computes on the cpu only; leave device out")
        section = run.settings(self.name, self.Settings)
        return RoundsSetup(
            method=run.method,
            rulers=run.rulers,
            data=loaded.data,
            rounds=lambda stage, seed: self.rounds(stage, loaded.data, section, seed),
            evaluate_every=run.evaluate_every,
        )


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
        found[entry.name] = made = method()
        type(made).name = entry.name
    return found
