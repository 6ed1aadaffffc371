"""Which records are older than the code that they time: ``python -m benchmarks --stale``.

A record is a file of ``results/`` that README or a page quotes: by a link, or between ``figures``
comments. What it times is its script and the files of Dovetail that the script reaches: by imports,
those inside functions among them, and by modules that are named in texts, as commands and methods
are. Comments, docstrings, layout and figures in sentences are no code, nor is ``MEASURED: ... =``,
which has figures of a record that a sentence quotes. Records know the day they were made, and newer
ones the commit. ``*_choice`` has what settings were chosen by, which no later code changes.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks import _results

REPOSITORY = Path(__file__).parents[1]

_QUOTED = re.compile(r"results/(\w+)\.(?:md|jsonl?)|<!-- figures ([\w. ]+) -->")
#: In texts: ``dovetail.methods.chfl.plugin:METHOD``, and programs, which import.
_MODULE = re.compile(r"((?:dovetail|benchmarks)(?:\.\w+)+)(?:(?: import |:)(\w+))?")
_SENTENCE = re.compile(r"\w\. [A-Z]")


@dataclass(frozen=True)
class Record:
    """A record that a page quotes.

    Attributes:
        name: of its files in ``results/``, and of its script.
        pages: who quotes it.
        date: the oldest day of its lines, ISO 8601; "" where none is said.
        commit: the version of that day's line; "" where none is said.
        behind: how many commits changed files of what it times since; 0 if their code is the same.
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
    """Paths of what a script times: itself, and the files of Dovetail that it reaches."""
    folder = script.with_suffix("")
    waiting = [*folder.glob("*.py")] if folder.is_dir() else [script]
    reached: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path not in reached:
            reached.add(path)
            waiting += _named(path, repository) if path.suffix == ".py" else []
    found = {str(path.relative_to(repository)) for path in reached}
    if any(
        each.startswith("dovetail/cli/") for each in found
    ):  # whose commands name what they call
        found.add("dovetail")
    return sorted(found)


@cache
def _named(path: Path, repository: Path) -> tuple[Path, ...]:
    """Files that a file's imports and texts name."""
    return tuple(_naming(path, repository))


def _naming(path: Path, repository: Path) -> Iterator[Path]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    whole: dict[str, str] = {}  # name -> the package that it stands for
    notes = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                yield from _file(node.module, each.name, repository)
        elif isinstance(node, ast.Import):
            for each in node.names:
                yield from _file(each.name, "", repository)
                whole[each.asname or each.name] = each.name
        elif isinstance(node, ast.Constant) and id(node) not in notes:
            for module, name in _MODULE.findall(str(node.value)):
                yield from _file(module, name, repository)
    for node in ast.walk(tree):  # ``dt.fit`` of ``import dovetail as dt``
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in whole:
            yield from _file(whole[ast.unparse(node.value)], node.attr, repository)


def _file(module: str, name: str, repository: Path) -> Iterator[Path]:
    """Where a name of a module of this repository stands; a folder if nothing says where in it."""
    if module.partition(".")[0] not in ("dovetail", "benchmarks"):
        return
    path = repository.joinpath(*module.split("."))
    init, stub, inside = path / "__init__.py", path / "__init__.pyi", path / f"{name}.py"
    if path.with_suffix(".py").is_file():
        yield path.with_suffix(".py")
    elif init.is_file():
        yield init
        if inside.is_file():
            yield inside
        elif name and (path / name).is_dir():
            yield from _file(f"{module}.{name}", "", repository)
        elif name and stub.is_file():
            for node in ast.parse(stub.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ImportFrom) and name in _names(node):
                    yield from _file(str(node.module), name, repository)
    elif path.is_dir():
        yield path


def _names(node: ast.ImportFrom) -> list[str]:
    return [each.asname or each.name for each in node.names]


def records(repository: Path = REPOSITORY) -> Iterator[Record]:
    """Every quoted record, and how far the code has gone on since."""
    folder = repository / "benchmarks"
    for name, pages in sorted(quoted(repository).items()):
        date, commit = _made(folder / "results", name)
        script = _results.script(name, folder)
        paths = ["dovetail"] if script is None else timed(script, repository)
        last = ["rev-list", "-1", f"--before={date} 23:59:59", "HEAD"]
        if not _git(repository, "cat-file", "-t", commit or "none"):  # unknown, or another clone's
            commit, known = _git(repository, *last).strip(), commit
        else:
            known = commit
        since = _git(repository, "log", "--format=%h", f"{commit}..HEAD", "--", *paths).split()
        changed = _git(repository, "diff", "--name-only", commit, "HEAD", "--", *paths).splitlines()
        same = name.endswith("_choice") or all(
            _code(repository, commit, path) == _code(repository, "HEAD", path) for path in changed
        )
        yield Record(name, pages, date, known, 0 if same else len(since))


def _git(repository: Path, *words: str) -> str:
    """What git prints; "" if it fails."""
    done = subprocess.run(
        ["git", *words], cwd=repository, capture_output=True, text=True, check=False
    )
    return done.stdout


@cache
def _code(repository: Path, commit: str, path: str) -> str:
    """A file's code at a commit, without comments, docstrings, layout and figures in sentences."""
    text = _git(repository, "show", f"{commit}:{path}")
    if not path.endswith(".py"):
        return text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
        elif isinstance(node, ast.Constant) and _SENTENCE.search(str(node.value)):
            node.value = re.sub(r"\d", "0", str(node.value))  # as inspect quotes a record
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "MEASURED":
            node.value = None
    return ast.dump(tree)


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
    script = _results.script(name)
    return f"python -m benchmarks.{script.stem}" if script else "see the page"


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
