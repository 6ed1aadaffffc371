"""Whatever carries, checks or counts a message.

The names below are imported when first used: who only asks what is wrong with a certificate or an
address does not wait for what computes.
"""

from dovetail.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
