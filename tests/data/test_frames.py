"""A DataFrame is read as the same table in a Parquet file is, whichever library made it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dovetail import data
from dovetail.data.frames import table_from_frame
from dovetail.errors import DataError

ROWS: dict[str, list[Any]] = {
    "whole": [1, 2, 3],
    "holes": [4, None, 6],
    "real": [0.5, float("nan"), 2.5],
    "text": [" a", None, "?"],
    "truth": [True, False, True],
    "day": [dt.date(1970, 1, 2), None, dt.date(1969, 12, 31)],
    "time": [dt.datetime(1970, 1, 1, 12), dt.datetime(1970, 1, 2), None],
}
FRAMES = {
    "pandas": lambda: pd.DataFrame(ROWS),
    "pandas, nullable": lambda: pd.DataFrame(ROWS).convert_dtypes(),
    "polars": lambda: pl.DataFrame(ROWS),
    "polars, lazy": lambda: pl.LazyFrame(ROWS),
    "pyarrow": lambda: pa.table(ROWS),
}


@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)
def test_a_frame_reads_as_the_same_parquet_file(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pl.DataFrame(ROWS).write_parquet(path)
    of_file, of_frame = data.read_table(path), table_from_frame(make())
    assert of_frame.names == of_file.names
    for name in of_file.names:
        expected, got = of_file.column(name), of_frame.column(name)
        np.testing.assert_array_equal(got.missing, expected.missing, err_msg=name)
        present = ~got.missing  # pandas itself makes whole numbers with holes real
        np.testing.assert_array_equal(got.values[present], expected.values[present], err_msg=name)
        assert got.is_text == expected.is_text, name


def test_pandas_na_is_missing_in_a_column_of_objects() -> None:
    truth = pd.Series([True, pd.NA, False, None], dtype=object)
    column = table_from_frame(pd.DataFrame({"truth": truth})).column("truth")
    assert column.values.tolist() == ["true", "", "false", ""]
    assert column.missing.tolist() == [False, True, False, True]


def test_categories_are_text_and_a_time_zone_is_taken_off() -> None:
    frame = pd.DataFrame(
        {
            "kind": pd.Categorical(["b", "a", None]),
            "at": pd.to_datetime(["1970-01-02"] * 3).tz_localize("Etc/GMT-6"),
        }
    )
    table = table_from_frame(frame)
    assert table.column("kind").values.tolist() == ["b", "a", ""]
    assert table.column("at").values.tolist() == [0.75] * 3  # six hours before it is midnight here


def test_what_is_done_to_a_frame_later_does_not_change_the_table() -> None:
    frame = pd.DataFrame({"x": [1, 2, 3]})
    table = table_from_frame(frame)
    frame.loc[0, "x"] = 100
    frame["y"] = 0
    assert table.column("x").values.tolist() == [1, 2, 3]


def test_a_data_set_is_loaded_from_frames() -> None:
    frame = pl.DataFrame({"id": [3, 1, 2], "x": [1.0, 2.0, 3.0], "y": ["a", "b", "a"]})
    train, test = data.load(frame, label="y", id="id", test_source=frame.head(1))
    assert test is not None
    assert train.ids.tolist() == [3, 1, 2]
    assert test.labels.values.tolist() == ["a"]


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (42, "expected a path, a SELECT or a DataFrame of pandas, polars or pyarrow, got int"),
        (np.ones((2, 2)), "got numpy.ndarray"),
        (pd.DataFrame({"a": []}), "the DataFrame has no rows"),
        (pd.DataFrame([[1, 2]], columns=["a", "A"]), "more than one column 'A'"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "cannot read the DataFrame"),
        (pd.DataFrame([[1, 2]], columns=[1, "1"]), "two columns of one name"),
    ],
)
def test_what_is_no_table_is_told_in_a_sentence(frame: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        table_from_frame(frame)


def test_a_column_of_lists_is_told_when_it_is_used() -> None:
    table = table_from_frame(pl.DataFrame({"a": [[1], [2]], "b": [1, 2]}))
    assert table.column("b").values.tolist() == [1, 2]
    with pytest.raises(DataError, match=r"column 'a' of the DataFrame has the type List\(Int64\)"):
        table.column("a")
    mixed = table_from_frame(pd.DataFrame({"a": [{}, "x"]}))
    with pytest.raises(DataError, match="has the type dict, which is neither number"):
        mixed.column("a")


def test_the_name_of_an_index_is_told() -> None:
    frame = pd.DataFrame({"x": [1]}, index=pd.Index(["p1"], name="patient"))
    with pytest.raises(DataError, match=r"whose index it is; give df.reset_index\(\)"):
        table_from_frame(frame).column("patient")
