"""Federated learning for organisations whose columns and rows only partly match.

Models are trained across parties that know different things about partly the same samples; no
table leaves its owner, and the trained model predicts at one party alone.

The names below are imported when first used, so that ``import dovetail`` alone stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from dovetail import errors
from dovetail.errors import DovetailError

if TYPE_CHECKING:
    from dovetail import alignment, data, models, network, runs
    from dovetail.api.aligning import Matched, align
    from dovetail.api.fit import fit
    from dovetail.api.inspecting import Inspection, inspect
    from dovetail.api.inviting import invite
    from dovetail.api.lines import Partners, join, listen
    from dovetail.api.methods import CHFL, APFed, FedOptimus, HyFEM, Method
    from dovetail.api.partitions import (
        Blocks,
        ByColumn,
        Columns,
        CommonUnique,
        Owners,
        Partition,
        Simulation,
        Strips,
        simulate,
    )
    from dovetail.api.party import Party
    from dovetail.api.run import Run
    from dovetail.api.scores import Scores
    from dovetail.api.survival import cox, kaplan_meier
    from dovetail.methods import apfed, chfl, fedoptimus, hyfem, selection, vertical
    from dovetail.service.exported import load

__version__ = "0.2.0"

__all__ = [
    "CHFL",
    "APFed",
    "Blocks",
    "ByColumn",
    "Columns",
    "CommonUnique",
    "DovetailError",
    "FedOptimus",
    "HyFEM",
    "Inspection",
    "Matched",
    "Method",
    "Owners",
    "Partition",
    "Partners",
    "Party",
    "Run",
    "Scores",
    "Simulation",
    "Strips",
    "__version__",
    "align",
    "alignment",
    "apfed",
    "chfl",
    "cox",
    "data",
    "errors",
    "fedoptimus",
    "fit",
    "hyfem",
    "inspect",
    "invite",
    "join",
    "kaplan_meier",
    "listen",
    "load",
    "models",
    "network",
    "runs",
    "selection",
    "simulate",
    "vertical",
]

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

if not TYPE_CHECKING:  # a type checker sees the imports above and reports any other name

    def __getattr__(name):
        if name in _MODULES:
            value = import_module(_MODULES[name])
        elif name in _LAZY:
            value = getattr(import_module(_LAZY[name]), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value  # the next use finds it without coming here
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
