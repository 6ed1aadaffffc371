"""A run imports its method and its engine, and nothing of another; a mistake imports no library."""

from __future__ import annotations

import subprocess
import sys

import pytest

READ = """
import sys
from dovetail.runs.runfile import check_run
check_run({run!r}, where="run.toml")
rooms = ("dovetail.methods.", "dovetail.companions.")
print(*sorted({{name.split(".")[2] for name in sys.modules if name.startswith(rooms)}}))
"""

#: Method -> the methods' folders that its run may enter.
FOLDERS = {
    "apfed": {"apfed", "vertical"},
    "chfl": {"chfl"},
    "hyfem": {"hyfem"},
    "fedoptimus": {"fedoptimus"},
}

STREAM = {"kind": "stream", "listen": "127.0.0.1:7443", "partners": ["lab"]}

#: What a run of a method says beside its engine.
MORE: dict[str, dict[str, object]] = {
    "apfed": {"parties": ["bank.toml"]},
    "hyfem": {"hyfem": {"classes": ["no", "yes"], "extractors": {"blood": [32]}}},
}


def entered(run: dict[str, object]) -> set[str]:
    """Rooms of methods and companions whose modules are imported to check a run file."""
    code = READ.format(run=run)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {*done.stdout.split()}


@pytest.mark.slow
@pytest.mark.parametrize("method", FOLDERS)
def test_a_run_enters_no_folder_of_another_method(method: str) -> None:
    rooms = entered({"method": method, "engine": STREAM, **MORE.get(method, {})})
    methods = {"apfed", "chfl", "hyfem", "fedoptimus", "vertical"}
    assert rooms & methods <= FOLDERS[method]
    assert method in rooms
    assert not rooms & {"mailbox", "flare", "room", "service"}


def test_a_method_in_python_imports_no_library() -> None:
    code = "import dovetail as dt, sys; dt.APFed(); print({'torch', 'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
