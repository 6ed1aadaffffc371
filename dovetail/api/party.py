"""A party from Python: what its party file would say, and its table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import tomli_w
from torch import Tensor

from dovetail import data as dd
from dovetail import methods
from dovetail.data.addresses import without_password
from dovetail.data.databases import absolute_url
from dovetail.data.frames import Frame, table_from_frame
from dovetail.data.tables import closest
from dovetail.errors import ConfigError, DataError
from dovetail.methods.base import Site
from dovetail.methods.settings.party import PartySection
from dovetail.models.shown import few, html_table
from dovetail.network.retry import write_text
from dovetail.node.partyfile import make_site, open_site

if TYPE_CHECKING:
    from dovetail.api.settings import PartySettings

#: Keys of [party] that are arguments which may be left out.
_KEYS = tuple(key for key in PartySection.model_fields if key not in ("name", "table", "id"))

#: Those of them that are lists of globs; one may stand by itself.
_SEVERAL = ("columns", "categorical")


class Party:
    """A party and its table: what a party file says, from Python.

    Args:
        name: what it is called by the others.
        table: a DataFrame of pandas, polars or pyarrow; the path of a .csv, .tsv, .csv.gz,
            .parquet or .npz file or of a folder of images; a ``SELECT``; or a database's URL.
            A DataFrame is copied: what is done to it later is not seen.
        id: the column that says which sample a row is, or several that do so together.
        label: the column to predict, of a party that has labels; several of them at once as a
            list; of a time to an event ``{"time": "days", "event": "died"}``; of counts
            ``{"count": "claims", "exposure": "years"}``.
        policy: the section ``[policy]`` of a party file: what it agrees to, and with whom.
        folder: of the party: what it keeps is in ``NAME.site`` in it, and certificates
            are looked for in ``certificates/NAME``. None: the working directory.
        settings: its own settings of each method, by the method's name: ``apfed={...}``,
            ``chfl={...}``, ``hyfem={...}``, ``fedoptimus={...}``; and any other key of [party]:

            task: "classification" or "regression", also of several labels; or another of
                docs/tasks.md. A label of two columns says it by itself.
            columns: globs of the columns to use, such as ``["mean *", "-mean area"]``; None: all
                besides id and label.
            blocks: block -> globs of its columns; instead of ``columns``.
            categorical: number columns that are codes, such as postcodes.
            max_categories: a column with more keeps so many of the most frequent.
            encode: column -> how it is read, such as ``{"kind": "text", "size": 16}``; the section
                ``[party.encode]`` of a party file. Others are read as they look.
            id_as: compare ids as "text", without regard to case ("lowercase") or as "digits"; all
                parties must say the same.
            match: keys that stand in for an id in common, tried in order: columns, or functions of
                columns such as "sounds(surname)"; all parties list the same (docs/alignment.md).
            match_columns: what keys call a column -> what it is called here.
            match_dates: "day-first" or "month-first": what 03/07/1980 is here.
            match_region: where telephone numbers without a country code are, such as "GB".
            match_truth: the column that says who each row really is, to measure matching by.
            index_date: the column of the day at which a row is to be predicted; ``inspect`` warns
                of dates after it.
            events: of a table with several rows a sample: ``{"per": "customer", "time": "day"}``
                (docs/parties.md).
            query: what to read of a database; not needed where it has one table.

    Raises:
        ConfigError: keys or values that do not fit.
        DataError: a table that cannot be used.
    """

    def __init__(
        self,
        name: str,
        table: str | Path | Frame,
        *,
        id: str | Sequence[str],
        label: str | Sequence[str] | Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
        folder: str | Path = ".",
        **settings: Unpack[PartySettings],
    ) -> None:
        where = f"dovetail.Party({name!r})"
        _check_names(settings, where)
        rows = None
        if not isinstance(table, (str, Path)):
            try:
                rows = table_from_frame(table)
            except DataError as error:
                raise DataError(f"party {name!r}: {error}") from None
        section: dict[str, Any] = {
            "name": name,
            "table": _absolute(table) if isinstance(table, (str, Path)) else "a DataFrame",
            "id": id if isinstance(id, str) else tuple(id),
            "label": label,
        }
        values: dict[str, Any] = {"party": section}
        for key, value in settings.items():
            if key == "match":
                section[key] = _keys(settings["match"], where)
            elif key in _KEYS and value is not None:
                section[key] = (value,) if key in _SEVERAL and isinstance(value, str) else value
            elif key not in _KEYS:
                values[key] = value
        if policy is not None:
            values["policy"] = policy
        self._rows = rows
        self._given = policy is not None
        self._file = False
        self._site = make_site(values, path=Path(folder) / f"{name}.toml", where=where, table=rows)

    @classmethod
    def read(cls, file: str | Path) -> Party:
        """The party of a party file.

        Raises:
            ConfigError: a file that cannot be read, or does not fit.
            DataError: a table that cannot be used.
        """
        if not isinstance(file, (str, Path)):
            raise ConfigError(
                "a party is a dovetail.Party(...) or the path of a party file, got "
                f"{type(file).__name__}; a DataFrame becomes one with dovetail.Party(name, df, "
                "id=...)"
            )
        party = cls.__new__(cls)
        party._rows = None
        party._given = party._file = True
        party._site = open_site(Path(file))
        return party

    @property
    def name(self) -> str:
        """Name by which the others know the party."""
        return self._site.name

    @property
    def num_rows(self) -> int:
        """How many samples it has."""
        return self._site.table.num_rows

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it uses; none of images."""
        return tuple(name for names in self._site.table.blocks.values() for name in names)

    @property
    def label(self) -> str | None:
        """The column to predict, if it has labels."""
        return self._site.party.label

    @property
    def site(self) -> Site:
        """Site that an equal party file would give."""
        return self._site

    def __repr__(self) -> str:
        label = "" if self.label is None else f", label {self.label!r}"
        return f"<Party {self.name!r}: {self.num_rows:,} rows, {len(self.columns)} columns{label}>"

    def _repr_html_(self) -> str:
        rows = [
            ("rows", f"{self.num_rows:,}"),
            ("columns", f"{len(self.columns)}: {few(self.columns)}" if self.columns else "images"),
            ("label", self.label or "none: a partner"),
            ("table", without_password(self._site.party.table)),
        ]
        return html_table(rows, head=("party", self.name))

    # --- For dovetail.fit ---------------------------------------------------------------------

    def weigh(self, weights_N: Tensor) -> None:
        """Let each row count so much in its own models, and in what is chosen by its labels."""
        self._site = replace(self._site, table=replace(self._site.table, weights=weights_N))

    @property
    def says_policy(self) -> bool:
        """Whether it says itself what it agrees to."""
        return self._given

    @property
    def is_of_file(self) -> bool:
        """Whether it is as its party file says, and not otherwise."""
        return self._file

    @property
    def rows(self) -> dd.Table | None:
        """The DataFrame that it was given, if it was one."""
        return self._rows


def path_of(site: Site, folder: Path) -> Path:
    """The party file that ``keep`` writes to this folder."""
    return folder / f"{site.name}.toml"


def keep(site: Site, rows: dd.Table | None, folder: Path) -> None:
    """A party file that says what this site is, with its DataFrame beside it; only the owner reads.

    Of the DataFrame, those columns are kept that the party uses, for learning or as match keys.
    """
    folder.mkdir(parents=True, exist_ok=True)
    party = site.party.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    if rows is not None:
        table = folder / f"{site.name}.parquet"
        ids = (site.party.id,) if isinstance(site.party.id, str) else site.party.id
        label = () if site.party.label is None else rows.parts_of(site.party.label)
        used = [name for names in site.table.blocks.values() for name in names]
        matched = [*site.party.matching().values()]
        special = (site.party.match_truth, site.party.index_date)
        truth = [each for each in special if each is not None]
        names = dict.fromkeys([*ids, *label, *used, *matched, *truth])
        if site.party.events is not None:
            names = dict.fromkeys(rows.names)  # what is used is computed from them
        keep_table(rows, names, table)
        party["table"] = os.path.abspath(table)
    values = {"party": party, "policy": _given_values(site.policy.section)}
    values |= {name: _given_values(section) for name, section in site.sections.items()}
    path = path_of(site, folder)
    write_text(path, tomli_w.dumps({key: value for key, value in values.items() if value}))
    path.chmod(0o600)


def keep_table(rows: dd.Table, names: Iterable[str], path: Path) -> None:
    """Write these columns to a Parquet file that only the owner reads."""
    columns = {}
    for name in names:
        column = rows.stored(name)
        values = column.values
        if column.is_date:  # in days since 1970; a file says when
            values = np.round(values * 86_400e6).astype("datetime64[us]")
            values[column.missing] = np.datetime64("NaT")
        elif column.missing.any() and values.dtype.kind != "f":
            values = values.astype(object)
            values[column.missing] = None
        columns[name] = values
    before = os.umask(0o077)
    try:
        dd.write_table(path, columns)
    finally:
        os.umask(before)


def _given_values(section: Any) -> dict[str, Any]:
    values: dict[str, Any] = section.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    return values


def _keys(match: Sequence[Sequence[str]], where: str) -> tuple[tuple[str, ...], ...]:
    """Match keys, each a list of components.

    Raises:
        ConfigError: texts where lists are due.
    """
    if isinstance(match, str) or any(isinstance(key, str) for key in match):
        raise ConfigError(
            f"{where}: match is a list of keys, each a list of columns, such as "
            f'[["national_id"], ["surname", "birth_date"]]; got {match!r}'
        )
    return tuple(map(tuple, match))


def _absolute(source: str | Path) -> str:
    """The source as it is found from any folder."""
    text = str(source)
    if dd.is_database_url(text):
        return absolute_url(text, Path.cwd())
    if dd.is_query(source):
        return text
    return os.path.abspath(text)


def _check_names(settings: Mapping[str, Any], where: str) -> None:
    """Refuse an argument that is neither a key of a party nor a method with settings of its own."""
    sections = [name for name, each in methods.records().items() if each.PartySettings is not None]
    for name in settings:
        if name not in (*_KEYS, *sections):
            known = [*_KEYS, "policy", "folder", *sections]
            close = closest(name, known)
            hint = f"did you mean {close!r}?" if close else f"known: {', '.join(known)}"
            raise ConfigError(f"{where}: unknown argument {name!r}; {hint}")
