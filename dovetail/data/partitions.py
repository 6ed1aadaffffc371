"""A pooled data set, split among several parties: a federation for simulation."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
from torch import Tensor

from dovetail.data.datasets import Dataset
from dovetail.data.federation import Federation
from dovetail.data.images import ImageInput
from dovetail.data.inputs import Input
from dovetail.data.party import PartyData
from dovetail.data.preprocessing import TableEncoder
from dovetail.data.tables import Table, nearest
from dovetail.data.task import Task, fit_task
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
