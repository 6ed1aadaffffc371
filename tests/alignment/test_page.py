"""The page on alignment shows what happens."""

from __future__ import annotations

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "alignment.md"


def test_the_example_on_the_page_runs_as_printed():
    failed, attempted = doctest.testfile(str(PAGE), module_relative=False)
    assert (failed, attempted > 10) == (0, True)
