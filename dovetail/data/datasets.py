"""A pooled data set with labels: built in, from a table, or from images."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dovetail.data import tables
from dovetail.data.addresses import without_password
from dovetail.data.frames import Frame, table_from_frame
from dovetail.data.images import ImagePart, read_images
from dovetail.data.kinds import ID, Column
from dovetail.data.many_rows import num_repeated
from dovetail.data.tables import Table
from dovetail.data.task import Task, encode_labels
from dovetail.errors import DataError
from dovetail.settings.mending import repeated_text
from dovetail.settings.sources import is_database_url, is_query, is_table_path

BUILT_IN = ("breast-cancer", "digits", "digits-images")

#: What may be left off a file's name below $DOVETAIL_DATA.
_SUFFIXES = ("", ".parquet", ".npz", ".csv")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows, what is known of each, and the label to predict.

    Attributes:
        name: what it is called in errors.
        ids: (N,) int64 or strings, unique: which sample each row is.
        x: a table of N rows without id and label, or (N, C, H, W) images.
        label: the label's name.
        labels: (N,) raw labels.
    """

    name: str
    ids: np.ndarray
    x: Table | Tensor
    label: str
    labels: Column

    @property
    def num_rows(self) -> int:
        return len(self.ids)

    def table(self, wanted: str) -> Table:
        """Rows of the data set, which are to be a table's.

        Args:
            wanted: who splits what, for the error.

        Raises:
            DataError: they are images.
        """
        if not isinstance(self.x, Table):
            raise DataError(f"{self.name} holds images; {wanted}")
        return self.x

    def encoded_labels(self, task: Task, *, unseen: bool = False) -> Tensor:
        """(N,) its labels as this task has them; see ``encode_labels``."""
        values, missing = self.labels.values, self.labels.missing
        return encode_labels(task, values, missing, label=self.label, unseen=unseen)

    def take(self, rows: np.ndarray) -> Dataset:
        """A data set of these rows, in this order."""
        x = self.x.take(rows) if isinstance(self.x, Table) else self.x[torch.from_numpy(rows)]
        return replace(self, ids=self.ids[rows], x=x, labels=self.labels.take(rows))


def load(
    source: str | Path | Frame | Table,
    *,
    label: str | None = None,
    id: str | None = None,
    test_source: str | Path | Frame | Table | None = None,
    split_column: str | None = None,
    folders: Sequence[Path] = (),
) -> tuple[Dataset, Dataset | None]:
    """Training and test part; None for test where the source has no split of its own.

    Args:
        source: "breast-cancer", "digits" or "digits-images"; a path to a table (.csv, .parquet) or
            images (.npz, a folder); a ``SELECT``; a file's name below $DOVETAIL_DATA, with or
            without .parquet, .npz or .csv; or a DataFrame of pandas, polars or pyarrow.
        label: the column to predict; needed for tables that are not built in. For images, what
            the label is to be called.
        id: the column that says which sample a row is; rows are numbered without it.
        test_source: a second source, for the test part.
        split_column: the column that says "test" in rows of the test part.
        folders: as ``read_table`` takes them.

    Raises:
        DataError: a source or column that is not there, ids that are missing or repeated, or a
            split that leaves a part empty.
    """
    if test_source is not None and split_column is not None:
        raise DataError("give test_source or split_column, not both: each names the test part")
    train, test = _load_one(source, label, id, split_column, folders, first_id=0)
    if test_source is None:
        return train, test
    other, other_test = _load_one(test_source, label, id, None, folders, first_id=train.num_rows)
    return train, other if other_test is None else other_test


def split(dataset: Dataset, *, test: float, seed: int, stratify: bool) -> tuple[Dataset, Dataset]:
    """Training and test part, both shuffled; rows without a label are for training.

    Args:
        dataset: what to split.
        test: the test part's share of the labelled rows, in (0, 1); rounded up to a whole row.
        seed: 0 or more.
        stratify: keep the classes' shares the same in both.

    Raises:
        DataError: a part would be empty, or a class has too few rows to be in both.
    """
    if not 0 < test < 1:
        raise DataError(f"test must be a share of the rows between 0 and 1, got {test}")
    missing = dataset.labels.missing
    labelled, unlabelled = np.flatnonzero(~missing), np.flatnonzero(missing)
    whose = f"{'labelled ' if len(unlabelled) else ''}rows of {dataset.name}"
    left, drawn = draw_rows(
        dataset.labels.take(labelled), test, seed=seed, stratify=stratify, whose=whose
    )
    train_rows = labelled[left]
    if len(unlabelled):
        train_rows = np.concatenate([train_rows, unlabelled])
        train_rows = np.random.RandomState(seed).permutation(train_rows)
    return dataset.take(train_rows), dataset.take(labelled[drawn])


def subset(dataset: Dataset, *, rows: int, seed: int, stratify: bool) -> Dataset:
    """A random part of ``rows`` rows, in their original order.

    Raises:
        DataError: fewer than one row, or more than there are.
    """
    if not 1 <= rows <= dataset.num_rows:
        raise DataError(
            f"cannot take {rows} rows of {dataset.name}, which has {dataset.num_rows}; "
            f"ask for 1 to {dataset.num_rows}"
        )
    if rows == dataset.num_rows:
        return dataset
    _, drawn = draw_rows(
        dataset.labels, rows, seed=seed, stratify=stratify, whose=f"rows of {dataset.name}"
    )
    return dataset.take(np.sort(drawn))


#: Of a split: 0 or more, or (W,) uint32 words of a secret.
Seed = int | np.ndarray


def draw_rows(
    labels: Column, size: float, *, seed: Seed, stratify: bool, whose: str
) -> tuple[np.ndarray, np.ndarray]:
    """Rows left and rows drawn, both shuffled.

    Args:
        labels: (N,) raw labels.
        size: what to draw: a share (float) or a number of rows (int).
        seed: what follows from it whoever knows it can compute.
        stratify: keep the classes' shares the same in both.
        whose: what the N rows are called in errors.

    Raises:
        DataError: a part would be empty, or a class has too few rows to be in both.
    """
    num_rows = len(labels.values)
    strata = None
    if stratify:
        # Rows without a label are a stratum of their own.
        _, strata = tables.distinct(labels.values)
        counts = np.bincount(strata)
        # A class of a single row cannot be in both parts: it goes where it is drawn to.
        strata = np.where(counts[strata] == 1, counts.argmax(), strata)
        strata = np.where(labels.missing, -1, strata)
    num_drawn = math.ceil(num_rows * size) if isinstance(size, float) else size
    if not 0 < num_drawn < num_rows:
        raise DataError(
            f"cannot split the {num_rows} {whose}: {num_drawn} would be drawn; each part needs one"
        )
    rng = np.random.RandomState(seed)
    if strata is None:
        order = rng.permutation(num_rows)
        return order[num_drawn:], order[:num_drawn]
    counts = np.bincount(strata + 1)  # from the rows without a label on
    strata = (np.cumsum(counts > 0) - 1)[strata + 1]
    counts = counts[counts > 0]
    if counts.min() < 2 or min(num_drawn, num_rows - num_drawn) < len(counts):
        is_number = labels.values.dtype.kind in "iuf"
        raise DataError(
            f"cannot split the {num_rows} {whose} by label: each of the {len(counts)} kinds of "
            f"label needs two rows and a place in both parts, of {num_rows - num_drawn} and "
            f"{num_drawn} rows"
            + ('; of a label that is a number say task = "regression"' if is_number else "")
        )
    return _stratified(strata, counts, num_drawn, rng)


def _stratified(
    strata_N: np.ndarray, counts_C: np.ndarray, num_drawn: int, rng: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """As ``sklearn.model_selection.train_test_split``, row for row.

    Which keeps lists of rows, 360 bytes each; and a party that imports it for this alone has
    200 MiB more.
    """
    if len(counts_C) < 2**15:
        strata_N = strata_N.astype(np.int16)  # sorted by counting
    rows_of = np.split(np.argsort(strata_N, kind="stable"), np.cumsum(counts_C)[:-1])
    left_C = _shares(counts_C, len(strata_N) - num_drawn, rng)
    drawn_C = _shares(counts_C - left_C, num_drawn, rng)
    left, drawn = [], []
    for rows, num_left, num in zip(rows_of, left_C, drawn_C, strict=True):
        rows = rows[rng.permutation(len(rows))]
        left.append(rows[:num_left])
        drawn.append(rows[num_left : num_left + num])
    return rng.permutation(np.concatenate(left)), rng.permutation(np.concatenate(drawn))


def _shares(counts_C: np.ndarray, size: int, rng: np.random.RandomState) -> np.ndarray:
    """(C,) rows of each class among ``size``: even shares; what rounding leaves goes by remainder,
    of even ones by chance."""
    exact = counts_C / counts_C.sum() * size
    shares = np.floor(exact)
    missing = int(size - shares.sum())
    for remainder in np.unique(exact - shares)[::-1]:
        if not missing:
            break
        (equal,) = np.where(exact - np.floor(exact) == remainder)
        chosen = rng.choice(equal, size=min(len(equal), missing), replace=False)
        shares[chosen] += 1
        missing -= len(chosen)
    whole: np.ndarray = shares.astype(np.int64)
    return whole


def _load_one(
    source: str | Path | Frame | Table,
    label: str | None,
    id: str | None,
    split_column: str | None,
    folders: Sequence[Path],
    first_id: int,
) -> tuple[Dataset, Dataset | None]:
    if not isinstance(source, (str, Path)):
        table = source if isinstance(source, Table) else table_from_frame(source)
        return _from_table(table.description, table, label, id, split_column, first_id)
    name = str(source)
    if name == "digits-images":
        part = _digits_images()
        return _image_dataset(name, part, label or "digit", first_id), None
    if name in BUILT_IN:
        table, local_label = _breast_cancer() if name == "breast-cancer" else _digits()
        return _from_table(name, table, label or local_label, id, split_column, first_id)
    if is_database_url(name):
        raise DataError(
            f"{without_password(name)} is elsewhere, and a run file opens no table elsewhere; name "
            "it in the party's own file (party.table)"
        )
    path = None if is_query(source) else _find(source)
    if path is None or is_table_path(path):
        table = tables.read_table(source if path is None else path, folders=folders)
        return _from_table(table.description, table, label, id, split_column, first_id)
    for option, column in (("id", id), ("split_column", split_column)):
        if column is not None:
            raise DataError(f"{path} holds images, which have no column {column!r}; drop {option}")
    images = read_images(path)
    train = _image_dataset(str(path), images.train, label or "class", first_id)
    if images.test is None:
        return train, None
    return train, _image_dataset(
        str(path), images.test, label or "class", first_id + train.num_rows
    )


def is_here(source: str) -> bool:
    """Whether a data set is built in, a query, a path that exists or a file in $DOVETAIL_DATA."""
    if source in BUILT_IN or is_query(source):
        return True
    try:
        _find(source)
    except DataError:
        return False
    return True


def _find(source: str | Path) -> Path:
    """The path of a source that is not built in.

    Raises:
        DataError: neither a path that exists nor a file below $DOVETAIL_DATA.
    """
    path = Path(source)
    if path.exists():
        return path
    folder = os.environ.get("DOVETAIL_DATA")
    if folder:
        for suffix in _SUFFIXES:
            candidate = Path(folder) / f"{source}{suffix}"
            if candidate.exists():
                return candidate
        looked = f"nor is it in $DOVETAIL_DATA ({folder}), also not with {', '.join(_SUFFIXES[1:])}"
    else:
        looked = "and DOVETAIL_DATA is not set; set it to the folder that holds your data files"
    close = tables.closest(str(source), BUILT_IN) if "." not in path.name else None
    raise DataError(
        f"there is no file {str(source)!r}, {looked}. "
        f"Built in are {', '.join(BUILT_IN)}{f'; did you mean {close!r}?' if close else ''}"
    )


def _from_table(
    name: str,
    table: Table,
    label: str | None,
    id: str | None,
    split_column: str | None,
    first_id: int,
) -> tuple[Dataset, Dataset | None]:
    if label is None:
        raise DataError(
            f"{name} needs a label: say which column to predict"
            f"{tables.nearest('label', table.names)}"
        )
    special = [column for column in (label, id, split_column) if column is not None]
    if len(set(special)) < len(special):
        raise DataError(f"label, id and split_column of {name} must be three columns: {special}")
    labels = whole_numbers(table.label(label))
    if id is None:
        ids = np.arange(first_id, first_id + table.num_rows, dtype=np.int64)
    else:
        ids = read_ids(name, id, table.column(id, ID))
    x = table.without(special)
    if not x.names:
        raise DataError(f"{name} has no column besides {special}; there is nothing to learn from")
    pooled = Dataset(name, ids, x, label, labels)
    if split_column is None:
        return pooled, None
    splits = table.column(split_column)
    is_test = splits.values == "test"
    if not splits.is_text or is_test.all() or not is_test.any():
        raise DataError(
            f"column {split_column!r} of {name} must say 'test' in some rows and something else in "
            f"the others, got {np.unique(splits.values)[:5].tolist()}"
        )
    return pooled.take(np.flatnonzero(~is_test)), pooled.take(np.flatnonzero(is_test))


def read_ids(name: str, id: str, column: Column, *, parts: Sequence[str] = ()) -> np.ndarray:
    """(N,) int64 or strings, each once.

    Args:
        name: what the table is called in errors.
        id: the column's name.
        column: its values.
        parts: the columns that it joins; none: it is one.

    Raises:
        DataError: missing or repeated ids, or values that are no ids.
    """
    num_missing = int(column.missing.sum())
    if num_missing:
        raise DataError(
            f"column {id!r} of {name} has no id in {num_missing} of {len(column.values)} rows; "
            "each row must have one"
        )
    ids = ids_of(name, id, column)
    if num_repeated(ids):
        raise DataError(
            f"column {id!r} of {name}: {repeated_text(ids.tolist(), name, parts or (id,))}"
        )
    return ids


def ids_of(name: str, id: str, column: Column) -> np.ndarray:
    """(N,) int64, or strings where some are not written as int64 writes them.

    Raises:
        DataError: dates, or numbers with a point.
    """
    if column.is_date:
        raise DataError(
            f"column {id!r} of {name} holds dates; ids are text or whole numbers: if dates are "
            "meant, give them as text"
        )
    if column.values.dtype.kind == "f":
        present = column.values[~column.missing]
        if not np.array_equal(present, np.rint(present)):
            raise DataError(f"column {id!r} of {name} has fractions; ids are whole numbers or text")
        raise DataError(
            f"column {id!r} of {name} holds numbers with a point, such as "
            f"{present[0]:.1f}, which are no ids: pandas makes them of whole numbers where a "
            'value is missing; read the column as text (dtype={"' + id + '": str}), or make it '
            '"Int64" (in SQL: BIGINT)'
        )
    if column.values.dtype.kind == "O":
        return column.values.astype(np.str_)  # sorts and compares without Python
    return column.values


def whole_numbers(column: Column) -> Column:
    """The column as integers if all its numbers are whole; a NULL makes some files store floats."""
    present = column.values[~column.missing]
    if (
        column.values.dtype.kind != "f"
        or column.values.ndim > 1
        or not np.array_equal(present, np.rint(present))
    ):
        return column
    if not np.isfinite(present).all() or (np.abs(present) >= 2**53).any():  # not exact as floats
        return column
    values = np.where(column.missing, 0, column.values).astype(np.int64)
    return Column(values, column.missing, column.reading)


def _image_dataset(name: str, part: ImagePart, label: str, first_id: int) -> Dataset:
    ids = np.arange(first_id, first_id + len(part.x), dtype=np.int64)
    return Dataset(name, ids, part.x, label, whole_numbers(part.labels))


def _breast_cancer() -> tuple[Table, str]:
    from sklearn.datasets import load_breast_cancer

    stored = load_breast_cancer()
    columns = dict(zip(stored.feature_names.tolist(), stored.data.T, strict=True))
    columns["diagnosis"] = stored.target_names.astype(object)[stored.target]
    return tables.table_from_arrays("breast-cancer", columns), "diagnosis"


def _digits() -> tuple[Table, str]:
    pixels, digit = _read_digits()
    names = [f"pixel_{row}_{column}" for row in range(8) for column in range(8)]
    columns = dict(zip(names, pixels.T, strict=True)) | {"digit": digit}
    return tables.table_from_arrays("digits", columns), "digit"


def _digits_images() -> ImagePart:
    pixels, digit = _read_digits()
    x = torch.from_numpy(pixels.reshape(-1, 1, 8, 8) / 16).float()  # 16 is a digit's darkest ink
    return ImagePart(x, Column(digit, np.zeros(len(x), dtype=bool)))


def _read_digits() -> tuple[np.ndarray, np.ndarray]:
    """(1797, 64) pixels and (1797,) digits of scikit-learn's file.

    To import scikit-learn takes a second, so ``load_digits`` is not called.
    """
    found = find_spec("sklearn")
    assert found is not None, "Dovetail requires scikit-learn"
    file = Path(str(found.origin)).parent / "datasets" / "data" / "digits.csv.gz"
    stored = np.loadtxt(file, delimiter=",")
    return stored[:, :-1], stored[:, -1].astype(int)
