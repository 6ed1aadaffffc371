"""Certificates that no longer count: what the lists of authorities (CRL, RFC 5280) say of them.

    crl.pem     one list or several, each signed by an authority that is believed here

A list speaks of the certificates of the authority that signed it. One whose next update is past
still counts: it is the newest that is here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from cryptography import x509

from dovetail.errors import ConfigError
from dovetail.network.certificates import name_of

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
                    "authority in ca.pem; both must come from the same holder"
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
