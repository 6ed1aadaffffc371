"""Scene of a run that is audited: the truth that attacks are scored against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dovetail.data import PartyData, Task
from dovetail.data.inputs import Input
from dovetail.data.preprocessing import TableEncoder
from dovetail.methods.facets.seen import Reading


@dataclass(frozen=True, eq=False)
class Holding:
    """Data of a party in a scene.

    Attributes:
        x_NF: its columns as its network reads them, flattened; None: it has none.
        columns: (F,) their names.
        labels_N: its labels; None: it has none.
    """

    x_NF: Tensor | None
    columns: tuple[str, ...] = ()
    labels_N: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Scene:
    """Everything that attacks on one run are scored against.

    Attributes:
        task: what the labels say.
        parties: name -> what it has.
        orders: order of samples -> party -> (S,) its row of each sample, -1 where it has none.
        reading: of the method's messages.
        candidates: party -> (rows it trained on, rows it did not), each with columns and labels:
            of whom a model or weights may say that they were there.
    """

    task: Task
    parties: Mapping[str, Holding]
    orders: Mapping[str, Mapping[str, Tensor]]
    reading: Reading
    candidates: Mapping[str, tuple[PartyData, PartyData]] = field(default_factory=dict)

    def num_samples(self) -> dict[str, int]:
        """Order -> how many samples it has."""
        return {name: len(next(iter(rows.values()))) for name, rows in self.orders.items()}

    def columns_of(self, party: str, order: str, samples: Tensor) -> Tensor | None:
        """(K, F) what this party knows of these samples; None where it has no columns of them."""
        rows = self.orders[order].get(party)
        held = self.parties.get(party)
        if rows is None or held is None or held.x_NF is None or (rows[samples] < 0).any():
            return None
        return held.x_NF[rows[samples]]

    def labels_of(self, party: str, order: str, samples: Tensor) -> Tensor | None:
        """(K,) its labels of these samples, missing ones as they are marked."""
        rows = self.orders[order].get(party)
        held = self.parties.get(party)
        if rows is None or held is None or held.labels_N is None or (rows[samples] < 0).any():
            return None
        return held.labels_N[rows[samples]]


def candidates(
    party_data: Mapping[str, tuple[PartyData, PartyData | None]],
) -> dict[str, tuple[PartyData, PartyData]]:
    """Party -> rows that it trained on, and rows that it did not, of those with test labels."""
    return {
        name: (train.take(train.labelled_rows()), test)
        for name, (train, test) in party_data.items()
        if test is not None and test.labels is not None
    }


def flat(x: Tensor) -> Tensor:
    """(N, F) as numbers, images in 0..1."""
    x = x.flatten(1)
    return x.float() / 255 if x.dtype == torch.uint8 else x.float()


def names_of(given: Input | None, x: Tensor) -> tuple[str, ...]:
    """(F,) names of flattened columns: features of a table, places of an image."""
    if isinstance(given, TableEncoder) and given.num_features == x.flatten(1).shape[1]:
        return given.feature_names
    if x.ndim == 4:
        _, channels, height, width = x.shape
        return tuple(
            f"pixel {row}, {column}" + (f" of channel {channel}" if channels > 1 else "")
            for channel in range(channels)
            for row in range(height)
            for column in range(width)
        )
    return tuple(f"column {index}" for index in range(x.flatten(1).shape[1]))


def holding(data: PartyData, given: Input | None = None) -> Holding:
    """Data of a party of a federation."""
    if not data.blocks:
        return Holding(None, (), data.labels)
    x = data.joined()
    return Holding(flat(x), names_of(given, x), data.labels)
