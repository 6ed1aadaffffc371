"""A table that says in a column whose each row is: who has which columns and rows."""

import numpy as np
import pytest

from dovetail.data import Column, Dataset, by_column, table_from_arrays
from dovetail.errors import ConfigError, DataError


def dataset(num_rows=60, first=0):
    rng = np.random.default_rng(first)
    hospital = np.array(["east", "north", "west"], dtype=object)[np.arange(num_rows) % 3]
    age, dose, echo = rng.normal(size=(3, num_rows))
    dose[hospital == "west"] = np.nan  # never measured there
    echo[(hospital != "north") | (rng.random(num_rows) < 0.1)] = np.nan
    columns = {"hospital": hospital, "age": age, "dose": dose, "echo": echo}
    table = table_from_arrays("made", columns)
    labels = Column(np.arange(num_rows) % 2, np.zeros(num_rows, dtype=bool))
    return Dataset("made", np.arange(num_rows) + first, table, "y", labels)


def split(**options):
    settings = {"column": "hospital", "parties": ["east", "north", "west"], **options}
    return by_column(dataset(), dataset(30, first=100), **settings)


def test_a_party_has_its_rows_and_the_columns_it_measured():
    part = split()
    assert part.common == ("age",)
    assert dict(part.unique) == {"east": ("dose",), "north": ("dose", "echo"), "west": ()}
    for index, name in enumerate(("east", "north", "west")):
        held = np.concatenate([part.train[name].ids, part.validation[name].ids])
        assert sorted(held) == list(range(index, 60, 3))
        assert sorted(part.test[name].ids) == list(range(100 + index, 130, 3))
    assert part.train["north"].tables["columns"].names == ("age", "dose", "echo")


def test_blocks_are_columns_that_the_same_parties_have():
    assert dict(split().blocks) == {"common": ("age",), "east-north": ("dose",), "north": ("echo",)}


def test_a_party_may_have_few_rows_with_its_classes_in_their_shares():
    part = split(rows={"north": 8})
    assert (part.train["north"].num_rows, part.validation["north"].num_rows) == (6, 2)
    labels = [*part.train["north"].labels.tolist(), *part.validation["north"].labels.tolist()]
    assert sum(labels) == 4
    assert part.train["east"].num_rows == 15


def test_a_guest_trains_on_nothing_and_tests_every_other_party():
    part = split(guest="west")
    assert list(part.train.parties) == ["east", "north"]
    for name in ("east", "north"):
        assert sorted(part.test[name].ids) == list(range(2, 60, 3))
        assert part.test[name].tables["columns"].names == ("age",)  # what the guest measured
        assert set(part.train[name].tables["columns"].names) == {"age"}


def test_fewer_measured_values_than_asked_are_no_column():
    assert "echo" not in split(measured=1.0).unique["north"]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"parties": ["east", "south"]}, DataError, "no row has 'south' in the column 'hospital'"),
        ({"guest": "south"}, ConfigError, "the guest's among them"),
        ({"rows": {"south": 3}}, ConfigError, "rows names 'south', which trains on nothing"),
        ({"rows": {"east": 300}}, DataError, "'east' has 20 training rows, not 300"),
        ({"columns": ["dose", "echo"]}, DataError, "no column is measured at all of"),
    ],
)
def test_what_cannot_be_dealt_out_says_so(options, error, says):
    with pytest.raises(error, match=says):
        split(**options)
