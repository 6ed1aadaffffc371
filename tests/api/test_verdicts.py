"""``inspect`` says yes to what trains, and no to what does not, on a real table."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

import dovetail as dt
from dovetail.errors import DovetailError

TABLE = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "y"})
TABLE["id"] = [f"P{row}" for row in range(len(TABLE))]
COLUMNS = [name for name in TABLE.columns if name not in ("id", "y")]


def party(name: str, rows: slice, columns: slice | None, *, labels: bool = False) -> dt.Party:
    held = [] if columns is None else COLUMNS[columns]
    table: pd.DataFrame = TABLE.loc[:, ["id", *held, *(["y"] if labels else [])]].iloc[rows]
    return dt.Party(name, table, id="id", label="y" if labels else None)


ALL = slice(None)

FEDERATIONS: dict[str, Callable[[], list[dt.Party]]] = {
    "one label owner with columns": lambda: [
        party("a", ALL, slice(5), labels=True),
        party("b", slice(100, None), slice(5, 15)),
        party("c", slice(400), slice(15, None)),
    ],
    "one label owner without columns": lambda: [
        party("a", slice(300), None, labels=True),
        party("b", slice(100, None), slice(5, 15)),
    ],
    "two label owners and a sample at both": lambda: [
        party("a", slice(350), slice(2), labels=True),
        party("a2", slice(300, None), None, labels=True),
        party("b", ALL, slice(5, 15)),
    ],
    "two of one kind": lambda: [
        party("n", slice(300), slice(15), labels=True),
        party("s", slice(200, None), slice(5, 20), labels=True),
    ],
    "two with the same columns": lambda: [
        party("n", slice(250), ALL, labels=True),
        party("s", slice(250, None), ALL, labels=True),
    ],
}


def trains(method: str, parties: list[dt.Party]) -> bool:
    try:
        dt.fit(method, parties, test=0.25, baselines=[], quiet=True)
    except DovetailError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", FEDERATIONS)
def test_a_verdict_is_yes_if_and_only_if_the_method_trains(name: str) -> None:
    for fit in dt.inspect(FEDERATIONS[name]()).fits:
        if fit.blocks:  # they are to be named first, as it says
            continue
        assert fit.applies == trains(fit.method, FEDERATIONS[name]()), fit.reason
