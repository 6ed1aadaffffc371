"""What docs/python.md and the walk show works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(code: str, folder: Path) -> str:
    """What it prints, run in this folder; a warning is an error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_page_on_python_runs_from_top_to_bottom(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    blocks = re.findall(r"<!-- run -->\n```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 8
    output = run("\n".join(blocks), tmp_path)
    assert "('benign', 'malignant')" in output
    assert "2" in output.splitlines()  # epochs in the log
    assert (tmp_path / "out" / "clinic" / "given" / "lab.parquet").exists()


@pytest.mark.slow
def test_the_example_of_several_labels_runs_from_top_to_bottom(tmp_path: Path) -> None:
    output = run((ROOT / "examples" / "several_labels.py").read_text(), tmp_path)
    (line,) = re.findall(r"^heart failure +([\d.]+) +[\d.]+ +([\d.]+)$", output, re.MULTILINE)
    assert float(line[1]) > float(line[0]) + 0.05  # cardiology knows pulse and shock
    assert "p(fibrillation)" in output


@pytest.mark.slow
def test_the_walk_runs_from_top_to_bottom(tmp_path: Path) -> None:
    output = run((ROOT / "examples" / "walk.py").read_text(), tmp_path)
    right = float(re.findall(r"without a diagnosis: ([\d.]+)", output)[0])
    assert right > 0.8
    assert (tmp_path / "out" / "walk" / "report.html").stat().st_size
