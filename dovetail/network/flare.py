"""``Flare``: a run's messages as calls of a job on NVIDIA FLARE (nvflare 2.9, Collab API).

The driver is the job's server part; each party is the job's client part at a site, and publishes
one function, ``handle(bytes) -> bytes``. What travels are the bytes of ``messages.py``, not arrays:
NVFlare carries bytes as they are, and takes several times as long for arrays. Who calls is what
NVFlare's mutual TLS says: a party answers its own job's server and nobody else.

**Which level of NVFlare.** Collab is its public interface. Below it are ``Cell.send_request`` and
the core cell, which no documentation promises. ``benchmarks/flare.py`` measures all three. The core
cell is the fastest, but does not cut messages into chunks, so that large ones fail with some of
NVFlare's transports, and does not check who calls; Collab does both. So Dovetail uses Collab.

**One request, one answer.** A call that NVFlare gives up is made again under the same number, which
the party's ``Host`` handles once: how long NVFlare waits for a call decides nothing. Deadlines are
those of ``lines.py``, as over ``Stream``.

**Who is gone.** NVFlare says "timed out" of a slow party and of one whose process was killed. So a
party that takes longer than a moment is called once more beside it, by an empty call that asks who
is there. One that is at work answers that, and only its deadline counts; one that does not is gone
or stopped: it counts as lost, and is asked from time to time whether it is back.

Only ``collab_calls`` and ``quiet`` need nvflare, the extra ``dovetail[flare]``.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from dovetail.errors import DovetailError, MessageError, NetworkError
from dovetail.network.connection import Connection, Link
from dovetail.network.control import Failed
from dovetail.network.host import Host
from dovetail.network.ledger import LedgerFile
from dovetail.network.messages import (
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    Data,
    encode,
    open_message,
)
from dovetail.network.printable import printable
from dovetail.network.sessions import Lines

#: Seconds until a call is made again, under the same number.
CALL_S = 60.0

#: Seconds until a party must have said who it is; one that has not is lost.
HELLO_S = 6.0

#: Seconds that a call takes before it is asked beside it who is there, and from then on.
BEAT_S = 3.0

#: Seconds between two calls to one that is gone: from the first, doubling, to the last.
BACKOFF_S = (0.1, 5.0)

#: What NVFlare calls the server part of every job.
SERVER = "server"

_log = logging.getLogger(__name__)


class SlowError(NetworkError):
    """A call was given up before its answer came; the party may be at work."""


class GoneError(NetworkError):
    """A call reached nobody who answers."""


class AbortedError(NetworkError):
    """Somebody has ended the job."""


class Call(Protocol):
    """Calls one party."""

    def __call__(self, data: bytes, timeout_s: float, /) -> Data:
        """The party's answer.

        Raises:
            SlowError: none in time.
            GoneError: nobody is there, or what is there cannot answer.
            AbortedError: the job is to end.
        """


# --- A party's side -------------------------------------------------------------------------------


class Answers:
    """What a party publishes: answers its job's server from its host.

    Args:
        name: the party's; "" where its site does not say.
        driver: whom its policy knows the federation's server as.
        host: what answers; or why nothing can, which is then the answer.
    """

    def __init__(self, name: str, driver: str, host: Host | DovetailError) -> None:
        self._driver = driver
        self._host = host
        said = {"protocol": PROTOCOL, "instance": secrets.token_hex(8), "party": name}
        self._hello = json.dumps(said).encode()
        self._leaves = False

    def leave(self) -> None:
        """Answer nothing any more, as if nobody were here: its home is about to be closed."""
        self._leaves = True

    def handle(self, request: bytes, caller: str) -> bytes:
        """The answer to one call; an empty one asks who is here.

        Raises:
            NetworkError: a caller that is not the server, or a party that leaves.
        """
        answer = self._answer(request, caller)
        # What a home that is being closed says is no refusal: a driver that takes it for one goes
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


# --- The driver's side ----------------------------------------------------------------------------


class Flare(Lines):
    """The driver's lines to its parties: a thread each, that calls it.

    Args:
        calls: party -> what calls it.
        driver: the driver's name.
        max_message_bytes: the largest answer.
        ledger: where it is written down what leaves the driver; None writes nothing.
        call_s: seconds until a call is made again.
    """

    def __init__(
        self,
        calls: Mapping[str, Call],
        *,
        driver: str,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        ledger: LedgerFile | None = None,
        call_s: float = CALL_S,
    ) -> None:
        super().__init__(
            tuple(calls), driver=driver, max_message_bytes=max_message_bytes, ledger=ledger
        )
        self._call_s = call_s
        self._ended = threading.Event()
        self._aborted: AbortedError | None = None
        self._causes: dict[str, str] = {}
        self._busy: dict[str, tuple[Connection, float]] = {}  # with what, since when
        self._threads = [
            threading.Thread(
                target=target, args=(link, calls[name]), daemon=True, name=f"dovetail-{name}"
            )
            for name, link in self.links.items()
            for target in (self._keep, self._watch)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Flare:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Call nobody any more; a call that is under way is left behind."""
        self._ended.set()
        for link in self.links.values():
            link.close()
        for thread in self._threads:
            thread.join(1.0)

    def check(self) -> None:
        """Refuse to go on with a job that was aborted: no party answers any more.

        Raises:
            AbortedError: it was.
        """
        if self._aborted is not None:
            raise self._aborted

    def _advice(self, missing: Sequence[str]) -> str:
        causes = [f"{name!r}: {self._causes[name]}" for name in missing if name in self._causes]
        return "; ".join(causes) or "its site has not answered; see the job's log there"

    def _keep(self, link: Link, call: Call) -> None:
        """Finds a party, serves its line until that is lost, and looks for it again."""
        pause_s = BACKOFF_S[0]
        while not self._ended.is_set():
            try:
                connection = self._find(link.name, call)
            except AbortedError as error:
                self._aborted = error
                return
            except (NetworkError, MessageError) as error:
                self._causes[link.name] = printable(str(error))
                self._ended.wait(pause_s)
                pause_s = min(2 * pause_s, BACKOFF_S[1])
                continue
            pause_s = BACKOFF_S[0]
            link.opened(connection)
            link.connected(connection)
            try:
                self._carry(link, connection, call)
            finally:
                link.lost(connection)

    def _find(self, name: str, call: Call) -> Connection:
        """Who is there.

        Raises:
            NetworkError: nobody, or another party.
            MessageError: something that does not say who it is, or another protocol.
        """
        try:
            said = json.loads(bytes(call(b"", HELLO_S)))
            protocol, instance, party = said["protocol"], str(said["instance"]), said["party"]
        except (ValueError, RecursionError, TypeError, KeyError):
            raise MessageError("what is there does not say who it is") from None
        if protocol != PROTOCOL:
            raise MessageError(
                f"expected protocol {PROTOCOL}, got {protocol!r}; install the same version of "
                "dovetail at every site"
            )
        if party not in (name, ""):
            raise NetworkError(
                f"its site's party file is that of {party!r}; engine.sites says which site is whose"
            )
        return Connection(name, "its site", instance)

    def _carry(self, link: Link, connection: Connection, call: Call) -> None:
        """Carries one request after the other, until the party is gone."""
        while (request := connection.outbox.get()) is not None:
            answer = None
            while answer is None:
                self._busy[link.name] = connection, time.monotonic()
                try:
                    answer = call(bytes(request), self._call_s)
                except SlowError:
                    pass
                except AbortedError as error:
                    self._aborted = error
                    return
                except GoneError as error:
                    self._lost(link, error)
                    return
                finally:
                    is_lost = self._busy.pop(link.name, None) is None
                if is_lost or self._ended.is_set():
                    return  # what was asked goes out again, under its number
            try:
                link.answered(connection, answer)
            except MessageError as error:  # nobody waits for it any more
                _log.warning("%s: %s: %s", self.driver, link.name, error)

    def _watch(self, link: Link, call: Call) -> None:
        """Finds out that a party is gone while a call to it is under way."""
        while not self._ended.wait(BEAT_S):
            connection, since = self._busy.get(link.name, (None, 0.0))
            if connection is None or time.monotonic() - since < BEAT_S:
                continue
            try:
                call(b"", HELLO_S)
            except (GoneError, SlowError) as error:
                if self._busy.get(link.name, (None, 0.0))[0] is connection:
                    del self._busy[link.name]  # whoever waits for that call gives it up, too
                    self._lost(link, error)
                    link.lost(connection)
            except AbortedError:  # which the call itself will tell
                continue

    def _lost(self, link: Link, error: NetworkError) -> None:
        _log.warning("%s: lost %s: %s", self.driver, link.name, error)
        self._causes[link.name] = printable(str(error))


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
            raise GoneError(f"site {site!r}: {error.cause}") from None
        if not isinstance(answer, bytes):
            raise GoneError(f"site {site!r} has answered {type(answer).__name__} and not bytes")
        return answer

    return call


def quiet() -> None:
    """No line in the log for every single call: a step of training is one, and writing takes 2 ms.

    What NVFlare warns of is still told.
    """
    from nvflare.collab.runtime.cell_dispatcher import CellDispatcher

    name = f"{CellDispatcher.__module__}.{CellDispatcher.__qualname__}"
    logging.getLogger(name).setLevel(logging.WARNING)
