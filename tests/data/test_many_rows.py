"""Orders and picks that are made a bucket at a time are those that are made at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dovetail.data import Alignment, many_rows, stored

RNG = np.random.default_rng(3)


@pytest.fixture(params=["at once", "in buckets"])
def buckets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether all is done in buckets of few rows, which lie in files."""
    in_buckets = bool(request.param == "in buckets")
    if in_buckets:
        monkeypatch.setattr(many_rows, "BUCKET", 16)
        monkeypatch.setattr(stored, "NUMBERS_BYTES", 0)
    return in_buckets


def kept(values: np.ndarray, buckets: bool) -> np.ndarray:
    away = stored.put_away(values)
    assert stored.in_file(away) is buckets
    return away


@pytest.mark.parametrize("num", [1, 15, 16, 17, 100, 1000])
def test_an_order_has_each_row_once_and_its_inverse_undoes_it(buckets: bool, num: int) -> None:
    order = many_rows.random_order(num)
    assert sorted(order.tolist()) == list(range(num))
    assert (order[many_rows.inverse(order)] == np.arange(num)).all()


def test_orders_of_buckets_are_drawn_equally_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_rows, "BUCKET", 1)
    drawn: dict[tuple[int, ...], int] = {}
    for _ in range(3000):
        order = tuple(many_rows.random_order(3).tolist())
        drawn[order] = drawn.get(order, 0) + 1
    assert len(drawn) == 6
    assert sum(abs(count - 500) ** 2 / 500 for count in drawn.values()) < 30  # 5 d.o.f.: 1e-5


def test_rows_are_picked_put_and_sorted_as_numpy_does(buckets: bool) -> None:
    values = kept(RNG.integers(0, 255, (500, 32), dtype=np.uint8), buckets)
    for num in (3, 200, 5000):
        rows = RNG.integers(0, 500, num)
        assert (many_rows.picked(values, rows) == values[rows]).all()
    numbers = kept(RNG.permutation(900)[:300], buckets)
    order = many_rows.rising(numbers)
    assert numbers[order].tolist() == sorted(numbers.tolist())
    target = stored.zeros((900,), np.int64)
    many_rows.put(target, numbers, np.arange(300))
    assert (target[numbers] == np.arange(300)).all()
    assert not many_rows.repeats(numbers, 900)
    assert many_rows.repeats(np.append(numbers, numbers[7]), 900)


def test_rows_of_a_bucket_rise_and_have_their_values(buckets: bool) -> None:
    values = kept(RNG.integers(0, 8, 200), buckets)
    made = many_rows.in_buckets(values, lambda some: some, 3)
    rows = []
    for number, (of_bucket, theirs) in enumerate(made):
        assert (theirs == number).all()
        assert (np.diff(of_bucket) > 0).all()
        rows += of_bucket.tolist()
    assert (values[rows] == np.sort(values)).all()


def test_a_pile_is_what_came_in_its_order(buckets: bool) -> None:
    pile = stored.Pile(2, np.int64)
    batches = [RNG.integers(0, 9, (size, 2)) for size in (5, 0, 30)]
    for batch in batches:
        pile.append(batch)
    assert len(pile) == 35
    assert (pile.rows() == np.concatenate(batches)).all()
    assert stored.in_file(pile.rows()) is buckets
    pile.clear()
    assert len(pile) == len(pile.rows()) == 0


def test_row_numbers_lie_in_the_folder_of_the_party_that_is_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stored, "NUMBERS_BYTES", 0)
    monkeypatch.setattr(stored, "_FOLDERS", {"bank": tmp_path})
    rows = {"shop": torch.tensor([0, -1]), "bank": torch.tensor([1, 0])}
    alignment = Alignment(rows)
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert sum(str(tmp_path) in line for line in maps) == 2
    assert {name: each.tolist() for name, each in alignment.rows.items()} == {
        "shop": [0, -1],
        "bank": [1, 0],
    }
    again = Alignment(alignment.rows)
    assert again.rows["bank"].data_ptr() == alignment.rows["bank"].data_ptr()  # no second file


MANY = """
import os, sys
import numpy as np
from dovetail.alignment.points import matches
from dovetail.data import many_rows, stored
from pathlib import Path
stored.keep_in("bank", Path(sys.argv[1]))

def memory(what):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) // 2**10 for line in lines if line.startswith(what))

num = 5_000_000
matches(*2 * [np.frombuffer(os.urandom(160), np.uint8).reshape(10, 16)])
before = memory("VmRSS")
sides = [stored.Pile(16, np.uint8, "bank") for _ in range(2)]
for _ in range(num // 500_000):
    both, rest = os.urandom(4_000_000), [os.urandom(4_000_000) for _ in range(2)]
    for side, others in zip(sides, rest):
        side.append(np.frombuffer(both + others, np.uint8).reshape(-1, 16))
mine, theirs = matches(sides[0].rows(), sides[1].rows(), "bank")
assert len(mine) == num // 2 and (mine == theirs).all()
order = many_rows.random_order(num, "bank")
inverse = many_rows.inverse(order, "bank")
assert (many_rows.picked(inverse, order, "bank")[:1000] == np.arange(1000)).all()
print(memory("VmHWM") - before)
"""


@pytest.mark.slow
def test_ten_million_values_are_compared_in_half_of_their_own_memory(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 350  # MiB, 96 of files among them; in memory they were above 800
    assert list(tmp_path.iterdir()) == []
