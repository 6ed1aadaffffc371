"""A record that a page quotes is behind by the commits that changed what it times."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.__main__ import quoted, records


def git(repository: Path, *args: str, day: int) -> str:
    date = f"2026-01-{day:02} 12:00:00 +0000"
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_CONFIG_GLOBAL": "/dev/null"}
    env = {**who, "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b", "PATH": "/usr/bin:/bin"}
    dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    done = subprocess.run(
        ["git", *args],
        cwd=repository, env={**env, **dates}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """README quotes speed, which times one of two rooms; a commit a day changes them in turn."""
    files = {
        "README.md": "[fast](benchmarks/results/speed.md)\n",
        "docs/page.md": "<!-- figures speed.jsonl other.jsonl -->\n",
        "benchmarks/speed.py": "from dovetail.fast import run\n",
        "benchmarks/results/other.jsonl": "",
        "dovetail/fast/a.py": "",
        "dovetail/slow/a.py": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(tmp_path, "init", "-q", day=1)
    for day, changed in enumerate(("", "slow", "fast"), 1):
        if changed:
            (tmp_path / "dovetail" / changed / "a.py").write_text(f"x = {day}\n")
        git(tmp_path, "add", ".", day=day)
        git(tmp_path, "commit", "-qm", "c", day=day)
    return tmp_path


def test_pages_that_quote_a_record_are_found(repository: Path) -> None:
    assert quoted(repository) == {"speed": ("README.md", "page.md"), "other": ("page.md",)}


@pytest.mark.parametrize(
    ("made", "behind"),
    [
        ({"date": "2026-01-01"}, 1),
        ({"date": "2026-01-03"}, 0),
        ({"date": "2026-01-03", "commit": "HEAD~2"}, 1),
        ({"date": "2026-01-01", "commit": "HEAD"}, 0),
        ({"date": "2026-01-01", "commit": "0123456789ab"}, 1),  # another clone's: its day counts
    ],
)
def test_a_record_is_behind_by_the_commits_of_what_it_times(
    repository: Path, made: dict[str, str], behind: int
) -> None:
    line = repository / "benchmarks" / "results" / "speed.jsonl"
    line.write_text(json.dumps(made) + "\n")
    speed = next(each for each in records(repository) if each.name == "speed")
    assert (speed.date, speed.behind) == (made["date"], behind)


@pytest.mark.parametrize(
    ("then", "now", "behind"),
    [
        ('x = "Seen 1. So"', 'x = "Seen 2. So"', 0),
        ('x = "It was 2. So"', 'x = "Seen 2. So"', 1),
        ("x = 1", "x = 2", 1),
        ("MEASURED: dict = {1: (2, 4)}", "MEASURED: dict = {1: (3, 4)}", 0),
        ("CHOSEN: dict = {1: (2, 4)}", "CHOSEN: dict = {1: (3, 4)}", 1),
    ],
)
def test_figures_in_sentences_are_no_code(
    repository: Path, then: str, now: str, behind: int
) -> None:
    for day, text in enumerate((then, now), 4):
        (repository / "dovetail" / "fast" / "a.py").write_text(f"{text}\n")
        git(repository, "commit", "-qam", "c", day=day)
    line = repository / "benchmarks" / "results" / "speed.jsonl"
    line.write_text(json.dumps({"date": "2026-01-04", "commit": "HEAD~1"}) + "\n")
    assert {each.name: each.behind for each in records(repository)}["speed"] == behind


def test_what_a_setting_was_chosen_by_stays(repository: Path) -> None:
    made = json.dumps({"date": "2026-01-01"}) + "\n"
    for name in ("other", "other_choice"):
        (repository / "benchmarks" / "results" / f"{name}.jsonl").write_text(made)
    (repository / "README.md").write_text("results/other.jsonl, results/other_choice.jsonl\n")
    assert {each.name: each.behind for each in records(repository) if each.behind} == {"other": 2}
