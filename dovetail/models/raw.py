"""Raw rows as a saved model takes them: columns of a file or DataFrame, or images."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from dovetail import data as dd
from dovetail.data.datasets import ids_of
from dovetail.data.frames import Frame, table_from_frame
from dovetail.data.kinds import ID
from dovetail.data.partytables import images_of
from dovetail.data.saving import read_saved
from dovetail.errors import DataError, ModelError
from dovetail.models.learners.joint import JointSpec
from dovetail.models.networks import Shape
from dovetail.models.owners import OwnersSpec
from dovetail.models.specs import NetworkSpec
from dovetail.settings.encode import Asked, Encode

#: Column of the label -> how it was read in training.
_LABEL = TypeAdapter(dict[str, Encode])


class Takes(Protocol):
    """Interface that is needed of a model to read rows for it."""

    @property
    def party(self) -> str: ...
    @property
    def task(self) -> dd.Task: ...
    @property
    def spec(self) -> NetworkSpec | None: ...
    @property
    def shapes(self) -> Mapping[str, Shape]: ...
    @property
    def inputs(self) -> Mapping[str, dd.Input]: ...
    @property
    def about(self) -> Mapping[str, Any]: ...
    @property
    def any_blocks(self) -> bool: ...


@dataclass(frozen=True, eq=False)
class RawRows:
    """N rows that were read for a model.

    Attributes:
        ids: (N,) ids, or row numbers from 0 where no column names them.
        x: block -> (N, ...) network inputs.
        labels: (N,) raw labels, where the data have the label's column.
        exposure: (N,) of a model of rates, where the data have its column.
        far: a clause for each column with values far from those of training.
    """

    ids: np.ndarray
    x: dict[str, Tensor]
    labels: dd.Column | None
    exposure: np.ndarray | None = None
    far: tuple[str, ...] = ()

    def labelled(self, task: dd.Task, label: str) -> tuple[dict[str, Tensor], Tensor]:
        """The rows that have a label: their inputs, and labels as a network learns them.

        Raises:
            DataError: no row has one.
        """
        labels = self.labels
        present = np.flatnonzero(~labels.missing) if labels is not None else np.arange(0)
        if labels is None or not len(present):
            raise DataError(f"label {label!r} has no value in any row")
        truth = dd.encode_labels(task, labels.values, labels.missing, label=label, unseen=True)
        rows = torch.from_numpy(present)
        return {name: block[rows] for name, block in self.x.items()}, truth[rows]


def read_rows(
    model: Takes,
    source: str | Path | Frame | dd.Table,
    *,
    id_column: str | None = None,
    label: str | None = None,
    allow_unseen: bool = False,
    images: str | Path | None = None,
) -> RawRows:
    """Rows of a table, DataFrame, .npz file or folder of images.

    Args:
        model: what they are read for.
        source: where they are.
        id_column: the column of ids; None: rows are numbered.
        label: the column of labels; None: that which the model was trained with.
        allow_unseen: take categories unseen in training as missing.
        images: of a model that takes columns and images: pictures of the table's rows, by its ids.

    Raises:
        ModelError: a model without inputs, or with inputs of several kinds and rows of one.
        DataError: columns or values that do not fit the model.
    """
    bare = [name for name in model.shapes if name not in model.inputs]
    if bare and not isinstance(model.spec, JointSpec):  # which does without its partners' codes
        which = f" for block {bare[0]!r}" if len(model.shapes) > 1 else ""
        raise ModelError(
            f"the model of party {model.party!r} was saved without its input columns{which}; "
            "use dovetail.load(folder).predict(tensor) from Python"
        )
    tables = {
        name: each for name, each in model.inputs.items() if isinstance(each, dd.TableEncoder)
    }
    pictures = {
        name: each for name, each in model.inputs.items() if isinstance(each, dd.ImageInput)
    }
    if images is not None and not (tables and pictures):
        raise ModelError(
            f"the model of party {model.party!r} does not take columns and images; leave images out"
        )
    if tables and pictures:
        if images is None or id_column is None:
            raise ModelError(
                f"the model of party {model.party!r} takes columns ({', '.join(tables)}) and "
                f"images ({', '.join(pictures)}): give the table, its column of ids (--id), and "
                "the pictures that are named by these (--images); or call "
                "dovetail.load(folder).predict({block: tensor, ...}) from Python"
            )
        rows = _read_table(model, tables, table_of(source), id_column, label, allow_unseen)
        pixels = images_of(Path(images), id_column, rows.ids)
        return replace(rows, x={**rows.x, **_shown(pictures, pixels, images)})
    if tables:
        return _read_table(model, tables, table_of(source), id_column, label, allow_unseen)
    if not isinstance(source, (str, Path)):
        raise DataError(
            f"the model of party {model.party!r} takes images; give an .npz file or a folder"
        )
    path = Path(source)
    rows = _numbered_images(path) if id_column is None else _named_images(model, path, id_column)
    (pixels,) = rows.x.values()
    first = next(iter(pictures.values()))
    whole = (first.channels, first.height, first.width)
    if isinstance(model.spec, OwnersSpec) and tuple(pixels.shape[1:]) != whole:
        raise DataError(
            f"{path}: expected whole images of {whole} (channels, height, width), of which each "
            f"data owner takes its strip, got {tuple(pixels.shape[1:])}"
        )
    return RawRows(rows.ids, _shown(pictures, pixels, path), rows.labels)


def _shown(
    pictures: Mapping[str, dd.ImageInput], pixels: Tensor, where: str | Path
) -> dict[str, Tensor]:
    """Block -> its part of whole images."""
    try:
        return {name: each.transform(pixels) for name, each in pictures.items()}
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


def table_of(source: str | Path | Frame | dd.Table) -> dd.Table:
    """The table at a path, of a ``SELECT`` or in a DataFrame."""
    if isinstance(source, dd.Table):
        return source
    if isinstance(source, (str, Path)):
        return dd.read_table(source)
    return table_from_frame(source)


def by_sample(
    encoders: Iterable[dd.TableEncoder], table: dd.Table, id_column: str | None = None
) -> dd.Table:
    """The table; of events, which a model of events is given, one row a sample.

    Raises:
        DataError: columns that are not there, or an id that is not theirs.
    """
    events = next((each.events for each in encoders if each.events is not None), None)
    if events is None or not events.are_in(table):
        return table
    if id_column not in (None, events.per):
        raise DataError(
            f"the model reads events, whose samples {events.per!r} names; say --id {events.per}"
        )
    return events.by_sample(table)


def usable_rows(
    model: Takes, source: Any, *, allow_unseen: bool = False
) -> tuple[dd.Table, dict[int, str], int]:
    """The rows of a table that the model can use, why it cannot use the others, and all rows.

    Raises:
        DataError: no table, or no row that can be used.
        ModelError: a model of images, or one that predicts with partners.
    """
    encoders = [each for each in model.inputs.values() if isinstance(each, dd.TableEncoder)]
    if model.any_blocks or len(encoders) < len(model.shapes):
        raise ModelError(
            f"the model of party {model.party!r} does not predict from one table alone; partial "
            "(--partial) is for one that does"
        )
    if isinstance(source, (Tensor, Mapping)):
        raise DataError("partial is for raw columns: give a DataFrame or the path of a table")
    table = by_sample(encoders, table_of(source))
    refused = dd.unusable_rows(encoders, table, allow_unseen=allow_unseen)
    if len(refused) == table.num_rows:
        raise DataError(
            f"{table.description}: none of the {table.num_rows} rows can be used; row 0, "
            f"{refused[0]}"
        )
    used = np.ones(table.num_rows, dtype=bool)
    used[list(refused)] = False
    return table.take(np.flatnonzero(used)), refused, table.num_rows


def _read_table(
    model: Takes,
    tables: Mapping[str, dd.TableEncoder],
    table: dd.Table,
    id_column: str | None,
    label: str | None,
    allow_unseen: bool,
) -> RawRows:
    """All blocks from one table; those it has, where the model predicts from some of them."""
    table = by_sample(tables.values(), table, id_column)
    if model.any_blocks:
        held = {name: each for name, each in tables.items() if set(each.columns) <= {*table.names}}
        tables = held or tables  # a table that has none is told which column it lacks
    x = {name: each.transform(table, allow_unseen=allow_unseen) for name, each in tables.items()}
    known = model.about.get("label")
    name = label if label is not None or not table.has(known) else str(known)
    asked = read_saved(_LABEL, model.about.get("label_encode", {}), "label_encode of the model")
    labels = None if name is None else _labels_of(model.task, table.asking(Asked(asked)), name)
    exposure = _exposure_of(model.task, table)
    far = tuple(clause for encoder in tables.values() for clause in encoder.far(table))
    if id_column is None:
        return RawRows(np.arange(table.num_rows), x, labels, exposure, far)
    ids = table.column(id_column, ID)
    if ids.missing.any():
        raise DataError(f"{table.description}: {ids.missing.sum()} rows have no {id_column!r}")
    return RawRows(ids_of(table.description, id_column, ids), x, labels, exposure, far)


def _labels_of(task: dd.Task, table: dd.Table, name: str) -> dd.Column:
    """Labels as the training rows had them: as text where a class is text."""
    if isinstance(task, dd.Classification) and name in table.names:
        has_words = set(task.classes) != {"false", "true"}
        if has_words and isinstance(task.classes[0], str):
            return table.column(name, replace(table.reading(name), kind="text"))
    return table.column(name)


def _exposure_of(task: dd.Task, table: dd.Table) -> np.ndarray | None:
    """(N,) what rates are multiplied by; None: nothing.

    Raises:
        DataError: a row without one, or one that is not above 0.
    """
    name = task.exposure if isinstance(task, dd.Counts) else None
    if name is None or name not in table.names:
        return None
    column = table.column(name)
    if column.is_text or column.missing.any() or not (column.values > 0).all():
        raise DataError(
            f"{table.description}: the exposure {name!r} is a number above 0 in every row; leave "
            "the column out to predict rates for one of it"
        )
    exposure: np.ndarray = column.values.astype(np.float64)
    return exposure


def _numbered_images(source: Path) -> RawRows:
    """Row numbers, images and labels of an image set."""
    images = dd.read_images(source)
    part = images.test or images.train
    return RawRows(np.arange(len(part.x)), {"": part.x}, part.labels)


def _named_images(model: Takes, source: Path, id_column: str) -> RawRows:
    """Ids, images and, where they are there, labels, as a party's file names them."""
    label = model.about.get("label")
    if source.is_dir():
        has_label = label == "folder"
    else:
        try:
            with source.open("rb") as file:
                has_label = label in np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            has_label = False  # told of below
    part = dd.read_party_table(
        model.party, str(source), id=id_column, label=label if has_label else None
    )
    if not isinstance(part.x, Tensor):
        raise DataError(f"{source} is a table; the model of party {model.party!r} takes images")
    return RawRows(part.ids, {"": part.x}, part.labels)
