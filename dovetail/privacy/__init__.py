"""Whatever bounds, hides or noises a tensor before it leaves a party."""

from dovetail.privacy.masks import KEY_BYTES, MaskKeys, from_fixed, to_fixed, total

__all__ = ["KEY_BYTES", "MaskKeys", "from_fixed", "to_fixed", "total"]
