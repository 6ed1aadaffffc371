"""Other ways to keep a partner's help, each a page written from its paper or published code.

FALSE-VFL (arXiv:2505.11035) is not among them: no published code of it was found, and of its text
only abstract and introduction were at hand, which do not say how it trains.
"""

from __future__ import annotations

from benchmarks.rivals.apc_vfl import apc_vfl
from benchmarks.rivals.base import Rival
from benchmarks.rivals.laser import laser_vfl
from benchmarks.rivals.mars import mars_vfl

#: How a rival is called -> what trains it.
RIVALS: dict[str, Rival] = {"APC-VFL": apc_vfl, "LASER-VFL": laser_vfl, "MARS-VFL": mars_vfl}
