"""Statements signed with the key of a party's certificate, and checked against the authority's.

What one party says to another by way of a driver is signed, so that the driver can carry it and not
change it. A proof is the certificate and the signature: whoever believes the authority needs no
more to check whose words they are.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from dovetail.errors import MessageError
from dovetail.network.certificates import (
    Credentials,
    name_of,
    read_certificates,
    read_key,
    signed_by,
)

#: The longest proof: a certificate and a signature take about 700 bytes.
MAX_PROOF_BYTES = 8192

_LENGTH = struct.Struct(">H")


class Identity(Protocol):
    """Who a party is towards the others."""

    def sign(self, statement: bytes) -> bytes:
        """A proof that this party says so."""

    def check(self, party: str, statement: bytes, proof: bytes) -> None:
        """Refuse words that are not of this party.

        Raises:
            MessageError: naming it, and what is wrong with the proof.
        """


class Certified:
    """A party with a certificate, and the authorities that it believes.

    Args:
        credentials: as ``Stream`` and ``serve`` are given.

    Attributes:
        name: of its certificate.
        authorities: whose certificates it believes.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._key = read_key(credentials.key, where="the key")
        own = read_certificates(credentials.certificate, where="the certificate")[0]
        self._certificate = own.public_bytes(Encoding.DER)
        self.authorities = read_certificates(credentials.ca, where="the authority")
        self.name = name_of(own)

    def sign(self, statement: bytes) -> bytes:
        """The certificate and a signature."""
        signature = self._key.sign(statement, ec.ECDSA(SHA256()))
        return _LENGTH.pack(len(self._certificate)) + self._certificate + signature

    def check(self, party: str, statement: bytes, proof: bytes) -> None:
        """Refuse words that are not of this party.

        Raises:
            MessageError: naming it, and what is wrong with the proof.
        """
        check_proof(party, statement, proof, self.authorities, at=datetime.now(UTC))


def check_proof(
    party: str,
    statement: bytes,
    proof: bytes,
    authorities: Sequence[x509.Certificate],
    *,
    at: datetime | None,
) -> None:
    """Refuse words that are not of this party.

    Args:
        party: whose they are said to be.
        statement: the words.
        proof: a certificate and a signature.
        authorities: who may have issued the certificate; none: anybody.
        at: when the certificate must be valid; None: whenever.

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
        certificate = x509.load_der_x509_certificate(proof[_LENGTH.size :][:length])
        name = name_of(certificate)
        key = certificate.public_key()
    except (struct.error, ValueError):
        raise MessageError(f"the proof of party {party!r} holds no certificate") from None
    if at and not certificate.not_valid_before_utc <= at < certificate.not_valid_after_utc:
        raise MessageError(f"the certificate of party {party!r} has expired, or is not valid yet")
    known = not authorities or any(signed_by(certificate, each) for each in authorities)
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
