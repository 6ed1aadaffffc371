"""The walk over calls of libraries whose errors could leave a public function."""

from __future__ import annotations

import pytest

from tools import raises


def test_no_error_of_a_library_leaves_a_public_function() -> None:
    assert raises.report() == []


def test_the_walk_sees_a_call_that_no_try_surrounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raises, "ALLOWED", {})
    lines = raises.report()
    assert any("lightgbm.train (lightgbm), in models.learners.boosting" in line for line in lines)
    assert not any("in data.csv_files.load_csv" in line for line in lines)  # read_table's try
    assert not any("in data.events." in line for line in lines)  # its own
