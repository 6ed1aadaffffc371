"""Parties' own tables, aligned before: which rows train and test, and labels that are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch

from dovetail.data.datasets import draw_rows
from dovetail.data.partitions import Partitioned
from dovetail.data.party import Alignment, Federation
from dovetail.data.partytables import PartyTable
from dovetail.data.preprocessing import Input
from dovetail.data.stored import put_away
from dovetail.data.task import fit_task
from dovetail.errors import ConfigError, DataError
from dovetail.settings.labels import Kind


def split_sites(
    tables: Mapping[str, PartyTable],
    owner: str,
    alignment: Alignment,
    *,
    fit: Callable[[PartyTable], Input],
    kind: Kind,
    test: float | None,
    seed: int,
) -> tuple[Partitioned, Alignment, Alignment | None]:
    """Training and test data of all parties, and their alignments.

    The label owner's labelled rows are split; its unlabelled rows all train. Its inputs are fitted
    on training rows; the others, who have no test rows of their own, fit on all of theirs.

    Args:
        tables: party -> its table; parties that are elsewhere are left out.
        owner: the party whose labels are learned.
        alignment: rows by shared sample, of all parties.
        fit: what turns a party's rows into network inputs, fitted on these.
        kind: of what is predicted.
        test: the share of labelled rows that test; None: none.
        seed: of the split.

    Raises:
        DataError: rows that cannot be split, or labels that cannot be learned.
    """
    owner_table = tables[owner]
    assert owner_table.labels is not None
    assert owner_table.label is not None
    if owner_table.labels.missing.all():
        raise DataError(
            f"party {owner!r}: label {owner_table.label!r} has no value in any of its "
            f"{owner_table.num_rows} rows; "
            "rows without one help, but some must have one"
        )
    drawn = _split_rows(owner_table, test, seed, stratify=kind == "classification")
    train_rows, test_rows = (put_away(rows, owner) for rows in drawn)
    del drawn
    train_table = owner_table.take(train_rows)
    assert train_table.labels is not None
    task = fit_task(
        train_table.labels.values,
        train_table.labels.missing,
        kind=kind,
        label=owner_table.label,
    )
    inputs = {name: fit(train_table if name == owner else table) for name, table in tables.items()}
    # Labels that another party may have stay unused.
    others = [table.encoded(inputs[name]) for name, table in tables.items() if name != owner]

    def part(rows: np.ndarray) -> tuple[Federation, Alignment]:
        table = train_table if rows is train_rows else owner_table.take(rows)
        federation = Federation([table.encoded(inputs[owner], task), *others])
        return federation, alignment.restricted(owner, rows, owner_table.num_rows)

    train, train_alignment = part(train_rows)
    tested, test_alignment = part(test_rows) if len(test_rows) else (None, None)
    data = Partitioned(train, tested, task, inputs, owner_table.label)
    return data, train_alignment, test_alignment


def _split_rows(
    table: PartyTable, test: float | None, seed: int, *, stratify: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(N',) training and (N'',) test rows, each in the table's order."""
    rows = np.arange(table.num_rows)
    if test is None:
        return rows, rows[:0]
    assert table.labels is not None
    labelled = rows[~table.labels.missing]
    _, drawn = draw_rows(
        table.labels.take(labelled),
        test,
        seed=seed,
        stratify=stratify,
        whose=f"labelled rows of party {table.name!r} with test = {test}",
    )
    held_out = np.sort(labelled[drawn])
    trains = np.ones(table.num_rows, dtype=bool)
    trains[held_out] = False
    return np.flatnonzero(trains), held_out


def keep_labels(
    partitioned: Partitioned, party: str, num_labels: int, rng: torch.Generator
) -> Partitioned:
    """Data with labels on a random ``num_labels`` of this party's training rows only.

    Raises:
        ConfigError: fewer rows have a label.
    """
    party_data = partitioned.train[party]
    labelled = party_data.labelled_rows()
    if num_labels > len(labelled):
        raise ConfigError(
            f"labels is {num_labels}, but only {len(labelled)} training rows of party {party!r} "
            "have a label; ask for at most so many"
        )
    order = torch.randperm(len(labelled), generator=rng)
    kept = party_data.with_labels_on(labelled[order[:num_labels]].sort().values)
    parties = partitioned.train.parties.values()
    train = Federation(kept if each.name == party else each for each in parties)
    return replace(partitioned, train=train)
