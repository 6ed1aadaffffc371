"""Finds which rows are the same sample, and shows no party the others' ids.

The names below are imported when first used: worker processes need the curve and not torch.
"""

from dovetail.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
