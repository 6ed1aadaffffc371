"""Rows that a model cannot use, each with its reason, so that the others are predicted.

``TableEncoder.transform`` refuses a whole table for one such row; here each is named.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dovetail.data.fitted import UNSEEN_CODE, CategoryColumn, NumberColumn
from dovetail.data.kinds import Column, texts_of
from dovetail.data.preprocessing import TableEncoder
from dovetail.data.tables import Table
from dovetail.data.vectors import VectorColumn


def unusable_rows(
    encoders: Iterable[TableEncoder], table: Table, *, allow_unseen: bool = False
) -> dict[int, str]:
    """Row -> why the encoders refuse it, by its first such column; other rows are not in it.

    Columns that the table lacks are left to ``transform``, which names all of them.
    """
    refused: dict[int, str] = {}
    for encoder in encoders:
        for fitted in encoder.fitted:
            if fitted.name not in table.names:
                continue
            column = encoder.cells(table, fitted.name)
            if isinstance(fitted, NumberColumn):
                found = _numbers(fitted, column)
            elif isinstance(fitted, CategoryColumn) and not (allow_unseen or fitted.other):
                found = _categories(fitted, column)
            elif isinstance(fitted, VectorColumn):
                found = _vectors(fitted, column)
            else:
                continue
            for row, why in found.items():
                refused.setdefault(row, f"column {fitted.name!r}: {why}")
    return dict(sorted(refused.items()))


def _categories(fitted: CategoryColumn, column: Column) -> dict[int, str]:
    rows = np.flatnonzero(fitted.codes(column) == UNSEEN_CODE)
    values = texts_of(column)[rows].tolist()
    return {
        int(row): f"{value!r} was not seen in training"
        for row, value in zip(rows, values, strict=True)
    }


def _vectors(fitted: VectorColumn, column: Column) -> dict[int, str]:
    reasons = ((row, fitted.refuses(text)) for row, text in enumerate(texts_of(column).tolist()))
    return {row: why for row, why in reasons if why is not None}


def _numbers(fitted: NumberColumn, column: Column) -> dict[int, str]:
    expects = column.reading.expects
    found = {row: f"{text!r} is not {expects}" for row, text in column.unfit.items()}
    numbers = np.where(column.missing, np.nan, column.values.astype(np.float64))
    for row in np.flatnonzero(np.isinf(numbers)):
        found[int(row)] = "the value is infinite"
    for row in np.flatnonzero(fitted.too_far(numbers) & np.isfinite(numbers)):
        found[int(row)] = f"{numbers[row]:g} is too far from the training mean {fitted.mean:g}"
    return found
