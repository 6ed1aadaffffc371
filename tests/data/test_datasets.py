import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from dovetail.data import (
    Column,
    Dataset,
    load,
    split,
    subset,
    table_from_arrays,
    write_table,
)
from dovetail.data.datasets import draw_rows
from dovetail.errors import DataError


@pytest.fixture
def people(tmp_path):
    path = tmp_path / "people.parquet"
    write_table(
        path,
        {
            "who": np.array(["c", "a", "b", "d"]),
            "age": np.array([30, 20, 10, 40]),
            "part": np.array(["train", "test", "train", "val"]),
            "income": np.array([1.0, np.nan, 0.0, 1.0]),
        },
    )
    return path


def numbered(size, num_classes=2):
    values = np.arange(size) % num_classes
    x = table_from_arrays("t", {"a": np.arange(size) * 10})
    return Dataset("t", np.arange(size), x, "y", Column(values, np.zeros(size, dtype=bool)))


def test_breast_cancer_is_a_table_with_a_diagnosis():
    train, test = load("breast-cancer")
    assert test is None
    assert train.label == "diagnosis"
    assert (train.num_rows, len(train.x.names)) == (569, 30)
    assert "mean radius" in train.x.names
    assert train.labels.values.tolist().count("benign") == 357
    assert train.ids.tolist() == list(range(569))


def test_digits_are_pixels_in_a_table_or_in_images():
    (table, _), (images, _) = load("digits"), load("digits-images")
    assert (table.x.names[0], table.x.names[-1], table.label) == ("pixel_0_0", "pixel_7_7", "digit")
    assert images.x.shape == (1797, 1, 8, 8)
    assert images.x.dtype == torch.float32
    assert (images.x.min(), images.x.max()) == (0, 1)
    pixels = table.x.column("pixel_2_5").values
    np.testing.assert_array_equal(images.x[:, 0, 2, 5] * 16, pixels)
    np.testing.assert_array_equal(images.labels.values, table.labels.values)


def test_any_column_of_a_built_in_table_can_be_the_label():
    train, _ = load("breast-cancer", label="mean radius")
    assert "diagnosis" in train.x.names
    assert "mean radius" not in train.x.names


def test_id_and_label_are_not_features(people):
    train, test = load(people, label="income", id="who")
    assert test is None
    assert train.ids.tolist() == ["c", "a", "b", "d"]
    assert train.x.names == ("age", "part")
    assert train.labels.values.dtype == np.int64  # whole numbers, though a gap made them floats
    assert train.labels.missing.tolist() == [False, True, False, False]


def test_a_split_column_says_which_rows_are_the_test_part(people):
    train, test = load(people, label="income", split_column="part")
    assert train.x.names == test.x.names == ("who", "age")
    assert train.ids.tolist() == [0, 2, 3]
    assert test.ids.tolist() == [1]
    assert test.x.column("age").values.tolist() == [20]
    assert train.labels.values.tolist() == [1, 0, 1]


def test_a_second_source_is_the_test_part_and_its_rows_are_numbered_on(people):
    train, test = load(people, label="income", test_source=f"SELECT * FROM '{people}' LIMIT 2")
    assert train.ids.tolist() == [0, 1, 2, 3]
    assert test.ids.tolist() == [4, 5]


def test_image_files_may_bring_their_own_split(tmp_path):
    path = tmp_path / "set.npz"
    x = np.zeros((3, 2, 2), dtype=np.uint8)
    np.savez(path, x_train=x, y_train=np.uint8([0, 1, 1]), x_test=x[:1], y_test=np.uint8([1]))
    train, test = load(path)
    assert train.x.shape == (3, 1, 2, 2)
    assert (train.ids.tolist(), test.ids.tolist()) == ([0, 1, 2], [3])
    assert train.labels.values.dtype == np.int64
    assert train.label == "class"
    other, other_test = load(path, test_source=path)
    assert (other.num_rows, other_test.num_rows) == (3, 1)
    for option in ("id", "split_column"):
        with pytest.raises(
            DataError, match=f"holds images, which have no column 'z'; drop {option}"
        ):
            load(path, **{option: "z"})


def test_names_are_looked_up_below_dovetail_data(people, monkeypatch):
    monkeypatch.setenv("DOVETAIL_DATA", str(people.parent))
    for name in ("people", "people.parquet"):
        assert load(name, label="income")[0].num_rows == 4
    with pytest.raises(DataError, match=r"'persons', nor is it in \$DOVETAIL_DATA .* Built in are"):
        load("persons", label="income")


def test_an_unknown_name_says_how_to_set_dovetail_data(monkeypatch):
    monkeypatch.delenv("DOVETAIL_DATA", raising=False)
    words = (
        "no file 'brest-cancer', and DOVETAIL_DATA is not set; set it to the folder .* Built in "
        "are breast-cancer, digits, digits-images; did you mean 'breast-cancer'?"
    )
    with pytest.raises(DataError, match=words):
        load("brest-cancer")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"people.parquet needs a label: say which column to predict; there are \['who'"),
        ({"label": "incom"}, "no column 'incom' in .*people.parquet; did you mean 'income'"),
        ({"label": "income", "id": "whom"}, "no column 'whom' .* did you mean 'who'"),
        ({"label": "age", "id": "part"}, "column 'part' of .*: 1 of 4 ids are repeated"),
        ({"label": "age", "id": "income"}, "column 'income' .* no id in 1 of 4 rows"),
        ({"label": "age", "id": "age"}, "must be three columns"),
        ({"label": "age", "split_column": "who"}, "column 'who' .* must say 'test' in some rows"),
        ({"label": "age", "split_column": "income"}, "column 'income' .* must say 'test'"),
        ({"label": "age", "split_column": "part", "test_source": "digits"}, "not both"),
    ],
)
def test_columns_that_cannot_play_their_part_are_refused(people, options, words):
    with pytest.raises(DataError, match=words):
        load(people, **options)


def test_fractions_are_no_ids():
    with pytest.raises(DataError, match=r"'a' .* has fractions"):
        load("SELECT 1.5 AS a, 1 AS b, 2 AS c", label="b", id="a")


def test_a_table_of_labels_alone_is_refused():
    with pytest.raises(DataError, match=r"no column besides \['a'\]"):
        load("SELECT 1 AS a", label="a")


@given(
    size=st.integers(12, 40),
    share=st.floats(0.25, 0.75),
    seed=st.integers(0, 9),
    stratify=st.booleans(),
)
def test_a_split_deals_every_row_to_one_part(size, share, seed, stratify):
    pooled = numbered(size)
    train, test = split(pooled, test=share, seed=seed, stratify=stratify)
    assert test.num_rows == math.ceil(size * share)
    assert sorted([*train.ids, *test.ids]) == list(range(size))
    for part in (train, test):
        assert part.num_rows >= 1
        np.testing.assert_array_equal(part.x.column("a").values, part.ids * 10)
        np.testing.assert_array_equal(part.labels.values, part.ids % 2)
        if stratify:
            assert abs(part.labels.values.mean() - 0.5) * part.num_rows <= 1
    again, _ = split(pooled, test=share, seed=seed, stratify=stratify)
    assert again.ids.tolist() == train.ids.tolist()


@pytest.mark.parametrize("stratify", [True, False])
def test_rows_without_a_label_train_and_do_not_test(stratify):
    pooled = numbered(40)
    pooled.labels.missing[12:] = True
    train, test = split(pooled, test=0.25, seed=0, stratify=stratify)
    assert test.num_rows == 3
    assert set(test.ids) < set(range(12))
    assert sorted([*train.ids, *test.ids]) == list(range(40))
    again, _ = split(pooled, test=0.25, seed=0, stratify=stratify)
    assert again.ids.tolist() == train.ids.tolist()


@given(
    classes=st.lists(st.integers(0, 3), min_size=12, max_size=60),
    size=st.one_of(st.floats(0.3, 0.7), st.integers(4, 8)),
    seed=st.integers(0, 9),
    stratify=st.booleans(),
)
def test_rows_are_drawn_as_scikit_learn_draws_them(classes, size, seed, stratify):
    values = np.array([*classes, 0, 0, 1, 1, 2, 2, 3, 3])
    labels = Column(values, np.zeros(len(values), dtype=bool))
    drawn = draw_rows(labels, size, seed=seed, stratify=stratify, whose="rows")
    expected = train_test_split(
        np.arange(len(values)),
        test_size=size,
        random_state=seed,
        stratify=values if stratify else None,
    )
    for ours, theirs in zip(drawn, expected, strict=True):
        assert ours.tolist() == theirs.tolist()


def test_a_split_is_shuffled():
    train, _ = split(numbered(40), test=0.25, seed=0, stratify=False)
    assert train.ids.tolist() != sorted(train.ids)


@pytest.mark.parametrize(
    ("size", "test", "stratify", "words"),
    [
        (10, 0.0, False, "between 0 and 1, got 0.0"),
        (10, 1.0, False, "between 0 and 1, got 1.0"),
        (1, 0.5, False, "cannot split the 1 rows of t"),
        (6, 0.1, True, "cannot split the 6 rows of t by label.* is a number say task"),
    ],
)
def test_a_split_that_cannot_be_made_is_refused(size, test, stratify, words):
    with pytest.raises(DataError, match=words):
        split(numbered(size), test=test, seed=0, stratify=stratify)


@pytest.mark.parametrize("stratify", [True, False])
def test_a_subset_keeps_the_order_of_its_rows(stratify):
    pooled = numbered(30)
    part = subset(pooled, rows=10, seed=1, stratify=stratify)
    assert part.num_rows == 10
    assert part.ids.tolist() == sorted(set(part.ids.tolist()))
    np.testing.assert_array_equal(part.x.column("a").values, part.ids * 10)
    assert part.ids.tolist() == subset(pooled, rows=10, seed=1, stratify=stratify).ids.tolist()
    assert part.ids.tolist() != subset(pooled, rows=10, seed=2, stratify=stratify).ids.tolist()
    assert subset(pooled, rows=30, seed=1, stratify=stratify).num_rows == 30


def test_a_stratified_subset_keeps_the_classes_shares():
    assert subset(numbered(30, 3), rows=9, seed=0, stratify=True).labels.values.sum() == 9


@pytest.mark.parametrize("rows", [0, 31])
def test_a_subset_of_rows_that_are_not_there_is_refused(rows):
    with pytest.raises(DataError, match=f"cannot take {rows} rows of t, which has 30"):
        subset(numbered(30), rows=rows, seed=0, stratify=False)


@pytest.mark.skipif("DOVETAIL_DATA" not in os.environ, reason="DOVETAIL_DATA is not set")
def test_adult_has_its_own_split():
    try:
        train, test = load("adult", label="income", split_column="split")
    except DataError:
        pytest.skip("DOVETAIL_DATA has no adult.parquet")
    assert (train.num_rows, test.num_rows) == (32561, 16281)
    assert len(train.x.names) == 14
    assert set(train.labels.values) == {"<=50K", ">50K"}
    assert train.x.column("occupation").missing.sum() == 1843


@pytest.mark.parametrize("name", ["zzz", "did you mean"])
def test_a_source_like_nothing_built_in_is_offered_nothing(name):
    with pytest.raises(DataError, match=r"Built in are .*digits-images$"):
        load(name)
