"""Encoded columns in a file: the same values, little of it resident, nothing left."""

from __future__ import annotations

import gc
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dovetail.data import TableEncoder, stored, table_from_arrays
from dovetail.errors import DataError


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where a bank's columns of any size lie."""
    monkeypatch.setattr(stored, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(stored, "_FOLDERS", {"bank": tmp_path})
    return tmp_path


def mapped_here(folder: Path) -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if str(folder) in line]


def test_columns_in_a_file_are_those_in_memory(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(stored, "_TURNED", 7)  # the last part is smaller
    rng = np.random.default_rng(1)
    age = rng.normal(size=100)
    age[::9] = np.nan
    job = np.array(["cook", "clerk", None, "judge"], dtype=object)[rng.integers(0, 4, 100)]
    table = table_from_arrays("people", {"age": age, "job": job, "pay": rng.normal(size=100)})
    for may_lack in (False, True):
        encoder = TableEncoder.fit(table, table.names, party="bank")
        encoder = encoder.of_a_block() if may_lack else encoder
        in_file = encoder.transform(table)
        assert mapped_here(folder)
        monkeypatch.setattr(stored, "IN_MEMORY_BYTES", 1 << 30)
        in_memory = encoder.transform(table)
        monkeypatch.setattr(stored, "IN_MEMORY_BYTES", 0)
        assert torch.equal(in_file.nan_to_num(9.0), in_memory.nan_to_num(9.0))
        assert in_file.is_contiguous()


def test_the_file_has_no_name_and_goes_with_the_tensor(folder: Path) -> None:
    features = stored.side_by_side(10, [1], lambda part, out: None, "bank")
    (line,) = mapped_here(folder)
    assert "(deleted)" in line
    assert list(folder.iterdir()) == []
    del features
    gc.collect()
    assert mapped_here(folder) == []


@pytest.mark.parametrize("row", [4, -5])
def test_a_row_that_is_not_there_is_no_other_row(folder: Path, row: int) -> None:
    values = stored.zeros((4, 2), np.int64, "bank")
    values[:] = np.arange(8).reshape(4, 2)
    assert stored.read_rows(values, np.array([3, -4])).tolist() == [[6, 7], [0, 1]]
    with pytest.raises(IndexError):
        stored.read_rows(values, np.array([0, row]))


def test_the_file_is_its_owners_alone(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    modes = []
    real = os.posix_fallocate

    def allocate(file: int, offset: int, length: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(file).st_mode))
        real(file, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    stored.side_by_side(10, [1], lambda part, out: None, "bank")
    assert modes == [0o600, 0o600]


def test_a_disk_without_room_is_told_in_a_sentence(folder: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(DataError, match=r"'bank': 0\.1 GiB of encoded columns and row numbers"):
            stored.side_by_side(1 << 20, [20], lambda part, out: None, "bank")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


TALL = """
import os, sys, time
import numpy as np
from dovetail.data import stored
stored.keep_in("bank", __import__("pathlib").Path(sys.argv[1]))
def fill(part, out):
    out[:, 0] = part + 1
features = stored.side_by_side(4_000_000, [1] * 64, fill, "bank")
total = 0.0
for start in range(0, len(features), 10_000):
    total += features[start : start + 10_000].sum(dtype=np.float64)
    time.sleep(0.001)
assert total == 4_000_000 * 64 * 65 / 2
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(features.nbytes // 2**20, int(peak.split()[1]) // 2**10, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_gibibyte_of_columns_takes_less_than_half_of_it_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    arguments = [sys.executable, "-c", TALL, str(tmp_path / "bank.site")]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        size, peak = map(int, process.stdout.readline().split())
        assert size == 976
        assert peak < 700  # libraries and all, where 976 MiB and as many were written and read
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert list(tmp_path.iterdir()) == []


def test_columns_have_a_place_when_the_folder_of_an_earlier_run_is_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "NUMBERS_BYTES", 0)
    stored.keep_in("bank", folder / "run" / "given")
    assert stored.zeros((3, 2), np.float32, "bank").shape == (3, 2)
