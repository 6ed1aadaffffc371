"""Numbers are those of the golden record: weights, scores, messages, predictions."""

from __future__ import annotations

from pathlib import Path

import golden
import pytest
from golden_cases import CASES, FEDERATIONS


@pytest.mark.trained
@pytest.mark.parametrize("name", CASES)
def test_a_run_computes_what_is_recorded(name: str, tmp_path: Path) -> None:
    golden.run(CASES[name], tmp_path)
    golden.check(golden.recorded(name), golden.taken(CASES[name], tmp_path))


def test_nothing_is_recorded_that_is_not_compared() -> None:
    names = {path.stem for path in golden.RECORDS.glob("*.json")}
    assert names == CASES.keys() | {"finished", *(f"stream-{each}" for each in FEDERATIONS)}


@pytest.mark.trained
@pytest.mark.parametrize("method", FEDERATIONS)
def test_over_a_network_weights_are_those_of_one_process(method: str) -> None:
    apart = golden.recorded(f"stream-{method}")
    here = golden.recorded(f"parties-{method}")
    weights = {}
    for path, file in apart["weights"].items():
        party, *variant, name = path.split("/")
        if not variant or variant[0] == method:
            weights[f"{party}/{name}"] = file
    assert weights.keys() == here["weights"].keys()
    assert not list(golden.differences(here["weights"], weights, "weights"))
