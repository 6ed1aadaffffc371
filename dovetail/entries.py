"""Commands, engines, methods and sources that installed packages add, each by its name.

A package names them in its ``pyproject.toml``; Dovetail's own companions do so in Dovetail's:

    [project.entry-points."dovetail.commands"]
    greet = "my_package.greeting:greet"

The names are read from what is installed; a package's code is imported when its name is used. A
run file or a party file can choose a name, and cannot name code.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from dovetail.errors import ConfigError

Group = Literal["commands", "engines", "methods", "sources"]


@cache
def _all() -> Any:
    return entry_points()


@cache
def registered(group: Group) -> Mapping[str, EntryPoint]:
    """Name -> where an installed package has it, by name.

    Raises:
        ConfigError: two packages have one name.
    """
    found: dict[str, EntryPoint] = {}
    for entry in sorted(_all().select(group=f"dovetail.{group}")):
        if entry.name in found:
            raise ConfigError(
                f"{where(group, entry)}: another package has a {group[:-1]} of that name; "
                "uninstall one"
            )
        found[entry.name] = entry
    return found


def load(group: Group, name: str) -> Any:
    """Object that a package registered under this name; runs the package's code.

    Raises:
        ConfigError: it cannot be loaded, naming its package.
    """
    entry = registered(group)[name]
    try:
        return entry.load()
    except Exception as error:  # whatever importing somebody's code can raise
        raise ConfigError(
            f"{where(group, entry)} cannot be loaded ({type(error).__name__}: {error}); mend or "
            "uninstall it"
        ) from None


def where(group: Group, entry: EntryPoint) -> str:
    """The words by which errors name what a package registered."""
    package = entry.dist.name if entry.dist is not None else entry.value
    return f"the {group[:-1]} {entry.name!r} of the installed package {package!r}"
