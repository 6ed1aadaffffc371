"""docs/papers.md counts what its tables say, and says nothing else of a point."""

import re
from collections import Counter
from pathlib import Path
from typing import get_args

from benchmarks.tables.registry import TABLES
from dovetail.methods import METHODS
from dovetail.methods.settings.fedoptimus import FedOptimusSection

PAGE = Path(__file__).parent.parent / "docs" / "papers.md"
RESULTS = PAGE.parent.parent / "benchmarks" / "results" / "bench"
STATES = ("matched", "order", "short", "other data", "in part", "missing")
BEGIN, END = "<!-- counts -->\n", "<!-- /counts -->"


def points(page: str) -> dict[str, Counter[str]]:
    """Paper -> how many of its points have each state."""
    papers = page.split("\n## ")[1:]
    return {
        paper.partition("\n")[0].partition(" (")[0]: Counter(
            line.split("|")[2].strip()
            for line in paper.splitlines()
            if line.startswith("| ") and not line.startswith("| point |")
        )
        for paper in papers
    }


def counts(page: str) -> str:
    """The table of counts."""
    lines = [f"| paper | {' | '.join(STATES)} |", "|" + "---|" * (len(STATES) + 1)]
    found = points(page)
    for paper, states in {**found, "all": sum(found.values(), Counter[str]())}.items():
        lines.append(f"| {paper} | {' | '.join(str(states[state]) for state in STATES)} |")
    return "\n" + "\n".join(lines) + "\n\n"


def test_the_page_counts_its_points() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for paper, states in points(page).items():
        assert set(states) <= set(STATES), paper
    inside = page[page.index(BEGIN) + len(BEGIN) : page.index(END)]
    assert inside == counts(page)


#: A figure with a point in it; one with a sign is a difference of two.
FIGURE = re.compile(r"(?<![\w.+-])\d+\.\d+(?![\w.])")


def test_each_figure_is_on_the_page_of_the_methods_results_or_in_the_paper() -> None:
    page = PAGE.read_text(encoding="utf-8")
    printed = PAGE.parent.parent / "benchmarks" / "tables" / "papers.toml"
    in_papers = [100 * float(each) for each in FIGURE.findall(printed.read_text("utf-8"))]
    papers = page.split("\n## ")[1:]
    assert papers
    for paper in papers:
        name = paper.split()[0].lower()
        of_method = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
        there = [float(each) for each in FIGURE.findall(of_method)] + in_papers
        rounded = {f"{value:.{digits}f}" for value in there for digits in (1, 2)}
        rows = [row.split("|") for row in paper.splitlines() if row.startswith("| ")]
        figures = [each for row in rows for each in FIGURE.findall(row[3]) if float(each) >= 1]
        assert figures, name
        assert [each for each in figures if each not in rounded] == [], name


def test_what_the_papers_name_is_there_to_be_run() -> None:
    """Each name of the second table is a variant, a setting or a table."""
    table = PAGE.read_text(encoding="utf-8").partition("how it is run.**")[2].partition("\n## ")[0]
    rows = [row.split("|")[3] for row in table.splitlines() if row.startswith("| ")]
    assert len(rows) > 12
    said = [each for row in rows[1:] for each in re.findall(r"`([^`]+)`", row)]
    names = {name for each in said for name in re.findall(r'"([a-z0-9-]+)"', each)}
    variants = {name for method in METHODS.values() for name in method.variants}
    chosen = get_args(FedOptimusSection.model_fields["variant"].annotation)
    assert names
    assert names - variants - {*chosen} == set()
    tables = {name for each in said for name in re.findall(r"[a-z]+-[a-z0-9-]+", each)} - names
    scripts = re.findall(r"benchmarks\.(\w+)", " ".join(said))
    assert {"apfed-table2", "hyfem-pull"} <= tables
    assert {each for each in tables if each.partition("-")[0] in METHODS} <= {*TABLES}
    assert [
        each for each in scripts if not (PAGE.parents[1] / "benchmarks" / f"{each}.py").exists()
    ] == []


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    PAGE.write_text(head + BEGIN + counts(text) + END + rest.split(END)[1], encoding="utf-8")
