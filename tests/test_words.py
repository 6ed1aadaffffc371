"""The docs read at once: short sentences, plain words."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def words() -> ModuleType:
    """``.ci/words.py``, which ``make check`` runs."""
    spec = importlib.util.spec_from_file_location("words", ROOT / ".ci" / "words.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["words"] = module
    spec.loader.exec_module(module)
    return module


def test_every_page_keeps_the_rules(words: ModuleType) -> None:
    assert len(words.pages()) > 30
    found = [str(finding) for page in words.pages() for finding in words.findings(page)]
    assert not found


def test_every_docstring_keeps_the_rules(words: ModuleType) -> None:
    assert len(words.modules()) > 300
    found = [str(each) for module in words.modules() for each in words.of_docstrings(module)]
    assert not found


def test_a_docstring_that_is_to_be_rewritten_is_found(words: ModuleType, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    text = '"""Rulers."""\n\n\ndef f():\n    """What comes back.\n\n    Anew.\n    """\n'
    module.write_text(text)
    found = [(each.line, each.why) for each in words.of_docstrings(module)]
    assert found == [
        (1, "'Rulers'; write baseline"),
        (5, "begins with 'What'"),
        (7, "'Anew'; write again"),
    ]


def test_pages_of_reports_and_rooms_keep_the_rules(words: ModuleType, tmp_path: Path) -> None:
    templates = sorted((ROOT / "dovetail").rglob("templates/*.html"))
    assert {each.parts[-3] for each in templates} >= {"report", "room"}
    found = []
    for template in templates:
        text = template.read_text(encoding="utf-8")
        for what, instead in (
            (r"<(svg|style|script)\b.*?</\1>|{%.*?%}", ""),
            (r"{{.*?}}", "CODE"),
            (r"<[^>]*>", "\n\n"),
        ):
            text = re.sub(what, instead, text, flags=re.DOTALL)
        page = tmp_path / f"{template.stem}.md"
        page.write_text("\n\n".join(line.strip() for line in text.splitlines() if line.strip()))
        found += [f"{template.name}: {each.why}" for each in words.findings(page)]
    assert not found


def texts(module: Path) -> Iterator[tuple[int, str]]:
    """(Line, text) of a module's strings of three words or more; docstrings are none of them."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    left_out = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):  # a docstring
            left_out.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in ast.walk(node)} - {id(node)}
    for node in ast.walk(tree):
        text = ""
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [each.value if isinstance(each, ast.Constant) else "X" for each in node.values]
            text = "".join(map(str, parts))
        if len(text.split()) >= 3:
            yield node.lineno, text


def test_texts_of_reports_rooms_and_notebooks_keep_the_rules(
    words: ModuleType, tmp_path: Path
) -> None:
    package, page, found, read = ROOT / "dovetail", tmp_path / "page.md", [], 0
    for module in (
        *(package / "report").glob("*.py"),
        *(package / "companions" / "room").glob("*.py"),
        *(package / "companions" / "service").glob("explain*.py"),
        *(each for each in package.glob("api/*.py") if "_repr_html_" in each.read_text()),
        *(package / "models" / name for name in ("explaining.py", "shown.py")),
    ):
        for line, text in texts(module):
            read += 1
            page.write_text(text.lstrip("#<| "), encoding="utf-8")
            found += [f"{module.name}:{line}: {each}" for each in words.findings(page)]
    assert read > 300
    assert not found


def test_a_long_sentence_and_a_forbidden_word_are_found_where_they_are(
    words: ModuleType, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A heading with recovered share\n\n"
        "Short. Long " + "word " * 35 + "ends.\n\n"
        "```sh\n" + "code " * 50 + "rulers\n```\n\n"
        "| a table | of rulers |\n\n"
        "- an item that\n  mentions rulers\n"
        "<<<<<<< HEAD\n"
    )
    found = [(each.line, each.why) for each in words.findings(page)]
    assert found == [
        (3, "37 words, at most 35"),
        (11, "'rulers'; write baseline"),
        (13, "a conflict that was not solved"),
    ]


def test_code_and_links_count_as_a_word_and_a_semicolon_ends_a_sentence(words: ModuleType) -> None:
    assert words.sentences("See [the long page](a.md) of `a b c d`; then go on. And stop.") == [
        "See the long page of CODE;",
        "then go on.",
        "And stop.",
    ]
