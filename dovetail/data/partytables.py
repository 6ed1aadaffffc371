"""Rows of one party, as its party file names them: ids, columns or images, perhaps a label.

``split_sites`` says of parties' tables, aligned before, which rows train and test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.data.databases import absolute_url, read_database, url_path
from dovetail.data.datasets import Seed, draw_rows, ids_of, read_ids, whole_numbers
from dovetail.data.doubts import OF_LABEL
from dovetail.data.events import Events
from dovetail.data.frames import Frame, table_from_frame
from dovetail.data.images import ImageInput, read_image_samples
from dovetail.data.kinds import ID, TEXT, Column
from dovetail.data.partitions import Partitioned
from dovetail.data.party import Alignment, Federation, PartyData
from dovetail.data.preprocessing import Input, TableEncoder
from dovetail.data.stored import put_away
from dovetail.data.tables import Table, nearest, read_table
from dovetail.data.task import Task, encode_labels, fit_task
from dovetail.errors import ConfigError, DataError, MissingColumnError
from dovetail.files import closed
from dovetail.settings.encode import Asked, Encode, is_file
from dovetail.settings.events import EventsSection
from dovetail.settings.labels import Kind, label_columns
from dovetail.settings.sources import is_database_url, is_query, is_table_path

#: The block of images.
IMAGES = "images"


@dataclass(frozen=True, eq=False)
class PartyTable:
    """Table of a party, before anything is fitted to it.

    Attributes:
        name: the party's name.
        ids: (N,) int64 or strings, unique.
        x: a table with the columns of all blocks, and those that its file leaves out, or
            (N, C, H, W) images.
        blocks: block -> its columns; one empty block for images.
        label: the label's name, or None.
        labels: (N,) raw labels, or None.
        matching: what match keys call a column -> its values.
        truth: (N,) who each row really is, where that is known; for measuring.
        index_date: (N,) days from which on nothing of a row may be known; None: not told.
        images: (N, C, H, W) pictures of the table's samples; None without any beside it.
        weights: (N,) how much a row counts in a label owner's own models; None: all alike.
        label_encode: column of the label -> how it is read, of those that are not as they look.
    """

    name: str
    ids: np.ndarray
    x: Table | Tensor
    blocks: Mapping[str, tuple[str, ...]]
    label: str | None = None
    labels: Column | None = None
    matching: Mapping[str, Column] = field(default_factory=dict)
    truth: Column | None = None
    index_date: Column | None = None
    images: Tensor | None = None
    weights: Tensor | None = None
    label_encode: Mapping[str, Encode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", put_away(self.ids, self.name))

    @property
    def required_labels(self) -> Column:
        """Labels of the party.

        Raises:
            DataError: it has none.
        """
        if self.labels is None:
            raise DataError(f"party {self.name!r} has no labels; name its column with label = ...")
        return self.labels

    def named(self, patterns: Sequence[str] = ("*",)) -> tuple[str, ...]:
        """Columns of its blocks that these patterns match, in the table's order; none of images.

        Raises:
            DataError: a pattern that matches no column of the table.
        """
        if not isinstance(self.x, Table):
            return ()
        in_blocks = {column for columns in self.blocks.values() for column in columns}
        matched = self.x.select(patterns)
        return tuple(each for each in matched if each in in_blocks or not in_blocks)

    @property
    def label_about(self) -> dict[str, Any]:
        """How its label is read, as a model keeps it; nothing of one that is as it looks."""
        asked = self.label_encode.items()
        read = {name: each.model_dump(mode="json", exclude_unset=True) for name, each in asked}
        return {"label_encode": read} if read else {}

    @property
    def positive(self) -> str | int | None:
        """Of two classes the one that its file calls positive."""
        return next((each.positive for each in self.label_encode.values()), None)

    def labelled_rows(self) -> np.ndarray:
        """(L,) rows that have a label, in order."""
        return np.flatnonzero(~self.required_labels.missing)

    def fit_task(self, *, kind: Kind) -> Task:
        """Task that fits its labels."""
        labels, label = self.required_labels, str(self.label)
        values, missing = labels.values, labels.missing
        positive, party = self.positive, self.name
        return fit_task(values, missing, kind=kind, label=label, party=party, positive=positive)

    def encoded_labels(self, task: Task, *, unseen: bool = False) -> Tensor:
        """(N,) its labels as this task has them; see ``encode_labels``.

        Raises:
            DataError: a class that the task does not have.
        """
        labels = self.required_labels
        values, missing = labels.values, labels.missing
        return encode_labels(task, values, missing, label=self.label or "", unseen=unseen)

    @property
    def num_rows(self) -> int:
        return len(self.ids)

    def take(self, rows: np.ndarray) -> PartyTable:
        """The party's table with these rows only, in this order."""
        x = self.x.take(rows) if isinstance(self.x, Table) else self.x[torch.from_numpy(rows)]
        labels = None if self.labels is None else self.labels.take(rows)
        return replace(
            self,
            ids=self.ids[rows],
            x=x,
            labels=labels,
            matching={name: column.take(rows) for name, column in self.matching.items()},
            truth=None if self.truth is None else self.truth.take(rows),
            index_date=None if self.index_date is None else self.index_date.take(rows),
            images=None if self.images is None else self.images[torch.from_numpy(rows)],
            weights=None if self.weights is None else self.weights[torch.from_numpy(rows)],
        )

    def check_one_kind(self, method: str) -> None:
        """Refuse a table with pictures beside it, of which a method would read the one alone.

        Raises:
            DataError: naming the party.
        """
        if self.images is not None:
            raise DataError(
                f"party {self.name!r} has images beside its table; {method} reads the one or the "
                "other, HyFEM both. Leave party.images out"
            )

    def fit_input(self, *, categorical: Sequence[str] = (), max_categories: int = 100) -> Input:
        """Encoder that turns these rows, and later ones, into network inputs; blocks in their
        order.

        Raises:
            DataError: a column that cannot be used, or images beside columns.
        """
        self.check_one_kind("this method")
        if isinstance(self.x, Table):
            names = [column for columns in self.blocks.values() for column in columns]
            if not names and self.labels is not None:
                return TableEncoder(self.name, ())  # a server that has labels alone
            return TableEncoder.fit(
                self.x,
                names,
                categorical=categorical,
                max_categories=max_categories,
                party=self.name,
            )
        return whole_images(self.x)

    def encoded(self, fitted: Input, task: Task | None = None) -> PartyData:
        """These rows as one block of network inputs, and labels where a task says how.

        Raises:
            DataError: rows that do not fit what was fitted, or a class the task does not have.
        """
        if isinstance(self.x, Table):
            assert isinstance(fitted, TableEncoder)
            block = fitted.transform(self.x, allow_unseen=True)
        else:
            assert isinstance(fitted, ImageInput)
            block = fitted.transform(self.x)
        labels = None
        if task is not None and self.labels is not None and self.label is not None:
            labels = self.encoded_labels(task, unseen=True)
        label = None if labels is None else self.label
        return PartyData(
            self.name,
            self.ids,
            {"own": block},
            labels,
            {"own": fitted},
            label,
            weights=self.weights,
        )


def read_party_table(
    name: str,
    source: str | Frame | Table,
    *,
    id: str | Sequence[str],
    label: str | None = None,
    columns: Sequence[str] = ("*",),
    blocks: Mapping[str, Sequence[str]] | None = None,
    query: str | None = None,
    folder: Path | None = None,
    folders: Sequence[str] = (),
    matching: Mapping[str, str] | None = None,
    truth: str | None = None,
    index_date: str | None = None,
    images: str | None = None,
    encode: Mapping[str, Encode] | None = None,
    store: Path | None = None,
    events: EventsSection | None = None,
) -> PartyTable:
    """A party's table.

    Args:
        name: the party's name.
        source: a .csv or .parquet file, a ``SELECT``, a database URL, an .npz file, a folder of
            images, a DataFrame, or a table that was read.
        id: the column that names each sample, or several that do so together; in an .npz file the
            array of ids; in a folder "file", the name of each image's file without its ending.
        label: the column (array, or for folders "folder") to predict, or None.
        columns: globs of the columns to use, where there are no ``blocks``; ``("*",)`` may be none.
        blocks: block -> globs of its columns.
        query: what to read from a database; may be left out where it has one table.
        folder: what relative paths begin from, also of SQLite files; None for the working
            directory. What is opened is bounded there as ``files.closed`` says; with None it is
            the caller's own, and any is.
        folders: other folders that the party's file names, from ``folder``.
        matching: what match keys call a column -> the column; no model learns from these.
        truth: the column that says who each row really is; nor from this one.
        index_date: the column of the day at which a row is to be predicted; nor from this one.
        images: an .npz file or a folder with a picture of each of the table's rows, of the same id.
        encode: column -> how it is read, of those that are not as they look.
        store: the file of frozen encoders' vectors that the site keeps.
        events: how several rows become a sample; None: each is one.

    Raises:
        DataError: naming the party, its table, the column and what to do.
    """
    meaning = _Meaning(
        id, label, columns, blocks, matching or {}, truth, index_date, events, encode or {}
    )
    try:
        if not isinstance(source, str):
            table = source if isinstance(source, Table) else table_from_frame(source)
            read = _from_table(name, table, meaning)
        else:
            reach = () if folder is None else (folder, *(folder / each for each in folders))
            if folder is not None:
                for each in _paths(source, images, encode):
                    if why := closed(folder / each, reach):
                        raise DataError(why)
                source = _beside(folder, source)
            read = _read(name, source, meaning, query=query, folders=reach)
        if encode:
            read = _asking(read, encode, folder or Path(), store)
        if images is None:
            return read
        return _with_images(read, Path(images) if folder is None else folder / images, id)
    except DataError as error:
        kind = MissingColumnError if isinstance(error, MissingColumnError) else DataError
        raise kind(f"party {name!r}: {error}") from None


def _asking(
    table: PartyTable, encode: Mapping[str, Encode], folder: Path, store: Path | None
) -> PartyTable:
    """The party's table with how its columns are read.

    Raises:
        DataError: a column that it does not use.
    """
    used = [name for names in table.blocks.values() for name in names]
    columns = {name: each for name, each in encode.items() if name not in table.label_encode}
    for name in columns:
        if name not in used:
            raise DataError(f"encode names {name!r}, which it does not use{nearest(name, used)}")
        if columns[name].positive is not None:
            raise DataError(f"encode of {name!r}: positive is for the label; leave it out")
    assert isinstance(table.x, Table)
    events = None if table.x.asked is None else table.x.asked.events
    asked = Asked({name: each.within(folder) for name, each in columns.items()}, store, events)
    return replace(table, x=table.x.asking(asked))


def whole_images(x: Tensor) -> ImageInput:
    """Input that reads (N, C, H, W) images as they are."""
    _, channels, height, width = x.shape
    return ImageInput(channels, height, width, "height", 0, height)


def images_of(path: Path, id: str, ids: np.ndarray) -> Tensor:
    """(N, C, H, W) pictures of the samples with these ids, in their order.

    Args:
        path: an .npz file, whose array ``id`` names each picture, or a folder, where its file does.
        id: the column of the ids.
        ids: (N,) of the table's rows.

    Raises:
        DataError: a row without a picture, or files that cannot be read.
    """
    if not path.exists():
        raise DataError(f"there is no file or folder {path}; check the path")
    name = "file" if path.is_dir() else id
    x, id_values, _ = read_image_samples(path, id=name, label=None)
    row_of = {str(each): row for row, each in enumerate(read_ids(str(path), name, id_values))}
    lacking = [str(each) for each in ids if str(each) not in row_of]
    if lacking:
        raise DataError(
            f"{path} has no picture of {len(lacking)} of the table's {len(ids)} rows, such as "
            f"{lacking[0]!r}; add them, or leave these rows out of the table"
        )
    return x[torch.tensor([row_of[str(each)] for each in ids], dtype=torch.int64)]


def _with_images(table: PartyTable, path: Path, id: str | Sequence[str]) -> PartyTable:
    """The party's table with a picture of each row."""
    if not isinstance(table.x, Table):
        raise DataError("images stand beside a table, and party.table holds images; leave one out")
    if not isinstance(id, str):
        raise DataError(f"pictures are named by one id, got {list(id)}; leave party.images out")
    if IMAGES in table.blocks:
        raise DataError(f"the block {IMAGES!r} is that of party.images; call the columns otherwise")
    return replace(table, images=images_of(path, id, table.ids))


def _paths(
    source: str, images: str | None, encode: Mapping[str, Encode] | None
) -> Iterator[str | Path]:
    """Paths of this machine that a party's file has; a query has its own judge."""
    path = url_path(source)
    if path is not None:
        yield path
    elif not is_query(source) and not is_database_url(source):
        yield source
    if images is not None:
        yield images
    for each in (encode or {}).values():
        yield each.folder
        if each.model is not None and is_file(each.model):
            yield each.model


def _beside(folder: Path, source: str) -> str:
    """The source with its path, if it is one, from this folder."""
    if is_query(source):
        return source
    if is_database_url(source):
        return absolute_url(source, folder)
    return str(folder / source)


@dataclass(frozen=True)
class _Meaning:
    """Which columns mean what; as arguments of ``read_party_table``."""

    id: str | Sequence[str]
    label: str | None
    columns: Sequence[str]
    blocks: Mapping[str, Sequence[str]] | None
    matching: Mapping[str, str]
    truth: str | None
    index_date: str | None
    events: EventsSection | None = None
    encode: Mapping[str, Encode] = field(default_factory=dict)

    def label_encode(self) -> dict[str, Encode]:
        """Column of the label -> how it is read, of those that ``encode`` names.

        Raises:
            DataError: by a key that a label does not have.
        """
        names = () if self.label is None else (self.label, *label_columns(self.label))
        asked = {name: self.encode[name] for name in names if name in self.encode}
        for name, each in asked.items():
            if odd := sorted(each.model_fields_set - OF_LABEL):
                raise DataError(
                    f"encode of the label {name!r} takes missing, lowercase and positive, got "
                    f"{', '.join(odd)}; leave {'it' if len(odd) == 1 else 'them'} out"
                )
        return asked


def _read(
    name: str, source: str, meaning: _Meaning, *, query: str | None, folders: Sequence[Path]
) -> PartyTable:
    """A party's table of a file, folder, query or database."""
    id, label = meaning.id, meaning.label
    path = Path(source)
    if not is_query(source) and not is_database_url(source) and not is_table_path(path):
        if not path.exists():
            raise DataError(f"there is no file or folder {path}; check the path")
        if not isinstance(id, str):
            raise DataError(f"images have one id, got {list(id)}")
        if meaning.matching:
            raise DataError("images have no columns to match by; leave party.match out")
        x, id_values, label_values = read_image_samples(path, id=id, label=label)
        ids = read_ids(source, id, id_values)
        labels = None if label_values is None else whole_numbers(label_values)
        return PartyTable(name, ids, x, {IMAGES: ()}, label, labels)
    if is_database_url(source):
        table = read_database(source, query)
    else:
        table = read_table(source, folders=folders)
    return _from_table(name, table, meaning)


def _by_sample(table: Table, meaning: _Meaning) -> Table:
    """The table, or of events a row a sample, and what later events become.

    Raises:
        DataError: events that are not of the party's id.
    """
    section = meaning.events
    if section is None:
        return table
    if meaning.id != section.per:
        raise DataError(
            f"events.per is the party's id, which is {meaning.id!r}, got {section.per!r}; name the "
            "same column in both"
        )
    label = () if meaning.label is None else table.parts_of(meaning.label)
    named = (*label, *meaning.matching.values(), meaning.truth, meaning.index_date)
    kept = [*dict.fromkeys(each for each in named if each is not None)]
    found = Events.of(section, table, kept)
    labelled = table.asking(Asked(meaning.label_encode()))
    return found.by_sample(labelled, kept).asking(Asked({}, events=found))


def _from_table(name: str, table: Table, meaning: _Meaning) -> PartyTable:
    table = _by_sample(table, meaning)
    id, label, truth = meaning.id, meaning.label, meaning.truth
    id_columns = (id,) if isinstance(id, str) else tuple(id)
    ids = _ids(table, id_columns)
    special = [*id_columns, *([label] if label is not None else [])]
    if len(set(special)) < len(special):
        raise DataError(f"id and label must be different columns, got {special}")
    read_so = meaning.label_encode()
    labels = None if label is None else whole_numbers(table.asking(Asked(read_so)).label(label))
    matched = {called: table.column(column) for called, column in meaning.matching.items()}
    known = None if truth is None else table.column(truth, TEXT)
    index_date = None if meaning.index_date is None else table.column(meaning.index_date)
    if index_date is not None and not index_date.is_date:
        raise DataError(
            f"index_date names {meaning.index_date!r}, which has no dates; write them YYYY-MM-DD"
        )
    named_once = (truth, meaning.index_date)
    persons = [*meaning.matching.values(), *(each for each in named_once if each is not None)]
    features = table.without(list(dict.fromkeys([*special, *persons])))
    blocks = meaning.blocks
    if blocks is None:  # a party may hold labels and nothing else
        is_asked = features.names or meaning.columns != ("*",)
        blocks = {"columns": meaning.columns} if is_asked else {}
    chosen = {block: tuple(features.select(globs)) for block, globs in blocks.items()}
    named = [column for each in chosen.values() for column in each]
    repeated = sorted({column for column in named if named.count(column) > 1})
    if repeated:
        raise DataError(f"column {repeated[0]!r} is in two blocks; name it in one")
    return PartyTable(
        name, ids, features, chosen, label, labels, matched, known, index_date, label_encode=read_so
    )


def _ids(table: Table, names: tuple[str, ...]) -> np.ndarray:
    """(N,) ids from one column, or text that joins several."""
    if len(names) == 1:
        return read_ids(table.description, names[0], table.column(names[0], ID))
    parts = [table.column(name, ID) for name in names]
    missing = np.logical_or.reduce([part.missing for part in parts])
    texts = [
        ids_of(table.description, name, part).astype(np.str_)
        for name, part in zip(names, parts, strict=True)
    ]
    joined = texts[0]
    for part in texts[1:]:
        # A separator no id has, so that ("a", "bc") and ("ab", "c") stay apart.
        joined = np.char.add(np.char.add(joined, "\x1f"), part)
    return read_ids(
        table.description, " + ".join(names), Column(joined.astype(object), missing), parts=names
    )


def split_sites(
    tables: Mapping[str, PartyTable],
    owner: str,
    alignment: Alignment,
    *,
    fit: Callable[[PartyTable], Input],
    kind: Kind,
    test: float | None,
    seed: Seed,
    by_class: bool = True,
) -> tuple[Partitioned, Alignment, Alignment | None]:
    """Training and test data of all parties, and their alignments.

    The label owner's labelled rows are split; its unlabelled rows all train. Its inputs are fitted
    on training rows; the others, who have no test rows of their own, fit on all of theirs.

    Args:
        tables: party -> its table; parties that are elsewhere are left out.
        owner: the party whose labels are learned.
        alignment: rows by shared sample, of all parties.
        fit: what turns a party's rows into network inputs, fitted on these.
        kind: of what is predicted.
        test: the share of labelled rows that test; None: none.
        seed: of the split.
        by_class: whether as large a share of each class tests; else labels have no part in it.

    Raises:
        DataError: rows that cannot be split, or labels that cannot be learned.
    """
    owner_table = tables[owner]
    assert owner_table.labels is not None
    assert owner_table.label is not None
    if owner_table.labels.missing.all():
        raise DataError(
            f"party {owner!r}: label {owner_table.label!r} has no value in any of its "
            f"{owner_table.num_rows} rows; "
            "rows without one help, but some must have one"
        )
    stratify = by_class and kind == "classification"
    drawn = _split_rows(owner_table, test, seed, stratify=stratify)
    train_rows, test_rows = (put_away(rows, owner) for rows in drawn)
    del drawn
    train_table = owner_table.take(train_rows)
    assert train_table.labels is not None
    task = train_table.fit_task(kind=kind)
    inputs = {name: fit(train_table if name == owner else table) for name, table in tables.items()}
    # Labels that another party may have stay unused.
    others = [table.encoded(inputs[name]) for name, table in tables.items() if name != owner]

    def part(rows: np.ndarray) -> tuple[Federation, Alignment]:
        table = train_table if rows is train_rows else owner_table.take(rows)
        federation = Federation([table.encoded(inputs[owner], task), *others])
        return federation, alignment.restricted(owner, rows, owner_table.num_rows)

    train, train_alignment = part(train_rows)
    tested, test_alignment = part(test_rows) if len(test_rows) else (None, None)
    data = Partitioned(train, tested, task, inputs, owner_table.label)
    return data, train_alignment, test_alignment


def _split_rows(
    table: PartyTable, test: float | None, seed: Seed, *, stratify: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(N',) training and (N'',) test rows, each in the table's order."""
    rows = np.arange(table.num_rows)
    if test is None:
        return rows, rows[:0]
    assert table.labels is not None
    labelled = rows[~table.labels.missing]
    _, drawn = draw_rows(
        table.labels.take(labelled),
        test,
        seed=seed,
        stratify=stratify,
        whose=f"labelled rows of party {table.name!r} with test = {test}",
    )
    held_out = np.sort(labelled[drawn])
    trains = np.ones(table.num_rows, dtype=bool)
    trains[held_out] = False
    return np.flatnonzero(trains), held_out


def keep_labels(
    partitioned: Partitioned, party: str, num_labels: int, rng: torch.Generator
) -> Partitioned:
    """Data with labels on a random ``num_labels`` of this party's training rows only.

    Raises:
        ConfigError: fewer rows have a label.
    """
    party_data = partitioned.train[party]
    labelled = party_data.labelled_rows()
    if num_labels > len(labelled):
        raise ConfigError(
            f"labels is {num_labels}, but only {len(labelled)} training rows of party {party!r} "
            "have a label; ask for at most so many"
        )
    order = torch.randperm(len(labelled), generator=rng)
    kept = party_data.with_labels_on(labelled[order[:num_labels]].sort().values)
    parties = partitioned.train.parties.values()
    train = Federation(kept if each.name == party else each for each in parties)
    return replace(partitioned, train=train)
