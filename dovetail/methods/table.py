"""The methods that a run file can name: the only table of names.

Each is a folder of this room whose ``plugin.py`` has a ``Method``; its settings are a section of
run files and party files that has its name. An installed package can bring more (``plugins.py``).
"""

from __future__ import annotations

from dovetail.errors import ConfigError
from dovetail.methods.apfed.plugin import Apfed
from dovetail.methods.base import Run
from dovetail.methods.chfl.plugin import Chfl
from dovetail.methods.fedoptimus.plugin import FedOptimus
from dovetail.methods.hyfem.plugin import Hyfem
from dovetail.methods.method import Method
from dovetail.methods.plugins import installed
from dovetail.methods.settings.record import BASELINES
from dovetail.methods.survival.plugin import Survival

#: Where two have a variant of one name, ``method =`` means the first's.
METHODS: dict[str, Method] = {
    method.name: method for method in (Apfed(), Chfl(), Hyfem(), FedOptimus(), Survival())
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


def method_of(variant: str) -> Method:
    """The method that this variant is of."""
    return next(method for method in every().values() if variant in method.variants)


def title(method: str, name: str) -> str:
    """What a table calls a score of a run of this method."""
    kind = method_of(method)
    return {**kind.scores, **kind.variants}[name]


def check(run: Run, *, where: str) -> None:
    """Refuse a run whose method does not go with its baselines, partition or sections.

    Raises:
        ConfigError: naming the file and the key.
    """
    method = method_of(run.method)
    for baseline in run.baselines:
        if baseline not in method.variants:
            raise ConfigError(
                f"{where}: {baseline!r} is no baseline beside {run.method!r}; there are "
                f"{', '.join(method.variants)}"
            )
        if baseline in BASELINES and run.engine.elsewhere and method.driven_by == "coordinator":
            raise ConfigError(
                f"{where}: the baseline {baseline!r} learns from a party's own rows, and a "
                "coordinator has none; leave it out"
            )
    for key in ("class_weights", "threshold", "calibrate"):
        if getattr(run, key) is not None and not method.decides:
            raise ConfigError(f"{where}: {run.method!r} does not mind {key}; leave it out")
    for key, what in {"threshold": "threshold", "calibrate": "calibration"}.items():
        if (
            getattr(run, key) is not None
            and run.engine.elsewhere
            and method.driven_by == "coordinator"
            and "decide" not in method.Settings.model_fields
        ):
            raise ConfigError(
                f"{where}: a {what} is chosen on a party's own validation rows, and a coordinator "
                f"of {run.method!r} tells parties of none; leave {key} out"
            )
    if run.engine.elsewhere and method.driven_by is None:
        raise ConfigError(
            f"{where}: {run.method!r} trains in one process only so far; leave [engine] out"
        )
    if run.data is not None and run.data.partition.kind not in method.partitions:
        raise ConfigError(
            f"{where}: {run.method!r} is not simulated on the partition "
            f"{run.data.partition.kind!r}; it takes {', '.join(method.partitions)}"
        )
    method.check(run, where=where)
