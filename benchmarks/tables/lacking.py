"""Data sets that a table's cells need and that are not here, told once and before anything runs."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.fetch import ADDRESSES
from benchmarks.tables.folders import CellFolder
from dovetail.data.datasets import is_here
from dovetail.errors import ConfigError


def check_data(table: str, indices: Iterable[CellFolder]) -> None:
    """Refuse to begin where no cell that is wanted has its data.

    Raises:
        ConfigError: naming the data sets, and how to have them.
    """
    wanted = [index for index in indices if any(seed not in index.done for seed in index.wanted)]
    sources = {
        index.cell.name: str(index.run.data.source)
        for index in wanted
        if index.run.data is not None
    }
    lacking = {name for name in {*sources.values()} if not is_here(name)}
    if not lacking or any(
        index.run.data is None or sources[index.cell.name] not in lacking for index in wanted
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
