"""Requests to a relay, signed with the key of a party's certificate.

    Authorization: Dovetail STATEMENT.PROOF     both base64url

STATEMENT is JSON: method, path and SHA-256 of the body, the relay's process, time and a nonce.
PROOF is a certificate and a signature. ``network/renewal.py`` decides whose count, as for letters
and ledgers; a library of HTTP signatures (RFC 9421) would bring a second way to decide it.

So a proxy that opens TLS reads requests, and cannot change, repeat or invent one. Answers are not
signed: letters and cards have their senders' signatures, and a proxy that hides or repeats some is
noticed as a relay that does so (``watching.py``).
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from dovetail.errors import MessageError
from dovetail.network.renewal import Certified

#: Seconds that the clocks of a party and a relay may differ.
CLOCK_S = 120.0

#: Header of an answer: the relay's process, which requests must name.
PROCESS = "Dovetail-Process"

#: Bytes of a proof at most: proxies may refuse headers of more than 8 KiB.
MAX_SIGNED_BYTES = 4096

_SCHEME = "Dovetail "
_DOMAIN = b"dovetail relay request 1\n"


class UnsignedError(MessageError):
    """A request is not what its party has signed, or not any more."""


@dataclass(frozen=True)
class Statement:
    """Statement that a party signs of a request.

    Attributes:
        party: who signs.
        method, path: of the request; the path without escapes.
        sha256: of the body, in hexadecimal.
        process: of the relay that it is for.
        time: seconds since the epoch, by the party's clock.
        nonce: drawn at random for this request.
    """

    party: str
    method: str
    path: str
    sha256: str
    process: str
    time: float
    nonce: str


def sign_request(identity: Certified, method: str, path: str, body: bytes, process: str) -> str:
    """The Authorization header of a request."""
    digest, nonce = hashlib.sha256(body).hexdigest(), secrets.token_hex(16)
    said = Statement(identity.name, method, path, digest, process, time.time(), nonce)
    text = json.dumps(asdict(said)).encode()
    proof = identity.sign(_DOMAIN + text, most=MAX_SIGNED_BYTES)
    return _SCHEME + ".".join(base64.urlsafe_b64encode(part).decode() for part in (text, proof))


class Signatures:
    """Checks the signatures of requests to one process of a relay; each request counts once.

    Args:
        shown: whose authorities count, and which certificates are revoked, as its files say now.
        clock: seconds since the epoch.

    Attributes:
        process: drawn at random, so that requests to an earlier process do not count.
    """

    def __init__(self, shown: Certified, *, clock: Callable[[], float] = time.time) -> None:
        self.process = secrets.token_hex(16)
        self._shown, self._clock = shown, clock
        self._lock = threading.Lock()
        self._nonces: dict[str, float] = {}  # nonce -> when its request came

    def check(self, header: str, method: str, path: str) -> Statement:
        """Signed statement of this request; the body's digest is still to be compared.

        Raises:
            UnsignedError: no signature, or one of another request, process, time or party.
        """
        said, text, proof = _read(header)
        self._shown.refresh()
        try:
            self._shown.check(said.party, _DOMAIN + text, proof)
        except MessageError as error:
            raise UnsignedError(str(error)) from None
        if (said.method, said.path) != (method, path):
            raise UnsignedError(f"{said.party!r} has signed {said.method} {said.path}")
        if said.process != self.process:
            raise UnsignedError("it was signed for another process of the relay")
        late_s = self._clock() - said.time
        if not abs(late_s) <= CLOCK_S:
            when = f"{abs(late_s):.0f} s {'ago' if late_s > 0 else 'ahead'}"
            raise UnsignedError(
                f"it was signed {when} by the clock of {said.party!r}; at most {CLOCK_S:.0f} s "
                "count, so set the clocks"
            )
        return said

    def once(self, said: Statement) -> None:
        """Refuse a request that came before.

        Raises:
            UnsignedError: it did.
        """
        now = self._clock()
        with self._lock:
            while self._nonces and next(iter(self._nonces.values())) < now - 2 * CLOCK_S:
                del self._nonces[next(iter(self._nonces))]
            if said.nonce in self._nonces:
                raise UnsignedError(f"this request of {said.party!r} came before: it is repeated")
            self._nonces[said.nonce] = now


def _read(header: str) -> tuple[Statement, bytes, bytes]:
    """A statement, its bytes, and its proof.

    Raises:
        UnsignedError: a header without them.
    """
    scheme, _, rest = header.partition(" ")
    try:
        if f"{scheme} " != _SCHEME:
            raise ValueError("another scheme")
        text, proof = (base64.b64decode(part, b"-_", validate=True) for part in rest.split("."))
        said = Statement(**json.loads(text))
        words = (said.party, said.method, said.path, said.sha256, said.process, said.nonce)
        if not all(isinstance(word, str) for word in words) or not isinstance(said.time, float):
            raise ValueError("other fields")
        if len(said.nonce) > 64:
            raise ValueError("a long nonce")
    except (ValueError, TypeError, RecursionError):
        raise UnsignedError("it is not signed; give both sides one version of dovetail") from None
    return said, text, proof
