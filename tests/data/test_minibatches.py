from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.data import Minibatches, minibatches
from dovetail.errors import ConfigError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@given(num_rows=st.integers(1, 20), batch_size=st.integers(1, 25), seed=st.integers(0, 99))
def test_each_pass_has_every_row_once(num_rows, batch_size, seed):
    rows = torch.arange(num_rows) * 3
    batches = Minibatches(rows, batch_size, generator(seed))
    for _ in range(3):
        one_pass = [next(batches) for _ in range(batches.steps_per_pass)]
        assert all(len(batch) == batch_size for batch in one_pass[:-1])
        assert 1 <= len(one_pass[-1]) <= batch_size
        assert sorted(torch.cat(one_pass).tolist()) == rows.tolist()


def test_passes_differ_in_order():
    batches = Minibatches(torch.arange(50), 50, generator())
    assert next(batches).tolist() != next(batches).tolist()


def test_one_seed_gives_one_order():
    one, two = (Minibatches(torch.arange(50), 7, generator(3)) for _ in range(2))
    assert all(torch.equal(next(one), next(two)) for _ in range(20))


@given(num_taken=st.integers(0, 12), num_rows=st.integers(1, 9), batch_size=st.integers(1, 5))
def test_restored_minibatches_go_on_with_the_very_next_batch(num_taken, num_rows, batch_size):
    rows = torch.arange(num_rows)
    batches = Minibatches(rows, batch_size, generator(1))
    for _ in range(num_taken):
        next(batches)
    state = batches.state()
    expected = [next(batches).tolist() for _ in range(8)]
    resumed = Minibatches(rows, batch_size, generator(2))
    resumed.restore(state)
    assert [next(resumed).tolist() for _ in range(8)] == expected


def test_making_minibatches_draws_nothing_from_the_generator():
    rng = generator()
    before = rng.get_state()
    Minibatches(torch.arange(5), 2, rng)
    assert torch.equal(rng.get_state(), before)


def test_no_rows_are_refused():
    with pytest.raises(ConfigError, match="no rows to draw minibatches from"):
        Minibatches(torch.empty(0, dtype=torch.int64), 2, generator())


def test_a_batch_of_no_rows_is_refused():
    with pytest.raises(ConfigError, match="batch_size must be at least 1, got 0"):
        Minibatches(torch.arange(5), 0, generator())


def test_a_state_over_other_rows_is_refused():
    batches = Minibatches(torch.arange(5), 2, generator())
    next(batches)
    with pytest.raises(ConfigError, match="went over 5 rows, there are 6 now"):
        Minibatches(torch.arange(6), 2, generator()).restore(batches.state())


@given(num_rows=st.integers(9, 40), seed=st.integers(0, 99))
def test_more_rows_than_a_block_come_block_by_block(num_rows, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minibatches, "BLOCK", 8)
        batches = Minibatches(torch.arange(num_rows), num_rows, generator(seed))
        one, two = next(batches).tolist(), next(batches).tolist()
    assert sorted(one) == sorted(two) == list(range(num_rows))
    for order in (one, two):
        blocks = [row // 8 for row in order]
        assert len([1 for left, right in pairwise(blocks) if left != right]) == len(set(blocks)) - 1
