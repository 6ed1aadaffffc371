"""CHFL's partition: who has which columns and rows, and how common columns are encoded."""

import itertools

import numpy as np
import pytest
import torch

from dovetail.data import Column, Dataset, common_unique, correlated, table_from_arrays
from dovetail.errors import ConfigError, DataError


def dataset(num_rows=40, *, missing_label=False):
    rng = np.random.default_rng(3)
    arrays = {f"c{i}": rng.normal(i, 1 + i, size=num_rows) for i in range(9)}
    arrays["job"] = np.array(["cook", "nurse", "smith"], dtype=object)[rng.integers(0, 3, num_rows)]
    labels = np.arange(num_rows) % 2
    missing = np.zeros(num_rows, dtype=bool)
    missing[0] = missing_label
    return Dataset(
        "made", np.arange(num_rows), table_from_arrays("made", arrays), "y", Column(labels, missing)
    )


def split(num_rows=40, **options):
    return common_unique(dataset(num_rows), dataset(12), **{"parties": 3, **options})


def encoded(**options):
    return split(**options).encoded()


def test_a_share_of_the_columns_is_common_and_the_rest_is_dealt_out():
    part = split(common=0.3)
    assert len(part.common) == 3  # of ten
    names = [name for names in part.unique.values() for name in names]
    assert sorted(names) == sorted(set(dataset().x.names) - set(part.common))
    assert sorted(len(names) for names in part.unique.values()) == [2, 2, 3]


def tied(num_columns, seed=0):
    """Number columns that correlate more or less."""
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(60, 4)) @ rng.normal(size=(4, num_columns))
    noisy = mixed + rng.normal(size=mixed.shape) * rng.uniform(0, 4, num_columns)
    columns = {f"c{i:02}": noisy[:, i] for i in range(num_columns)}
    return Dataset(
        "tied",
        np.arange(60),
        table_from_arrays("tied", columns),
        "y",
        Column(np.arange(60) % 2, np.zeros(60, dtype=bool)),
    )


def cross(data, common):
    """By hand: the sum over pairs of a common column and another."""
    columns = {name: data.x.column(name).values for name in data.x.names}
    return sum(
        abs(np.corrcoef(columns[one], columns[other])[0, 1])
        for one in common
        for other in columns
        if other not in common
    )


def test_common_columns_are_those_that_correlate_most_or_least_with_the_others():
    data = tied(8)
    sums = {way: cross(data, way) for way in itertools.combinations(data.x.names, 3)}
    order = sorted(sums, key=sums.get)
    for wanted, way in (
        ("minimum", order[0]),
        ("median", order[len(order) // 2]),
        ("maximum", order[-1]),
    ):
        part = common_unique(data, None, parties=2, common=0.375, correlation=wanted)
        assert part.common == way
        names = [name for names in part.unique.values() for name in names]
        assert sorted((*names, *way)) == sorted(data.x.names)


def test_of_too_many_ways_the_ends_are_bettered_until_no_swap_helps(monkeypatch):
    monkeypatch.setattr(correlated, "MAX_WAYS", 20)
    data = tied(14, seed=1)
    for wanted, sign in (("maximum", 1), ("minimum", -1)):
        common = common_unique(data, None, parties=2, common=0.3, correlation=wanted).common
        best = sign * cross(data, common)
        others = [name for name in data.x.names if name not in common]
        for out, into in itertools.product(common, others):
            swapped = [*(name for name in common if name != out), into]
            assert sign * cross(data, swapped) <= best + 1e-9


def test_a_column_of_texts_has_no_correlation():
    with pytest.raises(DataError, match="column 'job' is no number, and has no correlation"):
        split(correlation="maximum")


def test_rows_are_dealt_out_evenly_and_each_once():
    part = split(num_rows=41)
    held = [
        np.concatenate([part.train[name].ids, part.validation[name].ids])
        for name in part.train.parties
    ]
    assert sorted(len(ids) for ids in held) == [13, 14, 14]
    assert sorted(np.concatenate(held)) == list(range(41))
    assert [party.num_rows for party in part.validation.parties.values()] == [4, 4, 3]


def test_every_party_has_all_test_rows_and_all_labels():
    part = split()
    for name in part.train.parties:
        assert list(part.test[name].ids) == list(range(12))
        for rows in (part.train[name], part.validation[name], part.test[name]):
            assert torch.equal(rows.labels, torch.from_numpy(rows.ids % 2))


def test_common_features_come_first_and_are_encoded_alike():
    part = encoded(common=0.5, seed=1)
    num = len(part.common_features)
    stored = [part.inputs[name].to_json()["columns"] for name in part.inputs]
    for columns in stored:
        for column in columns:
            column.pop("limits", None)  # of each site's own values
        assert columns[: len(part.common)] == stored[0][: len(part.common)]
    for name, encoder in part.inputs.items():
        assert encoder.feature_names[:num] == part.common_features
        assert encoder.columns == (*part.common, *part.unique[name])


def test_common_numbers_are_standardised_over_all_training_rows():
    part = encoded(common=1.0, categorical=())
    pooled = torch.cat([party.joined() for party in part.train.parties.values()])
    numbers = [i for i, name in enumerate(part.common_features) if "=" not in name]
    torch.testing.assert_close(pooled[:, numbers].mean(dim=0), torch.zeros(9), atol=1e-6, rtol=0)
    torch.testing.assert_close(
        pooled[:, numbers].std(dim=0, correction=0), torch.ones(9), atol=1e-5, rtol=0
    )


def test_a_column_of_categories_is_not_split():
    part = encoded(common=1.0)
    assert {f"job = {job}" for job in ("cook", "nurse", "smith")} <= set(part.common_features)


def test_a_seed_says_which_columns_and_rows():
    assert split(seed=1).common == split(seed=1).common
    assert len({split(seed=seed).common for seed in range(5)}) > 1


def test_without_validation_all_rows_train():
    part = split(validation=0.0)
    assert part.validation is None
    assert sum(party.num_rows for party in part.train.parties.values()) == 40


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parties": 0}, "parties must be 1 or more"),
        ({"parties": ["a", "a"]}, "names that differ"),
        ({"common": 0.0}, "common must be a share .* got 0.0"),
        ({"validation": 1.0}, "validation must be a share .* got 1.0"),
    ],
)
def test_shares_and_parties_that_cannot_be_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        split(**options)


def test_more_parties_than_rows_are_refused():
    with pytest.raises(DataError, match="40 rows of made are too few for 30 parties"):
        split(parties=30)


def test_a_row_without_a_label_is_refused():
    with pytest.raises(DataError, match="label 'y' is missing in 1 of the 40 rows"):
        common_unique(dataset(missing_label=True), None, parties=2)
