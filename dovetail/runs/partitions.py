"""How a run file deals one pooled data set out to parties: a section for each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from dovetail import data as dd
from dovetail.data.partitions import names_of
from dovetail.errors import ConfigError
from dovetail.methods.base import DataKeys
from dovetail.settings.section import PartyName, Section


class PartitionSection(Section):
    """What every kind has; its keys are those of the function of ``data/`` that splits."""

    of_tables: ClassVar[bool] = True  # else of images only
    of: ClassVar[tuple[dd.Kind, ...]] = ()  # labels that it splits; none: all
    split: ClassVar[Callable[..., dd.Partitioned]]
    #: Key of [data] -> what ``split`` calls it.
    shared: ClassVar[Mapping[str, str]] = {
        "categorical": "categorical",
        "max_categories": "max_categories",
        "task": "kind",
    }

    def party_names(self) -> tuple[str, ...]:
        """All parties, in their order."""
        raise NotImplementedError

    def active_party(self) -> str | None:
        """The only party with labels; None where several have them."""
        return None

    def deal(self, train: dd.Dataset, test: dd.Dataset | None, section: DataKeys) -> dd.Partitioned:
        """The parties' data; ``section`` has the settings that all kinds share."""
        keys = self._keys()
        kind = keys.pop("kind")
        if self.of and section.task not in self.of:
            raise ConfigError(
                f"{kind} splits rows with labels of {' and '.join(self.of)}, not {section.task}"
            )
        shared = {name: getattr(section, key) for key, name in self.shared.items()}
        return type(self).split(train, test, **keys, **shared)

    def _keys(self) -> dict[str, Any]:
        return dict(self)


class StripsSection(PartitionSection):
    """Images cut into strips; setting m-i of the paper is views = m, active = i."""

    of_tables = False
    split = staticmethod(dd.strips)
    shared: ClassVar[Mapping[str, str]] = {"task": "kind"}

    kind: Literal["strips"]  # what is cut
    views: int = Field(ge=1)  # how many strips, one a party
    active: int = Field(default=1, ge=1)  # which strip has the labels, from 1
    axis: Literal["height", "width"] = "height"  # the side that is cut

    def party_names(self) -> tuple[str, ...]:
        return tuple(f"view-{i}" for i in range(1, self.views + 1))

    def active_party(self) -> str:
        return f"view-{self.active}"


class ColumnsSection(PartitionSection):
    """A table's columns by party; names take ``*`` and ``[0-3]``."""

    split = staticmethod(dd.columns)
    shared: ClassVar[Mapping[str, str]] = {**PartitionSection.shared, "split_seed": "seed"}

    kind: Literal["columns"]  # what is split
    parties: dict[PartyName, tuple[str, ...]]  # party -> its columns, as globs
    active: str  # the party with the labels
    overlap: float | dict[str, float] = 1.0  # share of the active party's rows that each has

    def party_names(self) -> tuple[str, ...]:
        return tuple(self.parties)

    def active_party(self) -> str:
        return self.active


class CommonUniqueSection(PartitionSection):
    """A table's rows split; a share of its columns is at all parties, the rest at one each."""

    split = staticmethod(dd.common_unique)

    kind: Literal["common-unique"]  # what is split
    parties: int | tuple[PartyName, ...] = 5  # how many, or their names
    common: float = Field(default=0.3, gt=0, le=1)  # share of the columns
    # which are common, by the sum of their correlations with the others; none: at random
    correlation: Literal["maximum", "median", "minimum"] | None = None
    validation: float = Field(default=0.25, ge=0, lt=1)  # share of each party's rows
    seed: int = Field(default=0, ge=0)  # which columns and rows go where

    def party_names(self) -> tuple[str, ...]:
        return names_of(self.parties, "party")


class ByColumnSection(PartitionSection):
    """A table with a column that names each row's party."""

    split = staticmethod(dd.by_column)

    kind: Literal["by-column"]  # what is split
    column: str  # names the party; not a feature
    parties: tuple[PartyName, ...]  # values of that column; other rows are left out
    columns: tuple[str, ...] = ("*",)  # the features, as globs; "-" before one leaves it out
    measured: float = Field(default=0.5, gt=0, le=1)  # share of rows with a value, else no column
    rows: dict[str, int] = Field(default_factory=dict)  # party -> training rows; else all
    guest: str | None = None  # a party that does not train; its rows test the others' models
    validation: float = Field(default=0.25, ge=0, lt=1)  # share of each party's training rows
    seed: int = Field(default=0, ge=0)  # which rows are drawn

    def party_names(self) -> tuple[str, ...]:
        return tuple(name for name in self.parties if name != self.guest)


class ShareSection(Section):
    """One party's part: blocks by name, glob or place, and classes by place, from 1."""

    party: PartyName  # its name
    blocks: tuple[str, ...]  # of the image or table
    classes: tuple[int, ...]  # of its samples
    rows: float = 1.0  # share of each class's training rows


class BlocksSection(PartitionSection):
    """Blocks and classes by party: images cut into regions, or named columns."""

    of = ("classification",)
    split = staticmethod(dd.blocks)
    shared: ClassVar[Mapping[str, str]] = {
        key: name for key, name in PartitionSection.shared.items() if key != "task"
    }

    kind: Literal["blocks"]  # what is split
    # how images are cut, or block -> columns
    blocks: Literal["quadrants", "quadrants-channels"] | dict[str, tuple[str, ...]]
    assignment: str | tuple[ShareSection, ...]  # a CSV file, or its rows
    disjoint: bool = False  # no two parties share a training row
    seed: int = Field(default=0, ge=0)  # which rows go where

    def party_names(self) -> tuple[str, ...]:
        return tuple(share.party for share in self._shares())

    def _keys(self) -> dict[str, Any]:
        return {**super()._keys(), "assignment": self._shares()}

    def _shares(self) -> list[dd.Share]:
        if isinstance(self.assignment, str):
            return dd.read_assignment(self.assignment)
        return [dd.Share(**share.model_dump()) for share in self.assignment]


def shares(path: Path) -> list[dict[str, Any]]:
    """What a CSV file of shares says, as a run file may say it itself: a run keeps a copy.

    Raises:
        DataError: a file that cannot be read as such a table.
    """
    return [
        {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(share).items()
        }
        for share in dd.read_assignment(path)
    ]


class OwnersSection(PartitionSection):
    """Columns or strips over data owners, labels over label owners."""

    split = staticmethod(dd.owners)
    kind: Literal["owners"]  # what is split
    # a number, names, or name -> globs of its columns
    data_owners: int | tuple[PartyName, ...] | dict[PartyName, tuple[str, ...]]
    label_owners: int | tuple[PartyName, ...]  # how many, or their names
    axis: Literal["height", "width"] = "height"  # of images: the side that is cut
    skew: float | None = Field(default=None, gt=0, allow_inf_nan=False)  # Dirichlet, over classes
    validation: float = Field(default=0.0, ge=0, lt=1)  # share of each label owner's rows
    seed: int = Field(default=0, ge=0)  # which columns and rows go where

    def party_names(self) -> tuple[str, ...]:
        return (*names_of(self.data_owners, "data"), *names_of(self.label_owners, "label"))


#: Every kind that ``partition = { kind = ... }`` may be.
AnyPartition = Annotated[
    StripsSection
    | ColumnsSection
    | CommonUniqueSection
    | ByColumnSection
    | BlocksSection
    | OwnersSection,
    Field(discriminator="kind"),
]
