"""A checkout as pip would install it: compiled, wherever this machine keeps what it compiles."""

from __future__ import annotations

import compileall
import shutil
from pathlib import Path


def installed(checkout: Path, folder: Path) -> Path:
    """A copy of its package in this folder, which is to be on PYTHONPATH."""
    shutil.copytree(checkout / "dovetail", folder / "dovetail")
    compileall.compile_dir(folder, quiet=1)
    return folder
