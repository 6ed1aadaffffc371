"""One table split among parties, to try things out: what ``[data]`` of a run file says."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

from dovetail import data as dd
from dovetail.api.party import keep_table
from dovetail.data.frames import Frame, table_from_frame
from dovetail.errors import ConfigError
from dovetail.methods.validation import validate
from dovetail.runs.partitions import AnyPartition
from dovetail.runs.runfile import DataSection
from dovetail.runs.setup import read_pooled
from dovetail.settings.section import Section

if TYPE_CHECKING:
    from dovetail.api.settings import (
        BlocksKeys,
        ByColumnKeys,
        ColumnsKeys,
        CommonUniqueKeys,
        OwnersKeys,
        SimulateKeys,
        StripsKeys,
    )


class _Deal(Section):
    """A partition alone, to be checked as one of a run file is."""

    partition: AnyPartition


class Partition:
    """Who gets which part of one table; made by ``Columns``, ``Strips``, ``Blocks``, ..."""

    kind: ClassVar[str]

    def __init__(self, **keys: Any) -> None:
        given = {key: _plain(value) for key, value in keys.items()}
        self.keys: dict[str, Any] = {"kind": self.kind, **given}
        validate(_Deal, {"partition": self.keys}, where=f"dovetail.{type(self).__name__}")

    def __repr__(self) -> str:
        given = ", ".join(f"{key}={value!r}" for key, value in self.keys.items() if key != "kind")
        return f"{type(self).__name__}({given})"


def _plain(value: Any) -> Any:
    """A value as a run file has it."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return value


class Columns(Partition):
    """A table's columns by party; all have the same samples. For APFed.

    Args:
        parties: party -> globs of its columns.
        keys: ``active``, who has the labels (else the first), and ``overlap``, the share of the
            active party's training rows that the others have, or party -> share.
    """

    kind = "columns"

    def __init__(
        self, parties: Mapping[str, str | Sequence[str]], **keys: Unpack[ColumnsKeys]
    ) -> None:
        named = {
            name: [globs] if isinstance(globs, str) else globs for name, globs in parties.items()
        }
        active = keys.pop("active", None) or next(iter(named), "")
        super().__init__(parties=named, active=active, **keys)


class Strips(Partition):
    """Images cut into strips, one for each party. For APFed.

    Args:
        views: how many strips.
        keys: ``active``, the place, from 1, of the party that has the labels, and ``axis``, the
            side that is cut: "height" or "width".
    """

    kind = "strips"

    def __init__(self, views: int, **keys: Unpack[StripsKeys]) -> None:
        super().__init__(views=views, **keys)


class CommonUnique(Partition):
    """A table's rows by party; some columns are at all parties, the rest at one each. For CHFL.

    Args:
        parties: how many, or their names.
        keys: ``common``, the share of the columns that all have, ``correlation``, which these are,
            ``validation``, the share of each party's rows that validate, and ``seed``.
    """

    kind = "common-unique"

    def __init__(self, parties: int | Sequence[str] = 5, **keys: Unpack[CommonUniqueKeys]) -> None:
        super().__init__(parties=parties, **keys)


class ByColumn(Partition):
    """A table that says in a column whose each row is. For CHFL and HyFEM.

    Args:
        column: says whose a row is.
        parties: its values.
        keys: ``columns``, globs of the features ("-" before one leaves it out); ``measured``: a
            party has the columns with a value in this share of its rows or more; ``rows``: party ->
            how many training rows it has, else all; ``guest``: a party that trains on nothing, and
            whose rows test the others' models; ``validation``: the share of each party's training
            rows that validate; ``seed``.
    """

    kind = "by-column"

    def __init__(self, column: str, parties: Sequence[str], **keys: Unpack[ByColumnKeys]) -> None:
        super().__init__(column=column, parties=parties, **keys)


class Blocks(Partition):
    """Blocks of columns or pixels, and classes, by party. For HyFEM.

    Args:
        blocks: block -> globs of its columns; of images "quadrants" or "quadrants-channels".
        assignment: a CSV file, or shares ``{"party": ..., "blocks": [...], "classes": [...],
            "rows": ...}``.
        keys: ``disjoint``: no two parties share a training row; ``seed``.
    """

    kind = "blocks"

    def __init__(
        self,
        blocks: Mapping[str, Sequence[str]] | Literal["quadrants", "quadrants-channels"],
        *,
        assignment: str | Path | Sequence[Mapping[str, Any]],
        **keys: Unpack[BlocksKeys],
    ) -> None:
        if isinstance(assignment, (str, Path)):
            assignment = os.path.abspath(assignment)
        super().__init__(blocks=blocks, assignment=assignment, **keys)


class Owners(Partition):
    """Columns over data owners, labels over label owners. For FedOptimus.

    Args:
        data_owners: how many, their names, or name -> globs of its columns.
        label_owners: how many, or their names.
        keys: ``axis``: of images the side that is cut; ``skew``: of the classes over label owners,
            a Dirichlet's, else even; ``validation``: the share of each label owner's rows that
            validate; ``seed``.
    """

    kind = "owners"

    def __init__(
        self,
        data_owners: int | Sequence[str] | Mapping[str, Sequence[str]],
        *,
        label_owners: int | Sequence[str],
        **keys: Unpack[OwnersKeys],
    ) -> None:
        super().__init__(data_owners=data_owners, label_owners=label_owners, **keys)


class Simulation:
    """One table, and how it is split; made by ``simulate``."""

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
        """Who gets a part."""
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
    """One table, dealt to parties in this process; give it to ``fit`` in the place of parties.

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
    values: dict[str, Any] = {"partition": partition.keys, "label": label, **keys}
    values = {key: _plain(value) for key, value in values.items() if value is not None}
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
