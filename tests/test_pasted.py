"""What a newcomer pastes: README's Python, the tutorial and python.md, from the wheel.

The environment is empty: a new virtual environment with the wheel of this checkout, the packages
that it needs, and no variable but PATH and HOME. Install lines alone are not pasted, since the
wheel is installed already. README's commands, in its order, are in ``cli/test_pasted_in_order.py``.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def variables(installed: Path, folder: Path) -> dict[str, str]:
    return {"PATH": f"{installed}:/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"}


def shell(installed: Path, folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """A shell that was given these lines; each must succeed."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=variables(installed, folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done


def paste(installed: Path, folder: Path, command: str) -> str:
    """What a shell prints of these lines."""
    done = shell(installed, folder, command)
    return done.stderr + done.stdout


def section(page: str, heading: str) -> list[tuple[str, str]]:
    """(Language, text) of the blocks below a heading of README."""
    text = (ROOT / page).read_text()
    return FENCE.findall(text.split(f"## {heading}\n")[1].split("\n## ")[0])


@pytest.mark.slow
def test_the_readmes_python(installed: Path, tmp_path: Path) -> None:
    ((_, code),) = section("README.md", "From Python")
    (tmp_path / "snippet.py").write_text(code)
    printed = paste(installed, tmp_path, "python -W error snippet.py").splitlines()
    # What a comment says was seen: in the order of the lines, and ahead by more than noise.
    said = [float(each) for each in re.findall(r"# (0\.\d\d)", code)]
    seen = [float(line) for line in printed if re.fullmatch(r"0\.\d+", line)]
    assert seen == pytest.approx(said, abs=0.03)
    assert seen[0] - seen[1] > 2 * (0.25 / 797) ** 0.5  # of 797 rows


def masked(printed: str) -> str:
    """What is printed, but for digits, which differ between machines, and for spaces."""
    return " ".join(re.sub(r"\d+", "0", printed).split())


@pytest.mark.slow
def test_what_the_tutorial_shows_is_what_happens(installed: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "two_tables.py", tmp_path)
    blocks = FENCE.findall((ROOT / "docs/tutorial.md").read_text())
    assert [language for language, _ in blocks].count("sh") == 9
    for (language, text), (kind, after) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if language == "text":
            continue
        assert language == "sh"
        done = shell(installed, tmp_path, text)
        printed = done.stdout or done.stderr
        assert masked(printed) == (masked(after) if kind == "text" else ""), printed
    with (tmp_path / "new-patients.csv").open() as file:
        asked = [row["patient"] for row in csv.DictReader(file)]
    with (tmp_path / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 100
    assert [row["patient"] for row in rows] == asked
    assert {row["diagnosis"] for row in rows} == {"benign", "malignant"}


@pytest.mark.slow
def test_the_page_on_python_in_one_session(installed: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    blocks = re.findall(r"<!-- run -->\n```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 8
    (tmp_path / "session.py").write_text("\n".join(blocks))
    reported = paste(
        installed, tmp_path, "python -W error -W 'default:partners changed' session.py"
    )
    assert "('benign', 'malignant')" in reported
    assert "2" in reported.splitlines()  # epochs in the log
    assert (tmp_path / "out" / "clinic" / "given" / "lab.parquet").exists()


@pytest.mark.slow
def test_the_environment_that_is_pasted_into_is_no_checkout(installed: Path) -> None:
    assert not any(name.startswith("DOVETAIL") for name in variables(installed, Path("/tmp")))
    assert os.access(installed / "dovetail", os.X_OK)
