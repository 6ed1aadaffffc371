"""The methods that a run file can name: the only table of names.

Each of Dovetail's is a folder of this room whose ``plugin.py`` has a ``Method``; its settings are a
section of run files and party files that has its name. Installed packages bring more, Dovetail's
own companions among them: see docs/own-method.md. What files say of a method is read at once,
without torch; the method itself is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from dovetail import entries
from dovetail.errors import ConfigError
from dovetail.files import did_you_mean
from dovetail.methods.settings import RECORDS
from dovetail.methods.settings.shared import BASELINES, FileRecord

if TYPE_CHECKING:
    from dovetail.methods.base import Run
    from dovetail.methods.method import Method


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


class MethodTable(MutableMapping[str, "Method"]):
    """Name -> method, which is imported when it is asked for; a script can put in its own."""

    def __init__(self) -> None:
        self._methods: dict[str, Method] = {}

    def records(self) -> Mapping[str, FileRecord]:
        """Name -> what files say of each method.

        Raises:
            ConfigError: see ``installed``.
        """
        return {**RECORDS, **installed(), **self._methods}

    def __getitem__(self, name: str) -> Method:
        if name not in self._methods:
            self._methods[name] = _method_of_record(self.records()[name])
        return self._methods[name]

    def __setitem__(self, name: str, method: Method) -> None:
        self._methods[name] = method

    def __delitem__(self, name: str) -> None:
        del self._methods[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.records())

    def __len__(self) -> int:
        return len(self.records())


def _method_of_record(record: FileRecord) -> Method:
    """The whole of a method; runs its code.

    Raises:
        ConfigError: an installed package's that cannot be loaded, or is no method.
    """
    from dovetail.methods.method import Method

    method = resolve_name(record.plugin)() if record.plugin else record
    if not isinstance(method, Method):
        raise ConfigError(f"the method {record.name!r} is {method!r}, which is no Method")
    return method


#: Where two have a variant of one name, ``method =`` means the first's.
METHODS = MethodTable()


def every() -> Mapping[str, Method]:
    """All methods, each imported when it is asked for.

    Raises:
        ConfigError: an installed one that cannot be loaded, or has a name that is taken.
    """
    return METHODS


def records() -> Mapping[str, FileRecord]:
    """Method -> what files say of it; of installed packages' and a script's methods, too.

    Raises:
        ConfigError: an installed one that cannot be loaded, or has a name that is taken.
    """
    return METHODS.records()


def variants() -> dict[str, str]:
    """Every variant that a run file can name, and what a table calls it."""
    return {name: title for each in records().values() for name, title in each.variants.items()}


def did_you_mean_variant(word: str, known: Collection[str]) -> str:
    """The end of a sentence that refuses a word: the variant that tables call so, or the closest.

    >>> did_you_mean_variant("apfed-s", ["apfed", "apfed-r"])
    "; did you mean 'apfed'?"
    """
    for name, title in variants().items():
        if name in known and title.partition(",")[0].casefold() == word.casefold():
            return f"; did you mean {name!r}?"
    return did_you_mean(word, known)


def record_of(variant: str) -> FileRecord:
    """Record of the method that this variant is of."""
    return next(record for record in records().values() if variant in record.variants)


def coordinated(variant: str) -> bool:
    """Whether a driver without data trains this over a network."""
    return record_of(variant).driven_by == "coordinator"


def method_of(variant: str) -> Method:
    """The method that this variant is of; no other is imported."""
    name = next(name for name, record in records().items() if variant in record.variants)
    return METHODS[name]


def title(method: str, name: str) -> str:
    """Title of a score of a run of this method in tables."""
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
