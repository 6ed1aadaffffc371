"""What stands between a party and its driver: HTTP proxies that CONNECT, and TCP balancers."""

from __future__ import annotations

import base64
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Middleman:
    """Carries bytes between whoever connects and where it decides; a thread each way.

    Attributes:
        port: where it listens.
        seen: first line of each request, where it is a proxy; who was led on, where it is not.
        carried: bytes, both ways.
    """

    def __init__(self, lead: Callable[[Middleman, socket.socket], socket.socket | None]) -> None:
        self._lead = lead
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.seen: list[str] = []
        self.carried = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, suppress(OSError):
            far = self._lead(self, near)
            if far is None:
                return
            with far:
                back = threading.Thread(target=self._carry, args=(far, near), daemon=True)
                back.start()
                self._carry(near, far)
                back.join()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            for each in (source, sink):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := source.recv(65536):
                self.carried += len(data)
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def connects(*, allowed: tuple[int, ...], user: str = "") -> Middleman:
    """A proxy that CONNECTs to these ports of this machine, maybe for one user only."""
    expected = f"proxy-authorization: basic {base64.b64encode(user.encode()).decode()}".lower()

    def lead(self: Middleman, near: socket.socket) -> socket.socket | None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += near.recv(1)
        lines = head.decode().splitlines()
        self.seen.append(lines[0])
        verb, target, _ = lines[0].split()
        host, _, port = target.rpartition(":")
        status = "200 Connection established"
        if verb != "CONNECT" or host != "127.0.0.1" or int(port) not in allowed:
            status = "403 Forbidden"
        elif user and expected not in [line.lower() for line in lines]:
            status = "407 Proxy Authentication Required"
        near.sendall(f"HTTP/1.1 {status}\r\n\r\n".encode())
        return socket.create_connection((host, int(port))) if status.startswith("200") else None

    return Middleman(lead)


def balances(port: int) -> Middleman:
    """A balancer that passes TCP through, TLS as it is."""

    def lead(self: Middleman, near: socket.socket) -> socket.socket | None:
        self.seen.append("led on")
        return socket.create_connection(("127.0.0.1", port))

    return Middleman(lead)


# --- Debian's -------------------------------------------------------------------------------------

TINYPROXY = """
Port {port}
Listen 127.0.0.1
Timeout 600
LogFile "{folder}/tinyproxy.log"
LogLevel Connect
BasicAuth party secret
Allow 127.0.0.1
ConnectPort {to}
"""

#: As docs/network-team.md shows it.
HAPROXY = """
global
    maxconn 200
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend dovetail
    bind 127.0.0.1:{port}
    default_backend bank
backend bank
    server bank 127.0.0.1:{to} check
"""


@contextmanager
def started(command: list[str], port: int) -> Iterator[None]:
    """A program that listens on a port."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
            assert process.poll() is None, f"{command} has ended"
            assert time.monotonic() < deadline, f"{command} does not listen"
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def tinyproxy(folder: Path, port: int, to: int) -> Iterator[str]:
    """Debian's tinyproxy, which lets a user with a password through to one port; its URL."""
    path = folder / "tinyproxy.conf"
    path.write_text(TINYPROXY.format(port=port, to=to, folder=folder))
    with started([shutil.which("tinyproxy") or "", "-d", "-c", str(path)], port):
        yield f"http://party:secret@127.0.0.1:{port}"


@contextmanager
def haproxy(folder: Path, port: int, to: int) -> Iterator[str]:
    """Debian's haproxy in front of a driver; its address."""
    path = folder / "haproxy.cfg"
    path.write_text(HAPROXY.format(port=port, to=to))
    # Debian keeps it where users without rights do not look.
    program = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin") or ""
    with started([program, "-db", "-q", "-f", str(path)], port):
        yield f"127.0.0.1:{port}"


def installed(*programs: str) -> list[str]:
    """Which of these are not."""
    return [
        each
        for each in programs
        if shutil.which(each) is None and shutil.which(each, path="/usr/sbin") is None
    ]
