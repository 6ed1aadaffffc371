"""Scores, tabulates or draws a run; the names below are imported when first used."""

from dovetail.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
