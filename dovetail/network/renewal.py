"""Certificates that are replaced while a process runs: their files are read again when they change.

A process of years outlives its certificate. So whoever listens or connects asks ``Certified`` what
to show now, and whom to believe; its files are looked at every ``LOOK_S`` seconds. Files that do
not
fit together, as halfway through being replaced, change nothing: what was read last still counts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from dovetail.errors import ConfigError
from dovetail.network.certificates import read_certificates, read_key
from dovetail.network.credentials import Credentials, expiry_warning
from dovetail.network.identity import MAX_PROOF_BYTES, check_proof, proof_of
from dovetail.network.revocation import Revocations

#: Seconds from one look at the files to the next.
LOOK_S = 1.0

#: Seconds from one warning that a certificate is about to expire to the next.
REMIND_S = 24 * 3600.0

_log = logging.getLogger(__name__)


class Certified:
    """A party with a certificate, as its files have it now, and the authorities that it believes.

    Args:
        credentials: those that were read first.
        folder: where they were read; None: they are of no files and never change.
        revoked: its revocation list, if that is not ``crl.pem`` in the folder.

    Attributes:
        name: of its certificate.
        credentials: what it shows now.
        authorities: whose certificates it believes.
        revocations: which certificates no longer count.
    """

    credentials: Credentials
    authorities: tuple[x509.Certificate, ...]
    revocations: Revocations

    def __init__(
        self,
        credentials: Credentials,
        folder: Path | None = None,
        *,
        revoked: Path | None = None,
    ) -> None:
        self.name = credentials.name
        self._folder = folder
        self._revoked = revoked
        self._lock = threading.Lock()
        self._marks = self._look()
        self._failed: Sequence[object] = ()
        self._warned = time.monotonic()
        self._take(credentials)

    @classmethod
    def load(cls, folder: Path, name: str, *, revoked: Path | None = None) -> Certified:
        """A party's files, which it replaces as it likes; see ``Credentials.load``."""
        return cls(Credentials.load(folder, name, revoked=revoked), folder, revoked=revoked)

    def sign(self, statement: bytes, *, most: int = MAX_PROOF_BYTES) -> bytes:
        """The certificate and a signature, in so many bytes; see ``proof_of``."""
        credentials = self.credentials
        key = read_key(credentials.key, where="the key")
        shown = read_certificates(credentials.certificate, where="the certificate")
        return proof_of(shown, key.sign(statement, ec.ECDSA(SHA256())), most)

    def check(self, party: str, statement: bytes, proof: bytes) -> None:
        """Refuse words that are not of this party.

        Raises:
            MessageError: naming it, and what is wrong with the proof.
        """
        now, revocations = datetime.now(UTC), self.revocations
        check_proof(party, statement, proof, self.authorities, at=now, revocations=revocations)

    def refresh(self) -> bool:
        """Read the files again if they changed; whether there is something new."""
        with self._lock:
            self._remind()
            marks = self._look()
            if marks == self._marks:
                return False
            assert self._folder is not None
            try:
                fresh = Credentials.load(self._folder, self.name, revoked=self._revoked)
            except ConfigError as error:
                if self._failed == marks:  # so they are not being replaced just now
                    self._marks = marks
                    _log.warning("what was there before still counts: %s", error)
                self._failed = marks
                return False
            self._marks = marks
            if fresh == self.credentials:
                return False
            self._take(fresh)
            return True

    def _take(self, credentials: Credentials) -> None:
        authorities = read_certificates(credentials.ca, where="the authority")
        chain_here = read_certificates(credentials.certificate, where="the certificate")
        # A list of an authority between may be signed by one that is only in its own chain.
        self.revocations = Revocations.read(
            credentials.revoked, (*authorities, *chain_here[1:]), where="the revocation list"
        )
        self.authorities = authorities
        self.credentials = credentials

    def _look(self) -> tuple[object, ...]:
        if self._folder is None:
            return ()
        files = [self._folder / f"{self.name}.pem", self._folder / f"{self.name}.key"]
        files += [self._folder / "ca.pem", self._revoked or self._folder / "crl.pem"]
        marks: list[object] = []
        for file in files:
            try:
                status = file.stat()
                marks.append((status.st_mtime_ns, status.st_size, status.st_ino))
            except OSError:
                marks.append(None)
        return tuple(marks)

    def _remind(self) -> None:
        if time.monotonic() - self._warned < REMIND_S:
            return
        self._warned = time.monotonic()
        leaf = read_certificates(self.credentials.certificate, where="the certificate")[0]
        for warning in (
            expiry_warning(leaf, datetime.now(UTC)),
            self.revocations.stale(),
        ):
            if warning:
                _log.warning("%s", warning)


def certified(credentials: Credentials | Certified) -> Certified:
    """The party of these credentials."""
    return credentials if isinstance(credentials, Certified) else Certified(credentials)
