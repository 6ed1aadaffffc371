"""A run's messages as calls of a job on NVIDIA FLARE (nvflare 2.9, Collab API).

The driver is the job's server part; each party is the job's client part at a site, and publishes
one function, ``handle(bytes) -> bytes``. What travels are the bytes of ``messages.py``, not arrays:
NVFlare carries bytes as they are, and takes several times as long for arrays. Who calls is what
NVFlare's mutual TLS says: a party answers its own job's server and nobody else.

**Which level of NVFlare.** Collab is its public interface. Below it are ``Cell.send_request`` and
the core cell, which no documentation promises. ``benchmarks/flare.py`` measures all three. The core
cell is the fastest, but does not cut messages into chunks, so that large ones fail with some of
NVFlare's transports, and does not check who calls; Collab does both. So Dovetail uses Collab.

How requests wait, go out again and fail is that of all calls (``network/calls.py``). NVFlare says
"timed out" of a slow party and of one whose process was killed, so a call that takes long is asked
beside it who is there.

Only ``collab_calls`` and ``quiet`` need nvflare, the extra ``dovetail[flare]``.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from dovetail.errors import DovetailError, NetworkError
from dovetail.network.calls import AbortedError, Call, SlowError, UnreachableError
from dovetail.network.control import Failed
from dovetail.network.host import Host
from dovetail.network.messages import PROTOCOL, Data, encode, open_message
from dovetail.network.printable import printable

#: What NVFlare calls the server part of every job.
SERVER = "server"


# --- A party's side -------------------------------------------------------------------------------


class Answers:
    """Answers that a party publishes: to its job's server, from its host.

    Args:
        name: the party's; "" where its site does not say.
        driver: whom its policy knows the federation's server as.
        host: what answers; or why nothing can, which is then the answer.
    """

    def __init__(self, name: str, driver: str, host: Host | DovetailError) -> None:
        self._driver = driver
        self._host = host
        hello = {"protocol": PROTOCOL, "instance": secrets.token_hex(8), "party": name}
        self._hello = json.dumps(hello).encode()
        self._leaves = False

    def leave(self) -> None:
        """Answer nothing any more, as if nobody were here: its site is about to be closed."""
        self._leaves = True

    def handle(self, request: bytes, caller: str) -> bytes:
        """The answer to one call; an empty one asks who is here.

        Raises:
            NetworkError: a caller that is not the server, or a party that leaves.
        """
        answer = self._answer(request, caller)
        # What a site that is being closed says is no refusal: a driver that takes it for one goes
        # on without the party, and a job that was aborted would be resumed from there.
        if self._leaves:
            raise NetworkError("its process of this job is ending")
        return answer

    def _answer(self, request: bytes, caller: str) -> bytes:
        if caller != SERVER:
            raise NetworkError(f"answers the server of its job only, and {caller!r} is a client")
        if not isinstance(request, bytes):
            raise NetworkError(f"expected bytes, got {type(request).__name__}")
        if not request:
            return self._hello
        if isinstance(self._host, DovetailError):
            header = open_message(request).header
            failed = Failed(printable(str(self._host)))
            return bytes(encode(failed, run=header.run, sequence=header.sequence))
        # Each call stands by itself, so the last request may always come again.
        self._host.connected(self._driver)
        return bytes(self._host.handle(request, self._driver))


# --- NVFlare --------------------------------------------------------------------------------------


def collab_calls(sites: Mapping[str, str], proxies: Iterable[Any]) -> dict[str, Call]:
    """Party -> what calls it.

    Args:
        sites: party -> NVFlare's name of its site.
        proxies: ``collab.clients``.

    Raises:
        NetworkError: a site that does not take part in the job.
    """
    by_name = {proxy.name: proxy for proxy in proxies}
    missing = [site for site in sites.values() if site not in by_name]
    if missing:
        raise NetworkError(
            f"the job has no site {', '.join(map(repr, missing))}; it has "
            f"{', '.join(map(repr, by_name)) or 'none'}"
        )
    return {party: _collab_call(site, by_name[site]) for party, site in sites.items()}


def _collab_call(site: str, proxy: Any) -> Call:
    from nvflare.collab.api.exceptions import CollabCallError, RunAborted

    def call(data: bytes, timeout_s: float, /) -> Data:
        try:
            answer = proxy(timeout=timeout_s).handle(data)
        except RunAborted:
            raise AbortedError(
                "the job was aborted; one that is exported with --resume and its id goes on"
            ) from None
        except CollabCallError as error:
            if isinstance(error.cause, TimeoutError):
                if data:
                    raise SlowError(f"site {site!r} has not answered for {timeout_s:g} s") from None
                raise SlowError(
                    f"site {site!r} has not even said for {timeout_s:g} s who it is: its process "
                    "of this job is gone, or stopped"
                ) from None
            raise UnreachableError(f"site {site!r}: {error.cause}") from None
        if not isinstance(answer, bytes):
            raise UnreachableError(
                f"site {site!r} has answered {type(answer).__name__} and not bytes"
            )
        return answer

    return call


def quiet() -> None:
    """No line in the log for every single call: a step of training is one, and writing takes 2 ms.

    What NVFlare warns of is still told.
    """
    from nvflare.collab.runtime.cell_dispatcher import CellDispatcher

    name = f"{CellDispatcher.__module__}.{CellDispatcher.__qualname__}"
    logging.getLogger(name).setLevel(logging.WARNING)
