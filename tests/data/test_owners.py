"""FedOptimus' partition: who has which columns, strips and labels."""

import numpy as np
import pytest
import torch

from dovetail.data import Column, Dataset, owners, table_from_arrays
from dovetail.errors import ConfigError, DataError

NUM_ROWS = 60


def labels(num_rows):
    return Column(np.arange(num_rows) % 3, np.zeros(num_rows, dtype=bool))


def table(num_rows=NUM_ROWS, *, missing_label=False):
    rng = np.random.default_rng(3)
    arrays = {f"c{i}": rng.normal(i, 1 + i, size=num_rows) for i in range(6)}
    arrays["job"] = np.array(["cook", "nurse"], dtype=object)[rng.integers(0, 2, num_rows)]
    column = labels(num_rows)
    column.missing[0] = missing_label
    return Dataset("made", np.arange(num_rows), table_from_arrays("made", arrays), "y", column)


def images(num_rows=NUM_ROWS, height=7):
    x = torch.arange(num_rows * 2 * height * 3).reshape(num_rows, 2, height, 3) % 251
    return Dataset("pixels", np.arange(num_rows), x.to(torch.uint8), "y", labels(num_rows))


def split(data=table, num_rows=NUM_ROWS, **options):
    settings = {"data_owners": 3, "label_owners": 2, **options}
    return owners(data(num_rows), data(12), **settings)


def test_columns_are_dealt_out_to_data_owners_who_have_all_rows():
    part = split()
    assert part.data_owners == ("data-1", "data-2", "data-3")
    held = [part.inputs[name].columns for name in part.data_owners]
    assert sorted(column for columns in held for column in columns) == sorted(table().x.names)
    assert sorted(map(len, held)) == [2, 2, 3]
    for name in part.data_owners:
        assert list(part.train[name].ids) == list(range(NUM_ROWS))
        assert list(part.test[name].ids) == list(range(12))
        assert part.train[name].labels is None


def test_label_owners_share_no_row_and_have_no_column():
    part = split(num_rows=61)
    assert part.label_owners == ("label-1", "label-2")
    held = [part.train[name] for name in part.label_owners]
    assert sorted(party.num_rows for party in held) == [30, 31]
    assert sorted(np.concatenate([party.ids for party in held])) == list(range(61))
    for party in held:
        assert not party.blocks
        assert torch.equal(party.labels, torch.from_numpy(party.ids % 3))
    assert torch.equal(part.test_labels, torch.arange(12) % 3)


@pytest.mark.parametrize(("axis", "dim"), [("height", 2), ("width", 3)])
def test_strips_side_by_side_are_the_image_less_what_does_not_divide(axis, dim):
    part = split(images, data_owners=3, axis=axis)
    strips = [part.train[name].joined() for name in part.data_owners]
    assert part.axis == dim
    whole = images().x
    size = whole.shape[dim] // 3 * 3
    assert torch.equal(torch.cat(strips, dim=part.axis), whole.narrow(dim, 0, size))


def test_groups_of_columns_may_be_named_and_may_overlap():
    part = split(data_owners={"bank": ["c[0-3]"], "shop": ["c3", "job"]}, label_owners=["tax"])
    assert part.data_owners == ("bank", "shop")
    assert part.label_owners == ("tax",)
    assert list(part.inputs["bank"].columns) == ["c0", "c1", "c2", "c3"]
    assert list(part.inputs["shop"].columns) == ["c3", "job"]


def test_validation_rows_are_a_share_of_each_label_owners():
    part = split(validation=0.2)
    for name, rest in zip(part.label_owners, split().train.parties, strict=False):
        kept, train = part.validation[name], part.train[name]
        assert (kept.num_rows, train.num_rows) == (6, 24)
        whole = split().train[name].ids
        assert sorted([*kept.ids, *train.ids]) == sorted(whole), rest
    assert split().validation is None


def test_a_small_concentration_leaves_label_owners_few_classes():
    def largest(skew):
        held = split(num_rows=3000, skew=skew, seed=1).train
        counts = [held[f"label-{n}"].labels.bincount(minlength=3) for n in (1, 2)]
        assert int(sum(counts).sum()) == 3000
        return max(float(counted.max() / counted.sum()) for counted in counts)

    assert largest(1e4) < 0.36 < 0.5 < largest(0.3)


def test_the_seed_says_who_has_which_rows_and_columns():
    def dealt(seed):
        part = split(seed=seed)
        return [list(party.ids) for party in part.train.parties.values()], [
            list(part.inputs[name].columns) for name in part.inputs
        ]

    assert dealt(1) == dealt(1)
    assert dealt(1)[0] != dealt(2)[0]
    assert dealt(1)[1] != dealt(2)[1]


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (table, {"data_owners": 8}, "has no column of made, which has 7"),
        (images, {"data_owners": 8}, "cannot cut images of height 7 into 8 strips"),
        (table, {"label_owners": 61}, "'label-61' has no row of the 60 of made; ask for fewer"),
        (table, {"label_owners": 30, "skew": 0.01}, "has no row .* ask for a larger skew"),
        (table, {"label_owners": 30, "validation": 0.1}, "has 2 rows, too few for training and"),
    ],
)
def test_more_owners_than_there_is_to_own_are_refused(data, options, words):
    with pytest.raises(DataError, match=words):
        split(data, **options)


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (table, {"data_owners": 0}, "data_owners must be 1 or more"),
        (table, {"label_owners": ["a", "a"]}, "names that differ"),
        (table, {"label_owners": ["data-1"]}, "'data-1' is a data owner and a label owner"),
        (table, {"skew": 0.0}, "a concentration above 0, got 0.0"),
        (table, {"skew": 1.0, "kind": "regression"}, "labels here are of regression"),
        (table, {"validation": 1.0}, r"a share of the rows in \[0, 1\), got 1.0"),
        (images, {"data_owners": {"bank": ["c*"]}}, "no columns to name"),
    ],
)
def test_settings_that_cannot_be_are_refused(data, options, words):
    with pytest.raises(ConfigError, match=words):
        split(data, **options)


def test_a_missing_label_is_refused():
    with pytest.raises(DataError, match="missing in 1 of the 60 rows of made"):
        owners(table(missing_label=True), None, data_owners=2, label_owners=2)
