"""docs/papers.md counts what its tables say, and says nothing else of a point."""

import re
from collections import Counter
from pathlib import Path

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


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    PAGE.write_text(head + BEGIN + counts(text) + END + rest.split(END)[1], encoding="utf-8")
