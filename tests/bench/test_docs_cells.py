"""Figures in tables of the docs stand in the record that the table names.

    <!-- figures psi.jsonl -->      before a table: files of benchmarks/results

Tables that ``dovetail bench`` and other scripts write are compared whole
(``test_docs_figures.py``, ``test_attacks_figures.py``); here each figure of all others is looked
up, rounded as it is printed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"

#: Between these, a script writes a table from its record, and another test compares it.
WRITTEN = re.compile(
    r"<!-- (bench [\w-]+|worth|attacks|cost|few shared|pictures|sets) -->\n.*?<!-- /\1 -->",
    re.DOTALL,
)

SOURCE = re.compile(r"<!-- figures ([\w./ -]+) -->")

#: A figure with a point in it; whole numbers may be anything.
FIGURE = re.compile(r"(?<![\w.-])\d[\d,]*\.\d+(?![\w.])")

#: Pages whose tables without a source are compared by tests of their own.
ELSEWHERE = {"README.md": "api/test_newcomer.py", "papers.md": "test_papers.py"}

#: Before a table of what was computed from measured figures, and says so.
PLANNED = "<!-- planned -->"

#: Rows that are a paper's, or computed from those above.
NOT_RUN = ("| paper", "| mean of")


@dataclass(frozen=True)
class Table:
    """A table of a page: where it begins, the records that it names, its lines."""

    page: str
    line: int
    sources: tuple[str, ...]
    rows: tuple[str, ...]

    def figures(self) -> list[str]:
        """As printed, but for papers' and for differences of two others of a row."""
        return [
            figure for row in self.rows if not row.startswith(NOT_RUN) for figure in _measured(row)
        ]


def _measured(row: str) -> list[str]:
    found = FIGURE.findall(row)
    values = [float(each.replace(",", "")) for each in found]
    signed = set(re.findall(r"[+-](\d+\.\d+)", row))
    differences = [abs(one - other) for one in values for other in values]
    return [
        figure
        for figure, value in zip(found, values, strict=True)
        if figure not in signed or all(abs(value - each) > 0.11 for each in differences)
    ]


def tables() -> Iterator[Table]:
    """Tables of figures; those of keys have none that are measured."""
    for page in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((RESULTS / "bench").glob("*.md")),
    ):
        text = page.read_text(encoding="utf-8")
        text = WRITTEN.sub(lambda found: "\n" * found[0].count("\n"), text)
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if not line.startswith("|") or lines[number - 1].startswith("|"):
                continue
            rows = []
            while number + len(rows) < len(lines) and lines[number + len(rows)].startswith("|"):
                rows.append(lines[number + len(rows)])
            before = next((each for each in lines[number - 1 :: -1] if each.strip()), "")
            named = SOURCE.fullmatch(before.strip())
            sources = tuple(named[1].split()) if named else ()
            table = Table(page.name, number + 1, sources, tuple(rows))
            if before.strip() == PLANNED:
                continue
            if sources or (len(table.figures()) >= 3 and "default" not in rows[0]):
                yield table


def numbers(record: Any) -> Iterator[float]:
    """Every number in a record, also in its texts."""
    if isinstance(record, str):
        for text in re.findall(r"\d[\d,]*\.?\d*", record):
            yield float(text.replace(",", ""))
    elif isinstance(record, dict):
        for each in record.values():
            yield from numbers(each)
    elif isinstance(record, list):
        for each in record:
            yield from numbers(each)
    elif isinstance(record, int | float):
        yield abs(float(record))


@cache
def known(source: str) -> frozenset[str]:
    """Numbers of a record as a page may print them: rounded, and as shares in per cent."""
    path = RESULTS / source
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        found = list(numbers(text))
    else:
        lines = [text] if path.suffix == ".json" else text.splitlines()
        found = [number for line in lines for number in numbers(json.loads(line))]
    return frozenset(
        f"{scale * number + epsilon:.{digits}f}"
        for number in found
        for epsilon in (1e-9, -1e-9)  # a half goes either way
        for scale in (1, 100)
        for digits in range(1, 6)
    )


@pytest.mark.parametrize(
    "table",
    [each for each in tables() if each.sources],
    ids=lambda each: f"{each.page}-{each.line}",
)
def test_each_figure_of_a_table_is_in_the_record_that_it_names(table: Table) -> None:
    figures = [each.replace(",", "") for each in table.figures()]
    assert figures
    there = frozenset().union(*map(known, table.sources))
    assert [each for each in figures if each not in there] == []


def test_every_table_of_figures_names_its_record() -> None:
    without = [table for table in tables() if not table.sources and table.page not in ELSEWHERE]
    assert [f"{table.page}, line {table.line}" for table in without] == []
    for page, test in ELSEWHERE.items():
        assert page in (ROOT / "tests" / test).read_text(encoding="utf-8")


def test_a_figure_that_no_record_has_is_found() -> None:
    assert "16510.0" not in known("psi.jsonl")
    assert known("psi.jsonl")
