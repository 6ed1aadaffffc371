"""Columns that a party's file leaves out have no part in CHFL."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from dovetail.methods.chfl.plugin import data_of_site
from dovetail.node.partyfile import open_site


@pytest.mark.parametrize("more", ["", 'categorical = ["ward", "surname"]\n'])
def test_a_column_that_is_left_out_is_neither_offered_nor_read(tmp_path: Path, more: str) -> None:
    """A surname was offered to all, and stood in every party's model."""
    rows = range(40)
    table = {
        "id": rows,
        "surname": [f"Name {row}" for row in rows],
        "age": [20.0 + row for row in rows],
        "ward": ["north", "south"] * 20,
        "sick": ["yes", "no"] * 20,
    }
    pd.DataFrame(table).to_csv(tmp_path / "clinic.csv", index=False)
    (tmp_path / "clinic.toml").write_text(
        '[party]\nname = "clinic"\ntable = "clinic.csv"\nid = "id"\nlabel = "sick"\n'
        f'columns = ["*", "-surname"]\n{more}'
    )
    data = data_of_site(open_site(tmp_path / "clinic.toml"))
    assert data.common == ("age", "ward")
    (block,) = data.train.tables.values()
    assert block.names == ("age", "ward")
