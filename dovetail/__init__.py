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
    from dovetail.methods import apfed, chfl, fedoptimus, hyfem, vertical
    from dovetail.methods.fedoptimus import selection
    from dovetail.models.saved import load

__version__ = "0.1.0"

__all__ = [
    "DovetailError",
    "__version__",
    "alignment",
    "apfed",
    "chfl",
    "data",
    "errors",
    "experiment",
    "fedoptimus",
    "hyfem",
    "load",
    "models",
    "network",
    "selection",
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
    "load": ("dovetail.models.saved", "load"),
    "models": ("dovetail.models", None),
    "network": ("dovetail.network", None),
    "selection": ("dovetail.methods.fedoptimus.selection", None),
    "vertical": ("dovetail.methods.vertical", None),
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
