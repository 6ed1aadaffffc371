"""Secrets in parts: the field's arithmetic, and wrong parts."""

import itertools
import random

import gmpy2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.privacy.masks import PART_BYTES, PRIME, join, joined, split


def test_the_field_is_one_and_holds_a_key():
    assert gmpy2.is_prime(PRIME, 40)
    assert PRIME > 2**256
    assert (PRIME - 1).bit_length() <= 8 * PART_BYTES


@given(st.integers(0, PRIME - 1), st.integers(1, 7), st.data())
def test_any_threshold_of_the_parts_give_the_secret_back(secret, num, data):
    threshold = data.draw(st.integers(1, num))
    parts = dict(enumerate(split(secret, num=num, threshold=threshold), start=1))
    for chosen in itertools.combinations(parts, threshold):
        assert join({x: parts[x] for x in chosen}) == secret
    assert join(parts) == secret


def test_interpolation_is_lagranges_by_hand():
    """f(x) = 7 + 3 x + 5 x^2: f(1) = 15, f(2) = 33, f(4) = 99."""
    assert join({1: 15, 2: 33, 4: 99}) == 7
    assert join({1: 15, 2: 33}) == 2 * 15 - 33 + PRIME  # a line through two of them: -3


def test_one_part_less_fits_every_secret_as_well():
    """To each secret there is one polynomial through the parts held: they tell nothing of it."""
    parts = split(11, num=4, threshold=3)
    held = {1: parts[0], 2: parts[1]}
    for secret in (0, 11, 12, PRIME - 1):
        # f(3) that makes it so: f(0) = 3 f(1) - 3 f(2) + f(3)
        last = (secret - 3 * held[1] + 3 * held[2]) % PRIME
        assert join({**held, 3: last}) == secret


def test_parts_of_one_secret_are_drawn_anew_and_spread_over_the_field():
    drawn = [split(5, num=2, threshold=2)[0] for _ in range(400)]
    assert len(set(drawn)) == 400
    assert 150 < sum(part > PRIME // 2 for part in drawn) < 250


@pytest.mark.parametrize("num_wrong", [0, 1, 2])
def test_a_right_secret_is_found_among_wrong_parts(num_wrong):
    secret = random.Random(0).getrandbits(256)
    parts = dict(enumerate(split(secret, num=7, threshold=5), start=1))
    for x in range(1, num_wrong + 1):
        parts[x] = (parts[x] + 1) % PRIME
    assert joined(parts, 5, lambda value: value == secret) == secret


def test_too_many_wrong_parts_or_too_few_give_none():
    parts = dict(enumerate(split(99, num=7, threshold=5), start=1))
    wrong = {x: part if x > 3 else part + 10**x for x, part in parts.items()}
    assert joined(wrong, 5, lambda value: value == 99) is None
    few = {x: parts[x] for x in (1, 2, 3, 4)}
    assert joined(few, 5, lambda value: value == 99) is None


@pytest.mark.parametrize(("num", "threshold"), [(3, 0), (3, 4)])
def test_a_threshold_that_no_number_meets_is_refused(num, threshold):
    with pytest.raises(ValueError, match="between 1 and the 3 parts"):
        split(1, num=num, threshold=threshold)
    with pytest.raises(ValueError, match="numbered from 1"):
        join({0: 1})
