"""What the examples and the walk show works as it stands there."""

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
def test_the_example_of_several_labels_runs_from_top_to_bottom(tmp_path: Path) -> None:
    output = run((ROOT / "examples" / "several_labels.py").read_text(), tmp_path)
    (line,) = re.findall(r"^heart failure +([\d.]+) +[\d.]+ +([\d.]+)$", output, re.MULTILINE)
    assert float(line[1]) > float(line[0]) + 0.05  # cardiology knows pulse and shock
    assert "p(fibrillation)" in output


@pytest.mark.trained
@pytest.mark.slow
def test_the_example_of_times_runs_from_top_to_bottom(tmp_path: Path) -> None:
    output = run((ROOT / "examples" / "survival.py").read_text(), tmp_path)
    c_index = re.findall(r"^(?:north|south|west|cox) +([\d.]+)$", output, re.MULTILINE)
    assert len(c_index) == 4
    assert min(map(float, c_index)) > 0.6
    (low, high) = re.findall(r"^3 +progrec.* ([\d.]+) +([\d.]+) +[\d.]+$", output, re.MULTILINE)[0]
    assert float(low) < float(high) <= 1  # more receptors, later relapse
    assert (tmp_path / "models" / "relapse" / "model.json").is_file()


@pytest.mark.slow
def test_the_walk_runs_from_top_to_bottom(tmp_path: Path) -> None:
    output = run((ROOT / "examples" / "walk.py").read_text(), tmp_path)
    right = float(re.findall(r"without a diagnosis: ([\d.]+)", output)[0])
    assert right > 0.8
    assert (tmp_path / "out" / "walk" / "report.html").stat().st_size
