"""Columns encoded alike at several parties: summaries combine into what pooling would give."""

import numpy as np
import pytest
import torch

from dovetail.data import (
    TableEncoder,
    agree,
    common_first,
    read_table,
    summarise,
    table_from_arrays,
)
from dovetail.data.preprocessing import Encode
from dovetail.errors import DataError
from dovetail.settings.encode import Asked

AGE = np.array([20.0, 35.0, np.nan, 50.0, 51.0, 80.0])
JOB = np.array(["cook", "cook", None, "smith", "nurse", "cook"], dtype=object)
CODE = np.array([3.0, 1.0, 1.0, 2.0, np.nan, 3.0])


def table(rows):
    return table_from_arrays("t", {"age": AGE[rows], "job": JOB[rows], "code": CODE[rows]})


def agreed(*parts, **options):
    names = ("age", "job", "code")
    return agree(
        {
            f"p{k}": summarise(table(rows), names, categorical=("code",), party=f"p{k}")
            for k, rows in enumerate(parts)
        },
        **options,
    )


@pytest.mark.parametrize(
    "parts", [([0, 1, 2], [3, 4, 5]), ([5], [0, 1, 2, 3, 4]), ([2], [0, 1], [3, 4, 5])]
)
def test_summaries_of_parts_agree_on_what_the_whole_says(parts):
    whole, apart = (encoder.to_json()["columns"] for encoder in (agreed(range(6)), agreed(*parts)))
    assert apart[1:] == whole[1:]
    assert apart[0] == pytest.approx(whole[0])


def test_numbers_are_standardised_by_their_values_and_missing_ones_take_the_mean():
    age = agreed([0, 1, 2], [3, 4, 5]).to_json()["columns"][0]
    values = AGE[~np.isnan(AGE)]
    assert age["mean"] == pytest.approx(values.mean())
    assert age["scale"] == pytest.approx(values.std())
    assert age["median"] == age["mean"]
    assert age["flag"]


def test_categories_are_those_of_all_parties():
    features = agreed([0, 1], [2, 3, 4, 5]).feature_names
    assert features[2:] == (
        "job = cook",
        "job = nurse",
        "job = smith",
        "job is missing",
        "code = 1",
        "code = 2",
        "code = 3",
        "code is missing",
    )


def test_the_most_frequent_categories_of_all_parties_are_kept():
    features = agreed([0, 1, 3], [3, 4, 5], max_categories=2).feature_names
    assert features[1:4] == ("job = cook", "job = smith", "job is another")


def test_a_constant_column_becomes_zeros():
    constant = table_from_arrays("t", {"x": np.full(7, 0.1)})
    encoder = agree({name: summarise(constant, ["x"], party=name) for name in "abc"})
    assert encoder.transform(constant).abs().max() < 1e-6


def test_own_columns_follow_the_agreed_ones():
    private = TableEncoder.fit(table_from_arrays("t", {"x": np.arange(3.0)}), ["x"], party="a")
    encoder = common_first(agreed(range(6)), private, party="a")
    assert encoder.columns == ("age", "job", "code", "x")
    assert common_first(agreed(range(6)), None, party="a").columns == ("age", "job", "code")


def test_numbers_at_one_party_and_categories_at_another_are_refused():
    other = table_from_arrays("t", {"age": np.array(["old"], dtype=object)})
    summaries = {
        "a": summarise(table([0, 1]), ["age"], party="a"),
        "b": summarise(other, ["age"], party="b"),
    }
    with pytest.raises(DataError, match="'age' has numbers at party 'a' but categories at party"):
        agree(summaries)


def test_a_column_that_nobody_has_a_value_of_is_refused():
    empty = table_from_arrays("t", {"x": np.array([np.nan, np.nan])})
    with pytest.raises(DataError, match="'x' has no value at any party"):
        agree({name: summarise(empty, ["x"], party=name) for name in "ab"})


def test_infinite_values_are_refused_and_named():
    wrong = table_from_arrays("t", {"x": np.array([1.0, np.inf])})
    with pytest.raises(DataError, match="party 'a': column 'x' of t has infinite or too large"):
        summarise(wrong, ["x"], party="a")


def test_the_kinds_are_agreed_and_a_format_is_each_partys_own(tmp_path):
    (tmp_path / "a.csv").write_text("seen,x\n2020-05-21,1\n2020-05-23,2\n")
    (tmp_path / "b.csv").write_text("seen,x\n05/21/2020,1\n05/23/2020,2\n")
    (tmp_path / "c.csv").write_text("seen,x\n18403,1\n18405,2\n")
    names = ("seen", "x")
    form = Asked({"seen": Encode(kind="date", format="%m/%d/%Y")})
    tables = {name: read_table(tmp_path / f"{name}.csv") for name in "abc"}
    tables["b"] = tables["b"].asking(form)
    summaries = {name: summarise(each, names, party=name) for name, each in tables.items()}
    server = agree({name: summaries[name] for name in "ab"})
    assert {name: each.kind for name, each in server.schema.items()} == {
        "seen": "date",
        "x": "number",
    }
    sent = TableEncoder.from_json(server.to_json())
    assert torch.equal(
        sent.transform(tables["a"]), sent.on_site(tables["b"]).transform(tables["b"])
    )
    with pytest.raises(DataError, match=r"'seen' has dates at party 'a' but numbers at party 'c'"):
        agree(summaries)
    with pytest.raises(DataError, match=r"row 0 has '18403', expected a date"):
        sent.transform(tables["c"])
