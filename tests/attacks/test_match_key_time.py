"""What a party does to answer a count by match keys is the same whatever its table holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail.alignment import KeyResponder, MatchFormats, count_by_keys
from dovetail.alignment.curve import Workers
from dovetail.alignment.matchkeys import KeyValues, key_values, match_key
from dovetail.data import table_from_arrays
from dovetail.network import InProcess


def keys_of(names: list[str | None]) -> list[KeyValues]:
    table = table_from_arrays("t", {"name": np.array(names, dtype=object)})
    return [key_values(match_key(["text(name)"]), {"name": table.column("name")}, MatchFormats())]


def test_rows_without_a_key_cost_as_much_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number could be told by the time of one answer (t = 35 of 20 tries with 400 rows)."""
    real, hashed = Workers.hash, []

    def hash_them(self: Workers, ids: Any) -> np.ndarray:
        hashed.append(len(ids))
        return real(self, ids)

    work = {}
    names = [f"Q {index}" for index in range(40)]
    for what, table in {
        "all": [*names],
        "half missing": [name if index % 2 else None for index, name in enumerate(names)],
        "half alike": [name if index % 2 else "Q" for index, name in enumerate(names)],
        "none": [None] * 40,
    }.items():
        shop = KeyResponder("shop", keys_of([*table]))
        asked = keys_of([f"P {index}" for index in range(30)])
        monkeypatch.setattr(Workers, "hash", hash_them)
        hashed.clear()
        (counted,) = count_by_keys(InProcess({"shop": shop}, driver="bank"), asked).values()
        work[what] = [*hashed]
        monkeypatch.undo()
        assert (counted.num_ids, counted.num_shared) == (40, 0)
    assert work["all"]
    assert len({tuple(each) for each in work.values()}) == 1, work
