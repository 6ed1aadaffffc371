"""Data of owners in a simulation: of a partition, and of a baseline with all in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dovetail.data import (
    Owners,
    PartyData,
    SharedRows,
    Survival,
)
from dovetail.data.survival import survival_of
from dovetail.methods.baselines import LocalRows
from dovetail.methods.fedoptimus.local_data import (
    Columns,
    Labels,
    OwnerData,
    Part,
    columns_in,
    labels_in,
)
from dovetail.models.owners import (
    BottomSpec,
)

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
