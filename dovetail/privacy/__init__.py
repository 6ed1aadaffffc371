"""Whatever bounds, hides or noises a tensor before it leaves a party.

The names below are imported when first used: a prediction alone needs no key.
"""

from dovetail.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
