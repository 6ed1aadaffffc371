"""APFed in a run file: [apfed] for the active party, [passive] for the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, get_args

import torch
from pydantic import Field

from dovetail import data as dd
from dovetail.algorithms import apfed
from dovetail.cli.methods.members import Asked, Maker
from dovetail.cli.parties import align_sites, label_owner, stored_alignment
from dovetail.cli.sections import EncoderField, encoder_spec
from dovetail.cli.validation import validate
from dovetail.errors import ConfigError
from dovetail.evaluation.apfed import ApfedSetup, PassiveSetup, Stage
from dovetail.models import Head
from dovetail.network.checkpoint import StatefulParty

if TYPE_CHECKING:
    from dovetail.cli.driver import Coordinator, Driver
    from dovetail.cli.partyfile import Site
    from dovetail.cli.runfile import RunFile
    from dovetail.cli.setup import Loaded

#: What can be trained, and what a table calls it.
STAGES: Mapping[str, str] = {
    "apfed": "APFed, predicts alone",
    "apfed-r": "APFed-R, predicts alone",
    "apfed-c": "APFed-C, predicts alone",
    "alone": "learned alone",
    "pooled": "pooled (all columns in one place)",
    "tvfl": "classic vertical, partners present",
}
assert STAGES.keys() == {*get_args(Stage)}

#: What a table calls the other scores that a stage gives.
SCORES: Mapping[str, str] = {
    "tvfl-0": "classic vertical, partners gone: zeros",
    "tvfl-a": "classic vertical, partners gone: average",
    "tvfl-r": "classic vertical, partners gone: random",
}

#: The kinds of partition that it is simulated on.
PARTITIONS: Collection[str] = ("strips", "columns")

#: Who drives it over a network.
DRIVEN_BY = "active"


class ApfedSection(apfed.Config):
    """The active party: its settings and networks."""

    encoder: EncoderField = (64, 32)
    head: tuple[int, ...] = (64,)  # hidden widths
    dropout: float = Field(default=0.5, ge=0, lt=1)  # of the head


class PassiveFields(apfed.PassiveConfig):
    """One passive party: its settings and network."""

    encoder: EncoderField = (64, 32)


def check(run: RunFile, *, where: str) -> None:
    """Refuse networks that cannot be, and settings for parties that are not in the run.

    Raises:
        ConfigError: naming the file and the section.
    """
    sections: dict[str, ApfedSection | PassiveFields] = {"[apfed]": run.apfed}
    for name, fields in passive_fields(run, where=where).items():
        sections[f"[passive], party {name!r}"] = fields
    for section, settings in sections.items():
        try:
            encoder_spec(settings.encoder)
            if isinstance(settings, ApfedSection):
                Head(settings.head, settings.dropout)
        except ConfigError as error:
            raise ConfigError(f"{where}, {section}: {error}") from None
    if run.data is not None:
        _check_trade_off(run, _passive_names(run), where=where)


def _check_trade_off(run: RunFile, passives: Collection[str], *, where: str) -> None:
    """Refuse a weight for a party that is not there."""
    trade_off = run.apfed.trade_off
    for name in trade_off if isinstance(trade_off, Mapping) else ():
        if name not in passives:
            raise ConfigError(
                f"{where}: apfed.trade_off names {name!r}, which is no passive party of this run; "
                f"they are {sorted(passives)}"
            )


def passive_fields(run: RunFile, *, where: str = "run file") -> dict[str, PassiveFields]:
    """Party -> settings: those for all under [passive], then its own under [passive.NAME]."""
    for_all = {key: value for key, value in run.passive.items() if not isinstance(value, Mapping)}
    by_party = {key: value for key, value in run.passive.items() if isinstance(value, Mapping)}
    names = _passive_names(run)
    convolutional = by_party.pop("encoder", None)  # a table too, but of layers
    if convolutional is not None:
        for_all["encoder"] = convolutional
    for name in by_party:
        if name not in names:
            raise ConfigError(
                f"{where}: [passive.{name}] is no party of this run; passive parties are "
                f"{sorted(names)}"
            )
    return {
        name: validate(
            PassiveFields,
            {**for_all, **by_party.get(name, {})},
            where=f"{where}, [passive{'.' + name if name in by_party else ''}]",
        )
        for name in names
    }


def _passive_names(run: RunFile) -> list[str]:
    if run.data is None:
        return []  # the party files say
    partition = run.data.partition
    return [name for name in partition.party_names() if name != partition.active_party()]


def resolved(run: RunFile) -> dict[str, Any]:
    """Its keys of the run file whose defaults the run file itself does not write out."""
    if run.data is None:
        return {}
    return {
        "passive": {
            name: fields.model_dump(mode="json", exclude_none=True)
            for name, fields in passive_fields(run).items()
        }
    }


def load_sites(
    run: RunFile, sites: Mapping[str, Site], *, where: str, show_progress: bool
) -> tuple[dd.Partitioned, dd.Alignment, dd.Alignment | None]:
    """Party files: aligned before, or now; training and test data, and how they are aligned.

    Raises:
        ConfigError: no party or several with labels, a policy that refuses, or a stage that party
            files do not allow.
    """
    active = label_owner(sites, run.active, where=where)
    _check_trade_off(run, sites.keys() - {active}, where=where)
    stages = _stages(run, where=where)
    if set(stages) == {"alone"}:
        sites = {active: sites[active]}  # nobody else is asked
    for stage in stages:
        algorithm = "tvfl" if stage == "tvfl" else "apfed"
        for name, site in sites.items():
            if name != active and stage != "alone":
                site.check_policy(algorithm, active)
    if len(sites) == 1 and set(stages) != {"alone"}:
        raise ConfigError(
            f"{where}: {active!r} is the only party; name its partners' files in parties, or write "
            'method = "alone"'
        )
    return _split(run, sites, active, _alignment(sites, active, show_progress=show_progress))


def members(site: Site, allowed: Collection[str]) -> dict[str, Maker]:
    """Algorithm -> what makes the party's side of its runs, of those that its policy allows.

    The table is encoded now: its mistakes are told at once.
    """
    allowed = [name for name in ("apfed", "vertical") if name in allowed]
    if not allowed:
        return {}
    x = site.table.encoded(site.fit_input()).joined()

    def maker(make: Callable[[dd.SharedRows, torch.device], StatefulParty]) -> Maker:
        def of_run(asked: Asked) -> Callable[[], StatefulParty]:
            shared = dd.SharedRows(site.name, x, asked.rows_S())
            return lambda: make(shared, asked.device)

        return of_run

    makers = {"apfed": maker(site.passive), "vertical": maker(site.member)}
    return {name: makers[name] for name in allowed}


def describe(site: Site, agreed: Collection[str]) -> Iterator[str]:
    """What the party will do, of what its policy agrees to."""
    if "apfed" in agreed or "tvfl" in agreed:
        section = site.file.apfed
        yield f"trains     its own network, {section.loss} loss, rate {section.learning_rate:g}"


def load_driver(
    run: RunFile, driver: Driver | Coordinator, *, where: str
) -> tuple[dd.Partitioned, dd.Alignment, dd.Alignment | None]:
    """The driver's own file, whose partners are elsewhere: as of ``load_sites``.

    Raises:
        ConfigError: it has no labels, or a stage that party files do not allow.
    """
    from dovetail.cli.driver import Driver  # which imports this file

    assert isinstance(driver, Driver)
    site = driver.site
    active = label_owner({site.name: site}, run.active, where=where)
    _check_trade_off(run, driver.partners, where=where)
    if set(_stages(run, where=where)) == {"alone"}:
        raise ConfigError(
            f"{where}: nobody else is asked where the method is 'alone'; leave [engine] out"
        )
    return _split(run, {active: site}, active, driver.alignment())


def _stages(run: RunFile, *, where: str) -> tuple[str, ...]:
    """The method and its rulers.

    Raises:
        ConfigError: one that party files do not allow.
    """
    stages = tuple(dict.fromkeys((run.method, *run.rulers)))
    for stage in stages:
        if stage in ("apfed-r", "apfed-c"):
            raise ConfigError(
                f"{where}: {stage!r} sets every passive party's loss, which with party files is "
                'each party\'s own; write method = "apfed"'
            )
        if stage == "pooled":
            raise ConfigError(
                f"{where}: the ruler 'pooled' puts everybody's columns in one place, which parties "
                "with files of their own do not agree to; leave it out"
            )
    return stages


def _split(
    run: RunFile, sites: Mapping[str, Site], active: str, alignment: dd.Alignment
) -> tuple[dd.Partitioned, dd.Alignment, dd.Alignment | None]:
    """Training and test data of these parties, and how all are aligned."""
    return dd.split_homes(
        {name: site.table for name, site in sites.items()},
        active,
        alignment,
        fit=lambda table: sites[table.name].fit_input(table),
        regression=sites[active].file.party.task == "regression",
        test=run.test,
        seed=0,
    )


def _alignment(sites: Mapping[str, Site], active: str, *, show_progress: bool) -> dd.Alignment:
    """What ``dovetail align`` left, or an alignment made now."""
    if len(sites) == 1:
        return dd.Alignment({active: torch.arange(sites[active].table.num_rows)})
    stored = stored_alignment(sites, active)
    if stored is not None:
        return stored
    return align_sites(sites, active, workers=1, show_progress=show_progress)[1]


def passives(run: RunFile, loaded: Loaded) -> dict[str, PassiveFields]:
    """Passive party -> settings: of its own file, or in simulation of the run file."""
    if run.data is not None:
        return passive_fields(run)
    return {
        name: loaded.sites[name].file.apfed
        for name in loaded.data.train.parties
        if name != loaded.active
    }


def setup(run: RunFile, loaded: Loaded, device: torch.device) -> ApfedSetup:
    """Everything that one seed's run is a function of."""
    section = run.apfed
    assert loaded.active is not None
    return ApfedSetup(
        method=run.method,  # type: ignore[arg-type]  # one of STAGES
        data=loaded.data,
        active=loaded.active,
        config=apfed.Config(**section.model_dump(include=set(apfed.Config.model_fields))),
        encoder=encoder_spec(section.encoder),
        head=Head(section.head, section.dropout),
        passives={
            name: PassiveSetup(
                apfed.PassiveConfig(
                    **fields.model_dump(include=set(apfed.PassiveConfig.model_fields))
                ),
                encoder_spec(fields.encoder),
            )
            for name, fields in passives(run, loaded).items()
        },
        own_networks=run.data is None,
        alignment=loaded.alignment,
        test_alignment=loaded.test_alignment,
        rulers=run.rulers,  # type: ignore[arg-type]  # each one of STAGES
        evaluate_every=run.evaluate_every,
        device=device,
        connect=loaded.connect,
        precision=run.engine.precision,
    )
