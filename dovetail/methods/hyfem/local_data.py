"""Data of a party of HyFEM: blocks of some samples, and labels; by its file or a partition."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dovetail import data as dd
from dovetail.data import PartyData, TableEncoder, summarise
from dovetail.data.by_column import BLOCK
from dovetail.data.partytables import IMAGES, whole_images
from dovetail.errors import ConfigError
from dovetail.methods.base import Site
from dovetail.methods.baselines import LocalRows, features
from dovetail.methods.labels import check_labels, draw_share, local_task, own_baseline
from dovetail.methods.local_data import MemberData
from dovetail.methods.outcome import outputs_of
from dovetail.methods.settings.hyfem import MemberSection
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


def data_of_site(site: Site, task: dd.Task | None = None) -> HyfemData:
    """A party's labelled rows, split into training and test by its own file.

    Raises:
        ConfigError: no label, or a label of numbers.
        DataError: rows that cannot be split, or a class that is not among those of all.
    """
    table, section, party = site.table, site.settings("hyfem", MemberSection), site.party
    check_labels(site, "HyFEM")
    task = own_baseline(site, section) or task or local_task(site, section)
    labels, train = table.encoded_labels(task), table.labelled_rows()
    if not len(train):
        raise ConfigError(
            f"party {site.name!r} has no labelled row; every party of HyFEM trains on its own "
            "labels, so leave it out"
        )
    train, test = draw_share(site, train, section.test_share, "test_share")
    whole = dd.PartyData(site.name, table.ids, labels=labels, label=table.label)
    categorical: list[str] = []
    if isinstance(table.x, dd.Table):
        x = table.x
        categorical = x.select(party.categorical)
        tables = {block: x.only(names) for block, names in table.blocks.items()}
        whole = replace(whole, tables=tables)
        if table.images is not None:
            pictures, as_they_are = {IMAGES: table.images}, {IMAGES: whole_images(table.images)}
            whole = replace(whole, blocks=pictures, inputs=as_they_are)
    else:
        blocks, inputs = dict.fromkeys(table.blocks, table.x), site.fit_input()
        whole = replace(whole, blocks=blocks, inputs=dict.fromkeys(table.blocks, inputs))
    return HyfemData(
        whole.take(torch.from_numpy(train)),
        task,
        section.widths,
        test=whole.take(torch.from_numpy(test)),
        categorical=categorical,
        private=section.private,
        moments=section.moments,
    )


def data_of_partition(
    data: dd.Blocks, widths: Mapping[str, tuple[int, ...]]
) -> dict[str, HyfemData]:
    """Party -> the same, of what a partition splits."""
    return {
        name: HyfemData(
            party_data,
            data.task,
            widths[name],
            test=None if data.test is None else data.test[name],
            moments=True,
        )
        for name, party_data in data.train.parties.items()
    }


def data_by_column(
    data: dd.ByColumn, widths: Mapping[str, tuple[int, ...]]
) -> dict[str, HyfemData]:
    """Party -> the same, of a table's rows by party: a block is what the same parties measured.

    Validation rows train, as this method chooses nothing by them.
    """

    def in_blocks(*parts: dd.PartyData) -> dd.PartyData:
        tables = [part.tables[BLOCK] for part in parts]
        table = dd.stacked(parts[0].name, tables)
        held = {
            block: table.only(names)
            for block, names in data.blocks.items()
            if set(names) <= set(table.names)
        }
        labels = torch.cat([part.labels for part in parts if part.labels is not None])
        ids = np.concatenate([part.ids for part in parts])
        return dd.PartyData(parts[0].name, ids, labels=labels, label=data.label, tables=held)

    return {
        name: HyfemData(
            in_blocks(party_data, *(() if data.validation is None else (data.validation[name],))),
            data.task,
            widths[name],
            test=None if data.test is None else in_blocks(data.test[name]),
            categorical=data.categorical,
            moments=True,
        )
        for name, party_data in data.train.parties.items()
    }
