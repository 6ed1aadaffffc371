"""Data sets are downloaded as they are published, and written as tables take them."""

from __future__ import annotations

import gzip
import http.server
import io
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dovetail.data as dd
from benchmarks.fetch import ADDRESSES, WHERE, fetch
from benchmarks.tables import folders
from benchmarks.tables.registry import TABLES
from dovetail.cli.main import app
from dovetail.data.datasets import BUILT_IN
from dovetail.errors import ConfigError
from dovetail.runs.runfile import load_run

RUNS = Path(__file__).parents[2] / "runs"


def idx(array: np.ndarray) -> bytes:
    """A gzipped IDX file, as http://yann.lecun.com describes it."""
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return gzip.compress(head + array.tobytes())


def zipped(**files: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, content in files.items():
            file.writestr(name, content)
    return out.getvalue()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """An address that serves ``tmp_path / "www"``."""
    (tmp_path / "www").mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *given: object, **named: object) -> None:
            super().__init__(*given, directory=str(tmp_path / "www"), **named)  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()


def test_images_in_idx_files_become_one_array_file(tmp_path: Path, server: str) -> None:
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 255, size, dtype=np.uint8) for size in ((6, 28, 28), 6, (2, 28, 28), 2)
    ]
    addresses = []
    for index, array in enumerate(arrays):
        (tmp_path / "www" / f"{index}.gz").write_bytes(idx(array))
        addresses.append(f"{server}/{index}.gz")
    path = fetch("fashion_mnist", tmp_path / "data", tuple(addresses))
    with np.load(path) as file:
        for name, array in zip(("x_train", "y_train", "x_test", "y_test"), arrays, strict=True):
            assert (file[name] == array).all()
    train, test = dd.load(str(path))
    assert test is not None
    assert (train.num_rows, test.num_rows) == (6, 2)


def test_adult_keeps_its_own_test_rows(tmp_path: Path, server: str) -> None:
    row = "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
    row += "Male, 2174, 0, 40, United-States, "
    files = {
        "adult.data": f"{row}<=50K\n{row}>50K\n\n".encode(),
        "adult.test": f"|1x3 Cross validator\n{row}>50K.\n".encode(),
    }
    (tmp_path / "www" / "adult.zip").write_bytes(zipped(**files))
    path = fetch("adult", tmp_path / "data", (f"{server}/adult.zip",))
    assert [each.name for each in path.parent.iterdir()] == ["adult.parquet"]
    table = dd.read_table(path)
    assert table.column("income").values.tolist() == ["<=50K", ">50K", ">50K"]
    assert table.column("split").values.tolist() == ["train", "train", "test"]
    assert table.column("capital-gain").values.tolist() == [2174] * 3


def test_bank_marketing_is_the_full_table_of_the_inner_archive(tmp_path: Path, server: str) -> None:
    inner = zipped(**{"bank-full.csv": b'"age";"job";"y"\n58;"management";"no"\n'})
    (tmp_path / "www" / "bank.zip").write_bytes(zipped(**{"bank.zip": inner}))
    path = fetch("bank_marketing", tmp_path / "data", (f"{server}/bank.zip",))
    table = dd.read_table(path)
    assert table.names == ("age", "job", "y")
    assert (table.column("age").values[0], table.column("job").values[0]) == (58, "management")


def test_every_data_set_of_a_table_is_fetched_or_its_source_is_named() -> None:
    known = {*ADDRESSES, *WHERE, *BUILT_IN}
    for table in TABLES.values():
        for cell in table.cells:
            if cell.run and not cell.unavailable and folders._is_there(RUNS / cell.run):
                run = load_run(RUNS / cell.run, overrides=cell.overrides)
                assert run.data is None or run.data.source in known, cell.name


def test_a_table_without_its_data_says_once_where_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DOVETAIL_DATA", raising=False)
    with pytest.raises(ConfigError) as reported:
        app(["bench", "apfed-table2", "--only", "mnist-2-1-*"], standalone_mode=False)
    assert str(reported.value) == (
        "apfed-table2 needs mnist, which Dovetail does not bring and which DOVETAIL_DATA names no "
        "folder of: python -m benchmarks.fetch --into data mnist && export DOVETAIL_DATA=$PWD/data"
    )
    with pytest.raises(ConfigError, match=r"docs/bench.md#data says where the others come from$"):
        app(["bench", "worth", "--only", "worth-credit-*"], standalone_mode=False)
