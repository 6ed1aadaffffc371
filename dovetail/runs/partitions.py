"""Partitions of one table among parties, to try things out: in Python and as a run file says it.

``dovetail.Columns({"clinic": ["mean *"]})`` is ``partition = { kind = "columns", ... }`` of a run
file's [data]: one class, which also deals the rows out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, ValidationError

from dovetail.errors import ConfigError
from dovetail.methods.validation import sentence
from dovetail.settings.labels import Kind
from dovetail.settings.section import PartyName, Section
from dovetail.settings.shares import Share, names_of, read_assignment

if TYPE_CHECKING:
    from dovetail import data as dd
    from dovetail.methods.base import DataKeys


def _globs(given: Any) -> Any:
    return (given,) if isinstance(given, str) else given


def _whole_path(given: Any) -> Any:
    return os.path.abspath(given) if isinstance(given, str | Path) else given


#: Names of columns, which take ``*`` and ``[0-3]``; one needs no list.
Globs = Annotated[Sequence[str], BeforeValidator(_globs)]


class Partition(Section):
    """Partition of one table; its keys are those of what splits it in ``data/``.

    A key with ``kw_only=False`` may also be given by its place.

    Raises:
        ConfigError: a key or value that does not fit.
    """

    of_tables: ClassVar[bool] = True  # else of images only
    of: ClassVar[tuple[Kind, ...]] = ()  # labels that it splits; none: all
    split: ClassVar[str]  # the function of ``data/``
    #: Key of [data] -> what ``split`` calls it.
    shared: ClassVar[Mapping[str, str]] = {
        "categorical": "categorical",
        "max_categories": "max_categories",
        "task": "kind",
    }

    def __init__(self, *given: Any, **keys: Any) -> None:
        fields = type(self).model_fields
        by_place = [name for name, field in fields.items() if field.kw_only is False]
        if len(given) > len(by_place) or not keys.keys().isdisjoint(by_place[: len(given)]):
            names = " and ".join(by_place)
            raise TypeError(f"{type(self).__name__} takes {names} once, and other keys by name")
        (kind,) = get_args(fields["kind"].annotation)
        values = {"kind": kind, **dict(zip(by_place, given, strict=False)), **keys}
        try:
            super().__init__(**values)
        except ValidationError as error:
            what = sentence(type(self), values, error)
            raise ConfigError(f"dovetail.{type(self).__name__}: {what}") from None

    # In a run file pydantic makes it without ``__init__``: what is wrong is told with its place.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [(key, value) for key, value in super().__repr_args__() if key in self.given()]

    def given(self) -> set[str]:
        """The keys that were given, without its kind."""
        return self.model_fields_set - {"kind"}

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
        from dovetail import data

        dealt: dd.Partitioned = getattr(data, self.split)(train, test, **keys, **shared)
        return dealt

    def _keys(self) -> dict[str, Any]:
        return dict(self)


class Strips(Partition):
    """Images cut into strips, one for each party; for APFed.

    Setting m-i of the paper is views = m, active = i.
    """

    of_tables = False
    split = "strips"
    shared: ClassVar[Mapping[str, str]] = {"task": "kind"}

    kind: Literal["strips"] = Field(init=False)  # what is cut
    views: int = Field(ge=1, kw_only=False)  # how many strips, one a party
    active: int = Field(default=1, ge=1)  # which strip has the labels, from 1
    axis: Literal["height", "width"] = "height"  # the side that is cut

    def party_names(self) -> tuple[str, ...]:
        return tuple(f"view-{i}" for i in range(1, self.views + 1))

    def active_party(self) -> str:
        return f"view-{self.active}"


class Columns(Partition):
    """A table's columns by party; names take ``*`` and ``[0-3]``. All have the same samples.

    For APFed.
    """

    split = "columns"
    shared: ClassVar[Mapping[str, str]] = {**Partition.shared, "split_seed": "seed"}

    kind: Literal["columns"] = Field(init=False)  # what is split
    parties: Mapping[PartyName, Globs] = Field(kw_only=False)  # party -> its columns, as globs
    active: str | None = None  # the party with the labels; none: the first
    # share of the active party's training rows that the others have, or party -> share
    overlap: float | Mapping[str, float] = 1.0

    def party_names(self) -> tuple[str, ...]:
        return tuple(self.parties)

    def active_party(self) -> str:
        return self.active or next(iter(self.parties), "")

    def _keys(self) -> dict[str, Any]:
        return {**super()._keys(), "active": self.active_party()}


class CommonUnique(Partition):
    """A table's rows split; a share of its columns is at all parties, the rest at one each.

    For CHFL.
    """

    split = "common_unique"

    kind: Literal["common-unique"] = Field(init=False)  # what is split
    # how many, or their names
    parties: int | Sequence[PartyName] = Field(default=5, kw_only=False)
    common: float = Field(default=0.3, gt=0, le=1)  # share of the columns
    # which are common, by the sum of their correlations with the others; none: at random
    correlation: Literal["maximum", "median", "minimum"] | None = None
    validation: float = Field(default=0.25, ge=0, lt=1)  # share of each party's rows
    seed: int = Field(default=0, ge=0)  # which columns and rows go where

    def party_names(self) -> tuple[str, ...]:
        return names_of(self.parties, "party")


class ByColumn(Partition):
    """A table with a column that names each row's party; for CHFL and HyFEM."""

    split = "by_column"

    kind: Literal["by-column"] = Field(init=False)  # what is split
    column: str = Field(kw_only=False)  # names the party; not a feature
    # values of that column; other rows are left out
    parties: Sequence[PartyName] = Field(kw_only=False)
    columns: Sequence[str] = ("*",)  # the features, as globs; "-" before one leaves it out
    measured: float = Field(default=0.5, gt=0, le=1)  # share of rows with a value, else no column
    rows: Mapping[str, int] = Field(default_factory=dict)  # party -> training rows; else all
    guest: str | None = None  # a party that does not train; its rows test the others' models
    validation: float = Field(default=0.25, ge=0, lt=1)  # share of each party's training rows
    seed: int = Field(default=0, ge=0)  # which rows are drawn

    def party_names(self) -> tuple[str, ...]:
        return tuple(name for name in self.parties if name != self.guest)


class ShareSection(Section):
    """Part of one party: blocks by name, glob or place, and classes by place, from 1."""

    party: PartyName  # its name
    blocks: tuple[str, ...]  # of the image or table
    classes: tuple[int, ...]  # of its samples
    rows: float = 1.0  # share of each class's training rows


class Blocks(Partition):
    """Blocks and classes by party: images cut into regions, or named columns. For HyFEM."""

    of = ("classification",)
    split = "blocks"
    shared: ClassVar[Mapping[str, str]] = {
        key: name for key, name in Partition.shared.items() if key != "task"
    }

    kind: Literal["blocks"] = Field(init=False)  # what is split
    # how images are cut, or block -> columns
    blocks: Literal["quadrants", "quadrants-channels"] | Mapping[str, Sequence[str]] = Field(
        kw_only=False
    )
    # a CSV file, or its rows
    assignment: Annotated[str | Path | Sequence[ShareSection], BeforeValidator(_whole_path)]
    disjoint: bool = False  # no two parties share a training row
    seed: int = Field(default=0, ge=0)  # which rows go where

    def party_names(self) -> tuple[str, ...]:
        return tuple(share.party for share in self._shares())

    def _keys(self) -> dict[str, Any]:
        return {**super()._keys(), "assignment": self._shares()}

    def _shares(self) -> list[Share]:
        if isinstance(self.assignment, str | Path):
            return read_assignment(self.assignment)
        return [Share(**share.model_dump()) for share in self.assignment]


def shares(path: Path) -> list[dict[str, Any]]:
    """Shares in a CSV file, as a run file may have them itself: a run keeps a copy.

    Raises:
        DataError: a file that cannot be read as such a table.
    """
    return [
        {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(share).items()
        }
        for share in read_assignment(path)
    ]


class Owners(Partition):
    """Columns or strips over data owners, labels over label owners. For FedOptimus."""

    split = "owners"

    kind: Literal["owners"] = Field(init=False)  # what is split
    # a number, names, or name -> globs of its columns
    data_owners: int | Sequence[PartyName] | Mapping[PartyName, Sequence[str]] = Field(
        kw_only=False
    )
    label_owners: int | Sequence[PartyName]  # how many, or their names
    axis: Literal["height", "width"] = "height"  # of images: the side that is cut
    skew: float | None = Field(default=None, gt=0, allow_inf_nan=False)  # Dirichlet, over classes
    validation: float = Field(default=0.0, ge=0, lt=1)  # share of each label owner's rows
    seed: int = Field(default=0, ge=0)  # which columns and rows go where

    def party_names(self) -> tuple[str, ...]:
        return (*names_of(self.data_owners, "data"), *names_of(self.label_owners, "label"))


#: Every kind that ``partition = { kind = ... }`` may be.
AnyPartition = Annotated[
    Strips | Columns | CommonUnique | ByColumn | Blocks | Owners,
    Field(discriminator="kind"),
]
