"""Grid files: cells of a table, each of them a run file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from dovetail.errors import ConfigError
from dovetail.files import cells, grid_cells, read_run, run_name, split_cell

RUNS = Path(__file__).parents[2] / "runs"

#: Run file or cell -> digest of all that it says, recipes too. Tables were once written with one
#: file a cell; these are digests of what those files said, so a run of then is the same run now.
#: Taken anew when users' defaults changed: what the files say besides are the defaults of then. And
#: HyFEM's when each method's rate was chosen apart, CIFAR-100's when all its images were to be had,
#: FedOptimus' Table 1 with the recipe of the printed regime, APFed's by their methods' names.
DIGESTS: dict[str, str] = json.loads(Path(__file__).with_name("run_files.json").read_text())

GRID = """
seeds = [0, 1]
apfed.epochs = 3

[[grid]]
data = ["mnist", "adult"]
parties = [2, 3]

[[grid]]
data = ["digits"]

[cells."mnist-*"]
apfed.batch_size = 8
apfed.epochs = 4

[cells."*-3"]
apfed.epochs = 5
data.rows = 7
"""


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    file = tmp_path / "table.toml"
    file.write_text(GRID)
    return file


@pytest.mark.parametrize("name", DIGESTS)
def test_a_run_that_ships_says_what_its_own_file_said(name: str) -> None:
    text = json.dumps(read_run(RUNS / name), sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == DIGESTS[name]


def test_no_run_that_ships_lacks_its_digest() -> None:
    shipped = set()
    for file in RUNS.glob("*/*.toml"):
        name = file.relative_to(RUNS).as_posix()
        shipped |= {f"{name}:{cell}" for cell in grid_cells(file)} or {name}
    assert shipped == DIGESTS.keys()
    assert len(shipped) == 4 * 5 * 4 + 4 + 10 + 12 + 3 * 7 + 2 + 6 + 7 + 2 + 1 + 2 * 8 + 4


def test_later_tables_are_laid_over_earlier_ones_and_over_what_is_every_cells(grid: Path) -> None:
    def cell(name: str) -> object:
        return read_run(Path(f"{grid}:{name}"))

    every = {"seeds": [0, 1]}
    assert cell("digits") == {**every, "apfed": {"epochs": 3}}
    assert cell("mnist-2") == {**every, "apfed": {"epochs": 4, "batch_size": 8}}
    assert cell("mnist-3") == {
        **every, "apfed": {"epochs": 5, "batch_size": 8}, "data": {"rows": 7},
    }  # fmt: skip
    assert cell("adult-3") == {**every, "apfed": {"epochs": 5}, "data": {"rows": 7}}


def test_a_cell_is_named_behind_its_file(grid: Path) -> None:
    assert split_cell(Path(f"{grid}:mnist-2")) == (grid, "mnist-2")
    assert split_cell(grid) == (grid, "")
    assert run_name(Path(f"{grid}:mnist-2")) == "mnist-2"
    assert run_name(grid) == "table"
    odd = grid.with_name("run:1.toml")  # a file's own name may have a colon
    odd.write_text("seeds = [3]")
    assert read_run(odd) == {"seeds": [3]}
    assert run_name(odd) == "run:1"


def test_without_a_cell_the_cells_are_told(grid: Path) -> None:
    with pytest.raises(ConfigError) as error:
        read_run(grid)
    assert str(error.value) == (
        f"{grid} is a grid of 5 cells; name one, as in {grid}:mnist-2. Its cells: DATA-PARTIES "
        "with data mnist, adult; parties 2, 3. Or DATA with data digits"
    )


@pytest.mark.parametrize(
    ("text", "cell", "message"),
    [
        (GRID, ":mnist-22", "has no cell 'mnist-22'; did you mean 'mnist-2'"),
        ("seeds = [1]", ":mnist-2", "is no grid: it has no cell 'mnist-2'"),
        ('[cells."*"]\nseeds = [1]', "", "without the \\[\\[grid\\]\\]"),
        (GRID + '[cells."minst-*"]\nseeds = [1]', ":mnist-2", "'minst-\\*'.* matches no cell"),
        ('cells."a" = 1\n[[grid]]\ndata = ["a"]', ":a", "cells.'a' is to be a table of keys"),
        ('cells = 1\n[[grid]]\ndata = ["a"]', ":a", "cells is to have tables"),
        ("grid = 3", ":a", "takes axes with names of cells"),
        ("grid = []", ":a", "takes axes with names of cells"),
        ("[[grid]]\ndata = []", ":a", "takes axes with names of cells"),
    ],
)
def test_what_is_no_grid_is_told(tmp_path: Path, text: str, cell: str, message: str) -> None:
    file = tmp_path / "table.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_run(Path(f"{file}{cell}"))


def test_a_name_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="has the cell 'a-b' twice"):
        cells([{"x": ["a"], "y": ["b"]}, {"z": ["a-b"]}], where="here")
