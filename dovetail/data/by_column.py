"""Partition of a table that names each row's party in a column: hospitals, branches, countries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from dovetail.data.common_unique import CommonUnique, raw_parts
from dovetail.data.datasets import Dataset, draw_rows
from dovetail.data.federation import Federation
from dovetail.data.kinds import Column
from dovetail.data.partitions import task_of
from dovetail.data.tables import Table
from dovetail.data.task import Classification, Task
from dovetail.errors import ConfigError, DataError
from dovetail.settings.labels import Kind

#: What it says of images.
_DEALS = "by-column splits tables"


@dataclass(frozen=True, eq=False)
class ByColumn(CommonUnique):
    """A simulated federation whose parties are values of a column.

    Attributes:
        blocks: names of columns that the same parties have, all in groups -> who has them; the
            columns that all have are "common".
    """

    blocks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def by_column(
    train: Dataset,
    test: Dataset | None,
    *,
    column: str,
    parties: Sequence[str],
    columns: Sequence[str] = ("*",),
    measured: float = 0.5,
    rows: Mapping[str, int] | None = None,
    guest: str | None = None,
    validation: float = 0.25,
    seed: int = 0,
    categorical: Sequence[str] = (),
    max_categories: int = 100,
    kind: Kind = "classification",
) -> ByColumn:
    """A table split by what is in one of its columns, rows of other values left out.

    A party has the columns of which a share of ``measured`` or more is there in its training rows:
    what a hospital does not measure is no column of its own. What all parties have is common.

    Args:
        train, test: tables.
        column: says whose a row is; it is no feature.
        parties: its values, which are the parties' names.
        columns: globs of the features; names with "-" before them are left out.
        measured: in (0, 1].
        rows: party -> how many training rows it has, validation rows among them; else all.
        guest: a party that trains on nothing: all of its rows test every other party's model, with
            the columns that it has, too.
        validation: the share of each party's rows that is kept for choosing hyper-parameters.
        seed: 0 or more; which rows are drawn.
        categorical, max_categories: see ``TableEncoder.fit``.
        kind: of what is predicted.

    Raises:
        ConfigError: a share or number of rows outside its range, or a guest that is no party.
        DataError: no table, a party without rows, or columns or labels that cannot be learned.
    """
    if not 0 <= validation < 1 or not 0 < measured <= 1:
        raise ConfigError(
            f"validation must be a share in [0, 1) and measured one in (0, 1], got {validation} "
            f"and {measured}"
        )
    wanted = dict(rows or {})
    names = [name for name in parties if name != guest]
    if (guest is not None and guest not in parties) or len(set(parties)) < len(parties):
        raise ConfigError(f"parties must be names that differ, the guest's among them: {parties}")
    if strangers := [name for name in wanted if name not in names]:
        raise ConfigError(f"rows names {strangers[0]!r}, which trains on nothing here: {names}")
    if not names:
        raise ConfigError("by-column needs a party that trains; name its value in parties")
    table = train.table(_DEALS)
    features = [name for name in table.select(columns) if name != column]
    task, _ = task_of(train, test, kind=kind)
    all_rows = {name: _rows_of(table, column, name) for name in parties}
    seen = {
        name: {
            feature
            for feature in features
            if 1 - float(table.column(feature).missing[held].mean()) >= measured
        }
        for name, held in all_rows.items()
    }
    known = seen[guest] if guest is not None else set(features)
    has = {name: [each for each in features if each in seen[name] & known] for name in names}
    shared = [each for each in features if all(each in columns for columns in has.values())]
    if not shared:
        raise DataError(f"no column is measured at all of {names}; lower measured ({measured})")
    train_rows: dict[str, np.ndarray] = {}
    validation_rows: dict[str, np.ndarray] = {}
    for index, name in enumerate(names):
        held = np.random.default_rng([seed, index]).permutation(all_rows[name])
        if name in wanted and wanted[name] < len(held):
            held = _some(task, train.labels.take(held), held, wanted[name], seed, name)
        elif name in wanted and wanted[name] > len(held):
            raise DataError(f"{name!r} has {len(held)} training rows, not {wanted[name]}")
        num_validation = round(validation * len(held))
        validation_rows[name], train_rows[name] = held[:num_validation], held[num_validation:]
        if not len(train_rows[name]) or (validation and not num_validation):
            raise DataError(f"{len(held)} rows of {name!r} are too few to train and validate on")

    columns_of = {
        name: (*shared, *(each for each in has[name] if each not in shared)) for name in names
    }

    def deal(dataset: Dataset, rows_of: Mapping[str, np.ndarray]) -> Federation:
        labels = dataset.encoded_labels(task, unseen=True)
        return raw_parts(dataset, labels, rows_of, columns_of)

    tested: Federation | None = None
    if guest is not None:
        tested = deal(train, dict.fromkeys(names, all_rows[guest]))
    elif test is not None:
        local_tests = {name: _rows_of(test.table(_DEALS), column, name) for name in names}
        tested = deal(test, local_tests)
    return ByColumn(
        deal(train, train_rows),
        tested,
        task,
        MappingProxyType({}),
        train.label,
        deal(train, validation_rows) if validation else None,
        tuple(shared),
        MappingProxyType({name: each[len(shared) :] for name, each in columns_of.items()}),
        tuple(each for each in table.select(categorical) if each in features),
        max_categories,
        blocks=MappingProxyType(_blocks(has)),
    )


def _blocks(has: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Columns by who has them."""
    holders: dict[str, list[str]] = {}
    for party, columns in has.items():
        for column in columns:
            holders.setdefault(column, []).append(party)
    blocks: dict[str, tuple[str, ...]] = {}
    for column, parties in holders.items():
        name = "common" if len(parties) == len(has) else "-".join(parties)
        blocks[name] = (*blocks.get(name, ()), column)
    return blocks


def _some(
    task: Task, labels: Column, held: np.ndarray, num: int, seed: int, name: str
) -> np.ndarray:
    """So many of a party's rows, its classes' shares kept where that can be, in random order."""
    whose = f"rows of party {name!r}"
    classes = isinstance(task, Classification)
    drawn: np.ndarray = draw_rows(labels, num, seed=seed, stratify=classes, whose=whose)[1]
    return np.asarray(held[drawn])


def _rows_of(table: Table, column: str, party: str) -> np.ndarray:
    holder = table.column(column)
    rows = np.flatnonzero(~holder.missing & (holder.values.astype(str) == party))
    if not len(rows):
        there = sorted(set(holder.values[~holder.missing].astype(str).tolist()))
        raise DataError(f"no row has {party!r} in the column {column!r}; it has {there[:10]}")
    return rows
