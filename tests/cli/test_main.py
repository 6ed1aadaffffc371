"""The command itself: help at once, and how mistakes and Ctrl-C end."""

from __future__ import annotations

import errno
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail import __version__
from dovetail.api import auditing, inspecting, valuing
from dovetail.cli import main as cli
from dovetail.runs import runfolder


def test_help_answers_without_torch() -> None:
    script = (
        "import sys\n"
        "from dovetail.cli.main import COMMANDS, app, others\n"
        "app(['--help'], standalone_mode=False)\n"
        "assert not any(f'dovetail.cli.{name}' in sys.modules for name in COMMANDS)\n"
        "assert not any(name.endswith('command') for name in sys.modules if 'companions' in name)\n"
        "assert 'pydantic' not in sys.modules  # typer reads it to take a command's words\n"
        "for name in [*COMMANDS, *others()]:\n"
        "    app([name, '--help'], standalone_mode=False)\n"
        "heavy = {'torch', 'sklearn', 'duckdb', 'numpy', 'pandas', 'rich', 'grpc'}\n"
        "print('loaded:', *sorted(heavy & sys.modules.keys()))\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for command in ("demo", "inspect", "align", "train", "predict"):
        assert f"\n  {command} " in run.stdout
    assert run.stdout.endswith("loaded:\n")


@pytest.mark.parametrize("command", ["demo", "inspect", "align", "train", "predict"])
def test_every_command_explains_itself(dovetail: Any, command: str) -> None:
    done = dovetail(command, "--help")
    assert done.code == 0
    assert "--quiet" in done.out
    assert "--json" in done.out


def test_no_command_prints_the_help(dovetail: Any) -> None:
    done = dovetail()
    assert done.code == 2
    assert "Start with: dovetail demo" in done.out + done.err


def test_the_version_is_the_packages(dovetail: Any) -> None:
    assert dovetail("--version").out == f"dovetail {__version__}\n"


def test_an_unknown_option_or_command_ends_in_2(dovetail: Any) -> None:
    for arguments in (("trian",), ("train",), ("train", "run.toml", "--sed", 1)):
        done = dovetail(*arguments)
        assert done.code == 2
        assert "Error: " in done.err or "did you mean 'train'?" in done.err


def test_ctrl_c_ends_in_130_and_one_sentence(
    dovetail: Any, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dovetail.runs.train.train_seeds", interrupted)
    done = dovetail("train", write_run())
    assert done.code == 130
    assert done.err == "dovetail: stopped; what was finished is kept (see --resume)\n"


def test_a_bug_is_not_swallowed(write_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("dovetail.runs.train.train_seeds", broken)
    monkeypatch.setattr("sys.argv", ["dovetail", "train", str(write_run())])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_a_full_disk_ends_in_one_sentence(
    dovetail: Any, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = runfolder.write_text

    def full(path: Path, text: str) -> None:
        if path.name == "result.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        whole(path, text)

    monkeypatch.setattr(runfolder, "write_text", full)
    done = dovetail("train", write_run(), "--quiet")
    assert done.code == 2
    words = (
        r"dovetail: out/run/result.json: no space left on the disk at /.*; free some of it and run"
    )
    assert re.match(words, done.err)
    assert done.err.count("\n") == 1


def test_a_command_of_a_function_has_its_parameters_and_defaults() -> None:
    functions = (auditing.audit, inspecting.inspect, valuing.value)
    for function in functions:
        command = inspect.signature(cli.function_of(function.__name__))
        for name, parameter in inspect.signature(function).parameters.items():
            assert name in command.parameters
            if parameter.default not in (inspect.Parameter.empty, ()):
                assert command.parameters[name].default == parameter.default, name


def test_python_runs_the_package_as_the_command() -> None:
    line = [sys.executable, "-m", "dovetail", "--version"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert __version__ in done.stdout


#: A command that leaves a thread, something for the end, and text that is not yet printed.
ENDING = """
import atexit, sys, threading, time
from dovetail.__main__ import process
from dovetail.cli import main as cli

def main():
    atexit.register(lambda: print("at the end"))
    threading.Thread(target=lambda: (time.sleep(0.2), print("a thread"))).start()
    {}

cli.main = main
process()
"""


@pytest.mark.parametrize(
    ("statement", "code", "printed"),
    [
        ("pass", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(2)", 2, ""),
        ("sys.exit('a sentence')", 1, "a sentence"),
        ("raise ValueError('a bug')", 1, "ValueError: a bug"),
    ],
)
def test_a_process_ends_with_its_code_and_nothing_is_lost(
    statement: str, code: int, printed: str
) -> None:
    line = [sys.executable, "-c", ENDING.format(statement)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stdout == "a thread\nat the end\n"
    assert printed in done.stderr
