"""Columns that know what came after the day on which a prediction is to be made."""

from __future__ import annotations

import numpy as np

from dovetail.data.partytables import PartyTable
from dovetail.data.tables import Table


def leaks(table: PartyTable) -> list[str]:
    """A sentence for each column of dates that are later than the rows' index date.

    Columns that no model learns from are looked at, too: a query gives the last day that it looked
    at as one, and so shows that its counts end in time. Numbers name no day.
    """
    if table.index_date is None or not isinstance(table.x, Table):
        return []
    index = table.index_date
    sentences = []
    for name in table.x.names:
        column = table.x.column(name)
        if not column.is_date:
            continue
        later = np.greater(
            column.values,
            index.values,
            where=~column.missing & ~index.missing,
            out=np.zeros(table.num_rows, dtype=bool),
        )
        if later.any():
            sentences.append(
                f"party {table.name!r}: {name!r} is after the index date in {later.sum()} of "
                f"{table.num_rows} rows: what was not known then gives the label away; look back "
                "from the index date only"
            )
    return sentences
