"""A pooled data set, split among several parties: a federation for simulation.

``owners`` is FedOptimus' split: columns over data owners, labels over label owners.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dovetail.data.datasets import Dataset
from dovetail.data.images import ImageInput
from dovetail.data.party import Federation, PartyData
from dovetail.data.preprocessing import Input, TableEncoder
from dovetail.data.tables import Table, nearest
from dovetail.data.task import Classification, Task, fit_task
from dovetail.errors import ConfigError, DataError
from dovetail.settings.labels import Kind
from dovetail.settings.shares import names_of

#: What it says of images.
_DEALS = "columns splits tables (strips cuts images)"


@dataclass(frozen=True, eq=False)
class Partitioned:
    """A simulated federation and what it is to learn.

    Attributes:
        train, test: the parties' rows; ``test`` is None where there is no test part.
        task: what the label owner predicts.
        inputs: party -> how its raw data becomes its block; what ``predict`` needs.
        label: the label's name.
    """

    train: Federation
    test: Federation | None
    task: Task
    inputs: Mapping[str, Input]
    label: str


def checked_names(given: int | Iterable[str], kind: str, *, key: str) -> tuple[str, ...]:
    """As ``names_of``; ``key`` is what errors call them.

    Raises:
        ConfigError: none, or one that is there twice.
    """
    names = names_of(given, kind)
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"{key} must be 1 or more, or names that differ, got {given}")
    return names


def task_of(
    train: Dataset, test: Dataset | None = None, *, kind: Kind = "classification"
) -> tuple[Task, Tensor]:
    """Task that fits labels that every row has; and (N,) those of the training rows.

    Raises:
        DataError: a row without a label, or labels that cannot be learned.
    """
    for part in (train, test):
        if part is not None and part.labels.missing.any():
            raise DataError(
                f"label {part.label!r} is missing in {int(part.labels.missing.sum())} of the "
                f"{part.num_rows} rows of {part.name}; every row needs one here, so remove them"
            )
    task = fit_task(train.labels.values, train.labels.missing, kind=kind, label=train.label)
    return task, train.encoded_labels(task)


def strips(
    train: Dataset,
    test: Dataset | None,
    *,
    views: int,
    active: int | str | None = 1,
    axis: Literal["height", "width"] = "height",
    names: Sequence[str] | None = None,
    kind: Kind = "classification",
) -> Partitioned:
    """Images cut into strips, one per party; all parties have all rows, in one order.

    Setting "m-i" of APFed (section 5.1) is ``views=m, active=i``. A strip has floor(H / m) rows of
    pixels; the H mod m that remain at the end are dropped. The block is called "strip".

    Args:
        train, test: images.
        views: m, the number of strips and parties.
        active: who has the labels: a place from 1, or a name; None: nobody.
        axis: the side that is cut.
        names: the parties' names, in the order of their strips; "view-1", ... if left out.
        kind: of what is predicted.

    Raises:
        ConfigError: names or ``active`` that do not fit the number of strips.
        DataError: no images, images of another size in the test part, more strips than rows of
            pixels, or labels that cannot be learned.
    """
    images = _images(train)
    names = [f"view-{index}" for index in range(1, views + 1)] if names is None else list(names)
    if len(names) != views:
        raise ConfigError(f"names must name {views} parties, one per strip, got {names}")
    owner = _owner_name(active, names)
    _, channels, height, width = images.shape
    side = height if axis == "height" else width
    if not 1 <= views <= side:
        raise DataError(
            f"cannot cut images of {axis} {side} into {views} strips; ask for 1 to {side}"
        )
    if test is not None and _images(test).shape[1:] != images.shape[1:]:
        raise DataError(
            f"wrong image shape: {train.name} has {tuple(images.shape[1:])}, "
            f"its test part {test.name} has {tuple(_images(test).shape[1:])}"
        )
    size = side // views
    inputs = {
        name: ImageInput(channels, height, width, axis, index * size, (index + 1) * size)
        for index, name in enumerate(names)
    }
    task, train_labels, test_labels = _labels(train, test, kind)

    def deal(part: Dataset, labels: Tensor) -> Federation:
        return Federation(
            PartyData(
                name,
                part.ids,
                {"strip": inputs[name].transform(_images(part))},
                labels if name == owner else None,
                {"strip": inputs[name]},
                part.label if name == owner else None,
            )
            for name in names
        )

    return Partitioned(
        deal(train, train_labels),
        None if test is None or test_labels is None else deal(test, test_labels),
        task,
        MappingProxyType(inputs),
        train.label,
    )


def columns(
    train: Dataset,
    test: Dataset | None,
    *,
    parties: Mapping[str, Sequence[str]],
    active: str,
    overlap: float | Mapping[str, float] = 1.0,
    seed: int = 0,
    categorical: Sequence[str] = (),
    max_categories: int = 100,
    kind: Kind = "classification",
) -> Partitioned:
    """A table's columns split; the active party has the labels and all training rows.

    Each other party has a random share of the training rows, and all test rows, in an order of
    its own. Each party encodes its columns by what its own training rows hold; in the test part,
    a category that they do not hold counts as missing. The block is called "columns".

    Args:
        train, test: tables.
        parties: name -> globs of its columns (see ``Table.select``). Two parties may have the
            same column.
        active: who has the labels; its globs may be [], so that it has no columns.
        overlap: the share of the training rows that each other party has, in (0, 1]; one number,
            or party -> number, 1 where left out.
        seed: 0 or more; who has which rows, and in which order. It does so for each party apart:
            adding one leaves the others as they were.
        categorical, max_categories: see ``TableEncoder.fit``.
        kind: of what is predicted.

    Raises:
        ConfigError: an active party that is not among the parties, or shares outside (0, 1].
        DataError: no table, a party without columns, a glob that matches none, or columns or
            labels that cannot be learned.
    """
    shares = _shares(parties, active, overlap)
    table = train.table(_DEALS)
    if test is not None:
        test.table(_DEALS)
    chosen = {name: table.select(globs) for name, globs in parties.items()}
    for name, selected in chosen.items():
        if not selected and (name != active or parties[name]):
            raise DataError(
                f"party {name!r} has no columns: {list(parties[name])} leaves none of "
                f"{train.name}; give it at least one"
            )
    task, train_labels, test_labels = _labels(train, test, kind)
    inputs: dict[str, TableEncoder] = {}
    held: list[PartyData] = []
    held_test: list[PartyData] = []

    def deal(name: str, part: Dataset, labels: Tensor | None, rows: np.ndarray) -> PartyData:
        encoder = inputs[name]
        table = part.table(_DEALS).take(rows)
        block = {"columns": encoder.transform(table, allow_unseen=part is test)}
        label = part.label if name == active else None
        labels = labels if name == active else None
        return PartyData(name, part.ids[rows], block, labels, {"columns": encoder}, label)

    for name, selected in chosen.items():
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        is_active = name == active
        rows = np.arange(train.num_rows)
        if not is_active:
            num_shared = max(1, round(shares[name] * train.num_rows))
            rows = rng.permutation(train.num_rows)[:num_shared]
        inputs[name] = TableEncoder(name, ())
        if selected:
            inputs[name] = TableEncoder.fit(
                table.take(rows),
                selected,
                categorical=categorical,
                max_categories=max_categories,
                party=name,
            )
        held.append(deal(name, train, train_labels, rows))
        if test is not None:
            rows = np.arange(test.num_rows) if is_active else rng.permutation(test.num_rows)
            held_test.append(deal(name, test, test_labels, rows))
    return Partitioned(
        Federation(held),
        Federation(held_test) if held_test else None,
        task,
        MappingProxyType(inputs),
        train.label,
    )


def _labels(train: Dataset, test: Dataset | None, kind: Kind) -> tuple[Task, Tensor, Tensor | None]:
    """The task, and the labels of the training and the test part as networks see them."""
    task = fit_task(train.labels.values, train.labels.missing, kind=kind, label=train.label)
    return task, train.encoded_labels(task), None if test is None else tested_labels(task, test)


def tested_labels(task: Task, test: Dataset) -> Tensor:
    """(N,) the labels of test rows, each of which has one.

    Raises:
        DataError: one has none.
    """
    num_missing = int(test.labels.missing.sum())
    if num_missing:
        raise DataError(
            f"label {test.label!r} is missing in {num_missing} of the {test.num_rows} test rows; "
            "a test row without a label cannot be scored, so remove them"
        )
    return test.encoded_labels(task, unseen=True)


def _owner_name(active: int | str | None, names: Sequence[str]) -> str | None:
    """The name of the active party, given as a place from 1, a name, or None."""
    if active is None or active in names:
        return active  # type: ignore[return-value]  # names are strings
    if isinstance(active, int) and 1 <= active <= len(names):
        return names[active - 1]
    raise ConfigError(
        f"active must be a place from 1 to {len(names)} or one of {list(names)}, got {active!r}"
    )


def _shares(
    parties: Mapping[str, Sequence[str]], active: str, overlap: float | Mapping[str, float]
) -> dict[str, float]:
    """Party -> the share of the training rows it has, for all but the active party."""
    if active not in parties:
        raise ConfigError(
            f"the active party {active!r} is none of the parties{nearest(active, parties)}"
        )
    others = [name for name in parties if name != active]
    given = overlap if isinstance(overlap, Mapping) else dict.fromkeys(others, overlap)
    for name, share in given.items():
        if name not in others:
            raise ConfigError(
                f"overlap names {name!r}, which is not one of the parties beside {active!r}"
                f"{nearest(name, others)}"
            )
        if not 0 < share <= 1:
            raise ConfigError(
                f"overlap must be a share of the rows in (0, 1], got {share} for {name!r}"
            )
    return {name: given.get(name, 1.0) for name in others}


def _images(dataset: Dataset) -> Tensor:
    if isinstance(dataset.x, Table):
        raise DataError(f"{dataset.name} is a table; strips cut images (columns splits tables)")
    return dataset.x


@dataclass(frozen=True, eq=False)
class Owners(Partitioned):
    """A simulated federation of data owners, with columns, and label owners, with labels.

    ``train`` has all of them, ``test`` the data owners: of a test row there is one label, which
    every label owner is scored on. ``inputs`` are those of the data owners.

    Attributes:
        data_owners: names; each has its columns (block "own") of all training rows.
        label_owners: names; each has labels of its rows, and no column.
        validation: label owner -> ids and labels of rows that only choose settings; else None.
        test_labels: (N_test,) labels of the test rows; None where there is no test part.
        axis: the tensor dimension along which the parts of a row, as network inputs, stand side by
            side in the order of the data owners; what the pooled baseline is given.
    """

    data_owners: tuple[str, ...]
    label_owners: tuple[str, ...]
    validation: Mapping[str, PartyData] | None
    test_labels: Tensor | None
    axis: int


def owners(
    train: Dataset,
    test: Dataset | None,
    *,
    data_owners: int | Sequence[str] | Mapping[str, Sequence[str]],
    label_owners: int | Sequence[str],
    axis: Literal["height", "width"] = "height",
    skew: float | None = None,
    validation: float = 0.0,
    seed: int = 0,
    categorical: Sequence[str] = (),
    max_categories: int = 100,
    kind: Kind = "classification",
) -> Owners:
    """Columns over D data owners, who have all rows; labels over N label owners, who share none.

    As in FedOptimus' experiments (Shrivastava et al., section 3.2): images are cut into strips of
    floor(H / D) rows of pixels, the H mod D that remain are dropped. Of a table columns are drawn
    at random and split evenly, or in groups that are named. Labels are drawn at random and
    split evenly (the paper does not say how), or with ``skew``.

    Args:
        train, test: images or a table.
        data_owners: how many, their names, or name -> globs of its columns; "data-1", ... by
            default. Two owners may have the same column.
        label_owners: how many, or their names; "label-1", ... by default.
        axis: the side of an image that is cut.
        skew: concentration of a Dirichlet distribution, drawn once for each class, of which share
            of the class's rows each label owner has: 100 is nearly even, 0.1 leaves most owners
            few classes. None: even, whatever the class.
        validation: the share of each label owner's rows that only choose settings, in [0, 1).
        seed: 0 or more; which columns and rows go where.
        categorical, max_categories: see ``TableEncoder.fit``.
        kind: of what is predicted.

    Raises:
        ConfigError: fewer than one owner of a kind, names that repeat, or numbers outside their
            range.
        DataError: more owners than columns, pixels or rows; a label owner that the draw leaves
            without a row; labels that cannot be learned.
    """
    grouped = data_owners if isinstance(data_owners, Mapping) else None
    holders = checked_names(data_owners, "data", key="data_owners")
    labellers = checked_names(label_owners, "label", key="label_owners")
    repeated = sorted({*holders} & {*labellers})
    if repeated:
        raise ConfigError(f"{repeated[0]!r} is a data owner and a label owner; names must differ")
    if skew is not None and not (skew > 0 and np.isfinite(skew)):
        raise ConfigError(f"skew is a concentration above 0, got {skew}")
    if skew is not None and kind != "classification":
        raise ConfigError(f"skew splits rows by class; labels here are of {kind}; leave skew out")
    if not 0 <= validation < 1:
        raise ConfigError(f"validation must be a share of the rows in [0, 1), got {validation}")
    task, labels = task_of(train, test, kind=kind)
    rows = _deal_rows(train, labels, task, labellers, skew=skew, seed=seed)

    inputs: dict[str, Input]
    if isinstance(train.x, Table):
        columns = _columns(train, holders, grouped, seed)
        named = train.x.select(categorical)
        inputs = {
            name: TableEncoder.fit(
                train.x,
                columns_here,
                categorical=[column for column in named if column in columns_here],
                max_categories=max_categories,
                party=name,
            )
            for name, columns_here in columns.items()
        }
    else:
        if grouped is not None:
            raise ConfigError(
                f"{train.name} holds images, which have no columns to name; give data_owners a "
                "number, of strips"
            )
        inputs = dict(zip(holders, _strips(train, test, len(holders), axis), strict=True))

    def held(part: Dataset) -> list[PartyData]:
        return [PartyData(name, part.ids, {"own": _encoded(inputs[name], part)}) for name in inputs]

    training: list[PartyData] = []
    kept: dict[str, PartyData] = {}
    for name, columns_here in rows.items():
        num_validation = round(validation * len(columns_here))
        if validation and not 0 < num_validation < len(columns_here):
            raise DataError(
                f"label owner {name!r} has {len(columns_here)} rows, too few for training and "
                "validation "
                f"rows (validation = {validation}); ask for fewer label owners"
            )
        whole = PartyData(name, train.ids[columns_here], {}, labels[torch.from_numpy(columns_here)])
        kept[name] = whole.take(torch.arange(num_validation))
        training.append(whole.take(torch.arange(num_validation, len(columns_here))))
    return Owners(
        Federation([*held(train), *training]),
        None if test is None else Federation(held(test)),
        task,
        MappingProxyType(inputs),
        train.label,
        holders,
        labellers,
        MappingProxyType(kept) if validation else None,
        None if test is None else test.encoded_labels(task, unseen=True),
        1 if isinstance(train.x, Table) else 2 if axis == "height" else 3,
    )


def _deal_rows(
    train: Dataset,
    labels: Tensor,
    task: Task,
    names: Sequence[str],
    *,
    skew: float | None,
    seed: int,
) -> dict[str, np.ndarray]:
    """Label owner -> its rows, in random order."""
    rng = np.random.default_rng([seed, 1])
    order = rng.permutation(train.num_rows)
    if skew is None:
        dealt = list(np.array_split(order, len(names)))
    else:
        assert isinstance(task, Classification)
        parts: list[list[np.ndarray]] = [[] for _ in names]
        for index in range(task.num_outputs):
            of_class = order[labels.numpy()[order] == index]
            shares = rng.dirichlet(np.full(len(names), skew))
            bounds = np.round(np.cumsum(shares)[:-1] * len(of_class)).astype(int)
            for held, part in zip(parts, np.split(of_class, bounds), strict=True):
                held.append(part)
        dealt = [rng.permutation(np.concatenate(held)) for held in parts]
    for name, rows in zip(names, dealt, strict=True):
        if not len(rows):
            why = "a larger skew" if skew is not None else "fewer label owners"
            raise DataError(
                f"label owner {name!r} has no row of the {train.num_rows} of {train.name}; "
                f"ask for {why}"
            )
    return dict(zip(names, dealt, strict=True))


def _columns(
    train: Dataset,
    names: Sequence[str],
    groups: Mapping[str, Sequence[str]] | None,
    seed: int,
) -> dict[str, list[str]]:
    """Data owner -> its columns, in the table's order."""
    table = train.x
    assert isinstance(table, Table)
    if groups is not None:
        columns = {name: table.select(globs) for name, globs in groups.items()}
    else:
        order = np.random.default_rng([seed, 0]).permutation(len(table.names))
        columns = {
            name: [table.names[index] for index in sorted(columns_here)]
            for name, columns_here in zip(names, np.array_split(order, len(names)), strict=True)
        }
    for name, columns_here in columns.items():
        if not columns_here:
            raise DataError(
                f"data owner {name!r} has no column of {train.name}, which has "
                f"{len(table.names)}; ask for fewer data owners, or name its columns"
            )
    return columns


def _strips(
    train: Dataset, test: Dataset | None, num: int, axis: Literal["height", "width"]
) -> list[ImageInput]:
    """Each data owner's strip of the images."""
    assert isinstance(train.x, Tensor)
    _, channels, height, width = train.x.shape
    if test is not None and (
        isinstance(test.x, Table) or tuple(test.x.shape[1:]) != (channels, height, width)
    ):
        raise DataError(f"the test part {test.name} has no images of the size of {train.name}'s")
    side = height if axis == "height" else width
    if num > side:
        raise DataError(
            f"cannot cut images of {axis} {side} into {num} strips; ask for 1 to {side} data owners"
        )
    size = side // num
    return [
        ImageInput(channels, height, width, axis, index * size, (index + 1) * size)
        for index in range(num)
    ]


def _encoded(fitted: Input, part: Dataset) -> Tensor:
    """The part's rows as one data owner's network sees them."""
    if isinstance(fitted, TableEncoder):
        assert isinstance(part.x, Table)
        return fitted.transform(part.x, allow_unseen=True)
    assert isinstance(part.x, Tensor)
    return fitted.transform(part.x)
