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
    from dovetail.methods import apfed, chfl, fedoptimus, hyfem, vertical
    from dovetail.methods.fedoptimus import selection
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
    "data",
    "errors",
    "fedoptimus",
    "fit",
    "hyfem",
    "inspect",
    "invite",
    "join",
    "listen",
    "load",
    "models",
    "network",
    "runs",
    "selection",
    "simulate",
    "vertical",
]

#: Public name -> the module it is, or the module and the attribute of it.
_LAZY = {
    "alignment": ("dovetail.alignment", None),
    "apfed": ("dovetail.methods.apfed", None),
    "chfl": ("dovetail.methods.chfl.layers", None),
    "data": ("dovetail.data", None),
    "runs": ("dovetail.runs", None),
    "fedoptimus": ("dovetail.methods.fedoptimus", None),
    "hyfem": ("dovetail.methods.hyfem", None),
    "load": ("dovetail.service.exported", "load"),
    "models": ("dovetail.models", None),
    "network": ("dovetail.network", None),
    "selection": ("dovetail.methods.fedoptimus.selection", None),
    "vertical": ("dovetail.methods.vertical", None),
    "Blocks": ("dovetail.api.partitions", "Blocks"),
    "ByColumn": ("dovetail.api.partitions", "ByColumn"),
    "Columns": ("dovetail.api.partitions", "Columns"),
    "CommonUnique": ("dovetail.api.partitions", "CommonUnique"),
    "Owners": ("dovetail.api.partitions", "Owners"),
    "Partition": ("dovetail.api.partitions", "Partition"),
    "Simulation": ("dovetail.api.partitions", "Simulation"),
    "Strips": ("dovetail.api.partitions", "Strips"),
    "simulate": ("dovetail.api.partitions", "simulate"),
    "fit": ("dovetail.api.fit", "fit"),
    "Partners": ("dovetail.api.lines", "Partners"),
    "Matched": ("dovetail.api.aligning", "Matched"),
    "align": ("dovetail.api.aligning", "align"),
    "Inspection": ("dovetail.api.inspecting", "Inspection"),
    "inspect": ("dovetail.api.inspecting", "inspect"),
    "invite": ("dovetail.api.inviting", "invite"),
    "join": ("dovetail.api.lines", "join"),
    "listen": ("dovetail.api.lines", "listen"),
    "CHFL": ("dovetail.api.methods", "CHFL"),
    "APFed": ("dovetail.api.methods", "APFed"),
    "FedOptimus": ("dovetail.api.methods", "FedOptimus"),
    "HyFEM": ("dovetail.api.methods", "HyFEM"),
    "Method": ("dovetail.api.methods", "Method"),
    "Party": ("dovetail.api.party", "Party"),
    "Run": ("dovetail.api.run", "Run"),
    "Scores": ("dovetail.api.scores", "Scores"),
}

if not TYPE_CHECKING:  # a type checker sees the imports above and reports any other name

    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module_name, attribute = _LAZY[name]
        module = import_module(module_name)
        value = module if attribute is None else getattr(module, attribute)
        globals()[name] = value  # the next use finds it without coming here
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
