"""``benchmarks.threads`` trains what README says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.threads import write_run
from dovetail.runs.runfile import load_run


@pytest.mark.slow
def test_the_run_is_that_of_the_readme(tmp_path: Path) -> None:
    write_run(tmp_path, images=False)
    run = load_run(tmp_path / "run.toml")
    assert run.method == "apfed"
    assert [Path(each).name for each in run.parties or ()] == ["customers.toml", "shop.toml"]
