"""Every command that a page shows is one that there is, with words that it takes."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from dovetail.cli.main import COMMANDS, app, others

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / "README.md", ROOT / "SECURITY.md"),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "benchmarks" / "results" / "bench").glob("*.md")),
]


def shown(page: Path) -> tuple[list[str], list[str]]:
    """What begins with ``dovetail`` and a command: lines of a page's blocks, and code in its prose.

    A picture, with two machines side by side, is neither.
    """
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
    fenced = re.compile(r"^( *)```\w*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
    lines = [line for _, block in fenced.findall(text) for line in block.splitlines()]
    lines += re.findall(r"^    (?:\$ )?(dovetail .+)$", text, re.MULTILINE)
    prose = re.findall(r"`(dovetail [^`\n]+)`", fenced.sub("", text))
    known = re.compile(
        rf"(?:\$ )?dovetail (?:{'|'.join([*COMMANDS, *others()])})\b(?!.* {{3}}dovetail )"
    )
    whole, parts = (
        [line.strip() for line in each if known.match(line.strip())] for each in (lines, prose)
    )
    return whole, parts


def command_of(line: str) -> tuple[Any, list[str]]:
    """The command of a line, and the words that it is given."""
    words = shlex.split(line.removeprefix("$ "), comments=True)[1:]
    group = typer.main.get_command(app)
    command = group.get_command(
        group.make_context("dovetail", [], resilient_parsing=True), words[0]
    )
    if words[0] == "flare" and len(words) > 1:
        return command.commands[words[1]], words[2:]
    return command, words[1:]


def parse(line: str) -> None:
    """Take the words as the command would; runs nothing."""
    command, words = command_of(line)
    ends = next((at for at, word in enumerate(words) if word in ("&", "&&", "|", ">")), None)
    with contextlib.suppress(typer.Exit):  # of --help
        command.make_context("dovetail", words[:ends])


def check_options(line: str) -> None:
    """Whether the command has the options that are named; its arguments may be left out."""
    command, words = command_of(line)
    known = {option for param in command.params for option in param.opts} | {"--help"}
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in known, f"{line} has no {word}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_are_there(page: Path) -> None:
    wrong = {}
    whole, parts = shown(page)
    for check, lines in ((parse, whole), (check_options, parts)):
        for line in lines:
            try:
                check(line)
            except Exception as error:
                wrong[line] = f"{type(error).__name__}: {error}"
    assert not wrong


def test_the_pages_show_commands() -> None:
    pages = [shown(page) for page in PAGES]
    assert sum(len(whole) for whole, _ in pages) > 60
    assert sum(len(parts) for _, parts in pages) > 30


@pytest.mark.parametrize("line", ["train run.toml --sed 1", "join lab.toml --drivr a", "flare go"])
def test_a_command_that_is_wrong_is_found(line: str) -> None:
    with pytest.raises(Exception, match=r"No such option|[Mm]issing|'go'"):
        parse(f"dovetail {line}")


def test_an_option_that_is_not_there_is_found() -> None:
    with pytest.raises(AssertionError, match="has no --sed"):
        check_options("dovetail train --sed")
