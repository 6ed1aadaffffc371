"""Costs of a message in its sender's privacy, beside the message and never within it.

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

#: A message's identity -> what was noted with it, as long as it lives.
_NOTED: dict[int, Mapping[str, Any]] = {}


def noted(message: M, cost: Mapping[str, Any] | None) -> M:
    """The message, by which its receiver has by now learned so much of one sample.

    Args:
        message: about to leave.
        cost: epsilon and delta of the sample that has cost most, this message counted; or bits of
            each row that this message reveals at the most. None, or an epsilon without end: nothing
            is counted.
    """
    if cost and math.isfinite(cost.get("epsilon", 0.0)):
        _NOTED[id(message)] = dict(cost)
        weakref.finalize(message, _NOTED.pop, id(message), None).atexit = False
    return message


def cost_of(message: Message) -> dict[str, float]:
    """Epsilon and delta, or bits, that were noted with it; nothing where none were."""
    cost = _NOTED.get(id(message), {})
    return {name: float(cost[name]) for name in ("epsilon", "delta", "bits") if name in cost}


def releases_of(message: Message) -> int:
    """How often the sample was released that has cost most, this message counted; 0: uncounted."""
    return int(_NOTED.get(id(message), {}).get("releases", 0))
