"""Every figure of a table in the docs is the one that benchmarks/results records."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import few_shared, pictures, worth
from benchmarks.tables import TABLES, Cell, Run, grid, lines

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "bench"

#: A table in a page: its name, with its recipe, and its text.
BLOCK = re.compile(r"<!-- bench ([\w-]+) -->\n(.*?)<!-- /bench \1 -->", re.DOTALL)

BLOCKS = {
    name: text
    for page in (*sorted((ROOT / "docs").glob("*.md")), *sorted(RESULTS.glob("*.md")))
    for name, text in BLOCK.findall(page.read_text(encoding="utf-8"))
}


def recorded(name: str, *, relabelled: bool) -> tuple[list[str], list[list[str]]]:
    """The table of this name as its recorded runs make it: names of columns, and rows.

    Args:
        relabelled: with the labels of today; else with those that each run was recorded with.
    """
    tables = [each for each in TABLES.values() if f"{name}-".startswith(f"{each.name}-")]
    table = replace(max(tables, key=lambda each: len(each.name)), more={})  # no run is kept
    known_cells = {cell.name: cell for cell in table.cells}
    scores_of_all = {score: title for cell in table.cells for score, title in cell.scores.items()}
    cells: dict[str, Cell] = {}
    runs = []
    for text in (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        keys = list(line)
        labels = {key: line[key] for key in keys[keys.index("cell") + 1 : keys.index("seed")]}
        known = known_cells.get(line["cell"])
        cell = cells.setdefault(
            line["cell"],
            Cell(name=line["cell"], run=line["run"], labels=labels, scores=scores_of_all)
            if known is None
            else (known if relabelled else replace(known, labels=labels)),
        )
        scores = {score: line[score] for score in cell.scores if score in line}
        runs.append(Run(cell, line["seed"], scores, line["seconds"], Path("nowhere")))
    table = replace(table, cells=tuple(cells.values()))
    return grid(table, lines(table, runs, dict.fromkeys(cells, 1)))


def figures(names: list[str], rows: list[list[str]]) -> dict[tuple[str, ...], dict[str, str]]:
    """What stands before the first figure -> column -> figure."""
    first = next(
        index
        for index, name in enumerate(names)
        if name.endswith("%")
        or name in ("paper %", "here %")
        or (index and _is_number(rows, index))
    )
    return {tuple(row[:first]): dict(zip(names[first:], row[first:], strict=True)) for row in rows}


def _is_number(rows: list[list[str]], index: int) -> bool:
    return all(re.fullmatch(r"|[\d.,]+( ± [\d.]+)?", row[index]) for row in rows) and any(
        "." in row[index] for row in rows
    )


@pytest.mark.parametrize("name", BLOCKS)
def test_figures_in_the_docs_are_those_of_the_record(name: str) -> None:
    printed = [
        [part.strip() for part in line.strip().strip("|").split("|")]
        for line in BLOCKS[name].splitlines()
        if line.startswith("|") and not line.startswith("| ---")
    ]
    shown = figures(printed[0], printed[1:])
    known = figures(*recorded(name, relabelled=True))
    if not shown.keys() <= known.keys():  # its cells have got other labels since
        known |= figures(*recorded(name, relabelled=False))
    wrong, num_compared = [], 0
    for labels, row in shown.items():
        for column, figure in row.items():
            if column == "runs" or "." not in figure or column not in next(iter(known.values())):
                continue
            there = known.get(labels, {}).get(column)
            num_compared += 1
            if there != figure:
                wrong.append((*labels, column, figure, there))
    assert wrong == []
    assert num_compared >= len(shown)


def test_what_sealed_says_of_apfed_s_is_what_its_runs_come_to():
    page = (RESULTS / "sealed.md").read_text(encoding="utf-8")
    cells = worth.cells()
    (shown,) = re.findall(r"<!-- worth -->\n(.*?)<!-- /worth -->", page, re.DOTALL)
    assert shown == worth.table(cells)
    found, text = worth.summary(cells), " ".join(page.split())
    assert f"best local model in {found['above the best local model']} of {len(cells)}, by" in text
    assert f"by {found['mean gain, solo']:.1f} points on average (D: " in text
    assert f"(D: {found['mean gain of D, solo']:.1f})." in text
    assert f"The median gain is {found['median gain, solo']:.1f} points for the solo model" in text
    assert f"and {found['median gain, joint']:.1f} for the joint one; the median share" in text
    assert f"share kept is {found['median share kept, %']:.0f} %." in text
    assert f"level with D's or above in {found['solo level with D or above']} settings" in text
    assert f"the joint one in {found['joint level with D or above']}." in text


@pytest.mark.parametrize(("name", "module"), [("few_shared", few_shared), ("pictures", pictures)])
def test_a_table_of_sealed_is_what_its_benchmark_recorded(name, module):
    page = (RESULTS / "sealed.md").read_text(encoding="utf-8")
    marker = name.replace("_", " ")
    (shown,) = re.findall(rf"<!-- {marker} -->\n(.*?)<!-- /{marker} -->", page, re.DOTALL)
    record = (ROOT / "benchmarks" / "results" / f"{name}.jsonl").read_text(encoding="utf-8")
    assert shown == module.table([json.loads(line) for line in record.splitlines()])
    assert shown.count("\n") > 3
