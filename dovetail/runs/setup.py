"""Values of a run file: data read and split, names replaced by what they name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from dovetail import data as dd
from dovetail import methods
from dovetail.data.survey import lost_in
from dovetail.errors import ConfigError
from dovetail.methods.aligning import zeros_apart
from dovetail.methods.base import SILENT, Driver, Loaded, Progress, Site
from dovetail.methods.settings.shared import SealedLimits
from dovetail.methods.training import Training
from dovetail.models import generator
from dovetail.models.computing import device
from dovetail.models.threads import one_thread
from dovetail.node.partyfile import open_sites
from dovetail.runs.label_copies import copies_of_sites, copies_of_table
from dovetail.runs.runfile import DataSection, RunFile
from dovetail.settings.sources import is_query

#: What names a CSV file in a SELECT.
_CSV = re.compile(r"\.(?:csv|tsv)(?:\.gz)?['\"]|\bread_csv", re.I)


@dataclass(frozen=True, eq=False)
class Given:
    """Data that are here already, and are not read from where the run file says they are.

    Attributes:
        where: what errors call who gave them.
        sites: party -> its description and table.
        pooled: the training and test part of a pooled set.
    """

    where: str
    sites: Mapping[str, Site] | None = None
    pooled: tuple[dd.Dataset, dd.Dataset | None] | None = None


#: All is read from where the run file says it is.
NOTHING = Given("the run file")


def load_data(
    run: RunFile, *, driver: Driver | None = None, given: Given = NOTHING, talk: Progress = SILENT
) -> Loaded:
    """Read what a run needs: a pooled set to split, or every party's own file.

    With a driver its own file is read, if it has one, and its partners are waited for.
    """
    if run.data is not None:
        pooled = given.pooled or read_pooled(run.data)
        _warn_of_index(pooled[0].x, run.data.source, talk)
        for sentence in copies_of_table(pooled[0]):
            talk.warn(f"WARNING: {sentence}")
        if isinstance(table := pooled[0].x, dd.Table):
            for clause in dd.far_in(table, table.names):
                talk.warn(f"{table.description}: {clause}")
            for name, doubt in lost_in(table, table.names):
                talk.warn(
                    f"{table.description}: {name!r}: {doubt.says}, and it is read as categories; "
                    "SELECT it as a number or date, or leave it out"
                )
        return Loaded(_load_pooled(run.data, pooled), run.data.partition.active_party())
    method, where = methods.method_of(run.method), given.where
    if driver is not None:
        sites = driver.sites
        loaded = replace(
            method.load_driver(run, driver, where=where),
            connect=driver.connect,
            secret=driver.secret,
        )
    else:
        if given.sites is not None:
            sites = given.sites
        else:
            assert run.parties is not None
            sites = open_sites(tuple(Path(file) for file in run.parties))
        _check_nobody_must_sign(sites.values())
        sites = {name: _trusting(site) for name, site in sites.items()}
        for sentence in (*zeros_apart(sites), *copies_of_sites(sites)):
            talk.warn(f"WARNING: {sentence}")
        loaded = method.load_sites(run, sites, where=where, talk=talk)
    for name, site in sites.items():
        _warn_of_index(site.table.x, f"party {name!r}", talk)
        for clause in (*lost_of(site), *far_of(site)):
            talk.warn(clause)
    parties = loaded.data.train.parties
    labelled = [name for name, party in parties.items() if party.labels is not None]
    active = labelled[0] if len(labelled) == 1 else None
    return replace(loaded, active=active, sites=sites)


#: Defaults of a policy that protect from a driver elsewhere, and what they are without one.
_TRUSTING = {
    "max_uses": 10**9,
    "min_rows": 1,
    "sealed": SealedLimits(numbers_per_row=10**9),
}


def lost_of(site: Site) -> list[str]:
    """A sentence for each column of numbers or dates that would be read as categories."""
    table, names = site.table.x, [name for each in site.table.blocks.values() for name in each]
    if not isinstance(table, dd.Table):
        return []
    python = not site.path.is_file()
    lost = lost_in(table, names, categorical=table.select(site.party.categorical))
    return [
        f"party {site.name!r}: {name!r}: {doubt.sentence(name, python=python)}"
        for name, doubt in lost
    ]


def guessed_of(site: Site) -> list[str]:
    """That a SELECT has types which DuckDB guesses from a CSV file's rows; [] where it does not."""
    query = site.party.table
    if not is_query(query) or not _CSV.search(query) or "all_varchar" in query.lower():
        return []
    return [
        f"party {site.name!r}: its SELECT reads a CSV file, whose types DuckDB guesses from the "
        "rows that it has today; write read_csv('FILE', all_varchar = true), and cast what the "
        "SELECT computes with"
    ]


def far_of(site: Site) -> list[str]:
    """A sentence for each column of the party's table that has values far from all others."""
    table, names = site.table.x, [name for each in site.table.blocks.values() for name in each]
    if not isinstance(table, dd.Table):
        return []
    return [f"party {site.name!r}: {clause}" for clause in dd.far_in(table, names)]


def _trusting(site: Site) -> Site:
    """The party as it answers in one process, whose owner has all tables anyway.

    Limits of answers that its policy sets stay; those by default would only cut training short.
    """
    section = site.policy.section
    kept = section.model_fields_set
    freed = {key: value for key, value in _TRUSTING.items() if key not in kept}
    freed_section = section.model_copy(update=freed)
    return replace(site, policy=replace(site.policy, section=freed_section))


def _check_nobody_must_sign(sites: Iterable[Site]) -> None:
    """Refuse to read in one process what a party answers only after it has signed.

    Raises:
        ConfigError: naming its file.
    """
    for site in sites:
        if site.policy.section.approval == "signed":
            raise ConfigError(
                f'{site.where} has policy.approval = "signed", which holds for runs over a network '
                '([engine] kind = "stream", dovetail propose): trained in one process, all of its '
                "rows are read by whoever runs it"
            )


def _warn_of_index(x: dd.Table | Tensor, whose: str, talk: Progress) -> None:
    """Say that a table's numbers of rows, which pandas wrote, are no feature."""
    if isinstance(x, dd.Table) and x.index:
        talk.warn(
            f"{whose}: the column {x.index[0]!r} of {x.description} is pandas' index, not a "
            "feature, and is left out; write the file with index=False"
        )


def setup(run: RunFile, seed: int, loaded: Loaded) -> Training:
    """Everything that one seed's run is a function of.

    Raises:
        ConfigError: more labels asked for than there are, or an unknown device.
    """
    if run.data is not None and run.data.labels is not None:
        loaded = with_labels(loaded, run.data.labels, seed)
    return methods.method_of(run.method).setup(run, loaded, device(run.device))


def threads_for(loaded: Loaded) -> AbstractContextManager[None]:
    """How products of a run on these data are computed, while the context is open.

    Tables: on one thread each. Images: on PyTorch's threads, since a convolution of a minibatch
    takes so many milliseconds that sharing it pays.
    """
    blocks = [
        block for party in loaded.data.train.parties.values() for block in party.blocks.values()
    ]
    tables = (site.table.x for site in loaded.sites.values())
    blocks += [x for x in tables if isinstance(x, Tensor)]
    return nullcontext() if any(block.ndim > 2 for block in blocks) else one_thread()


def with_labels(loaded: Loaded, num_labels: int, seed: int) -> Loaded:
    """Labels on so many rows of each party that has labels."""
    data = loaded.data
    for name, party in data.train.parties.items():
        if party.labels is not None:
            data = dd.keep_labels(data, name, num_labels, generator(seed, name, "kept labels"))
    return replace(loaded, data=data)


def read_pooled(section: DataSection) -> tuple[dd.Dataset, dd.Dataset | None]:
    """Data set, and its test part if it has one of its own."""
    return dd.load(
        section.source,
        label=section.label,
        id=section.id,
        test_source=section.test_source,
        split_column=section.split_column,
        folders=tuple(map(Path, section.folders)),
    )


def pooled_parts(
    section: DataSection, pooled: tuple[dd.Dataset, dd.Dataset | None]
) -> tuple[dd.Dataset, dd.Dataset]:
    """The rows that train, and the rows that test, of one data set.

    Raises:
        ConfigError: no test rows, or two ways to have them.
    """
    classify = section.task == "classification"
    train, test = pooled
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
    return train, test


def _load_pooled(
    section: DataSection, pooled: tuple[dd.Dataset, dd.Dataset | None]
) -> dd.Partitioned:
    """Partitions of one data set."""
    train, test = pooled_parts(section, pooled)
    return section.partition.deal(train, test, section)
