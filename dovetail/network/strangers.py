"""Connections that get no further than TLS.

gRPC asks for certificates at each handshake and does not report one that fails, and TLS ends before
a name is known. So the addresses are read from the system's table of connections (Linux), and those
that come again and again and never begin a call are strangers.
"""

from __future__ import annotations

import ipaddress
import time
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

#: So many connections of one address in so many seconds, none of which began a call.
TIMES, WITHIN_S = 3, 20.0

#: Seconds from one look at the table to the next; and until a connection should have begun a call.
LOOK_S, CALL_S = 0.05, 1.0

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"


class Strangers:
    """Counts connections to a port."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], float] = {}  # address and port -> since when
        self._known: set[str] = set()
        self._looked = 0.0

    def handshake(self, port: int) -> None:
        """Note that a handshake started."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        recent = {each: since for each, since in self._seen.items() if now - since < WITHIN_S}
        self._seen = {**dict.fromkeys(_connected(port), now), **recent}

    def called(self, peer: str) -> None:
        """A connection began a call, as gRPC names it: "ipv4:192.0.2.7:50112"."""
        self._known.add(_address(unquote(peer.partition(":")[2]).rpartition(":")[0]))

    def addresses(self) -> list[str]:
        """Those of strangers."""
        now = time.monotonic()
        times = Counter(
            address
            for (address, _), since in dict(self._seen).items()
            if CALL_S < now - since < WITHIN_S and address not in self._known
        )
        return sorted(address for address, number in times.items() if number >= TIMES)


def _address(text: str) -> str:
    address = ipaddress.ip_address(text.strip("[]"))
    return str(getattr(address, "ipv4_mapped", None) or address)


def _connected(port: int) -> list[tuple[str, int]]:
    """Address and port of whoever is connected to this one; of other systems than Linux nobody."""
    found = []
    for path in _TABLES:
        lines = path.read_text(encoding="ascii").splitlines()[1:] if path.exists() else []
        for local, remote, state in (line.split()[1:4] for line in lines):
            if state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == port:
                words, _, other = remote.partition(":")
                groups = [bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8)]
                address = ipaddress.ip_address(b"".join(groups))
                found.append((_address(str(address)), int(other, 16)))
    return found
