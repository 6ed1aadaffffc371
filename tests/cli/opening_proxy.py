"""A company's proxy that opens TLS: it shows a certificate of its own for every host."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


class OpeningProxy:
    """Answers CONNECT, reads every request and answer in the clear, and passes them on.

    Args:
        folder: where its certificates lie.

    Attributes:
        url: for HTTPS_PROXY.
        ca: certificate of its authority, which its users have to trust.
        requests, answers: all that it has read, in order.
        change: what becomes of a request before it is passed on.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.ca, self._shown = folder / "company-ca.pem", folder / "shown.pem"
        write_certificates(self.ca, self._shown, "127.0.0.1")
        self.requests: list[bytes] = []
        self.answers: list[bytes] = []
        self.change: Callable[[bytes], bytes] = bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, suppress(OSError, ValueError):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += near.recv(1)  # nothing of the TLS that follows
            method, host, _ = head.split(b" ", 2)
            assert method == b"CONNECT"
            near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._shown)
            with (
                context.wrap_socket(near, server_side=True) as opened,
                opened.makefile("rb") as asked,
                connected(host.decode()) as far,
                far.makefile("rb") as answered,
            ):
                while request := read_http(asked):
                    self.requests.append(request)
                    far.sendall(self.change(request))
                    answer = read_http(answered)
                    if not answer:
                        return
                    self.answers.append(answer)
                    opened.sendall(answer)


def connected(host: str) -> ssl.SSLSocket:
    """A TLS connection that believes whoever is there."""
    name, _, port = host.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(socket.create_connection((name, int(port))), server_hostname=name)


def asked(host: str, request: bytes) -> bytes:
    """What is answered to a request's bytes."""
    with connected(host) as far, far.makefile("rb") as answered:
        far.sendall(request)
        return read_http(answered)


def read_http(file: BinaryIO) -> bytes:
    """A request's or answer's bytes; b"" at the end."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = file.readline()
        if not line:
            return b""
        head += line
    assert b"transfer-encoding" not in head.lower()
    lengths = [
        int(line.partition(b":")[2])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    ]
    return head + file.read(sum(lengths))


def write_certificates(ca_path: Path, shown_path: Path, host: str) -> None:
    """A company's authority, and a certificate with its key that it has made out to a host."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Company proxy")])
    now = datetime.now(UTC)

    def builder(name: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder().subject_name(name).issuer_name(ca_name).public_key(public)
        made = made.serial_number(x509.random_serial_number())
        return made.not_valid_before(now - timedelta(hours=1)).not_valid_after(
            now + timedelta(days=1)
        )

    own = builder(ca_name, ca_key.public_key())
    ca = own.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    ca_path.write_bytes(ca.sign(ca_key, SHA256()).public_bytes(Encoding.PEM))
    of_host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
    shown = builder(x509.Name([]), key.public_key()).add_extension(of_host, critical=True)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    shown_path.write_bytes(pem + shown.sign(ca_key, SHA256()).public_bytes(Encoding.PEM))
