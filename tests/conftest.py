"""One thread everywhere: tensors of tests are small, and more threads only wait for each other."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # of processes that tests start

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
# A busy machine takes longer than Hypothesis' 200 ms over an example.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
# Begun in the background of a shell, what tests start would inherit that Ctrl-C is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)


_MARGINS: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--reseed",
        type=int,
        metavar="N",
        help="draw other random numbers than usual, and print what trained tests compared: with "
        "-n 0 -m trained -o enable_assertion_pass_hook=true; 0 draws the usual ones",
    )


def pytest_configure(config: pytest.Config) -> None:
    if number := config.getoption("--reseed"):
        from dovetail.models import randomness

        def sha256(data: bytes) -> Any:
            return hashlib.sha256(data + bytes([number]))

        randomness.hashlib = SimpleNamespace(**{**vars(hashlib), "sha256": sha256})


def pytest_assertion_pass(item: pytest.Item, lineno: int, orig: str, expl: str) -> None:
    if item.get_closest_marker("trained") and ("<" in orig or ">" in orig):
        _MARGINS.append(f"{item.nodeid}:{lineno}: {expl.splitlines()[0]}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.config.getoption("--reseed") is not None:
        terminalreporter.write_line("\n".join(_MARGINS))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The file whose tests take longest is first, so that no worker is alone with it at the end.

    So is Ray's: in a process that has had many connections its client may not reach a new cluster.
    """
    first = ("test_cluster.py", "test_pasted.py")
    items.sort(key=lambda item: item.path.name not in first)


@pytest.fixture
def brief_learners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learners alone that end early, for tests that do not ask how good they are.

    A party's best model alone takes most of the time of a small run.
    """
    from dovetail.models.learners import LEARNERS
    from dovetail.models.learners.boosting import FEW_ROWS, Boosting
    from dovetail.models.learners.network import Network
    from dovetail.models.learners.vertical import StackedConfig

    brief = (
        Boosting(trees=FEW_ROWS[:1], max_rounds=20),
        Network(StackedConfig(copies=1, max_steps=40)),
    )
    for learner in brief:
        monkeypatch.setitem(LEARNERS, learner.name, learner)  # type: ignore[arg-type]


@pytest.fixture
def brief_expectation(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``inspect`` expects of helpers is seen in two small fits, for tests that look elsewhere.

    It fits a hundred linear models, which takes most of its time where tables are small.
    """
    from dovetail.models.learners.linear import Linear
    from dovetail.runs import expected_gain

    monkeypatch.setattr(expected_gain, "_LINEAR", Linear(penalties=(0.1,)))
    monkeypatch.setattr(expected_gain, "_PAIRS", 1)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", folder]
    subprocess.run(build, cwd=Path(__file__).parents[1], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment with the wheel; what it depends on is this one's."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install"]
    subprocess.run([*pip, "--no-deps", "--no-index", "-q", wheel], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    there = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(there) + "\n")
    return folder / "bin"
