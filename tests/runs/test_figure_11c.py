"""Who holds what of CIFAR-10 and EuroSAT in twelve blocks is as HyFEM's Figure 11(c) prints it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from dovetail.runs.partitions import Blocks
from dovetail.runs.runfile import load_run

RUNS = Path(__file__).parents[2] / "runs" / "hyfem"
ASSIGNMENT = RUNS / "table-2-cifar10.csv"

#: How many parties hold each block of a class, as the paper's text has the figure: class by class,
#: of each class the dark cells (3 and more) of the column from top to bottom, then, class by class
#: again, the light ones. Which of the twelve blocks a cell is of is lost; their order is not.
DARK = "3333 33433 3333 434343333 33433343 3433334333 3333344 3333 3333434 3333"
LIGHT = "12221222 2212122 12221222 222 1212 22 22212 21222122 21222 22212221"
BLOCKS, CLASSES = range(1, 13), range(1, 11)


def numbers(text: str) -> list[int]:
    pairs = [word.split("-") for word in text.split()]
    return [number for pair in pairs for number in range(int(pair[0]), int(pair[-1]) + 1)]


def held() -> list[tuple[list[int], list[int]]]:
    """Of each party its blocks and classes."""
    lines = [
        line for line in ASSIGNMENT.read_text("utf-8").splitlines() if not line.startswith("#")
    ]
    return [(numbers(row["blocks"]), numbers(row["classes"])) for row in csv.DictReader(lines)]


def equal_cells(column: list[int], dark: list[int], light: list[int]) -> int:
    """The most cells of a column that can be the figure's, each part of which keeps its order."""
    most = {0: 0}  # dark cells so far -> equal cells
    for above, count in enumerate(column):
        following: dict[int, int] = {}
        for used, equal in most.items():
            for after, part, at in ((used + 1, dark, used), (used, light, above - used)):
                if at < len(part):
                    now = equal + (count == part[at])
                    following[after] = max(now, following.get(after, -1))
        most = following
    return most[len(dark)]


def test_a_party_has_what_table_2_says() -> None:
    assert len(held()) == 9
    for blocks, classes in held():
        assert 6 <= len(set(blocks)) <= 8
        assert len(set(classes)) == 5


def test_all_numbers_are_the_figures() -> None:
    parts = [[[int(digit) for digit in word] for word in text.split()] for text in (DARK, LIGHT)]
    assert [len(dark) + len(light) for dark, light in zip(*parts, strict=True)] == [12] * 10
    columns = [
        [sum(block in blocks and each in classes for blocks, classes in held()) for block in BLOCKS]
        for each in CLASSES
    ]
    assert sum(map(equal_cells, columns, *parts)) == 120


def test_a_number_that_is_not_the_figures_is_seen() -> None:
    assert equal_cells([3, 1, 4], [3, 4], [1]) == 3
    assert equal_cells([3, 2, 4], [3, 4], [1]) == 2
    assert equal_cells([4, 1, 3], [3, 4], [1]) == 1


@pytest.mark.parametrize("cell", ["cifar10-12", "eurosat-12", "eurosat-all-12"])
def test_both_data_sets_are_dealt_as_the_figure_prints(cell: str) -> None:
    run = load_run(RUNS / f"figures.toml:{cell}")
    assert run.data is not None
    partition = run.data.partition
    assert isinstance(partition, Blocks)
    dealt = [share for share in partition.assignment if not isinstance(share, str)]
    shares = [([int(block) for block in each.blocks], list(each.classes)) for each in dealt]
    assert (partition.blocks, shares) == ("quadrants-channels", held())
