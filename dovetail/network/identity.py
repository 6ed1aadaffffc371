"""Statements signed with the key of a party's certificate, and checked against the authority's.

What one party says to another by way of a driver is signed, so that the driver can carry it and not
change it. A proof is the certificate, with those of authorities between it and the one that is
believed, and the signature: whoever believes the authority needs no more to check whose words they
are.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from dovetail.errors import MessageError
from dovetail.network.certificates import name_of, path_to
from dovetail.network.revocation import Revocations

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
