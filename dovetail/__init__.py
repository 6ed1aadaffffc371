"""Federated learning for organisations whose columns and rows only partly match.

Models are trained across parties that know different things about partly the same samples; no
table leaves its owner, and the trained model predicts at one party alone.

The names below are imported when first used, so that ``import dovetail`` alone stays light; type
checkers read them in ``__init__.pyi``.
"""

from dovetail import errors as errors
from dovetail.errors import DovetailError as DovetailError
from dovetail.lazy import lazy

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
__all__ += ["__version__"]
