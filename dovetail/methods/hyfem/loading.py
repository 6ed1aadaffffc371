"""Data of HyFEM's parties: by their files, or as a partition splits a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from dovetail import data as dd
from dovetail.data.by_column import BLOCK
from dovetail.data.partytables import IMAGES, whole_images
from dovetail.errors import ConfigError
from dovetail.methods.base import Site
from dovetail.methods.hyfem.local_data import HyfemData
from dovetail.methods.labels import check_labels, draw_share, local_task, own_baseline
from dovetail.methods.settings.hyfem import MemberSection


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
