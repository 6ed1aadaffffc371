"""Several parties, and which of them holds which block of which sample.

Vertical, horizontal and hybrid are patterns of one table, the coverage: parties' blocks against
samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from dovetail.data.party import PartyData
from dovetail.data.stored import put_tensor_away
from dovetail.errors import AlignmentError, DataError


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
