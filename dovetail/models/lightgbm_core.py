"""LightGBM's ``Booster``, ``Dataset``, ``train`` and callbacks, loaded when they are first used.

``import lightgbm`` also imports scikit-learn and pandas where they are installed, which takes
longer than trees of few rows, and 100 MB. So its modules are loaded under a name of Dovetail's,
with these absent for them alone: ``import lightgbm`` is as ever for who uses it.
"""

from __future__ import annotations

import builtins
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

_NAME = "_dovetail_lightgbm"
_ABSENT = {"joblib", "pandas", "sklearn"}
_LOADING = Lock()


def __getattr__(name: str) -> Any:
    if name[0] == "_":
        raise AttributeError(name)
    with _LOADING:  # folds are fitted side by side
        return getattr(_loaded(), name)


@cache
def _loaded() -> ModuleType:
    """Module with the public names of LightGBM's core; LightGBM whole, where it is not as known."""
    found = find_spec("lightgbm")
    if found is not None and found.submodule_search_locations:
        with suppress(ImportError, AttributeError, OSError):
            return _core([*found.submodule_search_locations])
    return import_module("lightgbm")  # raises as ever if it is missing


def _core(folders: list[str]) -> ModuleType:
    """Module with the public names of those files of a folder that are LightGBM's core."""
    core = sys.modules[_NAME] = ModuleType(_NAME)
    core.__path__ = folders
    spec = spec_from_file_location(f"{_NAME}.compat", Path(core.__path__[0], "compat.py"))
    if spec is None or spec.loader is None:
        raise ImportError(_NAME)
    compat = sys.modules[spec.name] = module_from_spec(spec)
    vars(compat)["__builtins__"] = {**vars(builtins), "__import__": _import}
    spec.loader.exec_module(compat)
    for name in ("basic", "callback", "engine"):
        module = import_module(f"{_NAME}.{name}")
        vars(core).update({key: each for key, each in vars(module).items() if key[0] != "_"})
    return core


def _import(name: str, *_: Any) -> Any:
    """Module of an import in ``compat``, unless LightGBM can do without it."""
    if name.partition(".")[0] in _ABSENT:
        raise ImportError(name)
    return import_module(name)
