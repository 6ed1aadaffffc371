"""Partitions of a table into parties' raw rows: drawn at random, or named in a column.

CHFL's split gives some columns to every party, the others to one each, and splits the rows. A
column may name each row's party: hospitals, branches, countries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from dovetail.data.agreed import agree, common_first, fit_rest, summarise
from dovetail.data.correlated import Correlation, common_columns
from dovetail.data.datasets import Dataset, draw_rows
from dovetail.data.kinds import Column
from dovetail.data.partitions import Partitioned, checked_names, task_of, tested_labels
from dovetail.data.party import Federation, PartyData
from dovetail.data.preprocessing import TableEncoder
from dovetail.data.tables import Table
from dovetail.data.task import Classification, Task
from dovetail.errors import ConfigError, DataError
from dovetail.settings.labels import Kind

#: What a party's table is called in its model.
BLOCK = "columns"

#: What it says of images.
_DEALS = "common_unique splits tables"


@dataclass(frozen=True, eq=False)
class CommonUnique(Partitioned):
    """A simulated federation whose parties share some columns and no rows, which are raw.

    Attributes:
        validation: the parties' rows that hyper-parameters are chosen on; None: there are none.
        common: names of the columns that all parties have.
        unique: party -> names of the columns that it alone has.
        categorical, max_categories: see ``TableEncoder.fit``.
        common_features: of ``encoded``: what the common columns become, the first of every party's.
    """

    validation: Federation | None
    common: tuple[str, ...]
    unique: Mapping[str, tuple[str, ...]]
    categorical: tuple[str, ...] = ()
    max_categories: int = 100
    common_features: tuple[str, ...] = ()

    def encoded(self) -> CommonUnique:
        """All parts encoded by training rows: common columns by all parties', others by each's."""
        tables = {name: party_data.tables[BLOCK] for name, party_data in self.train.parties.items()}
        agreed = agree(
            {
                party: summarise(table, self.common, categorical=self.categorical, party=party)
                for party, table in tables.items()
            },
            max_categories=self.max_categories,
        )
        inputs: dict[str, TableEncoder] = {}
        for party, table in tables.items():
            party_data = fit_rest(
                table, self.common, self.categorical, self.max_categories, party=party
            )
            inputs[party] = common_first(agreed.on_site(table), party_data, party=party)

        def encode(part: Federation) -> Federation:
            return Federation(
                replace(
                    party_data,
                    blocks={
                        BLOCK: inputs[name].transform(party_data.tables[BLOCK], allow_unseen=True)
                    },
                    tables={},
                )
                for name, party_data in part.parties.items()
            )

        return replace(
            self,
            train=encode(self.train),
            test=None if self.test is None else encode(self.test),
            validation=None if self.validation is None else encode(self.validation),
            inputs=MappingProxyType(inputs),
            common_features=agreed.feature_names,
        )


def raw_parts(
    dataset: Dataset,
    labels: Tensor,
    rows_of: Mapping[str, np.ndarray],
    columns: Mapping[str, Sequence[str]],
) -> Federation:
    """Parties with these rows and columns of a table, as it has them."""
    table = dataset.table("common_unique and by-column split tables")
    return Federation(
        PartyData(
            party,
            dataset.ids[rows],
            labels=labels[torch.from_numpy(rows)],
            label=dataset.label,
            tables={BLOCK: table.only(columns[party]).take(rows)},
        )
        for party, rows in rows_of.items()
    )


def common_unique(
    train: Dataset,
    test: Dataset | None,
    *,
    parties: int | Sequence[str],
    common: float = 0.3,
    correlation: Correlation | None = None,
    validation: float = 0.25,
    seed: int = 0,
    categorical: Sequence[str] = (),
    max_categories: int = 100,
    kind: Kind = "classification",
) -> CommonUnique:
    """A table split as in CHFL's experiments (Mori et al., section V-A3).

    Columns are drawn at random: a share is common to all, the rest is divided into as many parts
    as there are parties. Rows are drawn at random and split evenly, each with its label; the
    parts differ by at most one. Every party has all test rows. The block is called "columns", with
    common ones first.

    Args:
        train, test: tables.
        parties: how many, or their names; "party-1", ... by default.
        common: the share of the columns that all have, in (0, 1]; at least one column.
        correlation: which columns are common, by the sum of their correlations with the others
            (V-B4); None: drawn at random.
        validation: the share of each party's rows that is kept for choosing hyper-parameters, in
            [0, 1); with 20 % of all rows in ``test``, 0.25 makes the paper's 60/20/20.
        seed: 0 or more; which columns and rows go where.
        categorical, max_categories: see ``TableEncoder.fit``.
        kind: of what is predicted.

    Raises:
        ConfigError: fewer than one party, or a share outside its range.
        DataError: no table, fewer rows than parties need, or columns or labels that cannot be
            learned.
    """
    names = checked_names(parties, "party", key="parties")
    if not 0 < common <= 1:
        raise ConfigError(f"common must be a share of the columns in (0, 1], got {common}")
    if not 0 <= validation < 1:
        raise ConfigError(f"validation must be a share of the rows in [0, 1), got {validation}")
    table = train.table(_DEALS)
    if test is not None:
        test.table(_DEALS)
    task, labels = task_of(train, kind=kind)
    named_categories = table.select(categorical)

    rng = np.random.default_rng([seed, 0])
    order = [table.names[index] for index in rng.permutation(len(table.names))]
    num_common = max(1, round(common * len(order)))
    if correlation is not None:
        first = common_columns(table, num_common, correlation, seed=seed)
        order = [*first, *(name for name in order if name not in first)]
    shared = [name for name in table.names if name in order[:num_common]]
    dealt = np.array_split(np.array(order[num_common:], dtype=object), len(names))
    unique = {
        party: tuple(name for name in table.names if name in set(part))
        for party, part in zip(names, dealt, strict=True)
    }
    rows = np.random.default_rng([seed, 1]).permutation(train.num_rows)
    train_rows: dict[str, np.ndarray] = {}
    validation_rows: dict[str, np.ndarray] = {}
    for party, held in zip(names, np.array_split(rows, len(names)), strict=True):
        num_validation = round(validation * len(held))
        validation_rows[party], train_rows[party] = held[:num_validation], held[num_validation:]
        if not len(train_rows[party]) or (validation and not num_validation):
            raise DataError(
                f"{train.num_rows} rows of {train.name} are too few for {len(names)} parties with "
                f"training and validation rows (validation = {validation}); ask for fewer parties"
            )

    columns = {party: (*shared, *unique[party]) for party in names}
    tested = None
    if test is not None:
        rows_of = dict.fromkeys(names, np.arange(test.num_rows))
        tested = raw_parts(test, tested_labels(task, test), rows_of, columns)
    return CommonUnique(
        raw_parts(train, labels, train_rows, columns),
        tested,
        task,
        MappingProxyType({}),
        train.label,
        raw_parts(train, labels, validation_rows, columns) if validation else None,
        tuple(shared),
        MappingProxyType(unique),
        tuple(named_categories),
        max_categories,
    )


#: What it says of images.
_BY_COLUMN = "by-column splits tables"


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
    table = train.table(_BY_COLUMN)
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
        local_tests = {name: _rows_of(test.table(_BY_COLUMN), column, name) for name in names}
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
