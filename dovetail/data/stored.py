"""Encoded columns that are large lie in a file, of which little is resident at a time.

The file has no name and mode 0600: who has the process's memory has it, nobody else, and it is gone
with the last who reads it, also where the process is killed. Its values are those that memory would
hold, so a run is the same bit for bit.
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

import numpy as np

from dovetail.errors import DataError

#: Features of more bytes lie in a file.
IN_MEMORY_BYTES = 64 * 2**20

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


def _file(shape: tuple[int, int], party: str) -> np.ndarray:
    """Zeros of a file without a name."""
    num_bytes = 4 * shape[0] * shape[1]
    folder = _FOLDERS.get(party, Path(tempfile.gettempdir()))
    if not folder.is_dir():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # else a full disk is a signal later
                os.posix_fallocate(file.fileno(), 0, num_bytes)
            else:  # macOS, Windows
                file.truncate(num_bytes)
            mapped = mmap.mmap(file.fileno(), num_bytes)
    except OSError as error:
        raise DataError(
            f"party {party!r}: {num_bytes / 2**30:.1f} GiB of encoded columns find no room in "
            f"{folder} ({error.strerror}); free some, or use fewer rows or columns"
        ) from None
    _keeper.watch(mapped)
    return np.frombuffer(mapped, dtype=np.float32).reshape(shape)


class _Keeper:
    """Lets go of files' pages when many are resident; their values stay.

    It looks when a batch was read, and, for whatever else reads, from a thread of its own.
    """

    def __init__(self) -> None:
        self._watched: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._before = 0

    def watch(self, mapped: mmap.mmap) -> None:
        with self._lock:
            self._watched.add(mapped)
        if self._thread is None or not self._thread.is_alive():  # a fork has its parent's no more
            self._before = _resident_file_bytes()
            self._thread = threading.Thread(target=self._keep, daemon=True)
            self._thread.start()

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
