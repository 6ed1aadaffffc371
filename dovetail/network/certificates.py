"""Certificates of a ``Stream``: a small authority, and what each party needs of it.

    authority   ca/ca.pem, ca/ca.key    its holder signs; ca.key leaves no machine
    party       ca.pem                  whom it believes: one authority, or two while they change
                NAME.pem                its certificate: common name = its name; behind it those
                                        of authorities between it and ca.pem, if there are any
                NAME.key                its private key; made by the party itself if it so wishes
                crl.pem                 lists of certificates that no longer count (CRL, RFC 5280)

Keys are on the curve P-256. A certificate names its party twice: as common name, and as the DNS
name that the other side of TLS compares, ``tls_name``, which no host can have. A driver's names the
hosts it listens on, too, for other tools: Dovetail compares none of them. A driver's certificate
may serve and connect, a site's may only connect: neither a site nor another driver can pass for a
driver.

A certificate says who somebody is. What they may ask is each party's own policy.

A list in ``crl.pem`` speaks of the certificates of the authority that signed it, which is believed
here. One whose next update is past still counts: it is the newest that is here.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dovetail.errors import ConfigError
from dovetail.network.retry import write_private

#: Days that a party's certificate and an authority's are valid.
PARTY_DAYS = 365
AUTHORITY_DAYS = 3650

#: A certificate is valid from so long before it is made: clocks differ.
CLOCK_SKEW = timedelta(hours=1)

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*")

#: Where the names that TLS compares end. ``.invalid`` is nobody's (RFC 2606).
_TLS_DOMAIN = ".dovetail.invalid"

Key = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey

# --- Names --------------------------------------------------------------------------------------


def certificate_name(name: str) -> str:
    """The name, if a certificate can carry it.

    Raises:
        ConfigError: blanks, accents and the like, which a party's name may have and a DNS name not.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"a certificate cannot carry the name {name!r}: it takes at most 64 letters a-z, "
            "digits, dots, dashes and underscores, with a letter or digit first and last; give the "
            "party such a name in its party file"
        )
    return name


def tls_name(name: str) -> str:
    """The DNS name that stands for a party in its certificate, apart from every host's.

    A hash, because TLS compares DNS names without regard to case and knows no ``_`` or ``..``.
    """
    return f"party-{hashlib.sha256(name.encode()).hexdigest()[:32]}{_TLS_DOMAIN}"


def host_name(host: str) -> x509.GeneralName:
    """A host as a certificate writes it: an IP address or a DNS name.

    Raises:
        ConfigError: neither, or a name that stands for a party.
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _HOST.fullmatch(host) or host.lower().endswith(_TLS_DOMAIN):
        raise ConfigError(
            f"--host takes a host's name or IP address, without a port, got {host!r}; for example "
            "bank.example.org or 192.0.2.7"
        )
    return x509.DNSName(host)


def fingerprint(public_key: PublicKey) -> str:
    """128 bits of SHA-256 of a public key, as eight groups to read out on the telephone."""
    encoded = public_key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digest = hashes.Hash(hashes.SHA256())
    digest.update(encoded)
    text = digest.finalize().hex()
    return " ".join(text[start : start + 4] for start in range(0, 32, 4))


# --- Files --------------------------------------------------------------------------------------


def make_folder(folder: Path) -> None:
    """A folder that only its owner may enter; one that exists stays as it is."""
    for missing in [*reversed(folder.parents), folder]:
        if not missing.is_dir():
            missing.mkdir(mode=0o700)


def write_file(path: Path, content: bytes, *, private: bool, replace: bool) -> None:
    """Write a file whole or not at all; a private one is 0600 from its first byte on.

    Raises:
        ConfigError: there is such a file and it is not to be replaced.
    """
    if not replace and path.exists():
        raise ConfigError(
            f"{path} exists and is kept; --force makes a new one in its place, --renew only a new "
            "certificate"
        )
    write_private(path, content, rights=0o600 if private else 0o644)


def read_file(path: Path, *, what: str) -> bytes:
    """The file's bytes.

    Raises:
        ConfigError: it is not there, or may not be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}, {what}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); allow reading it") from None


# --- Keys, certificates, requests ---------------------------------------------------------------


def new_key() -> Key:
    """A fresh private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> bytes:
    """The private key, not encrypted: whoever reads it is its party."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def read_key(data: bytes, *, where: str) -> Key:
    """The private key in these bytes.

    Raises:
        ConfigError: none, or not one of ours.
    """
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Key):
        raise ConfigError(
            f"{where} holds no private key that Dovetail made (EC, not encrypted); put it there"
        )
    return key


def certificate_pem(*certificates: x509.Certificate) -> bytes:
    """Certificates, one after the other."""
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in certificates)


def read_certificates(data: bytes, *, where: str) -> tuple[x509.Certificate, ...]:
    """Certificates in these bytes, one or more.

    Raises:
        ConfigError: none.
    """
    try:
        return tuple(x509.load_pem_x509_certificates(data))
    except ValueError:
        raise ConfigError(
            f"{where} holds no certificate (PEM); put the one that was issued there"
        ) from None


def certificates_in(path: Path, what: str = "a certificate") -> tuple[x509.Certificate, ...]:
    """The certificates in a file; ``what`` it is, in errors.

    Raises:
        ConfigError: no such file, or none in it.
    """
    return read_certificates(read_file(path, what=what), where=str(path))


def key_in(path: Path, what: str = "the key") -> Key:
    """The private key in a file; as ``certificates_in``."""
    return read_key(read_file(path, what=what), where=str(path))


def make_request(name: str, key: Key) -> bytes:
    """Request to the authority's holder: the party's name and public key, signed by its key."""
    # The name that TLS compares is in it for authorities of a company, which copy or confirm it.
    names = x509.SubjectAlternativeName([x509.DNSName(tls_name(certificate_name(name)))])
    builder = x509.CertificateSigningRequestBuilder().subject_name(_subject(name))
    builder = builder.add_extension(names, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def read_request(data: bytes, *, where: str) -> tuple[str, PublicKey]:
    """The name and public key that a request asks a certificate for; nothing else in it counts.

    Raises:
        ConfigError: no request, one whose sender does not have the key, or one without a name.
    """
    try:
        request = x509.load_pem_x509_csr(data)
        key = request.public_key()
        whole = request.is_signature_valid
        names = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(
            f"{where} is no certificate request (PEM); make one: dovetail certificates NAME "
            "--request"
        ) from None
    if not whole or not isinstance(key, PublicKey) or len(names) != 1:
        raise ConfigError(
            f"{where} is no request that Dovetail made; its party makes one with "
            "dovetail certificates NAME --request"
        )
    return certificate_name(str(names[0].value)), key


def name_of(certificate: x509.Certificate) -> str:
    """The common name; empty where there is not exactly one."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def may_listen(certificate: x509.Certificate) -> bool:
    """Whether it is a driver's."""
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return ExtendedKeyUsageOID.SERVER_AUTH in usage


def every_name(certificate: x509.Certificate) -> tuple[str, ...]:
    """Names that TLS may compare: the hosts it names, and the name that stands for its party."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in names)


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """The hosts it names beside its party."""
    certificate_name = tls_name(name_of(certificate))
    return tuple(name for name in every_name(certificate) if name != certificate_name)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


# --- The authority ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Authority:
    """Signs certificates.

    Attributes:
        certificates: its own, the one that signs first; then those it took the place of and that
            are still believed.
        key: of the first.
    """

    certificates: tuple[x509.Certificate, ...]
    key: Key = field(repr=False)

    @classmethod
    def create(
        cls,
        *,
        now: datetime,
        days: int = AUTHORITY_DAYS,
        beside: Sequence[x509.Certificate] = (),
    ) -> Authority:
        """A new authority; certificates of those ``beside`` it are believed until they expire."""
        key = new_key()
        serial = x509.random_serial_number()
        # A name of its own, so that nobody takes one authority's signature for another's.
        name = _subject(f"Dovetail CA {serial:x}"[:64])
        public = key.public_key()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(public)
            .serial_number(serial)
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        return cls((certificate, *(old for old in beside if old.not_valid_after_utc > now)), key)

    @classmethod
    def load(cls, folder: Path) -> Authority:
        """The authority in a folder.

        Raises:
            ConfigError: files that are missing, or that do not belong together.
        """
        paths = folder / "ca.pem", folder / "ca.key"
        certificates = certificates_in(paths[0], "the authority's certificate")
        key = key_in(paths[1], "the authority's key")
        if certificates[0].public_key() != key.public_key():
            raise ConfigError(
                f"{paths[1]} is not the key of the first certificate in {paths[0]}; put it there"
            )
        return cls(certificates, key)

    def revoke(
        self,
        serials: Mapping[int, tuple[datetime, x509.ReasonFlags]],
        *,
        number: int,
        now: datetime,
        days: int = PARTY_DAYS,
    ) -> x509.CertificateRevocationList:
        """The list of its certificates that no longer count.

        Args:
            serials: serial number -> since when, and why.
            number: of the list; greater than that of the one before.
            now: when it is made.
            days: until another is to follow.
        """
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificates[0].subject)
            .last_update(now)
            .next_update(now + timedelta(days=days))
            .add_extension(x509.CRLNumber(number), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        for serial, (since, reason) in serials.items():
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(since)
            if reason != x509.ReasonFlags.unspecified:
                entry = entry.add_extension(x509.CRLReason(reason), critical=False)
            builder = builder.add_revoked_certificate(entry.build())
        return builder.sign(self.key, hashes.SHA256())

    def save(self, folder: Path, *, replace: bool = False) -> None:
        """Write ``ca.key`` and ``ca.pem``.

        Raises:
            ConfigError: there is an authority already, and it is not to be replaced.
        """
        make_folder(folder)
        write_file(folder / "ca.key", key_pem(self.key), private=True, replace=replace)
        write_file(folder / "ca.pem", self.pem, private=False, replace=True)

    @property
    def pem(self) -> bytes:
        """Certificate that every party believes: ``ca.pem``."""
        return certificate_pem(*self.certificates)

    @property
    def expires(self) -> datetime:
        return self.certificates[0].not_valid_after_utc

    def issue(
        self,
        name: str,
        public_key: PublicKey,
        *,
        now: datetime,
        days: int = PARTY_DAYS,
        listens: bool = False,
        hosts: Sequence[str] = (),
    ) -> x509.Certificate:
        """A certificate of this party; never valid for longer than the authority.

        Args:
            name: the party's.
            public_key: the party's.
            now: when it is made.
            days: how long it is valid.
            listens: a driver's, that may serve; else it may only connect.
            hosts: names and addresses it listens on.

        Raises:
            ConfigError: a name or host that cannot be, or an authority that has expired.
        """
        certificate = self.certificates[0]
        if certificate.not_valid_after_utc <= now:
            raise ConfigError(
                f"the authority expired on {certificate.not_valid_after_utc:%Y-%m-%d}; make a "
                "new one: dovetail certificates --renew-ca"
            )
        names = [x509.DNSName(tls_name(certificate_name(name))), *map(host_name, hosts)]
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if listens:
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        return (
            x509.CertificateBuilder()
            .subject_name(_subject(name))
            .issuer_name(certificate.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(min(now + timedelta(days=days), certificate.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectAlternativeName(list(dict.fromkeys(names))), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )


# --- Chains --------------------------------------------------------------------------------------


def path_to(
    certificate: x509.Certificate,
    between: Sequence[x509.Certificate],
    authorities: Sequence[x509.Certificate],
) -> tuple[x509.Certificate, ...] | None:
    """From a certificate's issuer up to an authority that is believed; None if there is none."""
    path: list[x509.Certificate] = []
    current = certificate
    while True:
        believed = next((each for each in authorities if signed_by(current, each)), None)
        if believed is not None:
            return (*path, believed)
        issuers = (each for each in between if each not in path and signs(each))
        issuer = next((each for each in issuers if signed_by(current, each)), None)
        if issuer is None:
            return None
        path.append(issuer)
        current = issuer


def signs(certificate: x509.Certificate) -> bool:
    """Whether it is an authority's."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether this authority has issued the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


_LIST = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)

#: What a list may demand of its reader, and is heeded here.
_UNDERSTOOD = (x509.CRLNumber, x509.AuthorityKeyIdentifier)


class Revocations:
    """Revocations in the lists that are believed here.

    Args:
        lists: each signed by an authority that the caller believes.
    """

    def __init__(self, lists: Sequence[x509.CertificateRevocationList] = ()) -> None:
        self._lists = tuple(lists)

    @classmethod
    def read(
        cls, data: bytes, authorities: Sequence[x509.Certificate], *, where: str
    ) -> Revocations:
        """The lists in these bytes; none in none.

        Raises:
            ConfigError: something else, a list of nobody who is believed, or one of changes only.
        """
        lists = []
        for text in _LIST.findall(data):
            try:
                crl = x509.load_pem_x509_crl(text)
                extensions = list(crl.extensions)
            except ValueError as error:
                raise ConfigError(
                    f"{where} holds no revocation list (PEM): {error}; ask its authority for one"
                ) from None
            if not any(_signed(crl, authority) for authority in authorities):
                raise ConfigError(
                    f"{where}: the list of {crl.issuer.rfc4514_string()!r} is not signed by an "
                    "authority in ca.pem; take both from the same holder"
                )
            for each in extensions:
                if each.critical and not isinstance(each.value, _UNDERSTOOD):
                    raise ConfigError(
                        f"{where}: the list of {crl.issuer.rfc4514_string()!r} is of changes or "
                        f"parts only ({each.oid.dotted_string}); ask for the full list"
                    )
            lists.append(crl)
        if not lists and data.strip():
            raise ConfigError(f"{where} holds no revocation list (PEM); ask its authority for one")
        return cls(lists)

    def __len__(self) -> int:
        return sum(len(each) for each in self._lists)

    def why(self, chain: Iterable[x509.Certificate]) -> str | None:
        """A sentence on the first of these certificates that is revoked; None if none is."""
        for certificate in chain:
            for each in self._lists:
                if each.issuer != certificate.issuer:
                    continue
                entry = each.get_revoked_certificate_by_serial_number(certificate.serial_number)
                if entry is not None:
                    return _sentence(certificate, entry)
        return None

    def stale(self, now: datetime | None = None) -> str | None:
        """Whose list should have been followed by another; None if none should."""
        now = now or datetime.now(UTC)
        for each in self._lists:
            due = each.next_update_utc
            if due is not None and due <= now:
                return (
                    f"the revocation list of {each.issuer.rfc4514_string()!r} was to be followed "
                    f"by another on {due:%Y-%m-%d}; get the new one from its holder (dovetail "
                    "certificates --revoke makes it)"
                )
        return None


def _signed(crl: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    if crl.issuer != authority.subject:
        return False
    try:
        return crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


def _sentence(certificate: x509.Certificate, entry: x509.RevokedCertificate) -> str:
    """Whose certificate, since when, and why, in the words of RFC 5280."""
    reason = ""
    for each in entry.extensions:
        if isinstance(each.value, x509.CRLReason):
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", str(each.value.reason.value)).lower()
            reason = f": {words}"
    named = name_of(certificate) or certificate.subject.rfc4514_string()
    return (
        f"the certificate of {named!r} with serial {certificate.serial_number:x} is revoked since "
        f"{entry.revocation_date_utc:%Y-%m-%d %H:%M} UTC{reason}"
    )
