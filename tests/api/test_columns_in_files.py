"""Columns that lie in a file train the same models, bit for bit, as those in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import dovetail as dt
from dovetail.data import stored

ROWS = 200


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(ROWS, 4)), columns=["a", "b", "c", "d"])
    frame["y"] = np.where(frame["a"] + frame["c"] > 0, "up", "down")
    return frame.assign(id=range(ROWS))


CASES: dict[str, tuple[dt.Method, dt.Partition]] = {
    "apfed": (dt.APFed(), dt.Columns({"one": ["a", "b"], "two": ["c", "d"]})),
    "apfed-c": (
        dt.APFed("contrastive", epochs=2),
        dt.Columns({"one": ["a", "b"], "two": ["c", "d"]}),
    ),
    "chfl": (dt.CHFL(rounds=2, widths=[8]), dt.CommonUnique(2, common=0.5)),
    "hyfem": (
        dt.HyFEM(rounds=2, batch_size=8),
        dt.Blocks(
            {"ab": ["a", "b"], "cd": ["c", "d"]},
            assignment=[
                {"party": "one", "blocks": ["ab"], "classes": [1, 2], "rows": 0.5},
                {"party": "two", "blocks": ["ab", "cd"], "classes": [1, 2], "rows": 0.5},
            ],
        ),
    ),
    "fedoptimus": (
        dt.FedOptimus(rounds=2, batch_size=8),
        dt.Owners({"left": ["a", "b"], "right": ["c", "d"]}, label_owners=2),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_run_of_columns_in_files_gives_the_same_bits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, partition = CASES[name]

    def trained() -> dict[str, Any]:
        simulated = dt.simulate(table(), partition, label="y", id="id")
        run = dt.fit(method, simulated, test=0.2, quiet=True)
        return {
            f"{party}.{key}": weights
            for party, model in run.models.items()
            for key, weights in model.network.state_dict().items()
        }

    files: list[tuple[int, ...]] = []
    made = stored._file

    def counted(shape: tuple[int, ...], party: str, dtype: Any = np.float32) -> np.ndarray:
        files.append(shape)
        return made(shape, party, dtype)

    in_memory = trained()
    monkeypatch.setattr(stored, "_file", counted)
    monkeypatch.setattr(stored, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(stored, "NUMBERS_BYTES", 0)
    in_files = trained()
    assert {len(shape) for shape in files} >= {1, 2}  # row numbers, and columns
    assert in_memory.keys() == in_files.keys()
    for key, weights in in_memory.items():
        assert torch.equal(weights, in_files[key]), key
