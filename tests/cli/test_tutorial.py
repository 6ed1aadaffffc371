"""Every command of docs/tutorial.md runs as it stands there, and prints what stands below it."""

from __future__ import annotations

import csv
import re
import runpy
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"cat > (\S+) <<'END'\n(.*)^END\n", re.DOTALL | re.MULTILINE)


def commands() -> list[tuple[str, str]]:
    """Each ``sh`` block of the page, and the ``text`` block that shows what it prints."""
    blocks = FENCE.findall(PAGE)
    assert {language for language, _ in blocks} == {"sh", "text"}
    commands_shown = [
        (text, after if kind == "text" else "")
        for (language, text), (kind, after) in zip(blocks, [*blocks[1:], ("", "")], strict=True)
        if language == "sh"
    ]
    assert len(commands_shown) == 9
    return commands_shown


def masked(printed: str) -> str:
    """What is printed, but for digits, which differ between machines, and for spaces."""
    return " ".join(re.sub(r"\d+", "0", printed).split())


@pytest.mark.slow
def test_what_the_tutorial_shows_is_what_happens(
    dovetail: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shutil.copy(ROOT / "examples" / "two_tables.py", tmp_path)
    for command, shown in commands():
        if file := FILE.fullmatch(command):
            (tmp_path / file[1]).write_text(file[2])
            continue
        words = shlex.split(command)
        if words[0] == "python":
            monkeypatch.setattr("sys.argv", words[1:])
            runpy.run_path(words[1], run_name="__main__")
            printed = capsys.readouterr().out
        else:
            assert words[0] == "dovetail"
            done = dovetail(*words[1:])
            assert done.code == 0, done.err
            printed = done.out or done.err
        assert masked(printed) == masked(shown), printed
    with (tmp_path / "new-patients.csv").open() as file:
        asked = [row["patient"] for row in csv.DictReader(file)]
    with (tmp_path / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["patient"] for row in rows] == asked
    assert {row["diagnosis"] for row in rows} == {"benign", "malignant"}
