"""What owners bring to a run: columns or labels, and how their own files give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from torch import Tensor

from dovetail import data as dd
from dovetail.data import Input, SharedRows, Task
from dovetail.data.party import labelled_rows
from dovetail.errors import ConfigError
from dovetail.methods.baselines import LocalRows
from dovetail.methods.fedoptimus.masked import UNASKED, SummingSettings
from dovetail.methods.fedoptimus.sections import bottom
from dovetail.methods.labels import draw_share
from dovetail.methods.local_data import Holdings
from dovetail.methods.party import Site
from dovetail.methods.settings.fedoptimus import OwnerSection
from dovetail.models.owners import BottomSpec
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
    """What a data owner has.

    Attributes:
        name: the party's.
        shared: label owner -> the rows of its samples, in the order shared with it.
        bottom: its network.
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
    """What a label owner has.

    Attributes:
        name: the party's.
        task: what its labels say.
        label: the label's name.
        labels_S: of all samples of its shared order.
        samples: the places that it trains on; None: those that have a label.
        scored: part -> labels of the rows that are scored.
        alone: columns of its own table, which only its models alone learn from.
        release: how its gradients leave; None: as the run says.
        budget: of its policy.
        max_scored: how often it scores its test rows in a run that is driven from elsewhere, by its
            policy; 0: any number of times.
    """

    name: str
    task: Task
    label: str
    labels_S: Tensor
    samples: Tensor | None = None
    scored: Mapping[Part, Tensor] = field(default_factory=dict)
    alone: LocalRows | None = None
    release: Release | None = None
    budget: Budget | None = None
    max_scored: int = 0

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
        str(table.label),
        labels_here,
        samples,
        scored,
        alone,
        release,
        budget=site.policy.section.privacy,
        max_scored=site.policy.section.max_uses,
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
