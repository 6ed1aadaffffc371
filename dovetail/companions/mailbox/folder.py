"""A folder that both sides reach: a network drive, a synchronised folder, a stick that travels.

A file is written under another name and then given its own, so that nobody reads half of one; where
whatever synchronises the folder copies in place, a letter says how long it is. Files and folders
get the rights of the folder itself: who may read and write there is its owner's decision, and
letters need no other protection. Links and devices that somebody puts there are not followed.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

from dovetail.companions.mailbox.places import MAX_NAMES, PlaceError, UnfitError
from dovetail.network.retry import patiently

#: Reading ends at links, and waits for no pipe.
_READ = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
)

#: Errors of one file, that a link, a socket, a folder or somebody else's rights give.
_OF_ONE_FILE = (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EACCES, errno.EPERM)


class Folder:
    """A place that is a folder, which is there.

    Args:
        path: where.

    Attributes:
        where: what people call it.
    """

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path
        if not path.is_dir():
            raise PlaceError(
                f"there is no folder {path}, where letters would lie; make it, or name another "
                "with --mailbox or engine.place"
            )

    def _own(self, name: str) -> Path:
        """The path of a name, if no folder on the way to it is a link.

        Raises:
            PlaceError: naming the link.
        """
        for each in reversed(Path(name).parents):
            if (self._path / each).is_symlink() and each != Path():
                raise PlaceError(
                    f"{self._path / each} is a link that somebody has put there, and is not "
                    "followed; remove it"
                )
        return self._path / name

    def put(self, name: str, data: bytes) -> None:
        path = self._own(name)
        fresh = path.with_name(f".{secrets.token_hex(8)}.new")

        def write() -> None:
            rights = stat.S_IMODE(self._path.stat().st_mode)
            self._make(path.parent, rights)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
            try:
                with open(os.open(fresh, flags, 0o600), "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                fresh.chmod(rights & 0o666)
                os.replace(fresh, path)
            finally:
                fresh.unlink(missing_ok=True)

        try:
            patiently(write)
        except OSError as error:
            raise self._failed("write", name, error) from None

    def _make(self, folder: Path, rights: int) -> None:
        below = folder.relative_to(self._path)
        for each in (*reversed(below.parents), below):
            made = self._path / each
            if not made.is_dir():
                made.mkdir(exist_ok=True)
                made.chmod(rights)

    def get(self, name: str, most: int) -> bytes | None:
        try:
            with open(os.open(self._own(name), _READ), "rb") as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode):
                    raise UnfitError(f"{self._path / name} is no file; remove it")
                if found.st_size > most:
                    raise UnfitError(
                        f"{self._path / name} has {found.st_size} bytes; at most {most} are read"
                    )
                return file.read(found.st_size)  # memory for what is there, not for ``most``
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed("read", name, error) from None

    def names(self, folder: str) -> list[str]:
        found = []
        try:
            with os.scandir(self._own(f"{folder}/x").parent) as entries:
                for entry in entries:
                    if not entry.name.startswith("."):
                        found.append(entry.name)
                    if len(found) >= MAX_NAMES:
                        break
        except FileNotFoundError:
            self._there()
        except OSError as error:
            raise self._failed("list", folder, error) from None
        return found

    def remove(self, name: str) -> None:
        try:
            self._own(name).unlink(missing_ok=True)
        except OSError as error:
            raise self._failed("remove", name, error) from None

    def close(self) -> None:
        """Nothing is open."""

    def _there(self) -> None:
        """A folder without letters is one thing, a drive that is not mounted another."""
        if not self._path.is_dir():
            raise PlaceError(f"the folder {self._path} is not there any more; mount it again")

    def _failed(self, what: str, name: str, error: OSError) -> PlaceError:
        kind = UnfitError if error.errno in _OF_ONE_FILE else PlaceError
        return kind(f"cannot {what} {self._path / name}: {error.strerror or error}")
