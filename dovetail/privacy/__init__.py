"""Whatever bounds, hides or noises a tensor before it leaves a party."""

from dovetail.privacy.masks import KEY_BYTES, MaskKeys, from_fixed, to_fixed, total
from dovetail.privacy.sums import MIN_MEMBERS, SecretSums, check_weights

__all__ = [
    "KEY_BYTES",
    "MIN_MEMBERS",
    "MaskKeys",
    "SecretSums",
    "check_weights",
    "from_fixed",
    "to_fixed",
    "total",
]
