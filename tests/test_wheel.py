"""Wheel and sdist, built and installed where nothing of the checkout is seen."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytest.importorskip("hatchling")
pytest.importorskip("pip")


def run(*words: object, folder: Path, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """A command that sees nothing of the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


@pytest.mark.slow
def test_the_wheel_has_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("dovetail_fl-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0].partition("-")[0] for name in names}
    assert tops == {"dovetail", "dovetail_fl"}
    for name in ("dovetail/cli/demo.toml", "dovetail/companions/mailbox/relay_server.py"):
        assert name in names
    assert wheel.stat().st_size < 3e6
    (sdist,) = built.glob("dovetail_fl-*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = archive.getnames()
    assert any(name.endswith("/dovetail/__init__.py") for name in inside)
    assert not any("/benchmarks/results/" in name for name in inside)


@pytest.mark.slow
def test_the_installed_package_is_used_and_trains(installed: Path, tmp_path: Path) -> None:
    code = "import dovetail; print(dovetail.__file__, dovetail.__version__)"
    done = run(installed / "python", "-c", code, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(installed.parent) in done.stdout
    assert str(ROOT) not in done.stdout
    for words in (("--version",), ("schema", "run"), ("join", "--help"), ("relay", "--help")):
        done = run(installed / "dovetail", *words, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    done = run(installed / "dovetail", "demo", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.rglob("result.json"))


@pytest.mark.slow
def test_a_wheel_is_built_of_the_sdist_alone(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "-q")
    done = run(*pip, "--no-build-isolation", "-w", tmp_path, sdist, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (again,) = tmp_path.glob("*.whl")
    (wheel,) = built.glob("*.whl")
    assert set(zipfile.ZipFile(again).namelist()) == set(zipfile.ZipFile(wheel).namelist())
