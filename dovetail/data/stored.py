"""Arrays that grow with a table's rows, in files of which little is resident at a time.

Encoded columns, row numbers, and the points of an alignment. A file has no name and mode 0600: who
has the process's memory has it, nobody else, and it is gone with the last who reads it, also where
the process is killed. Its values are those that memory would hold, so a run is the same bit for
bit.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.errors import DataError

#: Features of more bytes lie in a file.
IN_MEMORY_BYTES = 64 * 2**20

#: Numbers of rows (ids, labels, which row is which sample) of more bytes do, too: there are many.
NUMBERS_BYTES = 16 * 2**20

#: So many bytes of files are resident before they are let go; they stay in the system's cache while
#: it has room.
_RESIDENT_BYTES = 96 * 2**20
_LOOKS_S = 0.01

#: Rows that are turned from columns at a time.
_TURNED = 1 << 15

#: Party -> the folder of its site.
_FOLDERS: dict[str, Path] = {}


def keep_in(party: str, folder: Path) -> None:
    """From here on a party's large columns lie in this folder, or, until it is made, beside it."""
    _FOLDERS[party] = folder


def side_by_side(
    num_rows: int, widths: Sequence[int], fill: Callable[[int, np.ndarray], None], party: str
) -> np.ndarray:
    """(N, F) float32 parts side by side, in memory or in a file.

    Args:
        num_rows: N.
        widths: of each part; F is their sum.
        fill: given a part's number and (N, width) zeros, fills these.
        party: whose they are: in its folder they lie, else in that of temporary files.

    Raises:
        DataError: a disk that has no room for them.
    """
    num_features = sum(widths)
    stops = np.cumsum(widths)
    if num_rows * num_features * 4 <= IN_MEMORY_BYTES:
        features_NF = np.zeros((num_rows, num_features), dtype=np.float32)
        for part, stop in enumerate(stops):
            fill(part, features_NF[:, stop - widths[part] : stop])
        return features_NF
    # Whole columns are filled, whole rows are read: rows would be gone over once a column.
    columns_FN = _file((num_features, num_rows), party)
    for part, stop in enumerate(stops):
        fill(part, columns_FN[stop - widths[part] : stop].T)
    features_NF = _file((num_rows, num_features), party)
    for start in range(0, num_rows, _TURNED):
        features_NF[start : start + _TURNED] = columns_FN[:, start : start + _TURNED].T
    return features_NF


def zeros(shape: tuple[int, ...], dtype: Any, party: str = "") -> np.ndarray:
    """Zeros to be filled, in memory or, of many, in a file of the party's.

    Raises:
        DataError: a disk that has no room for them.
    """
    if int(np.prod(shape)) * np.dtype(dtype).itemsize <= NUMBERS_BYTES:
        return np.zeros(shape, dtype=dtype)
    return _file(shape, party, dtype)


def put_away(values: np.ndarray, *parties: str) -> np.ndarray:
    """Array of equal values; a large one is in a file of the first of these parties that has a
    folder.

    Raises:
        DataError: a disk that has no room for them.
    """
    if values.nbytes <= NUMBERS_BYTES or values.dtype.hasobject or in_file(values):
        return values
    party = next((name for name in parties if name in _FOLDERS), "")
    kept = _file(values.shape, party, values.dtype)
    kept[:] = values
    let_go()
    return kept


def put_tensor_away(values: Tensor, *parties: str) -> Tensor:
    """As ``put_away``, of a tensor."""
    if values.device.type != "cpu" or values.requires_grad or values.nbytes <= NUMBERS_BYTES:
        return values
    array = values.numpy()
    kept = put_away(array, *parties)
    return values if kept is array else torch.from_numpy(kept)


def in_file(values: np.ndarray) -> bool:
    """Whether these values lie in a file of this module's."""
    return _keeper.file_at(values.ctypes.data) is not None


def read_rows(values_N: np.ndarray, rows_K: np.ndarray) -> np.ndarray:
    """(K, ...) these rows of values that lie in a file, read from it one by one.

    A mapped page would cost four times as much, and make up to 1 MiB of the file resident.
    """
    found = _keeper.file_at(values_N.ctypes.data)
    if found is None or not (
        len(rows_K) and hasattr(os, "pread") and values_N[0].flags.c_contiguous
    ):
        picked_K: np.ndarray = values_N[rows_K]
        let_go()
        return picked_K
    if rows_K.min() < -len(values_N) or rows_K.max() >= len(values_N):  # as numpy refuses it
        raise IndexError(f"row {rows_K.max()} or {rows_K.min()} of {len(values_N)} rows")
    start, file = found
    first, width, read = values_N.ctypes.data - start, values_N[0].nbytes, os.pread
    places_K = first + rows_K % len(values_N) * values_N.strides[0]
    rows = bytearray().join([read(file, width, place) for place in places_K.tolist()])
    return np.frombuffer(rows, dtype=values_N.dtype).reshape(-1, *values_N.shape[1:])


class Pile:
    """Rows of numbers that come in batches; many of them lie in a file.

    Args:
        width: W, numbers of a row.
        dtype: of them.
        party: as of ``zeros``.
    """

    def __init__(self, width: int, dtype: Any, party: str = "") -> None:
        self._shape, self._dtype, self._party = (-1, width), np.dtype(dtype), party
        self._batches: list[np.ndarray] = []
        self._file: Any = None
        self._num_bytes = 0

    def __len__(self) -> int:
        """Rows that have come."""
        return self._num_bytes // (int(self._dtype.itemsize) * self._shape[1])

    def append(self, rows_BW: np.ndarray) -> None:
        """Put these on it.

        Raises:
            DataError: a disk that has no room for them.
        """
        rows_BW = np.ascontiguousarray(rows_BW, dtype=self._dtype)
        self._num_bytes += rows_BW.nbytes
        self._batches.append(rows_BW)
        if self._file is None and self._num_bytes <= NUMBERS_BYTES:
            return
        if self._file is None:
            self._file = _opened(self._party, self._num_bytes)
            self._close = weakref.finalize(self, self._file.close)
        try:
            for batch in self._batches:
                self._file.write(batch.data if batch.size else b"")
            self._file.flush()
        except OSError as error:
            raise _no_room(self._party, self._num_bytes, error) from None
        self._batches.clear()

    def rows(self) -> np.ndarray:
        """(N, W) all of them; nothing more may come."""
        if self._file is None:
            none = np.empty((0, self._shape[1]), dtype=self._dtype)
            return np.concatenate([none, *self._batches])
        rows: np.ndarray = _mapped(self._file, self._num_bytes).view(self._dtype)
        return rows.reshape(self._shape)

    def clear(self) -> None:
        """Forget them."""
        self._batches.clear()
        if self._file is not None:
            self._close()  # what was mapped stays
        self._file, self._num_bytes = None, 0


def _folder_of(party: str) -> Path:
    folder = _FOLDERS.get(party, Path(tempfile.gettempdir()))
    # What a run without a folder was given is gone with it, and its parties' names may come again.
    return next(each for each in (folder, *folder.resolve().parents) if each.is_dir())


def _no_room(party: str, num_bytes: int, error: OSError) -> DataError:
    whose = f"party {party!r}: " if party else ""
    return DataError(
        f"{whose}{num_bytes / 2**30:.1f} GiB of encoded columns and row numbers find no room in "
        f"{_folder_of(party)} ({error.strerror}); free some, or use fewer rows or columns"
    )


def _opened(party: str, num_bytes: int) -> Any:
    """A file without a name."""
    try:
        return tempfile.TemporaryFile(dir=_folder_of(party))
    except OSError as error:
        raise _no_room(party, num_bytes, error) from None


def _file(shape: tuple[int, ...], party: str, dtype: Any = np.float32) -> np.ndarray:
    """Zeros of a file without a name."""
    dtype = np.dtype(dtype)
    num_bytes = dtype.itemsize * int(np.prod(shape))
    with _opened(party, num_bytes) as file:
        try:
            if hasattr(os, "posix_fallocate"):  # else a full disk is a signal later
                os.posix_fallocate(file.fileno(), 0, num_bytes)
            else:  # macOS, Windows
                file.truncate(num_bytes)
            values: np.ndarray = _mapped(file, num_bytes).view(dtype)
            return values.reshape(shape)
        except OSError as error:
            raise _no_room(party, num_bytes, error) from None


def _mapped(file: Any, num_bytes: int) -> np.ndarray:
    """(num_bytes,) uint8 of a file, whose pages are let go."""
    mapped = mmap.mmap(file.fileno(), num_bytes)
    if hasattr(mmap, "MADV_RANDOM"):  # else a row brings up to 2 MiB of the file with it
        mapped.madvise(mmap.MADV_RANDOM)
    values = np.frombuffer(mapped, dtype=np.uint8)
    _keeper.watch(mapped, values.ctypes.data, num_bytes, os.dup(file.fileno()))
    return values


class _Keeper:
    """Lets go of files' pages when many are resident; their values stay.

    It looks when a batch was read, and, for whatever else reads, from a thread of its own.
    """

    def __init__(self) -> None:
        #: Map -> where it begins and ends, and its file.
        self._watched: weakref.WeakKeyDictionary[mmap.mmap, tuple[int, int, int]] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._before = 0

    def watch(self, mapped: mmap.mmap, start: int, num_bytes: int, file: int) -> None:
        weakref.finalize(mapped, os.close, file)
        with self._lock:
            self._watched[mapped] = start, start + num_bytes, file
        if self._thread is None or not self._thread.is_alive():  # a fork has its parent's no more
            self._before = _resident_file_bytes()
            self._thread = threading.Thread(target=self._keep, daemon=True)
            self._thread.start()

    def file_at(self, address: int) -> tuple[int, int] | None:
        """Where the map of this address starts, and its file; None if none is watched there."""
        with self._lock:
            for start, stop, file in self._watched.values():
                if start <= address < stop:
                    return start, file
        return None

    def look(self) -> None:
        """Let go if there is something to let go of."""
        if not self._watched or _resident_file_bytes() - self._before < _RESIDENT_BYTES:
            return  # also where the system does not say how much there is
        with self._lock:
            for mapped in self._watched:
                mapped.madvise(mmap.MADV_DONTNEED)  # of a shared mapping: nothing is lost

    def _keep(self) -> None:
        while True:
            time.sleep(_LOOKS_S)
            self.look()


def _resident_file_bytes() -> int:
    """Of this process, with its libraries; 0 where the system does not say so."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[2]) * mmap.PAGESIZE
    except OSError:
        return 0


_keeper = _Keeper()


def let_go() -> None:
    """Let go of what was read of files, if that is much: for who has drawn rows of them."""
    _keeper.look()
