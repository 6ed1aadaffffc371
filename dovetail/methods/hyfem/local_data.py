"""Data of a party of HyFEM: blocks of some samples, and their labels."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from dovetail.data import PartyData, TableEncoder, summarise
from dovetail.errors import ConfigError
from dovetail.methods.baselines import LocalRows, features
from dovetail.methods.local_data import MemberData
from dovetail.methods.outcome import outputs_of
from dovetail.models import Model
from dovetail.privacy import Budget


@dataclass(frozen=True, eq=False)
class HyfemData(MemberData):
    """Data of a party; blocks of raw columns are encoded as all agree when training starts.

    Attributes:
        widths: hidden widths of its classifier; parties may differ in widths, not in depth.
        moments: whether it sends means and covariances of its features, for ``calibrate``.
        budget: of its policy: no loss leaves; None: nothing is capped.

    Raises:
        ConfigError: no labelled row, or no block.
    """

    widths: tuple[int, ...] = (64,)
    moments: bool = False
    budget: Budget | None = None

    def __post_init__(self) -> None:
        if not len(self.train.labelled_rows()):
            raise ConfigError(
                f"party {self.name!r} has no labelled sample; every party of HyFEM trains on its "
                "own labels, so leave it out"
            )
        if not self.blocks:
            raise ConfigError(f"party {self.name!r} has no block; give it one, or leave it out")

    def tested(self, model: Model) -> tuple[Tensor, Tensor] | None:
        """Outputs of a model for its test rows, and their labels; None without any."""
        if self.test is None or self.test.labels is None or not self.test.num_rows:
            return None
        return outputs_of(model, self.test), self.test.labels

    def local_rows(self) -> LocalRows:
        """Rows of a party for a model alone: all its blocks side by side."""
        encoders = {
            name: TableEncoder.fit(
                table,
                table.names,
                categorical=[each for each in self.categorical if each in table.names],
                party=self.name,
            )
            for name, table in self.train.tables.items()
        }

        def joined(rows: PartyData) -> Tensor:
            # A row that lacks a block counts as its mean.
            parts = [features(rows.blocks[name]).nan_to_num(0.0) for name in self.train.blocks]
            parts += [
                encoder.transform(rows.tables[name], allow_unseen=True)
                for name, encoder in encoders.items()
            ]
            return torch.cat(parts, dim=1)

        return self.alone(joined(self.train), self.train.required_labels, joined)

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of all."""
        return (*self.train.blocks, *self.train.tables)

    def only(self, blocks: Iterable[str]) -> HyfemData:
        """A party with these blocks only."""
        wanted = set(blocks)
        encoded = {name: x for name, x in self.train.blocks.items() if name in wanted}
        tables = {name: table for name, table in self.train.tables.items() if name in wanted}
        return replace(self, train=replace(self.train, blocks=encoded, tables=tables))

    def summary(self, block: str) -> str:
        """Summary of its rows for the common encoding of this block of raw columns, as JSON."""
        table = self.train.tables[block]
        summaries = summarise(table, table.names, categorical=self.categorical, party=self.name)
        return json.dumps({name: asdict(summary) for name, summary in summaries.items()})
