"""Which files are read for docstrings' examples.

A module without any is not: to look for examples means to import it, with all that it imports.
Modules whose extra is not installed are left out; a broken import elsewhere is an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import pytest

# Without bytecode every worker, and every process that a test starts, would compile the package
# and rewrite the tests' assertions anew: as much work as to read all libraries.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

#: Module with a library of an extra -> the library.
_EXTRAS = {
    "dovetail/companions/flare/job.py": "nvflare",
    "dovetail/companions/flare/federation.py": "psutil",
}

collect_ignore = [path for path, library in _EXTRAS.items() if find_spec(library) is None]


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    collectors = yield
    if file_path.suffix == ".py" and b">>>" not in file_path.read_bytes():
        # The class has no public name.
        return [each for each in collectors if type(each).__name__ != "DoctestModule"]
    return collectors
