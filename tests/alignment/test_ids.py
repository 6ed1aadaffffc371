"""Ids as bytes: what is the same id, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.alignment import normalise
from dovetail.errors import AlignmentError


def values(*ids: object, id_as: Any = "text") -> list[bytes]:
    return normalise(ids, party="shop", id_as=id_as).values


def test_an_integer_is_the_string_of_its_digits():
    assert values(42) == values("42") == [b"42"]
    assert values("042", "42") == [b"042", b"42"]


def test_strings_are_composed_made_compatible_and_trimmed():
    assert values("e\u0301", "\u00c5", "ﬁ", "Ａ", "\u3000x y\n") == [
        "é".encode(),
        "Å".encode(),
        b"fi",
        b"A",
        b"x y",
    ]


def test_case_counts_unless_lower_case_is_asked_for():
    assert values("Anna", "anna") == [b"Anna", b"anna"]
    assert values("Anna", id_as="lowercase") == values("aNNA", id_as="lowercase") == [b"anna"]


def test_digits_are_compared_without_zeros_before_them():
    ids = ["00042", "7", "0", "000", " 1 ", "12345678901234567890"]
    expected = [b"42", b"7", b"0", b"1", b"12345678901234567890"]
    assert values(*ids[:3], *ids[4:], id_as="digits") == expected
    assert values(42, "007", id_as="digits") == [b"42", b"7"]
    with pytest.raises(AlignmentError, match=r"1 of 6 .* repeated .* without zeros before digits"):
        values(*ids, id_as="digits")
    for odd in ("42.0", "-42", "4 2", "C42", "4e1", "٣", -42):
        with pytest.raises(AlignmentError, match=r"1 of 2 ids are not digits.*in row 1"):
            values("1", odd, id_as="digits")


@pytest.mark.slow
@given(
    st.text(min_size=1).filter(lambda text: normalised_text(text) is not None),
    st.sampled_from(["text", "lowercase"]),
)
def test_normalising_twice_changes_nothing(text, id_as):
    (once,) = values(text, id_as=id_as)
    assert values(once.decode("utf-8", "surrogatepass"), id_as=id_as) == [once]


def normalised_text(text: str) -> str | None:
    try:
        return values(text)[0].decode("utf-8", "surrogatepass")
    except AlignmentError:
        return None


@given(st.sets(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_integers_of_any_container_are_the_same_ids(numbers):
    ids = list(numbers)
    as_array = normalise(np.array(ids, dtype=np.int64), party="shop")
    as_objects = normalise(np.array(ids, dtype=object), party="shop")
    assert as_array.values == as_objects.values == values(*ids) == [b"%d" % id_ for id_ in ids]


def test_integers_of_any_width_are_the_same_ids():
    for dtype in (np.int8, np.uint8, np.int32, np.uint64):
        assert normalise(np.array([7], dtype=dtype), party="shop").values == [b"7"]
    assert values(2**70) == [b"1180591620717411303424"]


def test_strings_of_any_container_are_the_same_ids():
    for ids in (["ab", "c"], np.array(["ab", "c"]), np.array(["ab", "c"], dtype=object)):
        assert normalise(ids, party="shop").values == [b"ab", b"c"]


def test_two_halves_of_broken_text_stay_distinct():
    assert len(set(values("\ud800", "\udc00"))) == 2


@pytest.mark.parametrize("empty", ["", " \t", "\u3000", None, float("nan"), np.nan])
def test_an_empty_id_is_an_error_that_names_party_and_count(empty):
    with pytest.raises(AlignmentError, match=r"party 'shop': 2 of 4 ids are empty, .* in row 1"):
        values("a", empty, "b", empty)


def test_a_masked_integer_is_an_empty_id():
    ids = np.ma.array([1, 2, 3], mask=[False, True, False])
    with pytest.raises(AlignmentError, match=r"party 'shop': 1 of 3 ids are empty"):
        normalise(ids, party="shop")


def test_repeated_ids_are_an_error_that_names_party_and_count():
    with pytest.raises(AlignmentError, match=r"party 'shop': 2 of 5 ids are repeated after norm"):
        values("a", " a", "b", "ａ", "c")
    with pytest.raises(AlignmentError, match=r"1 of 2 ids are repeated .* lower case\)"):
        values("a", "A", id_as="lowercase")


@pytest.mark.parametrize("ids", [[1, 2.0, True], np.array([1, 2.0, np.True_], dtype=object)])
def test_ids_of_another_type_are_an_error_that_names_it(ids):
    with pytest.raises(AlignmentError, match=r"2 of 3 ids are neither integers nor strings but "):
        normalise(ids, party="shop")
    with pytest.raises(AlignmentError, match=r"2 of 2 .* but float, the first in row 0; name a"):
        normalise(np.array([1.0, 2.0]), party="shop")


def test_an_error_shows_no_id():
    with pytest.raises(AlignmentError) as refused:
        values("secret-name", "secret-name")
    assert "secret" not in str(refused.value)


def test_ids_of_two_columns_are_an_error():
    with pytest.raises(AlignmentError, match=r"party 'shop': ids must be one column, got .*2, 2"):
        normalise(np.zeros((2, 2), dtype=int), party="shop")
