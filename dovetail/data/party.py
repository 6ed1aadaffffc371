"""Data of a party: samples by id, blocks of them, and perhaps labels; and of several parties.

Vertical, horizontal and hybrid are patterns of one table, the coverage: parties' blocks against
samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from dovetail.data.many_rows import num_repeated
from dovetail.data.preprocessing import Input
from dovetail.data.stored import put_away, put_tensor_away
from dovetail.data.tables import Table
from dovetail.errors import AlignmentError, DataError
from dovetail.settings.mending import repeated_text

#: The class index that marks a row without a label; for regression the mark is NaN.
UNLABELLED = -1

#: The class index of a row whose class no labelled training row has: only in rows that test, where
#: whatever a model says of it is wrong.
UNSEEN = -2


def labelled_rows(labels: Tensor) -> Tensor:
    """(R,) int64 rows that have a label, or one of several, in order."""
    if labels.is_floating_point():
        known = ~labels.isnan()
        return (known if known.dim() == 1 else known.any(dim=1)).nonzero().flatten()
    return (labels != UNLABELLED).nonzero().flatten()


@dataclass(frozen=True, eq=False)
class PartyData:
    """Rows of one party.

    Attributes:
        name: the party's name; unique in a federation.
        ids: (N,) integers or strings, unique: which sample each row is.
        blocks: block name -> (N, ...) tensor. float32, or uint8 for images in 0..255.
        labels: (N,) int64 class indices with ``UNLABELLED`` where missing, or (N,) float32
            values with NaN where missing, (N, L) of several labels; None for a party without
            labels.
        inputs: block -> how raw columns or images became it, where that is known; a model that
            learned from it predicts raw rows by it.
        label: what the label is called, where that is known.
        tables: block -> its (N,) rows of raw columns, where they are encoded when training starts.
        weights: (N,) how much a row counts in the party's own models; None: all alike.

    Raises:
        DataError: ids that are not unique, or lengths that differ.
    """

    name: str
    ids: np.ndarray
    blocks: Mapping[str, Tensor] = field(default_factory=dict)
    labels: Tensor | None = None
    inputs: Mapping[str, Input] = field(default_factory=dict)
    label: str | None = None
    tables: Mapping[str, Table] = field(default_factory=dict)
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        ids = np.asarray(self.ids)
        if ids.ndim != 1:
            raise DataError(f"party {self.name!r}: ids must be one column, got shape {ids.shape}")
        if num_repeated(ids):
            raise DataError(f"party {self.name!r}: {repeated_text(ids.tolist())}")
        lengths = {f"block {name!r}": len(block) for name, block in self.blocks.items()}
        lengths |= {f"block {name!r}": table.num_rows for name, table in self.tables.items()}
        if self.labels is not None:
            lengths["labels"] = len(self.labels)
        if self.weights is not None:
            lengths["weights"] = len(self.weights)
        for what, length in lengths.items():
            if length != len(ids):
                raise DataError(
                    f"party {self.name!r}: {what} has {length} rows, ids have {len(ids)}"
                )
        object.__setattr__(self, "ids", put_away(ids, self.name))
        for name in ("labels", "weights"):
            values = getattr(self, name)
            if values is not None:
                object.__setattr__(self, name, put_tensor_away(values, self.name))
        object.__setattr__(self, "blocks", MappingProxyType(dict(self.blocks)))

    @property
    def num_rows(self) -> int:
        return len(self.ids)

    def labelled_rows(self) -> Tensor:
        """(L,) int64 rows that have a label, in order."""
        return labelled_rows(self.labels if self.labels is not None else torch.empty(0))

    def joined(self) -> Tensor:
        """(N, ...) the only block, or (N, F) all blocks flattened side by side.

        Raises:
            DataError: the party has no block.
        """
        if not self.blocks:
            raise DataError(f"party {self.name!r} has no columns: give it at least one block")
        if len(self.blocks) == 1:
            return next(iter(self.blocks.values()))
        return torch.cat([block.flatten(1).float() for block in self.blocks.values()], dim=1)

    def take(self, rows: Tensor) -> PartyData:
        """The party's data with these rows only, in this order."""
        return replace(
            self,
            ids=self.ids[rows.numpy()],
            blocks={name: block[rows] for name, block in self.blocks.items()},
            tables={name: table.take(rows.numpy()) for name, table in self.tables.items()},
            labels=None if self.labels is None else self.labels[rows],
            weights=None if self.weights is None else self.weights[rows],
        )

    @property
    def required_labels(self) -> Tensor:
        """(N,) its labels.

        Raises:
            DataError: it has none.
        """
        if self.labels is None:
            raise DataError(f"party {self.name!r} has no labels")
        return self.labels

    def with_labels_on(self, rows: Tensor) -> PartyData:
        """The party's data with labels on these rows only.

        Raises:
            DataError: the party has no labels.
        """
        if self.labels is None:
            raise DataError(f"party {self.name!r} has no labels to keep")
        missing = float("nan") if self.labels.is_floating_point() else UNLABELLED
        labels = torch.full_like(self.labels, missing)
        labels[rows] = self.labels[rows]
        return replace(self, labels=labels)


@dataclass(frozen=True, eq=False)
class Alignment:
    """Which row of each party is which sample, over one shared order of samples.

    Attributes:
        rows: party -> (S,) int64, the party's local row of each sample, -1 where it has none.
    """

    rows: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        kept = {name: put_tensor_away(each, name, *self.rows) for name, each in self.rows.items()}
        object.__setattr__(self, "rows", MappingProxyType(kept))

    def restricted(self, party: str, rows: np.ndarray, num_rows: int) -> Alignment:
        """An alignment in which this party, of so many rows, has these only, numbered again."""
        index = torch.full((num_rows,), -1)
        index[torch.from_numpy(rows)] = torch.arange(len(rows))
        local_S = self.rows[party]
        local_S = torch.where(local_S >= 0, index[local_S], -1)
        return Alignment({**self.rows, party: local_S})

    def shared(self, *parties: str) -> Tensor:
        """(K,) int64 samples that all of these parties hold."""
        held = torch.stack([self.rows[party] >= 0 for party in parties])
        return held.all(dim=0).nonzero().flatten()


class Federation:
    """Several parties' data, in one process; for simulation and tests.

    Raises:
        DataError: two parties of one name.
    """

    def __init__(self, parties: Iterable[PartyData]) -> None:
        parties = list(parties)
        by_name = {party.name: party for party in parties}
        if len(by_name) < len(parties):
            raise DataError(f"party names must differ, got {[party.name for party in parties]}")
        if len({party.ids.dtype.kind in "iu" for party in parties}) > 1:
            # Ids are compared as they are written; int64 stands for its own digits.
            texts = {party.name: party.ids.astype(np.str_) for party in parties}
            by_name = {name: replace(each, ids=texts[name]) for name, each in by_name.items()}
        self.parties: Mapping[str, PartyData] = MappingProxyType(by_name)

    def __getitem__(self, name: str) -> PartyData:
        try:
            return self.parties[name]
        except KeyError:
            raise DataError(f"no party {name!r}; there are {list(self.parties)}") from None

    def align(self, to: str) -> Alignment:
        """Rows of every party over the samples of party ``to``, in its row order.

        Compares ids in the clear: for simulation, where one process holds all tables.

        Raises:
            AlignmentError: a party shares no sample with ``to``.
        """
        ids = self[to].ids
        rows = {}
        for name, party in self.parties.items():
            order = np.argsort(party.ids, kind="stable")
            index = np.searchsorted(party.ids, ids, sorter=order).clip(max=max(0, len(order) - 1))
            row = order[index] if len(order) else np.full(len(ids), -1)
            is_there = party.ids[row] == ids if len(order) else np.zeros(len(ids), dtype=bool)
            rows[name] = torch.from_numpy(np.where(is_there, row, -1).astype(np.int64))
            if not is_there.any():
                raise AlignmentError(
                    f"party {name!r} shares no sample with {to!r} "
                    f"({party.num_rows} and {len(ids)} rows): "
                    "check that both use the same id column"
                )
        return Alignment(MappingProxyType(rows))
