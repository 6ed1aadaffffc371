"""docs/papers.md counts what its tables say, and says nothing else of a point."""

from collections import Counter
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "papers.md"
STATES = ("matched", "short", "other data", "in part", "missing")
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


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    PAGE.write_text(head + BEGIN + counts(text) + END + rest.split(END)[1], encoding="utf-8")
