"""Credentials: what a party shows and whom it believes, its files, and what is wrong with them."""

from __future__ import annotations

import logging
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from dovetail.errors import ConfigError
from dovetail.network.certificates import (
    Revocations,
    certificate_name,
    certificates_in,
    name_of,
    path_to,
    read_certificates,
    read_file,
    read_key,
)

#: Fewer days than this before it expires, ``Credentials.load`` warns.
WARN_DAYS = 30

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Credentials:
    """Credentials of a party, as PEM: what it shows and whom it believes.

    Attributes:
        ca: certificates of the authorities it believes.
        certificate: its own.
        key: of its certificate; secret.
        revoked: lists of certificates that no longer count; none: all count.
    """

    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    revoked: bytes = b""

    @classmethod
    def load(
        cls, folder: Path, name: str, *, now: datetime | None = None, revoked: Path | None = None
    ) -> Credentials:
        """A party's files: ``ca.pem``, ``NAME.pem``, ``NAME.key``, and ``crl.pem`` if it is there.

        Logs a warning where the certificate expires within 30 days, a list of revoked ones is old,
        or others may read the key.

        Args:
            folder: where they are.
            name: the party's.
            now: the time; None: what the clock says.
            revoked: a list of revoked certificates that must be there; None: ``crl.pem`` in the
                folder, if there is one.

        Raises:
            ConfigError: a file is missing, they do not belong together, one has expired, or the
                certificate itself is revoked.
        """
        certificate_name(name)
        get = (
            f"get it from whoever holds the authority (dovetail certificates {name}), or ask with "
            f"dovetail certificates {name} --request"
        )
        paths = [folder / file for file in ("ca.pem", f"{name}.pem", f"{name}.key")]
        ca_path, certificate_path, key_path = paths
        list_path = revoked or folder / "crl.pem"
        listed = b""
        if revoked is not None or list_path.exists():
            listed = read_file(list_path, what="the list of revoked certificates (revoked)")
            if not listed.strip():
                raise ConfigError(
                    f"{list_path} is empty, and should list revoked certificates; ask its "
                    "authority for it again"
                )
        loaded = cls(
            read_file(ca_path, what=f"the authority that {name!r} believes; {get}"),
            read_file(certificate_path, what=f"the certificate of {name!r}; {get}"),
            read_file(key_path, what=f"the private key of {name!r}; {get}"),
            listed,
        )
        loaded.check(name, [*paths, list_path], now or datetime.now(UTC))
        if stat.S_IMODE(key_path.stat().st_mode) & 0o077:
            _log.warning("%s may be read by other users of this machine: chmod 600 it", key_path)
        return loaded

    @property
    def name(self) -> str:
        """The party's, as its certificate says."""
        return name_of(self._certificate())

    @property
    def expires(self) -> datetime:
        return self._certificate().not_valid_after_utc

    def _certificate(self) -> x509.Certificate:
        return read_certificates(self.certificate, where="the certificate")[0]

    def shows_as(self, other: Credentials) -> bool:
        """Whether a line that is made with these is as one that is made with others."""
        return replace(self, revoked=b"") == replace(other, revoked=b"")

    def check(self, name: str, paths: Sequence[Path], now: datetime) -> None:
        """Refuse files that do not belong together, are another party's, or have expired.

        Raises:
            ConfigError: naming the file, what is wrong with it and what to do.
        """
        ca_path, certificate_path, key_path, list_path = paths
        authorities = read_certificates(self.ca, where=str(ca_path))
        leaf, *between = read_certificates(self.certificate, where=str(certificate_path))
        key = read_key(self.key, where=str(key_path))
        if name_of(leaf) != name:
            raise ConfigError(
                f"{certificate_path} is of {name_of(leaf)!r}, not of {name!r}; put its own there"
            )
        if leaf.public_key() != key.public_key():
            raise ConfigError(
                f"{key_path} is not the key of {certificate_path}; put the certificate that was "
                f"issued for this key there, or ask for one: dovetail certificates {name} --request"
            )
        issuers = path_to(leaf, between, authorities)
        if issuers is None:
            raise ConfigError(
                f"{certificate_path} is not signed by the authority in {ca_path}; take both from "
                "the same holder, and put the certificates of authorities between them into "
                f"{certificate_path.name} behind its own"
            )
        renew = (
            f"renew it where the authority is (dovetail certificates {name} --renew), or ask for "
            f"that with dovetail certificates {name} --request"
        )
        renew_ca = "dovetail certificates --renew-ca where the authority is"
        for path, certificate, what in (
            *((ca_path, each, renew_ca) for each in issuers),
            (certificate_path, leaf, renew),
        ):
            if certificate.not_valid_after_utc <= now:
                raise ConfigError(
                    f"{path} expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; "
                    f"{what}"
                )
            if certificate.not_valid_before_utc > now:
                raise ConfigError(
                    f"{path} is valid only from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} "
                    f"UTC, and here it is {now:%Y-%m-%d %H:%M}; set this machine's clock"
                )
        revocations = Revocations.read(self.revoked, (*authorities, *between), where=str(list_path))
        revoked = revocations.why((leaf, *between))
        if revoked is not None:
            raise ConfigError(
                f"{list_path}: {revoked}; get a certificate for a new key (dovetail certificates "
                f"{name} --request --force)"
            )
        for warning in (expiry_warning(leaf, now, str(certificate_path)), revocations.stale(now)):
            if warning:
                _log.warning("%s", warning)


def certificates_beside(party_file: Path, party: str) -> Path:
    """The folder of certificates of a party whose file is not read."""
    name = certificate_name(party)
    folders = [party_file.parent / "certificates" / name, Path("certificates") / name]
    for folder in folders:
        if folder.is_dir():
            return folder
    raise ConfigError(
        f"there is no folder {folders[0]} with ca.pem, {name}.pem and {name}.key; name it with "
        f"--certificates, or make them: dovetail certificates {name} --request"
    )


def certificate_warnings(folder: Path, name: str, *, now: datetime | None = None) -> list[str]:
    """Warnings about a party's certificate, which need not be here; its key is not read."""
    path = folder / f"{name}.pem"
    if not path.exists():
        return []
    now = now or datetime.now(UTC)
    leaf, *between = certificates_in(path)
    warnings = [expiry_warning(leaf, now, str(path))]
    listed = _listed(folder, between)
    if listed is not None:
        warnings += [listed.why((leaf, *between)), listed.stale(now)]
    return [each for each in warnings if each]


def revoked_by(folder: Path, certificate: bytes) -> str | None:
    """Why a certificate (DER) no longer counts, by ``crl.pem`` as it is now; None if it does.

    Raises:
        ConfigError: a list that cannot be read.
    """
    listed = _listed(folder)
    return None if listed is None else listed.why([x509.load_der_x509_certificate(certificate)])


def _listed(folder: Path, between: Sequence[x509.Certificate] = ()) -> Revocations | None:
    """Revocations in ``crl.pem`` as it is now, signed by ``ca.pem`` or by one between."""
    path, authority = folder / "crl.pem", folder / "ca.pem"
    if not path.exists():
        return None
    authorities = certificates_in(authority, "the authority")
    data = read_file(path, what="the list")
    return Revocations.read(data, (*authorities, *between), where=str(path))


def expiry_warning(certificate: x509.Certificate, now: datetime, what: str = "") -> str | None:
    """Warning about a certificate that expires within ``WARN_DAYS`` days; None of others."""
    left = certificate.not_valid_after_utc - now
    if left >= timedelta(days=WARN_DAYS):
        return None
    name = name_of(certificate)
    expires = "expires" if left > timedelta(0) else "has expired"
    when = f"in {left.days} days" if left > timedelta(0) else f"{-left.days} days ago"
    return (
        f"{what or f'the certificate of {name!r}'} {expires} on "
        f"{certificate.not_valid_after_utc:%Y-%m-%d}, {when}; renew it where the "
        f"authority is (dovetail certificates {name} --renew), or ask for that with dovetail "
        f"certificates {name} --request"
    )
