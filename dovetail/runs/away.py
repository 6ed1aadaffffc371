"""Files of a run folder that travel, if a seed is trained on a cluster's machine and not beside it.

The machines of a cluster need no disk in common: a seed is trained in a folder that is gone
afterwards, and its files come back with the result. So a seed that is stopped there starts again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

#: Path below the folder, mode and contents, the oldest first.
Files = list[tuple[str, int, bytes]]


def packed(folder: Path) -> Files:
    """All files of a folder; none where there is none."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    paths.sort(key=lambda path: path.stat().st_mtime_ns)
    return [
        (path.relative_to(folder).as_posix(), path.stat().st_mode & 0o777, path.read_bytes())
        for path in paths
    ]


def unpack(files: Files, folder: Path) -> None:
    """Put them into the folder, instead of what it has."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, mode, contents in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=mode)
        path.write_bytes(contents)
