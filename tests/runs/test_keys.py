"""The pages of keys are current, and every key has a meaning."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.runs.keys import party_file_parts, run_file_parts
from tools.keys import PAGES, page

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_keys_is_what_the_code_says(name: str) -> None:
    text = (DOCS / name).read_text()
    assert page(name, text) == text, "write it anew: make keys"


def test_every_key_of_both_files_has_a_meaning() -> None:
    without = [
        f"{part.title} {key.name}"
        for part in (*run_file_parts(), *party_file_parts())
        for key in part.keys
        if not key.meaning
    ]
    assert not without, "write a comment beside these fields"


def test_types_and_defaults_are_told_as_a_file_has_them() -> None:
    (party,) = (part for part in party_file_parts() if part.title == "[party]")
    keys = {key.name: key for key in party.keys}
    assert (keys["name"].type, keys["name"].default) == ("text", "required")
    assert (keys["id"].type, keys["id"].default) == ("text or list of texts", "required")
    assert (keys["columns"].type, keys["columns"].default) == ("list of texts", '["*"]')
    assert keys["task"].type.split(", ")[:3] == ['"classification"', '"regression"', '"survival"']
    assert keys["label"].default == "none"
    titles = [part.title for part in run_file_parts()]
    assert titles[0] == "at the top"
    assert '[engine], kind = "stream"' in titles
    assert len(set(titles)) == len(titles)
