"""Data of owners in a run: columns or labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from dovetail.data import Input, SharedRows, Task
from dovetail.data.party import labelled_rows
from dovetail.errors import ConfigError
from dovetail.methods.baselines import LocalRows
from dovetail.methods.fedoptimus.masked import UNASKED, SummingSettings
from dovetail.methods.local_data import Holdings
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
