"""Where a party computes."""

from __future__ import annotations

import torch

from dovetail.errors import ConfigError


def device(name: str) -> torch.device:
    """The device of this name.

    Raises:
        ConfigError: no such device here.
    """
    try:
        target = torch.device(name)
        torch.zeros(1, device=target).item()  # the meta device has no values
    except (RuntimeError, AssertionError):
        available = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
        raise ConfigError(f"there is no device {name!r} here; there is {available}") from None
    return target
