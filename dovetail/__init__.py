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
    from dovetail import alignment, data, experiment, models, network
    from dovetail.face.aligning import Matched, align
    from dovetail.face.deals import (
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
    from dovetail.face.fit import fit
    from dovetail.face.inspecting import Inspection, inspect
    from dovetail.face.lines import Partners, join, listen
    from dovetail.face.methods import CHFL, APFed, FedOptimus, HyFEM, Method
    from dovetail.face.party import Party
    from dovetail.face.run import Run
    from dovetail.face.scores import Scores
    from dovetail.methods import apfed, chfl, fedoptimus, hyfem, vertical
    from dovetail.methods.fedoptimus import selection
    from dovetail.service.exported import load

__version__ = "0.1.0"

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
    "experiment",
    "fedoptimus",
    "fit",
    "hyfem",
    "inspect",
    "join",
    "listen",
    "load",
    "models",
    "network",
    "selection",
    "simulate",
    "vertical",
]

#: Public name -> the module it is, or the module and the attribute of it.
_LAZY = {
    "alignment": ("dovetail.alignment", None),
    "apfed": ("dovetail.methods.apfed", None),
    "chfl": ("dovetail.methods.chfl", None),
    "data": ("dovetail.data", None),
    "experiment": ("dovetail.experiment", None),
    "fedoptimus": ("dovetail.methods.fedoptimus", None),
    "hyfem": ("dovetail.methods.hyfem", None),
    "load": ("dovetail.service.exported", "load"),
    "models": ("dovetail.models", None),
    "network": ("dovetail.network", None),
    "selection": ("dovetail.methods.fedoptimus.selection", None),
    "vertical": ("dovetail.methods.vertical", None),
    "Blocks": ("dovetail.face.deals", "Blocks"),
    "ByColumn": ("dovetail.face.deals", "ByColumn"),
    "Columns": ("dovetail.face.deals", "Columns"),
    "CommonUnique": ("dovetail.face.deals", "CommonUnique"),
    "Owners": ("dovetail.face.deals", "Owners"),
    "Partition": ("dovetail.face.deals", "Partition"),
    "Simulation": ("dovetail.face.deals", "Simulation"),
    "Strips": ("dovetail.face.deals", "Strips"),
    "simulate": ("dovetail.face.deals", "simulate"),
    "fit": ("dovetail.face.fit", "fit"),
    "Partners": ("dovetail.face.lines", "Partners"),
    "Matched": ("dovetail.face.aligning", "Matched"),
    "align": ("dovetail.face.aligning", "align"),
    "Inspection": ("dovetail.face.inspecting", "Inspection"),
    "inspect": ("dovetail.face.inspecting", "inspect"),
    "join": ("dovetail.face.lines", "join"),
    "listen": ("dovetail.face.lines", "listen"),
    "CHFL": ("dovetail.face.methods", "CHFL"),
    "APFed": ("dovetail.face.methods", "APFed"),
    "FedOptimus": ("dovetail.face.methods", "FedOptimus"),
    "HyFEM": ("dovetail.face.methods", "HyFEM"),
    "Method": ("dovetail.face.methods", "Method"),
    "Party": ("dovetail.face.party", "Party"),
    "Run": ("dovetail.face.run", "Run"),
    "Scores": ("dovetail.face.scores", "Scores"),
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
