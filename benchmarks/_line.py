"""A driver that listens and parties as processes, with certificates: what goes over a line."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from dovetail.network import LedgerFile
from dovetail.network.certificates import Authority, certificate_pem, key_pem, new_key
from dovetail.network.credentials import Credentials
from dovetail.network.stream import Stream


def issue(folder: Path, driver: str, parties: Sequence[str]) -> None:
    """An authority, and certificates for all."""
    now = datetime.now(UTC)
    authority = Authority.create(now=now)
    (folder / "ca.pem").write_bytes(authority.pem)
    for name in (driver, *parties):
        key = new_key()
        certificate = authority.issue(
            name, key.public_key(), now=now, listens=name == driver, hosts=("127.0.0.1",)
        )
        (folder / f"{name}.pem").write_bytes(certificate_pem(certificate))
        (folder / f"{name}.key").write_bytes(key_pem(key))
        (folder / f"{name}.key").chmod(0o600)


@contextmanager
def listening(
    folder: Path, driver: str, parties: Sequence[str], *, ledger: str | None = "driver"
) -> Iterator[Stream]:
    """A driver at a free port, and its ledger of this name beside the certificates."""
    with ExitStack() as stack:
        kept = ledger and stack.enter_context(LedgerFile(folder / f"{ledger}.jsonl", driver))
        yield stack.enter_context(
            Stream(
                "127.0.0.1:0",
                driver=driver,
                credentials=Credentials.load(folder, driver),
                parties=tuple(parties),
                ledger=kept or None,
            )
        )


@contextmanager
def running(*commands: Sequence[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Programs, until this ends."""
    started = [subprocess.Popen(command) for command in commands]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()
