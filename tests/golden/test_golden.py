"""Numbers are those of the golden record: weights, scores, messages, predictions."""

from __future__ import annotations

from pathlib import Path

import golden
import pytest
from golden_cases import CASES


@pytest.mark.parametrize("name", CASES)
def test_a_run_computes_what_is_recorded(name: str, tmp_path: Path) -> None:
    golden.run(CASES[name], tmp_path)
    golden.check(golden.recorded(name), golden.taken(CASES[name], tmp_path))


def test_nothing_is_recorded_that_is_not_compared() -> None:
    names = {path.stem for path in golden.RECORDS.glob("*.json")}
    assert {name for name in names if not name.startswith("stream-")} == CASES.keys()
