"""A run imports its method and its engine, and nothing of another; a mistake imports no library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


#: What takes long to import, and no network needs.
SLOW = {
    "dovetail.audit.attack",
    "jinja2",
    "lightgbm",
    "matplotlib",
    "pandas",
    "pyarrow",
    "scipy.stats",
    "sklearn",
}


def loaded_by(code: str, folder: Path) -> set[str]:
    """What of that a program imports."""
    code = f"{code}\nimport sys; print(*sorted({SLOW!r} & {{*sys.modules}}), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder
    )
    return {*done.stderr.splitlines()[-1].split()}


@pytest.mark.slow
def test_inspect_and_a_run_import_no_library_of_attacks_or_statistics(tmp_path: Path) -> None:
    rows = [f"{row},{row % 7},{'yes' if row % 7 > 3 else 'no'}" for row in range(60)]
    (tmp_path / "bank.csv").write_text("\n".join(["id,age,label", *rows]))
    (tmp_path / "shop.csv").write_text(
        "\n".join(["id,visits", *(f"{r},{r % 5}" for r in range(60))])
    )
    parties = (
        "import dovetail as dt; "
        'bank = dt.Party("bank", "bank.csv", id="id", label="label"); '
        'shop = dt.Party("shop", "shop.csv", id="id"); '
    )
    shown = 'found = dt.inspect([bank, shop]); assert found.recommended == "apfed"; str(found)'
    assert loaded_by(parties + shown, tmp_path) == set()
    fitted = (
        'run = dt.fit("tvfl", [bank, shop], quiet=True); '
        'assert "auc" in str(run.scores.to_dict()), run.scores'
    )
    assert loaded_by(parties + fitted, tmp_path) == set()
    # A table that a rule explains is learnt to the last of 4,000 steps, thrice.
    brief = (
        "from dovetail.models.learners import LEARNERS; "
        "from dovetail.models.learners.network import Network; "
        "from dovetail.models.learners.vertical import StackedConfig; "
        "LEARNERS['network'] = Network(StackedConfig(copies=1, max_steps=40)); "
    )
    sealed = brief + "assert dt.fit(dt.APFed(), [bank, shop], quiet=True).scores.to_dict()"
    # Trees bring no scikit-learn and pandas; jinja2 writes the model's card.
    assert loaded_by(parties + sealed, tmp_path) == {"jinja2"}
