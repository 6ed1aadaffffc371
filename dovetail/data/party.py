"""Data of one party: samples by id, blocks of them, and perhaps labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from dovetail.data.inputs import Input
from dovetail.data.many_rows import num_repeated
from dovetail.data.stored import put_away, put_tensor_away
from dovetail.data.tables import Table
from dovetail.errors import DataError
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
