import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.data import (
    UNSEEN,
    Classification,
    Regression,
    encode_labels,
    fit_task,
    task_from_json,
)
from dovetail.errors import DataError, ModelError


def none_missing(values):
    return np.zeros(len(values), dtype=bool)


@given(
    labels=st.one_of(
        st.lists(st.integers(-3, 3), min_size=2, max_size=20),
        st.lists(st.sampled_from("abc"), min_size=2, max_size=20),
    ).filter(lambda labels: len(set(labels)) > 1)
)
def test_classes_are_those_of_the_training_rows_in_order(labels):
    values = np.array(labels, dtype=object if isinstance(labels[0], str) else None)
    task = fit_task(values, none_missing(values), kind="classification", label="y")
    assert task == Classification(tuple(sorted(set(labels))))
    assert task.num_outputs == len(set(labels))
    encoded = encode_labels(task, values, none_missing(values), label="y")
    assert [task.classes[index] for index in encoded.tolist()] == labels


def test_a_missing_class_is_marked():
    values = np.array(["b", "", "a"], dtype=object)
    missing = np.array([False, True, False])
    task = fit_task(values, missing, kind="classification", label="y")
    assert task.classes == ("a", "b")
    assert encode_labels(task, values, missing, label="y").tolist() == [1, -1, 0]


def test_regression_labels_are_standardised():
    values = np.array([1.0, 3.0, 0.0])
    missing = np.array([False, False, True])
    task = fit_task(values, missing, kind="regression", label="y")
    assert task == Regression(mean=2.0, scale=1.0)
    assert task.num_outputs == 1
    encoded = encode_labels(task, values, missing, label="y")
    assert encoded[:2].tolist() == [-1, 1]
    assert encoded.isnan().tolist() == [False, False, True]


def test_a_constant_number_has_scale_one():
    values = np.array([4, 4])
    assert fit_task(values, none_missing(values), kind="regression", label="y").scale == 1


@pytest.mark.parametrize(
    "task", [Classification(("a", "b")), Classification((0, 1)), Regression(2, 3)]
)
def test_a_task_survives_json(task):
    assert task_from_json(task.to_json()) == task


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({"kind": "ranking"}, "a kind among classification, .*, got 'ranking'"),
        ({}, "got None"),
        (["classification"], r"got \['classification'\]"),
        (None, "a kind among .*, got None"),
        ({"kind": "classification"}, "classification lacks 'classes'"),
        ({"kind": "classification", "classes": "ab"}, "tuple, got 'ab'"),
        ({"kind": "classification", "classes": []}, r"at least 1 item .*, got \[\]"),
        ({"kind": "classification", "classes": ["a", None]}, r"valid string, got None"),
        ({"kind": "classification", "classes": [0.5, 1]}, r"valid string, got 0\.5"),
        (
            {"kind": "classification", "classes": ["a", "a"]},
            "a class is named once",
        ),
        ({"kind": "regression", "mean": 1.0}, "regression lacks 'scale'"),
        ({"kind": "regression", "mean": "1", "scale": 1}, "mean of .*valid number, got '1'"),
        (
            {"kind": "regression", "mean": float("nan"), "scale": 1},
            "mean of .*, got nan",
        ),
        (
            {"kind": "regression", "mean": 0, "scale": float("inf")},
            "scale of .*, got inf",
        ),
        ({"kind": "regression", "mean": 0, "scale": 0}, "scale of .*greater than 0, got 0"),
        ({"kind": "regression", "mean": True, "scale": 1}, "mean of .*valid number, got True"),
        ({"kind": "regression", "mean": None, "scale": None}, "mean of .*valid number, got None"),
    ],
)
def test_a_stored_task_that_cannot_be_is_refused(stored, words):
    with pytest.raises(ModelError, match=words):
        task_from_json(stored)


@pytest.mark.parametrize(
    ("values", "missing", "regression", "words"),
    [
        ([1, 2], [True, True], False, "label 'y' has no value"),
        ([1, 1], [False, False], False, r"one class only \(1\)"),
        ([1.0, np.inf], [False, False], True, "label 'y' is infinite in 1 of 2 rows"),
        (["a", "b"], [False, False], True, r"is text \('a'\); a regression needs numbers"),
    ],
)
def test_labels_that_cannot_be_learned_are_refused(values, missing, regression, words):
    with pytest.raises(DataError, match=words):
        fit_task(
            np.array(values),
            np.array(missing),
            kind="regression" if regression else "classification",
            label="y",
        )


def test_a_class_that_training_did_not_see_is_refused():
    values = np.array([0, 7])
    with pytest.raises(DataError, match=r"has the class 7, .* known are \[0, 1\]"):
        encode_labels(Classification((0, 1)), values, none_missing(values), label="y")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.array(["", "much"], dtype=object), r"label 'y' is text \('much'\); a regression needs"),
        (np.array([0, -np.inf]), "label 'y' is infinite in 1 of 1 rows"),
    ],
)
def test_a_label_that_is_no_number_is_refused_for_a_regression(values, words):
    missing = np.array([True, False])
    with pytest.raises(DataError, match=words):
        encode_labels(Regression(0.0, 1.0), values, missing, label="y")


def test_a_class_of_rows_that_test_may_be_unseen():
    task = Classification(("a", "b"))
    values = np.array(["b", "c"], dtype=object)
    encoded = encode_labels(task, values, none_missing(values), label="y", unseen=True)
    assert encoded.tolist() == [1, UNSEEN]


def test_false_and_true_are_zero_and_one_of_a_table_that_has_them_so():
    words, numbers = np.array(["true", "false"], dtype=object), np.array([1, 0])
    for task in (Classification(("false", "true")), Classification((0, 1))):
        for values in (words, numbers):
            encoded = encode_labels(task, values, none_missing(values), label="y")
            assert encoded.tolist() == [1, 0]


@pytest.mark.parametrize("values", [np.linspace(0, 1, 50), np.arange(400) * 1000])
def test_numbers_that_are_hardly_classes_are_asked_about(values):
    with pytest.raises(DataError, match='give task = "regression"'):
        fit_task(values, none_missing(values), kind="classification", label="price")


@pytest.mark.parametrize(
    "values", [np.arange(20), np.repeat(np.arange(5) / 2, 20), np.repeat(np.arange(100), 3)]
)
def test_numbers_that_come_again_are_classes(values):
    task = fit_task(values, none_missing(values), kind="classification", label="grade")
    assert isinstance(task, Classification)


def test_whose_label_it_is_stands_before_what_is_wrong_with_it() -> None:
    with pytest.raises(DataError, match=r"^party 'clinic': label 'ill' has one class only"):
        fit_task(np.ones(3), np.zeros(3, bool), kind="classification", label="ill", party="clinic")
