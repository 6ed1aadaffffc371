"""Which records are older than the code that they time: ``python -m benchmarks --stale``.

A record is a file of ``results/`` that README or a page quotes: by a link, or between ``figures``
comments. What it times is its script and the rooms of Dovetail that the script imports, also in the
programs that it starts. Records know the day they were made, and newer ones the commit.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import _results

REPOSITORY = Path(__file__).parents[1]

_QUOTED = re.compile(r"results/(\w+)\.(?:md|jsonl?)|<!-- figures ([\w. ]+) -->")
_IMPORTED = re.compile(r"(?:from|import) dovetail(?:\.(\w+))?")


@dataclass(frozen=True)
class Record:
    """A record that a page quotes.

    Attributes:
        name: of its files in ``results/``, and of its script.
        pages: who quotes it.
        date: the oldest day of its lines, ISO 8601; "" where none is said.
        commit: the version of that day's line; "" where none is said.
        behind: how many commits changed what it times since.
    """

    name: str
    pages: tuple[str, ...]
    date: str
    commit: str
    behind: int


def quoted(repository: Path = REPOSITORY) -> dict[str, tuple[str, ...]]:
    """Name of a record -> the pages that quote it, README first."""
    pages: dict[str, list[str]] = {}
    folders = (repository / "docs", repository / "benchmarks" / "results" / "bench")
    found = [page for folder in folders for page in sorted(folder.glob("*.md"))]
    for page in (repository / "README.md", *found):
        for linked, listed in _QUOTED.findall(page.read_text(encoding="utf-8")):
            names = [linked] if linked else [each.partition(".")[0] for each in listed.split()]
            for name in names:
                pages.setdefault(name, []).append(page.name)
    return {name: tuple(dict.fromkeys(where)) for name, where in pages.items()}


def timed(script: Path, repository: Path = REPOSITORY) -> list[str]:
    """Paths of what a script times: itself, and the rooms of Dovetail that it imports."""
    if not script.is_file():
        return ["dovetail"]
    rooms = {room for room in _IMPORTED.findall(script.read_text(encoding="utf-8")) if room}
    paths = [repository / "dovetail" / room for room in sorted(rooms)]
    found = [path if path.exists() else path.with_suffix(".py") for path in paths]
    return [str(script), *(str(path) for path in found if path.exists())] if found else ["dovetail"]


def records(repository: Path = REPOSITORY) -> Iterator[Record]:
    """Every quoted record, and how far the code has gone on since."""
    folder = repository / "benchmarks"
    for name, pages in sorted(quoted(repository).items()):
        date, commit = _made(folder / "results", name)
        since = [f"{commit}..HEAD"] if commit else ["HEAD", f"--since={date} 23:59:59"]
        log = ["git", "log", "--format=%h", *since, "--", *timed(folder / f"{name}.py", repository)]
        done = subprocess.run(log, cwd=repository, capture_output=True, text=True, check=False)
        if done.returncode:  # a commit that this clone does not have
            log[3 : log.index("--")] = ["HEAD", f"--since={date} 23:59:59"]
            done = subprocess.run(log, cwd=repository, capture_output=True, text=True, check=True)
        yield Record(name, pages, date, commit, len(done.stdout.split()))


def _made(folder: Path, name: str) -> tuple[str, str]:
    """The oldest day that a record's lines say, and its commit."""
    lines = []
    for path in (folder / f"{name}.jsonl", folder / f"{name}.json"):
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            parts = text.splitlines() if path.suffix == ".jsonl" else [text]
            lines += [json.loads(part) for part in parts]
    about = [line.get("about", line) for line in lines]
    made = [(each["date"], each.get("commit", "")) for each in about if "date" in each]
    return min(made, default=("", ""))


def _command(name: str) -> str:
    script = REPOSITORY / "benchmarks" / name
    there = script.is_dir() or script.with_suffix(".py").is_file()
    return f"python -m benchmarks.{name}" if there else "see the page"


def main() -> int:
    """Print the records; 1 if one that README quotes is older than what it times."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--stale", action="store_true", help="only records older than their code")
    parser.add_argument("--json", action="store_true", help="a JSON line each")
    args = parser.parse_args()
    found = [each for each in records() if each.behind or not args.stale]
    if args.json:
        print(*(json.dumps(vars(each)) for each in found), sep="\n")
    elif found:
        rows = [
            {
                "record": each.name,
                "measured": each.date or "unknown",
                "commits since": each.behind,
                "quoted by": ", ".join(each.pages),
                "again": _command(each.name),
            }
            for each in found
        ]
        print(_results.markdown(rows), end="")
    return int(args.stale and any("README.md" in each.pages for each in found))


if __name__ == "__main__":
    raise SystemExit(main())
