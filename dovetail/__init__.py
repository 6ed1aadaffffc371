"""Federated learning for organisations whose columns and rows only partly match.

Models are trained across parties that know different things about partly the same samples; no
table leaves its owner, and the trained model predicts at one party alone.

The names below are imported when first used, so that ``import dovetail`` alone stays light; type
checkers read them in ``__init__.pyi``.
"""

from importlib import import_module
from typing import Any

from dovetail import errors as errors
from dovetail.errors import DovetailError as DovetailError

__version__ = "0.2.0"

#: Public name -> its module, and public modules.
_LAZY = {
    name: f"dovetail.{module}"
    for module, names in {
        "api.aligning": ("Matched", "align"),
        "api.fit": ("fit",),
        "api.inspecting": ("Inspection", "inspect"),
        "api.inviting": ("invite",),
        "api.lines": ("Partners", "join", "listen"),
        "api.methods": ("APFed", "CHFL", "FedOptimus", "HyFEM", "Method"),
        "api.partitions": (
            *("Blocks", "ByColumn", "Columns", "CommonUnique", "Owners", "Partition"),
            *("Simulation", "Strips", "simulate"),
        ),
        "api.party": ("Party",),
        "api.run": ("Run",),
        "api.scores": ("Scores",),
        "api.survival": ("cox", "kaplan_meier"),
        "service.exported": ("load",),
    }.items()
    for name in names
}
_MODULES = {
    **{name: f"dovetail.{name}" for name in ("alignment", "data", "models", "network", "runs")},
    **{name: f"dovetail.methods.{name}" for name in ("apfed", "fedoptimus", "hyfem", "vertical")},
    "chfl": "dovetail.methods.chfl.layers",
    "selection": "dovetail.methods.selection",
}

__all__ = sorted(["DovetailError", "__version__", "errors", *_LAZY, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = import_module(_MODULES[name])
    elif name in _LAZY:
        value = getattr(import_module(_LAZY[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # the next use finds it without coming here
    return value


def __dir__() -> list[str]:
    return __all__
