"""Settings of APFed's partners: by the run file in simulation, else by their own files."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.errors import ConfigError
from dovetail.methods.base import Loaded, Run, Site
from dovetail.methods.settings.apfed import PassiveFields
from dovetail.methods.validation import validate
from dovetail.privacy import within
from dovetail.settings.privacy import Release


def passive_fields(run: Run, *, where: str = "run file") -> dict[str, PassiveFields]:
    """Party -> settings: those for all under [passive], then its own under [passive.NAME]."""
    for_all = {key: value for key, value in run.passive.items() if not isinstance(value, Mapping)}
    by_party = {key: value for key, value in run.passive.items() if isinstance(value, Mapping)}
    names = passive_names(run)
    for key in ("encoder", "distil", "gradients", "codes"):  # tables too: of layers, of settings
        if key in by_party:
            for_all[key] = by_party.pop(key)
    for name in by_party:
        if name not in names:
            raise ConfigError(
                f"{where}: [passive.{name}] is no party of this run; passive parties are "
                f"{sorted(names)}"
            )
    for section in (for_all, *by_party.values()):
        if isinstance(section.get("encoder"), str) and ":" in section["encoder"]:
            raise ConfigError(
                f"{where}: [passive] encoder = {section['encoder']!r} is code of a package, which "
                "only a party's own file may name, below [apfed]"
            )
    return {
        name: validate(
            PassiveFields,
            {**for_all, **by_party.get(name, {})},
            where=f"{where}, [passive{'.' + name if name in by_party else ''}]",
        )
        for name in names
    }


def passive_names(run: Run) -> list[str]:
    if run.data is None:
        return []  # the party files say
    partition = run.data.partition
    return [name for name in partition.party_names() if name != partition.active_party()]


def passives(run: Run, loaded: Loaded) -> dict[str, PassiveFields]:
    """Passive party -> settings: of its own file, or in simulation of the run file."""
    if run.data is not None:
        return passive_fields(run)
    return {
        name: party_fields(loaded.sites[name])
        for name in loaded.data.train.parties
        if name != loaded.active
    }


def party_fields(site: Site) -> PassiveFields:
    """[apfed] of a party's file, what it sends in methods it agrees to within its policy's budget.

    Raises:
        ConfigError: a budget, and gradients or codes that are not noised.
    """
    section = site.settings("apfed", PassiveFields)
    budget, agreed = site.policy.section.privacy, site.policy.section.algorithms
    if budget is None:
        return section
    capped: dict[str, Release | None] = {}
    for method, key in (("apfed-mixed", "gradients"), ("tvfl", "codes")):
        if method not in agreed:
            continue
        release: Release | None = getattr(section, key)
        if release is None or not release.noise:
            raise ConfigError(
                f"party {site.name!r}: policy.privacy sets a budget of epsilon = "
                f"{budget.epsilon:g}, and its {key} are not noised; set {key} = {{ clip = ..., "
                "noise = ... } below [apfed]"
            )
        capped[key] = within(budget, release, None, what=key, key=key)
    return section.model_copy(update=capped)
