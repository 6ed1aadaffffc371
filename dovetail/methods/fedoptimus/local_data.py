"""Data of owners in a run: columns or labels.

They are from owners' files; in a simulation of a partition, or of a baseline with all in one place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dovetail import data as dd
from dovetail.data import (
    Input,
    Owners,
    PartyData,
    SharedRows,
    Survival,
    Task,
)
from dovetail.data.party import labelled_rows
from dovetail.data.survival import survival_of
from dovetail.errors import ConfigError
from dovetail.methods.base import Site
from dovetail.methods.baselines import LocalRows
from dovetail.methods.fedoptimus.masked import UNASKED, SummingSettings
from dovetail.methods.fedoptimus.sections import bottom
from dovetail.methods.labels import draw_share
from dovetail.methods.local_data import Holdings
from dovetail.methods.settings.fedoptimus import OwnerSection
from dovetail.models.owners import (
    BottomSpec,
)
from dovetail.privacy import Budget
from dovetail.settings.privacy import Release

#: Which of a label owner's rows are scored.
Part = Literal["test", "validation"]

#: A label owner's rows.
TRAIN = "train"

TEST: Part = "test"

#: What a selection of data owners asks, in an error's words.
SELECTED = "what [fedoptimus.selection] asks for"


@dataclass(frozen=True, eq=False)
class Columns:
    """Data of a data owner.

    Attributes:
        name: the party's.
        shared: label owner -> the rows of its samples, in the order shared with it.
        bottom: its network; ``Config.embedding`` sets the last width.
        scored: part -> label owner -> rows that are scored, in an order shared with it.
        input: how raw data becomes a row; what ``predict`` needs.
        release: how its embeddings leave; None: as the run says.
        budget: of its policy.
        summing: how its embeddings are summed.
    """

    name: str
    shared: Mapping[str, SharedRows]
    bottom: BottomSpec
    scored: Mapping[Part, Mapping[str, SharedRows]] = field(default_factory=dict)
    input: Input | None = None
    release: Release | None = None
    budget: Budget | None = None
    summing: SummingSettings = UNASKED

    def only(self, *label_owners: str) -> Columns:
        """The data owner's columns, for these label owners only."""
        return replace(
            self,
            shared={name: self.shared[name] for name in label_owners},
            scored={
                part: {name: rows[name] for name in label_owners}
                for part, rows in self.scored.items()
            },
        )


@dataclass(frozen=True, eq=False)
class Labels:
    """Data of a label owner.

    Attributes:
        name: the party's.
        task: what its labels say.
        labels_S: (S,) of all samples of its shared order; -1 or NaN where there is none; of
            several (S, L).
        label: the label's name.
        samples: the places that it trains on; None: those that have a label.
        scored: part -> labels of the rows that are scored.
        alone: columns of its own table, which only its models alone learn from.
        release: how its gradients leave; None: as the run says.
        budget: of its policy.
        max_scored: how often it scores its test rows in a run that is driven from elsewhere, by its
            policy; 0: any number of times.
        key: mixed into what is drawn of its labels; None in simulation.
    """

    name: str
    task: Task
    labels_S: Tensor
    label: str = ""
    samples: Tensor | None = None
    scored: Mapping[Part, Tensor] = field(default_factory=dict)
    alone: LocalRows | None = None
    release: Release | None = None
    budget: Budget | None = None
    max_scored: int = 0
    key: bytes | None = None

    @property
    def trained(self) -> Tensor:
        """The places that it trains on."""
        return labelled_rows(self.labels_S) if self.samples is None else self.samples


#: What an owner brings to a run: of its own file, or split by a partition.
OwnerData = Columns | Labels


@dataclass(frozen=True, eq=False)
class OwnerHoldings(Holdings[OwnerData]):
    """Party files of one process, or the names of those that are elsewhere.

    Attributes:
        elsewhere: names of data owners and of label owners that are not here.
    """

    elsewhere: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


def columns_in(party_data: Mapping[str, OwnerData]) -> dict[str, Columns]:
    """The data owners among them."""
    return {
        name: local_data
        for name, local_data in party_data.items()
        if isinstance(local_data, Columns)
    }


def labels_in(party_data: Mapping[str, OwnerData]) -> dict[str, Labels]:
    """The label owners among them."""
    return {
        name: local_data
        for name, local_data in party_data.items()
        if isinstance(local_data, Labels)
    }


def check_counted(local_data: OwnerData, what: str) -> None:
    """Refuse what a party's budget of epsilon does not count.

    Raises:
        ConfigError: its policy sets one.
    """
    if local_data.budget is not None:
        raise ConfigError(
            f"party {local_data.name!r}: its policy.privacy sets a budget of epsilon = "
            f"{local_data.budget.epsilon:g}, and {what} leaves without noise; leave that out"
        )


def is_label_owner(site: Site) -> bool:
    """A party whose file names a label."""
    return site.table.labels is not None


def dealt(site: Site) -> dict[str, np.ndarray]:
    """Part -> a label owner's rows that train, and those that test, if any.

    Raises:
        ConfigError: no labelled row.
        DataError: rows that cannot be split.
    """
    labelled = site.table.labelled_rows()
    if not len(labelled):
        raise ConfigError(f"party {site.name!r} has no labelled row; leave it out")
    train, test = draw_share(
        site, labelled, site.settings("fedoptimus", OwnerSection).test_share, "test_share"
    )
    return {TRAIN: train, TEST: test} if len(test) else {TRAIN: train}


def labels_of(site: Site, task: dd.Task, rows: Mapping[str, Tensor]) -> Labels:
    """A label owner's labels in the orders that it shares with the data owners.

    It trains on samples in the order of its own rows: so what is drawn does not depend on how an
    alignment numbered them.

    Args:
        rows: part -> its row of each sample.

    Raises:
        DataError: a class that is not among those of all.
    """
    table = site.table
    labels = table.encoded_labels(task)
    scored = {TEST: labels[rows[TEST]]} if TEST in rows else {}
    alone = None
    if TEST in rows and table.blocks:
        parts = {part: table.take(rows[part].numpy()) for part in (TRAIN, TEST)}
        encoder = site.fit_input(parts[TRAIN])
        x = {part: each.encoded(encoder).joined() for part, each in parts.items()}
        alone = LocalRows(task, x[TRAIN], labels[rows[TRAIN]], (x[TEST], scored[TEST]))
    samples, labels_here = rows[TRAIN].argsort(), labels[rows[TRAIN]]
    release = site.settings("fedoptimus", OwnerSection).gradients
    return Labels(
        site.name,
        task,
        labels_here,
        str(table.label),
        samples,
        scored,
        alone,
        release,
        budget=site.policy.section.privacy,
        max_scored=site.policy.section.max_uses,
        key=site.key,
    )


def columns_of(site: Site, rows: Mapping[str, Mapping[str, Tensor]]) -> Columns:
    """A data owner's rows, encoded by all of them.

    Args:
        rows: label owner -> part -> its row of each sample.
    """
    fitted = site.fit_input()
    x = site.table.encoded(fitted).joined()

    def of(part: str) -> dict[str, dd.SharedRows]:
        return {
            owner: dd.SharedRows(site.name, x, parts[part])
            for owner, parts in rows.items()
            if part in parts
        }

    tested = of(TEST)
    section = site.settings("fedoptimus", OwnerSection)
    spec = bottom(section.bottom, tuple(x.shape[1:]))
    scored = {TEST: tested} if tested else {}
    budget = site.policy.section.privacy
    summing = SummingSettings(section.secure, section.members, section.quorum)
    return Columns(site.name, of(TRAIN), spec, scored, fitted, section.embeddings, budget, summing)


#: The only label owner of "classic" and "pooled", and the only data owner of "pooled".
EVERYBODY = "everybody"

POOLED = "pooled"


def holdings(data: Owners, bottoms: Mapping[str, BottomSpec]) -> dict[str, OwnerData]:
    """Data of data owners and label owners, of a partition for simulation."""
    pool = data.train[data.data_owners[0]].ids  # of all data owners, in one order
    order = np.argsort(pool, kind="stable")

    def rows_in(part: PartyData) -> Tensor:
        return torch.from_numpy(order[np.searchsorted(pool, part.ids, sorter=order)])

    training = {name: rows_in(data.train[name]) for name in data.label_owners}
    chosen: dict[str, Tensor] = {}
    if data.validation is not None:
        chosen = {name: rows_in(part) for name, part in data.validation.items()}
    party_data: dict[str, OwnerData] = {}
    for name in data.data_owners:
        x = data.train[name].joined()
        scored: dict[Part, Mapping[str, SharedRows]] = {}
        if data.test is not None:
            tested = data.test[name].joined()
            rows = SharedRows(name, tested, torch.arange(len(tested)))
            scored["test"] = dict.fromkeys(data.label_owners, rows)
        if chosen:
            scored["validation"] = {
                owner: SharedRows(name, x, rows_S) for owner, rows_S in chosen.items()
            }
        shared = {owner: SharedRows(name, x, rows_S) for owner, rows_S in training.items()}
        party_data[name] = Columns(name, shared, bottoms[name], scored, data.inputs[name])
    for name in data.label_owners:
        labels_here = data.train[name].required_labels
        marked: dict[Part, Tensor] = {}
        if data.test_labels is not None:
            marked["test"] = data.test_labels
        if data.validation is not None:
            marked["validation"] = data.validation[name].required_labels
        task = data.task
        if isinstance(task, Survival):  # its own baseline in the intervals of all
            task = survival_of(task.cuts, labels_here)
        party_data[name] = Labels(name, task, labels_here, data.label, scored=marked)
    return party_data


def separate(party_data: Mapping[str, OwnerData]) -> dict[str, OwnerData]:
    """Each label owner with data owners of its own, who have what all data owners have."""
    columns, labels = columns_in(party_data), labels_in(party_data)
    columns_data = {
        f"{holder} for {name}": columns[holder].only(name) for name in labels for holder in columns
    }
    return {**columns_data, **labels}


def together(party_data: Mapping[str, OwnerData]) -> dict[str, OwnerData]:
    """Data of a single label owner with everybody's labels; test rows are the first's, whom others
    share."""
    columns, labels = columns_in(party_data), labels_in(party_data)
    names = list(labels)

    def joined(parts: Sequence[SharedRows]) -> SharedRows:
        return replace(parts[0], rows_S=torch.cat([part.rows_S for part in parts]))

    held: dict[str, OwnerData] = {}
    for name, columns_here in columns.items():
        scored: dict[Part, Mapping[str, SharedRows]] = {}
        if "test" in columns_here.scored:
            scored["test"] = {EVERYBODY: columns_here.scored["test"][names[0]]}
        if "validation" in columns_here.scored:
            scored["validation"] = {
                EVERYBODY: joined([*columns_here.scored["validation"].values()])
            }
        held[name] = Columns(
            name,
            {EVERYBODY: joined([columns_here.shared[each] for each in names])},
            columns_here.bottom,
            scored,
            columns_here.input,
        )
    marked: dict[Part, Tensor] = {}
    first = labels[names[0]]
    if "test" in first.scored:
        marked["test"] = first.scored["test"]
    if "validation" in first.scored:
        marked["validation"] = torch.cat([labels[each].scored["validation"] for each in names])
    every = torch.cat([labels[each].labels_S for each in names])
    held[EVERYBODY] = Labels(EVERYBODY, first.task, every, first.label, scored=marked)
    return held


def side_by_side(columns: Mapping[str, Columns], axis: int) -> dict[str, Columns]:
    """Data of one data owner with everybody's columns; all have one order of rows."""
    every = list(columns.values())
    made: dict[int, Tensor] = {}  # rows that several parts share are joined once

    def joined(parts: Sequence[SharedRows]) -> SharedRows:
        first = parts[0]
        if id(first.x) not in made:
            made[id(first.x)] = torch.cat([part.x for part in parts], dim=axis)
        return SharedRows(POOLED, made[id(first.x)], first.rows_S)

    first = every[0]
    return {
        POOLED: Columns(
            POOLED,
            {
                owner: joined([party_columns.shared[owner] for party_columns in every])
                for owner in first.shared
            },
            first.bottom,
            {
                part: {
                    owner: joined([party_columns.scored[part][owner] for party_columns in every])
                    for owner in rows
                }
                for part, rows in first.scored.items()
            },
        )
    }


def local_rows(
    columns: Mapping[str, Columns], labels: Mapping[str, Labels], axis: int | None
) -> dict[str, LocalRows]:
    """Label owner -> what it has for a model alone: columns of its own, or, in a simulation,
    everybody's columns of its own samples, as of the variant "alone"."""
    alone_rows = {name: each.alone for name, each in labels.items() if each.alone is not None}
    if alone_rows or axis is None:
        return alone_rows
    whole = side_by_side(columns, axis)[POOLED]
    found = {}
    for name, each in labels.items():
        rows = whole.shared[name]
        x, labels_N = rows.x[rows.rows_S], each.labels_S
        if each.samples is not None:
            x, labels_N = x[each.samples], labels_N[each.samples]
        tested = whole.scored.get("test", {}).get(name)
        marked = each.scored.get("test")
        test = None if tested is None or marked is None else (tested.x[tested.rows_S], marked)
        found[name] = LocalRows(each.task, x, labels_N, test)
    return found
