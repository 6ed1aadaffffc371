"""A party's site: what it keeps there, and what it reports of it.

    shop.toml                          the party file
    shop.site/                         what the party keeps; only its owner may enter
        aligned/DRIVER.safetensors     its rows of the samples it shares with that driver
        aligned/DRIVER/                the same of those it shares with label owners (FedOptimus)
        checkpoints/DRIVER/RUN/ALGORITHM/  its state in that run; of the last 16 runs
        models/RUN/                    what it can use of that run
        proposals/NAME/                proposals, and who signed them
        ledger.jsonl                   what left it, and for whom
        refusals.jsonl                 what it refused, to whom and why
        site.sqlite                    what it has answered, counted (network/quota.py)
        mailbox/                       its keys for letters, and what it answered last by letter
        secret                         mixed into all random numbers; never leaves
        join.log

The runs that it answers in from there: ``runs.py``.

The secret is 128 bits, as 32 hexadecimal digits, drawn from the system when the site is first used.
The seed of a run travels; with the secret nobody who knows it, the code and all settings can
compute what this site draws. Each time that a run starts here it has a key of its own, derived from
the secret: a driver that starts twice does not meet the same network again.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

from filelock import Timeout
from prometheus_client.core import Metric

from dovetail.errors import ConfigError
from dovetail.methods.base import Site
from dovetail.models import derive_key
from dovetail.network.certificates import make_folder
from dovetail.network.counting import kind_of
from dovetail.network.credentials import Credentials, certificate_warnings, certificates_beside
from dovetail.network.in_use import LOCK, in_use, lock_of
from dovetail.network.logs import handled_by
from dovetail.network.quota import Quota
from dovetail.network.renewal import Certified, Identity
from dovetail.network.retry import open_private, write_private
from dovetail.node.agreements import Agreements
from dovetail.node.probes import counter

_log = logging.getLogger(__name__)


def site_folder_of(party_file: Path) -> Path:
    """The folder that a party keeps, unless somebody says."""
    return party_file.with_name(f"{party_file.stem}.site")


#: Seconds that a folder is waited for in any case: a room that looks holds it for a moment.
_LOOKED_AT_S = 0.5


def is_used(path: Path) -> bool:
    """Whether a process uses a site's folder now; takes it for a moment to find out."""
    try:
        with lock_of(path / LOCK).acquire(timeout=0):
            return False
    except Timeout:
        return True


class SiteFolder:
    """The party's folder; one process at a time uses it, and only its owner reads what is written.

    Args:
        path: the folder.
        wait_s: how long to wait for another process to leave it.

    Raises:
        ConfigError: on entering, if another process uses it.
    """

    def __init__(self, path: Path, *, wait_s: float = 0.0) -> None:
        self.path = path
        self._wait_s = wait_s

    def __enter__(self) -> SiteFolder:
        self._umask = os.umask(0o077)
        try:
            self._enter()
        except BaseException:
            os.umask(self._umask)
            raise
        return self

    def _enter(self) -> None:
        make_folder(self.path)
        advice = "stop it, or give dovetail join a folder of its own with --site"
        self._use = in_use(self.path, advice, wait_s=max(self._wait_s, _LOOKED_AT_S))
        self._use.__enter__()

    def __exit__(self, *_: object) -> None:
        self._use.__exit__(None, None, None)
        os.umask(self._umask)


def certificates_of(site: Site) -> Path:
    """Where the party's certificates are, unless somebody says."""
    return certificates_beside(site.path, site.name)


def warnings_of(site: Site) -> list[str]:
    """Warnings about the party's certificate, if it is beside its file."""
    try:
        return certificate_warnings(certificates_of(site), site.name)
    except ConfigError:  # a party without certificates, which may never need one
        return []


def revoked_of(site: Site) -> Path | None:
    """The list of revoked certificates that its party file names."""
    named = site.party.revoked
    return None if named is None else site.path.parent / named


class Refusals:
    """Log of refusals, a line each; repeated ones are counted, and written at 10, 100, ... times.

    Two that differ in numbers alone are of one kind: a replay of message 7, and one of message 8.

    Args:
        path: the file.
        print_line: shows a line to whoever watches.
    """

    #: Different refusals that are written; a driver that invents more cannot fill the disk.
    MOST = 10_000

    def __init__(self, path: Path, print_line: Callable[[str], None]) -> None:
        self._path = path
        self._print = print_line
        self._counts: dict[tuple[str, str, str], int] = {}
        self._lock = threading.Lock()

    def metrics(self) -> Iterator[Metric]:
        """Refusals by driver, for Prometheus."""
        with self._lock:
            counts = Counter[str]()
            for (driver, *_), count in self._counts.items():
                counts[driver] += count
        about = "Requests that were refused."
        yield counter("dovetail_party_refusals", about, "driver", counts)

    def record(self, driver: str, message: str, run: str, why: str) -> None:
        """Write one; ``message`` is empty where none was read."""
        message, run, why = message[:100], run[:200], why[:500]
        with self._lock:
            what = (driver, kind_of(message), kind_of(why))
            if what not in self._counts and len(self._counts) >= self.MOST:
                what = (
                    driver,
                    "",
                    "refusals of many kinds; from here on only their number is kept",
                )
                message, run, why = "", "", what[2]
            self._counts[what] = count = self._counts.get(what, 0) + 1
            if not re.fullmatch("10*", str(count)):
                return
            line = {
                "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
                "driver": driver,
                "message": message,
                "run": run,
                "why": why,
                "times": count,
            }
            try:
                handle = open_private(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                with os.fdopen(handle, "a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
            except OSError as error:  # a full disk ends no training
                _log.warning("a refusal is not written to %s: %s", self._path, error)
        times = f" ({count} times)" if count > 1 else ""
        self._print(f"refused {message or 'a message'} of {driver!r}: {why}{times}")


class _Log(RotatingFileHandler):
    """A log whose disk may be full: that ends nothing, and shows nobody a traceback."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """The log of this package goes to a file that does not grow without end."""
    handler = _Log(path, maxBytes=10_000_000, backupCount=3, encoding="utf-8")
    path.chmod(0o600)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    with closing(handler), handled_by(handler):
        yield


@contextmanager
def threads_end(timeout_s: float = 5.0) -> Iterator[None]:
    """Waits for threads that were started meanwhile: gRPC's are daemons.

    One that is still in C++ when the interpreter leaves takes the process down with SIGABRT.
    """
    before = set(threading.enumerate())
    try:
        yield
    finally:
        deadline = time.monotonic() + timeout_s
        for thread in set(threading.enumerate()) - before:
            thread.join(max(0.0, deadline - time.monotonic()))


def agreements_of(
    site: Site, site_folder: Path, identity: Identity | None = None, quota: Quota | None = None
) -> Agreements:
    """The proposals that a party's site keeps; ``quota`` is of the site, if it is open.

    Raises:
        ConfigError: its policy asks for signatures, and it has no certificate.
    """
    signed = site.policy.section.approval == "signed"
    if signed and not isinstance(identity, Certified):
        folder = certificates_of(site)
        identity = Certified(Credentials.load(folder, site.name, revoked=revoked_of(site)))
    known = identity if isinstance(identity, Certified) else None
    return Agreements(
        site_folder,
        site.name,
        () if known is None else known.authorities,
        required=signed,
        num_rows=site.table.num_rows,
        revocations=None if known is None else lambda: known.revocations,
        quota=quota,
    )


# --- What it answers ------------------------------------------------------------------------------


#: Bytes of a secret.
SECRET_BYTES = 16


def site_secret(site_folder: Path) -> bytes:
    """The secret of this site; drawn when it is first asked for.

    Raises:
        ConfigError: the file is not what was written, or cannot be.
    """
    path = site_folder / "secret"
    try:
        if not path.exists():
            write_private(path, f"{secrets.token_hex(SECRET_BYTES)}\n".encode())
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: the secret of this site cannot be kept ({error}); allow writing there"
        ) from None
    if not re.fullmatch(f"[0-9a-f]{{{2 * SECRET_BYTES}}}", text):
        raise ConfigError(
            f"{path} is not the secret of this site, which has {2 * SECRET_BYTES} hexadecimal "
            "digits; put it back, or delete it: runs that are saved go on without it"
        )
    return bytes.fromhex(text)


def run_key(secret: bytes, driver: str, number: int) -> bytes:
    """Key that is mixed in when this driver's run of this number starts here."""
    return derive_key(secret, "run", driver, str(number))
