"""Two versions of Dovetail on one network: what docs/upgrade.md promises."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forked
import pytest
from tables import SMALL, clinic_and_lab, parties

import dovetail as dt
from dovetail.errors import ModelError, NetworkError
from dovetail.models import load
from dovetail.network.messages import PROTOCOL

ROOT = Path(__file__).parents[2]

LAB = """
import sys
import dovetail as dt

print(dt.__file__, dt.__version__, flush=True)
lab = dt.Party(
    "lab", "lab.parquet", id="patient", apfed={"encoder": (8,)},
    policy={"drivers": ["clinic"], "min_ids": 10, "algorithms": ["align", "apfed-mixed"]},
)
dt.join(lab, sys.argv[1])
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with certificates and the lab's table."""
    monkeypatch.chdir(tmp_path)
    words = ["certificates", "clinic", "lab", "--driver", "clinic", "--host", "127.0.0.1"]
    assert forked.command(tmp_path, *words).code == 0
    clinic_and_lab()[1].to_parquet(tmp_path / "lab.parquet", index=False)
    return tmp_path


def other_version(folder: Path, version: str, protocol: str = PROTOCOL) -> Path:
    """A copy of the package that is of another version, and maybe speaks another protocol."""
    package = folder / f"dovetail-{version}" / "dovetail"
    shutil.copytree(ROOT / "dovetail", package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, pattern, value in (
        ("__init__.py", r'^__version__ = ".*"', f'__version__ = "{version}"'),
        ("network/messages.py", r'^PROTOCOL = ".*"', f'PROTOCOL = "{protocol}"'),
    ):
        text = (package / name).read_text()
        changed, count = re.subn(pattern, value, text, flags=re.MULTILINE)
        assert count == 1
        (package / name).write_text(changed)
    return package.parent


@contextmanager
def lab_of(package: Path, address: str) -> Iterator[subprocess.Popen[str]]:
    """The lab, in a process that imports this copy of the package."""
    environment = {**os.environ, "PYTHONPATH": str(package)}
    process = subprocess.Popen(
        [sys.executable, "-c", LAB, address],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=30)
        finally:
            process.kill()


def address() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


@pytest.mark.network
def test_a_partner_of_another_version_with_the_same_protocol_trains(place: Path) -> None:
    ledger, _ = parties(*clinic_and_lab())
    at = address()
    package = other_version(place, "0.9.7")
    with lab_of(package, at) as lab, dt.listen(at, ["lab"], wait_s=120) as partners:
        run = dt.fit(dt.APFed("partners", **SMALL), ledger, partners=partners, quiet=True)
        assert run.result["bytes"].keys() == {"clinic", "lab"}
        lab.send_signal(signal.SIGINT)
        reported, _ = lab.communicate(timeout=60)
    assert reported.splitlines()[0] == f"{package}/dovetail/__init__.py 0.9.7"


@pytest.mark.network
def test_a_partner_of_another_protocol_is_refused_in_a_sentence_at_both_ends(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger, _ = parties(*clinic_and_lab())
    at = address()
    package = other_version(place, "9.0.0", protocol="9")
    with lab_of(package, at) as lab, dt.listen(at, ["lab"], wait_s=30) as partners:
        with pytest.raises(NetworkError):
            dt.fit(dt.APFed("partners", **SMALL), ledger, partners=partners, quiet=True)
        lab.send_signal(signal.SIGINT)
        text, _ = lab.communicate(timeout=60)
    reported = f"expected protocol {PROTOCOL}, got '9'; install the same version of"
    assert reported in text + capsys.readouterr().err
    assert "Traceback" not in text


def test_a_model_of_another_format_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """Finished runs, which stay readable, are in tests/golden/runs."""
    models = sorted((ROOT / "tests/golden/runs").rglob("model.json"))
    assert models
    folder = tmp_path / "m"
    shutil.copytree(models[0].parent, folder)
    assert load(folder).party
    described = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**described, "format": 99}))
    with pytest.raises(ModelError, match="expected format 2; use the dovetail that wrote it"):
        load(folder)
