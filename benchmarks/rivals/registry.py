"""The rivals that ``benchmarks.unseen --rivals`` trains."""

from __future__ import annotations

from benchmarks.rivals.apc_vfl import apc_vfl
from benchmarks.rivals.base import Rival
from benchmarks.rivals.laser import laser_vfl
from benchmarks.rivals.mars import mars_vfl

#: How a rival is called -> what trains it.
RIVALS: dict[str, Rival] = {"APC-VFL": apc_vfl, "LASER-VFL": laser_vfl, "MARS-VFL": mars_vfl}
