"""Simulation: one table split among parties in this process, as ``[data]`` of a run file says."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from dovetail import data as dd
from dovetail.api.party import keep_table
from dovetail.data.frames import Frame, table_from_frame
from dovetail.errors import ConfigError
from dovetail.methods.validation import validate
from dovetail.runs.partitions import Partition
from dovetail.runs.runfile import DataSection
from dovetail.runs.setup import read_pooled

if TYPE_CHECKING:
    from dovetail.api.settings import SimulateKeys


class Simulation:
    """Table and how it is split; made by ``simulate``."""

    def __init__(self, section: DataSection, frames: Mapping[str, dd.Table]) -> None:
        self.section = section
        self._frames = frames
        if frames:
            train, test = dd.load(
                frames["source"],
                label=section.label,
                id=section.id,
                test_source=frames.get("test_source", section.test_source),
                split_column=section.split_column,
            )
            self.pooled: tuple[dd.Dataset, dd.Dataset | None] = train, test
        else:
            self.pooled = read_pooled(section)

    @property
    def parties(self) -> tuple[str, ...]:
        """Names of the parties that get a part."""
        return self.section.partition.party_names()

    def values(self, test: float | None, folder: Path) -> dict[str, Any]:
        """[data] of a run file; of DataFrames, that which ``keep`` writes to the folder."""
        values = self.section.model_dump(mode="json", exclude_none=True, exclude_unset=True)
        values |= {key: os.path.abspath(folder / f"{key}.parquet") for key in self._frames}
        if self.pooled[1] is None and test is not None:
            values["test"] = test
        return values

    def keep(self, folder: Path) -> None:
        """Write DataFrames to files that only the owner reads."""
        for key, table in self._frames.items():
            folder.mkdir(parents=True, exist_ok=True)
            keep_table(table, table.names, folder / f"{key}.parquet")

    def __repr__(self) -> str:
        rows = self.pooled[0].num_rows
        return f"<Simulation of {', '.join(self.parties)}: {rows:,} rows of one table>"


def simulate(
    source: str | Path | Frame,
    partition: Partition,
    *,
    label: str | Sequence[str] | Mapping[str, Any] | None = None,
    test_source: str | Path | Frame | None = None,
    **keys: Unpack[SimulateKeys],
) -> Simulation:
    """Split one table among parties in this process; give the result to ``fit`` instead of parties.

    Args:
        source: a DataFrame, a path, a ``SELECT``, or a data set that is built in
            ("breast-cancer", "digits", "digits-images").
        partition: who gets what: ``Columns``, ``Strips``, ``CommonUnique``, ``ByColumn``,
            ``Blocks``, ``Owners``.
        label: the column to predict, or several as a list; of a time to an event
            ``{"time": "days", "event": "died"}``.
        test_source: test rows of their own.
        keys: others of [data] of a run file. ``id``: the column that says which sample a row is;
            rows are numbered without it. ``task``: "classification" or "regression"; of a time and
            an event "survival" by itself. ``split_column`` says "test" in test rows.
            ``split_seed``: of the test share and of ``rows``. ``rows``: train on so many, drawn
            once. ``labels``: keep so many, drawn by the run's seed. ``categorical``: number columns
            that are codes. ``max_categories``: a column with more keeps so many of the most
            frequent.

    Raises:
        ConfigError: keys or values that do not fit.
        DataError: a table that cannot be used.
    """
    if "test" in keys:
        raise ConfigError("dovetail.simulate: the share of test rows is said to fit(test=0.25)")
    frames = {}
    values: dict[str, Any] = {"partition": partition, "label": label, **keys}
    values = {key: value for key, value in values.items() if value is not None}
    for key, given in {"source": source, "test_source": test_source}.items():
        if given is None:
            continue
        if isinstance(given, (str, Path)):
            values[key] = str(given)
        else:
            frames[key] = table_from_frame(given)
            values[key] = "a DataFrame"
    if frames and "source" not in frames:
        raise ConfigError("dovetail.simulate: give source and test_source both as DataFrames")
    return Simulation(validate(DataSection, values, where="dovetail.simulate"), frames)
