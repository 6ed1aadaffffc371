"""FedOptimus' split of a pooled data set: columns over data owners, labels over label owners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dovetail.data.datasets import Dataset
from dovetail.data.federation import Federation
from dovetail.data.images import ImageInput
from dovetail.data.inputs import Input
from dovetail.data.partitions import Partitioned, checked_names, task_of
from dovetail.data.party import PartyData
from dovetail.data.preprocessing import TableEncoder
from dovetail.data.tables import Table
from dovetail.data.task import Classification, Task
from dovetail.errors import ConfigError, DataError
from dovetail.settings.labels import Kind


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
