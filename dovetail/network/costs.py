"""What a message costs its sender in privacy, told beside the message and never within it.

A method that noises what leaves says here what the answer that it gives has cost so far; a ledger
that writes the message down asks. Nothing of it travels.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import Any, TypeVar

from dovetail.network.messages import Message

M = TypeVar("M", bound=Message)

#: A message's identity -> what it cost, as long as it lives.
_RELEASES: dict[int, int] = {}
_COSTS: dict[int, dict[str, float]] = {}


def noted(message: M, told: Mapping[str, Any] | None) -> M:
    """The message, by which its receiver has by now learned so much of one sample.

    Args:
        message: about to leave.
        told: epsilon and delta of the sample that has cost most, this message counted; None, or
            an epsilon without end: nothing is counted.
    """
    if told and math.isfinite(told["epsilon"]):
        _COSTS[id(message)] = {"epsilon": float(told["epsilon"]), "delta": float(told["delta"])}
        weakref.finalize(message, _COSTS.pop, id(message), None).atexit = False
        if "releases" in told:
            _RELEASES[id(message)] = int(told["releases"])
            weakref.finalize(message, _RELEASES.pop, id(message), None).atexit = False
    return message


def cost_of(message: Message) -> dict[str, float]:
    """Epsilon and delta that were noted with it; nothing where none were."""
    return _COSTS.get(id(message), {})


def releases_of(message: Message) -> int:
    """How often the sample was released that has cost most, this message counted; 0: uncounted."""
    return _RELEASES.get(id(message), 0)
