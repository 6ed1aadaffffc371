"""What a run file says, as values: data read and dealt out, names replaced by what they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dovetail import data as dd
from dovetail.algorithms import apfed
from dovetail.cli.parties import (
    align_sites,
    label_owner,
    partition_sites,
    stored_alignment,
)
from dovetail.cli.partyfile import Site, open_sites
from dovetail.cli.runfile import (
    DataSection,
    PassiveFields,
    RunFile,
    StripsSection,
    encoder_spec,
    passive_fields,
)
from dovetail.errors import ConfigError
from dovetail.evaluation import PassiveSetup, Setup
from dovetail.models import Head, generator


@dataclass(frozen=True, eq=False)
class Loaded:
    """The data of a run, the same for every seed.

    Attributes:
        data: training and test federation.
        active: the party that has labels.
        passives: the other parties' settings.
        alignment, test_alignment: of party files; None in simulation, where ids are compared.
    """

    data: dd.Partitioned
    active: str
    passives: Mapping[str, PassiveFields]
    alignment: dd.Alignment | None = None
    test_alignment: dd.Alignment | None = None


def load_data(run: RunFile, *, show_progress: bool = False) -> Loaded:
    """Read what a run needs: a pooled set to deal out, or every party's own file."""
    if run.data is None:
        return _load_parties(run, show_progress=show_progress)
    data, active = _load_pooled(run.data)
    return Loaded(data, active, passive_fields(run))


def setup(run: RunFile, seed: int, loaded: Loaded) -> Setup:
    """Everything that one seed's run is a function of.

    Raises:
        ConfigError: more labels asked for than there are, or an unknown device.
    """
    data = loaded.data
    if run.data is not None and run.data.labels is not None:
        data = keep_labels(data, loaded.active, run.data.labels, seed)
    section = run.apfed
    return Setup(
        method=run.method,
        data=data,
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
            for name, fields in loaded.passives.items()
        },
        own_networks=run.data is None,
        alignment=loaded.alignment,
        test_alignment=loaded.test_alignment,
        rulers=run.rulers,
        evaluate_every=run.evaluate_every,
        device=device(run.device),
    )


def _load_parties(run: RunFile, *, show_progress: bool) -> Loaded:
    """Party files: aligned before, or now."""
    assert run.parties is not None
    where = "the run file"
    sites = open_sites(tuple(Path(file) for file in run.parties))
    active = label_owner(sites, run.active, where=where)
    for name in run.apfed.trade_off if isinstance(run.apfed.trade_off, Mapping) else ():
        if name not in sites or name == active:
            raise ConfigError(
                f"{where}: apfed.trade_off names {name!r}, which is no passive party of this run; "
                f"they are {sorted(sites.keys() - {active})}"
            )
    stages = dict.fromkeys((run.method, *run.rulers))
    if set(stages) == {"alone"}:
        sites = {active: sites[active]}  # nobody else is asked
    for stage in stages:
        algorithm = "tvfl" if stage == "tvfl" else "apfed"
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
        for name, site in sites.items():
            if name != active and stage != "alone":
                site.check_policy(algorithm, active)
    if len(sites) == 1 and set(stages) != {"alone"}:
        raise ConfigError(
            f"{where}: {active!r} is the only party; name its partners' files in parties, or write "
            'method = "alone"'
        )
    alignment = _alignment(sites, active, show_progress=show_progress)
    data, train_alignment, test_alignment = partition_sites(
        sites, active, alignment, test=run.test, split_seed=0
    )
    passives = {name: site.file.apfed for name, site in sites.items() if name != active}
    return Loaded(data, active, passives, train_alignment, test_alignment)


def _alignment(sites: Mapping[str, Site], active: str, *, show_progress: bool) -> dd.Alignment:
    """What ``dovetail align`` left, or an alignment made now."""
    if len(sites) == 1:
        return dd.Alignment({active: torch.arange(sites[active].table.num_rows)})
    stored = stored_alignment(sites, active)
    if stored is not None:
        return stored
    return align_sites(sites, active, workers=1, show_progress=show_progress)[1]


def _load_pooled(section: DataSection) -> tuple[dd.Partitioned, str]:
    """One data set, split and dealt out; and the active party's name."""
    classify = section.task == "classification"
    train, test = dd.load(
        section.source,
        label=section.label,
        id=section.id,
        test_source=section.test_source,
        split_column=section.split_column,
    )
    if test is None:
        if section.test is None:
            raise ConfigError(
                f"{section.source} has no test rows of its own: set data.test to a share, such as "
                "0.25, or name data.test_source or data.split_column"
            )
        train, test = dd.split(train, test=section.test, seed=section.split_seed, stratify=classify)
    elif section.test is not None:
        raise ConfigError(
            f"{section.source} has {test.num_rows} test rows of its own; leave data.test out"
        )
    if section.rows is not None:
        train = dd.subset(train, rows=section.rows, seed=section.split_seed, stratify=classify)
    partition = section.partition
    if isinstance(partition, StripsSection):
        partitioned = dd.strips(
            train,
            test,
            views=partition.views,
            active=partition.active,
            axis=partition.axis,
            regression=not classify,
        )
        return partitioned, f"view-{partition.active}"
    partitioned = dd.columns(
        train,
        test,
        parties=partition.parties,
        active=partition.active,
        overlap=partition.overlap,
        seed=section.split_seed,
        categorical=section.categorical,
        max_categories=section.max_categories,
        regression=not classify,
    )
    return partitioned, partition.active


def keep_labels(
    partitioned: dd.Partitioned, active: str, num_labels: int, seed: int
) -> dd.Partitioned:
    """The same data with labels on a random ``num_labels`` of the active party's rows only.

    Raises:
        ConfigError: fewer rows have a label.
    """
    own = partitioned.train[active]
    labelled = own.labelled_rows()
    if num_labels > len(labelled):
        raise ConfigError(
            f"data.labels is {num_labels}, but only {len(labelled)} training rows of party "
            f"{active!r} have a label; ask for at most so many"
        )
    order = torch.randperm(len(labelled), generator=generator(seed, active, "kept labels"))
    kept = own.with_labels_on(labelled[order[:num_labels]].sort().values)
    parties = partitioned.train.parties.values()
    train = dd.Federation(kept if party.name == active else party for party in parties)
    return replace(partitioned, train=train)


def device(name: str) -> torch.device:
    """The device of this name.

    Raises:
        ConfigError: no such device here.
    """
    try:
        found = torch.device(name)
        torch.zeros(1, device=found).item()  # the meta device has no values
    except (RuntimeError, AssertionError):
        available = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
        raise ConfigError(f"there is no device {name!r} here; there is {available}") from None
    return found
