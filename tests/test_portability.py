"""What Windows lacks is not needed: modules of Unix alone, and files that are open when renamed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: Modules of the standard library that Windows does not have.
UNIX = {"fcntl", "grp", "posix", "pwd", "resource", "termios", "tty"}

#: Functions and names of ``os`` and ``signal`` that Windows does not have.
UNIX_NAMES = {
    *("os.chown", "os.fchmod", "os.fork", "os.geteuid", "os.getuid", "os.killpg", "os.mkfifo"),
    *("os.setsid", "os.uname", "signal.SIGHUP", "signal.SIGKILL", "signal.SIGUSR1"),
    *("signal.alarm", "signal.pause", "signal.setitimer"),
}

#: The federation of NVFlare on this machine, a tool of tests, runs on Unix alone.
UNIX_ONLY = {"companions/flare/federation.py"}

#: Trains on built-in data in a process without the modules, and predicts.
SCRIPT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        caller = sys._getframe(1)
        while caller is not None and "importlib" in caller.f_code.co_filename:
            caller = caller.f_back
        if name in {names} and caller and "dovetail" in caller.f_globals.get("__name__", ""):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

for name in {names}:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())

from dovetail.cli.main import main
from dovetail.network import retry

assert retry.resource is None
sys.argv = ["dovetail", *sys.argv[1:]]
main()
"""


def unguarded(tree: ast.Module) -> set[str]:
    """Modules of Unix alone that are imported without minding that they may be missing."""
    guarded = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    }
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and node not in guarded:
            names |= {alias.name for alias in node.names} & UNIX
        elif isinstance(node, ast.ImportFrom) and node not in guarded and node.module in UNIX:
            names.add(node.module)
    return names


def test_no_module_needs_what_windows_lacks() -> None:
    missing_by_module = {}
    last_names = {name.rpartition(".")[2] for name in UNIX_NAMES}  # to spell all takes seconds
    for path in sorted((ROOT / "dovetail").rglob("*.py")):
        name = path.relative_to(ROOT / "dovetail").as_posix()
        if name in UNIX_ONLY:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        used = {
            ast.unparse(node)
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and node.attr in last_names
        }
        if missing := unguarded(tree) | used & UNIX_NAMES:
            missing_by_module[name] = missing
    assert missing_by_module == {}


@pytest.mark.slow
def test_a_run_trains_and_predicts_without_the_modules_of_unix(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        """
        method = "apfed-c"
        apfed.epochs = 2

        [data]
        source = "digits"
        label = "digit"
        test = 0.4

        [data.partition]
        kind = "columns"
        active = "reader"
        parties = { reader = ["pixel_[0-3]_*"], partner = ["pixel_[4-7]_*"] }
        """
    )
    script = SCRIPT.format(names=sorted(UNIX))
    command = [sys.executable, "-c", script, "train", "run.toml", "--out", "out", "-q"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "models" / "reader" / "model.json").is_file()


def test_every_text_is_read_and_written_in_an_encoding_that_is_named() -> None:
    """Windows' own is not UTF-8."""
    lacking = []
    for path in sorted((ROOT / "dovetail").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            keywords = {each.arg for each in node.keywords}
            is_text = called.endswith((".read_text", ".write_text")) or (
                called == "open" and not any("b" in mode for mode in _modes(node))
            )
            named = "encoding" in keywords or ast.unparse(node).endswith("('utf-8')")
            if is_text and not named:
                lacking.append(f"{path.relative_to(ROOT)}:{node.lineno}: {called}")
    assert lacking == []


def _modes(call: ast.Call) -> list[str]:
    """The mode of a call of ``open``, if it has one."""
    given = [*call.args[1:2], *(each.value for each in call.keywords if each.arg == "mode")]
    return [str(each.value) for each in given if isinstance(each, ast.Constant)]
