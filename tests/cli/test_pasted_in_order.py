"""Every line of README, in the order of the page, in one empty folder.

The commands run in this process, with learners that end early: lines must follow each other, with
files that others left. ``test_pasted.py`` pastes README's Python, the tutorial and python.md from
the wheel, with learners as they are.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: A command is one line, or a file to the line that ends it.
COMMAND = re.compile(r"^cat > \S+ <<'END'\n(?s:.*?)^END$|^(?!#).+$", re.MULTILINE)
#: What installs Dovetail, which is installed already.
INSTALLS = (
    "python3 -m venv .venv && . .venv/bin/activate",
    "pip install -c constraints.txt -e . pandas",
)

#: How commands begin -> what they print.
PRINTS = {
    "dovetail inspect run.toml": "Recommended: APFed",
    "dovetail train run.toml": "APFed-S, predicts alone",
    "dovetail predict out/run new-customers.csv --id customer": "p(yes)",
    "dovetail train digits.toml": "share of the gain kept",
}


def commands_of_readme() -> list[str]:
    """Those of its blocks, in order; a block of Python is one."""
    commands = []
    for language, text in BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8")):
        commands += [f"python -\n{text}"] if language == "python" else COMMAND.findall(text)
    return commands


def environment() -> dict[str, str]:
    """Of processes: this checkout, and its ``dovetail`` and ``python`` first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}


@contextlib.contextmanager
def background(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """``dovetail WORDS``, beside the other lines."""
    with Path(f"{words[0]}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dovetail", *words],
            env=environment(),
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=60)


def until_it_answers(url: str, process: subprocess.Popen[bytes]) -> None:
    """Return once this address answers; the process that serves there must not end before."""
    deadline = time.monotonic() + 120
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(url, timeout=5).read()
            return
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture
def paste(dovetail: Callable[..., Any]) -> Callable[[str], str]:
    """Runs a command of a page in the current folder, as its reader would; it must succeed."""

    def run(command: str) -> str:
        program, *words = shlex.split(command.partition("\n")[0], comments=True)
        if program == "dovetail":
            done = dovetail(*words)
            assert done.code == 0, f"{command}\n{done.err}{done.out}"
            printed = f"{done.err}{done.out}"
            for begins, words in PRINTS.items():
                assert words.lower() in printed.lower() or not command.startswith(begins), printed
            return printed
        if words == ["-"]:
            exec(compile(command.partition("\n")[2], "README.md", "exec"), {})
            return ""
        assert program in ("cat", "curl", "python"), command
        shell = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert shell.returncode == 0, f"{command}\n{shell.stdout}{shell.stderr}"
        return shell.stdout

    return run


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.usefixtures("brief_learners", "brief_expectation")
def test_the_readme_pastes_whole(
    tmp_path: Path, paste: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")  # of the checkout, where pip installs
    commands = commands_of_readme()
    assert len(commands) == 32
    assert all(any(each.startswith(begins) for each in commands) for begins in PRINTS)
    served = commands.index(next(each for each in commands if each.startswith("dovetail serve")))
    certified = next(each for each in commands if each.startswith("dovetail certificates"))
    bank = commands.index(certified) - 2  # the two files before are the bank's, too
    first, asked, machines = commands[:served], commands[served + 1 : bank], commands[bank:]

    for command in first:
        if not command.startswith(INSTALLS):
            paste(command.replace("seeds = [0, 1, 2]", "seeds = [0, 1]"))
    assert sum(command.startswith(INSTALLS) for command in first) == len(INSTALLS)
    with background(*shlex.split(commands[served], comments=True)[1:]) as server:
        until_it_answers("http://localhost:8000/health", server)
        assert '"predictions"' in paste(asked[0])
    for command in asked[1:]:
        paste(command)
    assert len(Path("predictions.csv").read_text().splitlines()) == 51
    assert Path("out/digits/report.html").stat().st_size
    assert Path("model.onnx").stat().st_size
    assert Path("out/clinics/seed-0/models").is_dir()

    # Two machines: a folder each, with its table; both are this machine.
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    machines = [
        each.replace("bank.example.org", "localhost").replace("7443", port) for each in machines
    ]
    (joins,) = (at for at, each in enumerate(machines) if each.startswith("dovetail join"))
    at_bank, at_shop = machines[: joins - 1], machines[joins - 1 :]
    folders = {name: tmp_path / name for name in ("bank", "shop")}
    for name, tables in (("bank", ["customers", "new-customers"]), ("shop", ["visits"])):
        folders[name].mkdir()
        for table in tables:
            shutil.copy(tmp_path / f"{table}.csv", folders[name])
    monkeypatch.chdir(folders["bank"])
    for command in at_bank[:3]:
        paste(command)
    shutil.copytree("certificates/shop", folders["shop"] / "certificates" / "shop")
    monkeypatch.chdir(folders["shop"])
    paste(at_shop[0])
    with background(*shlex.split(at_shop[1], comments=True)[1:]):
        monkeypatch.chdir(folders["bank"])
        for command in at_bank[3:]:
            paste(command)
    monkeypatch.chdir(folders["shop"])
    assert "bank" in paste(at_shop[2])
    assert len(at_shop) == 3
