"""Secure aggregation: what cancels, what stays hidden, and what is refused."""

import pytest
import torch

from dovetail.errors import MessageError, TrainingError
from dovetail.privacy import MaskKeys, from_fixed, to_fixed, total


def masked(values):
    """Each party's masked share of one sum."""
    keys = {name: MaskKeys() for name in values}
    publics = {name: key.public for name, key in keys.items()}
    return {
        name: keys[name].mask(name, publics, to_fixed(value, len(values)))
        for name, value in values.items()
    }


@pytest.mark.parametrize("num_parties", [2, 3, 7])
def test_masked_and_plain_sums_are_the_same_numbers(num_parties):
    values = {f"p{index}": torch.randn(50) * 10 for index in range(num_parties)}
    plain = total(to_fixed(value, num_parties) for value in values.values())
    assert torch.equal(total(masked(values).values()), plain)


def test_the_sum_in_fixed_point_is_the_sum():
    values = {"a": torch.tensor([0.5, -3.0]), "b": torch.tensor([0.25, 1.0])}
    assert from_fixed(total(masked(values).values())).tolist() == [0.75, -2.0]


def test_a_share_is_uniform_whatever_its_values():
    share = masked({"a": torch.zeros(20_000), "b": torch.zeros(20_000)})["a"]
    bits = (share[:, None] >> torch.arange(64)) & 1
    # Each of 64 bits is a fair coin: five standard deviations of 20,000 throws are 0.018.
    assert (bits.double().mean(dim=0) - 0.5).abs().max() < 0.018


def test_masks_of_another_attempt_are_others():
    values = {"a": torch.zeros(4), "b": torch.zeros(4)}
    assert not torch.equal(masked(values)["a"], masked(values)["a"])


def test_a_lost_share_leaves_masks_in_the_sum():
    shares = masked({name: torch.zeros(8) for name in "abc"})
    del shares["b"]
    assert total(shares.values()).abs().min() > 2**40


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e9])
def test_values_that_would_overflow_the_sum_are_refused(value):
    with pytest.raises(TrainingError, match=r"finite and below 5.37e.08"):
        to_fixed(torch.tensor([0.0, value]), 2)


def test_the_largest_values_still_add_up():
    largest = torch.tensor([float(2**29 - 64), -float(2**29 - 64)])
    summed = total(masked({"a": largest, "b": largest}).values())
    assert from_fixed(summed).tolist() == (2 * largest).tolist()


def test_a_key_pair_masks_once():
    keys, other = MaskKeys(), MaskKeys()
    publics = {"a": keys.public, "b": other.public}
    keys.mask("a", publics, torch.zeros(2, dtype=torch.int64))
    with pytest.raises(MessageError, match="masks once; ask for new keys"):
        keys.mask("a", publics, torch.zeros(2, dtype=torch.int64))


def test_a_party_does_not_mask_alone_or_under_another_key():
    keys = MaskKeys()
    with pytest.raises(MessageError, match="needs two or more"):
        keys.mask("a", {"a": keys.public}, torch.zeros(1, dtype=torch.int64))
    with pytest.raises(MessageError, match="do not hold the one 'a' gave"):
        keys.mask("a", {"a": MaskKeys().public, "b": bytes(32)}, torch.zeros(1, dtype=torch.int64))


def test_a_key_that_is_no_point_of_the_curve_is_refused():
    keys = MaskKeys()
    with pytest.raises(MessageError, match="the key of party 'b' is no X25519 public key"):
        keys.mask("a", {"a": keys.public, "b": bytes(32)}, torch.zeros(1, dtype=torch.int64))
