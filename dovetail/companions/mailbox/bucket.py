"""A bucket of an S3-compatible store as a place: Amazon's, MinIO, Ceph, Cloudflare R2 and others.

Key, region and endpoint are those of the environment (``AWS_ACCESS_KEY_ID``, ``AWS_REGION``,
``AWS_ENDPOINT_URL``, ``AWS_ALLOW_HTTP``), or of the machine's role, as obstore reads them: none of
them is in a run file. An object is there whole or not at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from dovetail.companions.mailbox.places import MAX_NAMES, PlaceError, UnfitError
from dovetail.errors import ConfigError
from dovetail.lazy import needed
from dovetail.network.printable import printable

T = TypeVar("T")

#: How long a request may take, and how often it is tried again within a look.
_OPTIONS = {"timeout": "60s", "connect_timeout": "10s"}
_RETRIES: Any = {"max_retries": 2}


class Bucket:
    """A place below a bucket's prefix.

    Args:
        where: s3://BUCKET/PREFIX.

    Attributes:
        where: what people call it.

    Raises:
        ConfigError: an address that is none, or packages that are not installed.
    """

    def __init__(self, where: str) -> None:
        self.where = where.rstrip("/")
        parts = urlsplit(self.where)
        if not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
            raise ConfigError(
                f"a bucket is s3://BUCKET or s3://BUCKET/PREFIX, got {where!r}; name it so"
            )
        with needed("a bucket", "'dovetail-fl[s3]'"):
            import obstore
            from obstore.exceptions import BaseError
            from obstore.store import S3Store
        self._obstore, self._error = obstore, BaseError
        prefix = parts.path.strip("/")
        options: Any = {**_OPTIONS, "allow_http": _plain_http()}
        try:
            self._store = S3Store(
                parts.netloc,
                prefix=prefix or None,
                client_options=options,
                retry_config=_RETRIES,
            )
        except BaseError as error:
            raise ConfigError(f"{self.where}: {_first_line(error)}") from None

    def _ask(self, what: str, name: str, call: Callable[[], T]) -> T:
        """Answer of the store.

        Raises:
            FileNotFoundError: there is no such object.
            PlaceError: the store cannot be reached, or will not.
        """
        try:
            return call()
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise PlaceError(
                    f"cannot {what} {self.where}/{name}: there is no such bucket; make it, or name "
                    "another"
                ) from None
            raise
        except (self._error, OSError) as error:
            raise self._failed(f"{what} {self.where}/{name}", error) from None

    def _failed(self, what: str, error: Exception) -> PlaceError:
        return PlaceError(
            f"cannot {what}: {_first_line(error)}; check the bucket's address and the credentials "
            "in the environment"
        )

    def put(self, name: str, data: bytes) -> None:
        try:
            self._ask("put", name, lambda: self._obstore.put(self._store, name, data))
        except FileNotFoundError as error:
            raise self._failed(f"put {self.where}/{name}", error) from None

    def get(self, name: str, most: int) -> bytes | None:
        def read() -> bytes:
            found = self._obstore.get(self._store, name)
            if found.meta["size"] > most:
                raise UnfitError(
                    f"{self.where}/{name} has {found.meta['size']} bytes; at most {most} are read"
                )
            return bytes(found.bytes())

        try:
            return self._ask("get", name, read)
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        def read() -> list[str]:
            found: list[str] = []
            for part in self._obstore.list(self._store, prefix=folder):
                found += [str(each["path"]).rpartition("/")[2] for each in part]
                if len(found) >= MAX_NAMES:
                    break
            return found[:MAX_NAMES]

        try:
            return self._ask("list", folder, read)
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        try:
            self._ask("remove", name, lambda: self._obstore.delete(self._store, name))
        except FileNotFoundError:
            return

    def close(self) -> None:
        """Nothing is open."""


def _plain_http() -> bool:
    """Whether the environment allows a store without TLS: options given here hide that one."""
    return os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1", "yes")


def _first_line(error: Exception) -> str:
    """First line of obstore's error, without the place in its code and how long it took."""
    line = printable(str(error).strip().partition("\n")[0])[:300]
    return re.sub(r" in [\d.]+[nµm]?s\b", "", line)
