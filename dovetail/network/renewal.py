"""Certificates that are replaced while a process runs: their files are read again when they change.

A process of years outlives its certificate. So whoever listens or connects asks ``Certified`` what
to show now, and whom to believe; its files are looked at every ``LOOK_S`` seconds. Files that are
halfway through being replaced change nothing: what was read last still counts.

What one party says to another by way of a driver is signed, so that the driver can carry it and not
change it. A proof is the certificate, with those of authorities between it and the one that is
believed, and the signature: whoever believes the authority needs no more to check whose words they
are.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from dovetail.errors import ConfigError, MessageError
from dovetail.network.certificates import Revocations, name_of, path_to, read_certificates, read_key
from dovetail.network.credentials import Credentials, expiry_warning

#: The longest proof: a certificate and a signature take about 700 bytes.
MAX_PROOF_BYTES = 8192

_LENGTH = struct.Struct(">H")


class Identity(Protocol):
    """Identity of a party towards the others."""

    def sign(self, statement: bytes) -> bytes:
        """A proof that this party says so."""

    def check(self, party: str, statement: bytes, proof: bytes) -> None:
        """Refuse words that are not of this party.

        Raises:
            MessageError: naming it, and what is wrong with the proof.
        """


def check_proof(
    party: str,
    statement: bytes,
    proof: bytes,
    authorities: Sequence[x509.Certificate],
    *,
    at: datetime | None,
    revocations: Revocations | None = None,
) -> x509.Certificate:
    """Refuse words that are not of this party; give the certificate that they are signed with.

    Args:
        party: whose they are.
        statement: the words.
        proof: a certificate and a signature.
        authorities: who may have issued the certificate; none: anybody.
        at: when the certificate must be valid; None: whenever.
        revocations: which certificates no longer count.

    Raises:
        MessageError: naming the party, and what is wrong with the proof.
    """
    if not proof:
        raise MessageError(
            f"what is said to be of party {party!r} is not signed; it must run the same version of "
            "dovetail, with a certificate of its own"
        )
    try:
        (length,) = _LENGTH.unpack_from(proof)
        certificate, *between = _certificates(proof[_LENGTH.size :][:length])
        name = name_of(certificate)
        key = certificate.public_key()
    except (struct.error, ValueError, x509.InvalidVersion, UnsupportedAlgorithm):
        raise MessageError(f"the proof of party {party!r} holds no certificate") from None
    if at and not certificate.not_valid_before_utc <= at < certificate.not_valid_after_utc:
        raise MessageError(f"the certificate of party {party!r} has expired, or is not valid yet")
    known = not authorities or path_to(certificate, between, authorities) is not None
    if name != party or not known:
        raise MessageError(
            f"what is said to be of party {party!r} is signed with the certificate of another, or "
            "of an authority that is not believed here"
        )
    try:
        assert isinstance(key, ec.EllipticCurvePublicKey)
        key.verify(proof[_LENGTH.size + length :], statement, ec.ECDSA(SHA256()))
    except (AssertionError, InvalidSignature):
        raise MessageError(
            f"what is said to be of party {party!r} is not what it has signed"
        ) from None
    revoked = revocations and revocations.why((certificate, *between))
    if revoked:
        raise MessageError(f"what is said to be of party {party!r} does not count: {revoked}")
    return certificate


def proof_of(certificates: Sequence[x509.Certificate], signature: bytes, most: int) -> bytes:
    """A certificate, those between it and an authority, and a signature, in so many bytes.

    Where they do not fit, those of authorities between are left out: whoever checks the proof must
    have them in ca.pem.
    """
    chain, *between = (each.public_bytes(Encoding.DER) for each in certificates)
    for each in between:
        if _LENGTH.size + len(chain) + len(each) + len(signature) > most:
            break
        chain += each
    return _LENGTH.pack(len(chain)) + chain + signature


def _certificates(data: bytes) -> list[x509.Certificate]:
    """Certificates as DER, one after the other; each says how long it is.

    Raises:
        ValueError: something else, or none.
    """
    certificates: list[x509.Certificate] = []
    while data or not certificates:
        if len(data) < 4 or data[:2] != b"\x30\x82":  # a sequence of 256 to 65,535 bytes
            raise ValueError("no certificate")
        length = 4 + int.from_bytes(data[2:4], "big")
        certificates.append(x509.load_der_x509_certificate(data[:length]))
        data = data[length:]
    return certificates


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
