"""Data sets that a table's cells need and that are not here, told once and before anything runs."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.fetch import ADDRESSES
from benchmarks.tables.folders import Place
from dovetail.data.datasets import is_here
from dovetail.errors import ConfigError


def check_data(table: str, places: Iterable[Place]) -> None:
    """Refuse to begin where no cell that is wanted has its data.

    Raises:
        ConfigError: naming the data sets, and how to have them.
    """
    wanted = [place for place in places if any(seed not in place.done for seed in place.wanted)]
    sources = {
        place.cell.name: str(place.run.data.source)
        for place in wanted
        if place.run.data is not None
    }
    lacking = {name for name in {*sources.values()} if not is_here(name)}
    if not lacking or any(
        place.run.data is None or sources[place.cell.name] not in lacking for place in wanted
    ):
        return
    public = sorted(name for name in lacking if name in ADDRESSES)
    ways = []
    if public:
        ways.append(
            f"python -m benchmarks.fetch --into data {' '.join(public)} && "
            "export DOVETAIL_DATA=$PWD/data"
        )
    if len(public) < len(lacking):
        ways.append("docs/bench.md#data says where the others come from")
    raise ConfigError(
        f"{table} needs {', '.join(sorted(lacking))}, which Dovetail does not bring and which "
        f"DOVETAIL_DATA names no folder of: {'; '.join(ways)}"
    )
