"""Columns that give the label away: they are named like it, or say the same of every row.

Such a column makes a model look better than it can be in use. What one process can see of several
parties' tables is compared; a party on another machine is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dovetail.data import Column, Dataset, Table
from dovetail.methods.base import Site
from dovetail.settings.labels import label_columns

#: Fewer labelled rows in common say nothing; of larger tables only the columns' names are compared.
_LEAST_ROWS, _MOST_ROWS = 10, 200_000

#: Most columns differ in so many rows already.
_FIRST_ROWS = 1000

_REMEDY = 'if it is the label, leave it out: columns = ["*", "-{}"]'


def copies_of_sites(sites: Mapping[str, Site]) -> Iterator[str]:
    """A sentence for each column that is named like a label, or equals it."""
    for owner in sites.values():
        if owner.table.labels is None or owner.table.label is None:
            continue
        for partner in sites.values():
            is_other = partner is not owner and partner.table.label is not None
            if is_other or not isinstance(partner.table.x, Table):
                continue
            ours = theirs = np.arange(0)
            if max(owner.table.num_rows, partner.table.num_rows) <= _MOST_ROWS:
                _, ours, theirs = np.intersect1d(
                    owner.table.ids.astype(str), partner.table.ids.astype(str), return_indices=True
                )
            names = [name for names in partner.table.blocks.values() for name in names]
            labels = owner.table.labels.take(ours)
            for text, column in _copies(partner.table.x, names, owner.table.label, labels, theirs):
                yield (
                    f"party {partner.name!r}: its column {column!r} {text} of party "
                    f"{owner.name!r}; {_REMEDY.format(column)}"
                )


def copies_of_table(dataset: Dataset) -> Iterator[str]:
    """A sentence for each column of a table to be split that equals its label."""
    if not isinstance(dataset.x, Table) or dataset.num_rows > _MOST_ROWS:
        return
    names = [name for name in dataset.x.names if name not in dataset.x.index]
    rows = np.arange(dataset.num_rows)
    for text, column in _copies(dataset.x, names, dataset.label, dataset.labels, rows):
        yield f"{dataset.x.description}: its column {column!r} {text}; leave it out of the table"


def _copies(
    table: Table, names: list[str], label: str, labels: Column, rows: np.ndarray
) -> Iterator[tuple[str, str]]:
    """Problems, each with the column; ``rows`` of the table are those of the labels."""
    if labels.values.ndim > 1:
        for part, values in zip(label_columns(label), labels.values.T, strict=True):
            yield from _copies(table, names, part, Column(values, np.isnan(values)), rows)
        return
    for name in names:
        if _plain(name) == _plain(label):
            yield f"is named like the label {label!r}", name
        elif len(rows) >= _LEAST_ROWS and _is_copy(table.column(name).take(rows), labels):
            yield f"equals the label {label!r}", name


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))


def _codes(column: Column) -> np.ndarray:
    """(N,) a number for each value; -1 where it is missing."""
    values = column.values.astype(str) if column.is_text else column.values
    codes = np.unique(values, return_inverse=True)[1].astype(np.int64)
    codes[column.missing] = -1
    return codes


def _is_copy(column: Column, labels: Column) -> bool:
    """Whether it has the labels' numbers, or each value goes with one class and the reverse."""
    both = np.flatnonzero(~column.missing & ~labels.missing)
    if len(both) < _LEAST_ROWS:
        return False
    if len(both) > _FIRST_ROWS and not any(_compared(column, labels, both[:_FIRST_ROWS])[:2]):
        return False
    equal, together, kinds = _compared(column, labels, both)
    # Two columns without repetitions go together whatever they mean.
    return kinds > 1 and (equal or (together and kinds <= len(both) / 2))


def _compared(column: Column, labels: Column, rows: np.ndarray) -> tuple[bool, bool, int]:
    """Whether both have equal numbers in these rows; whether each value goes with one label and
    the reverse; how many labels there are."""
    ours, label = (_codes(each.take(rows)) for each in (column, labels))
    kinds, equal = len(np.unique(label)), False
    if not (column.is_text or labels.is_text):
        equal = np.array_equal(*(each.values[rows].astype(float) for each in (column, labels)))
    together = len(np.unique(ours)) == kinds
    pairs = np.unique(np.stack([ours, label]), axis=1).shape[1] if together else 0
    return equal, pairs == kinds, kinds
