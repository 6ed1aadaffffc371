"""Methods of installed packages, which are not part of Dovetail: see docs/own-method.md.

A run file names a method and nothing else: it cannot make this process import anything that was not
installed here, by whoever may install things here.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from dovetail.errors import ConfigError
from dovetail.methods.method import Method
from dovetail.methods.settings.record import GROUP


def installed() -> dict[str, Method]:
    """The methods that installed packages have; runs their code.

    Raises:
        ConfigError: one that cannot be loaded, naming its package.
    """
    methods: dict[str, Method] = {}
    for entry in entry_points(group=GROUP):
        package = entry.dist.name if entry.dist is not None else entry.value
        where = f"the method {entry.name!r} of the installed package {package!r}"
        if entry.name in methods:
            raise ConfigError(f"{where}: another package has a method of that name; uninstall one")
        try:
            method = entry.load()
        except Exception as error:  # whatever importing somebody's code can raise
            raise ConfigError(
                f"{where} cannot be loaded ({type(error).__name__}: {error}); mend or uninstall it"
            ) from None
        if not (isinstance(method, type) and issubclass(method, Method)):
            raise ConfigError(f"{where} names {method!r}; it is to name a subclass of Method")
        methods[entry.name] = made = method()
        type(made).name = entry.name
    return methods
