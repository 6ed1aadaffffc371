"""``Calls``: lines to parties that are reached by calling them, whatever carries a call.

Over ``Stream`` a party keeps a line open and is asked on it. A job of NVIDIA FLARE
and a mailbox carry one request and bring back its answer, and nothing more: what
does so is a ``Call``, and the rest is here, on a thread for each party.

**One request, one answer.** A call that is given up is made again with the same request, which the
party handles once: how long a call waits decides nothing. Deadlines are those of all lines
(``sessions.py``).

**Who is gone.** A call that takes longer than a moment may have nobody at its other end. Where that
can be asked, an empty call beside it asks who is there. A party that is at work answers that, and
only its deadline counts; one that does not is gone or stopped: it counts as lost, and is asked from
time to time whether it is back.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from dovetail.errors import MessageError, NetworkError
from dovetail.network.connection import Connection, Link
from dovetail.network.ledger import LedgerFile
from dovetail.network.messages import MAX_MESSAGE_BYTES, PROTOCOL, Data
from dovetail.network.printable import printable
from dovetail.network.renewal import Identity
from dovetail.network.sessions import Lines

#: Seconds until a call is made again, with the same request.
CALL_S = 60.0

#: Seconds until a party must have said who it is; one that has not is lost.
HELLO_S = 6.0

#: Seconds that a call takes before it is asked beside it who is there, and from then on.
BEAT_S = 3.0

#: Seconds between two calls to one that is gone: from the first, doubling, to the last.
BACKOFF_S = (0.1, 5.0)

_log = logging.getLogger(__name__)


class SlowError(NetworkError):
    """A call was given up before its answer came; the party may be at work."""


class UnreachableError(NetworkError):
    """A call reached nobody who answers."""


class AbortedError(NetworkError):
    """Somebody has ended the job."""


class SpoiltError(NetworkError):
    """Answer that cannot be this party's, however often it is asked."""


class Call(Protocol):
    """Calls one party.

    It may have a ``process``, of whoever answered last: where that changes between two answers,
    ledgers have them as of two connections.
    """

    def __call__(self, data: bytes, timeout_s: float, /) -> Data:
        """The party's answer.

        Raises:
            SlowError: none in time.
            GoneError: nobody is there, or what is there cannot answer.
            AbortedError: the job is to end.
            SpoiltError: what came, again and again, was not what the party sent.
        """


class Calls(Lines):
    """The driver's lines to its parties: a thread each, that calls it.

    Args:
        calls: party -> what calls it.
        driver: the driver's name.
        max_message_bytes: the largest answer.
        ledger: where it is written down what leaves the driver; None writes nothing.
        identity: signs the heads of the ledger, and checks those of parties'; None: no certificate.
        asks_beside: whether it is asked beside a call who is there.
    """

    def __init__(
        self,
        calls: Mapping[str, Call],
        *,
        driver: str,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        ledger: LedgerFile | None = None,
        identity: Identity | None = None,
        asks_beside: bool = True,
    ) -> None:
        super().__init__(
            tuple(calls),
            driver=driver,
            max_message_bytes=max_message_bytes,
            ledger=ledger,
            identity=identity,
        )
        self._ended = threading.Event()
        self._aborted: AbortedError | None = None
        self._causes: dict[str, str] = {}
        self._busy: dict[str, tuple[Connection, float]] = {}  # with what, since when
        self._threads = [
            threading.Thread(
                target=target, args=(link, calls[name]), daemon=True, name=f"dovetail-{name}"
            )
            for name, link in self.links.items()
            for target in ((self._keep, self._watch) if asks_beside else (self._keep,))
        ]
        for thread in self._threads:
            thread.start()

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
        """Connection to the party that is there.

        Raises:
            NetworkError: nobody, or another party.
            MessageError: something that does not say who it is, or another protocol.
        """
        try:
            hello = json.loads(bytes(call(b"", HELLO_S)))
            protocol, instance, party = hello["protocol"], str(hello["instance"]), hello["party"]
        except (ValueError, RecursionError, TypeError, KeyError):
            raise MessageError("what is there does not say who it is") from None
        if protocol != PROTOCOL:
            raise MessageError(
                f"expected protocol {PROTOCOL}, got {protocol!r}; install the same version of "
                "dovetail at every site"
            )
        if party not in (name, ""):
            raise NetworkError(
                f"its site's party file is that of {party!r}; say in engine.sites which site is "
                "whose"
            )
        return Connection(name, "its site", instance)

    def _carry(self, link: Link, connection: Connection, call: Call) -> None:
        """Carries one request after the other, until the party is gone."""
        process = ""
        while (request := connection.outbox.get()) is not None:
            answer = spoilt = None
            while answer is None and spoilt is None:
                self._busy[link.name] = connection, time.monotonic()
                try:
                    answer = call(bytes(request), CALL_S)
                except SlowError:
                    pass
                except AbortedError as error:
                    self._aborted = error
                    return
                except UnreachableError as error:
                    self._lost(link, error)
                    return
                except SpoiltError as error:
                    spoilt = printable(str(error))
                finally:
                    is_lost = self._busy.pop(link.name, None) is None
                if is_lost or self._ended.is_set():
                    return  # what was asked goes out again, under its number
            if process != (process := getattr(call, "process", "")) and process:
                link.renumber(connection)
            try:
                if answer is None:
                    link.refused(connection, spoilt or "")
                else:
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
            except (UnreachableError, SlowError) as error:
                if self._busy.get(link.name, (None, 0.0))[0] is connection:
                    del self._busy[link.name]  # whoever waits for that call gives it up, too
                    self._lost(link, error)
                    link.lost(connection)
            except AbortedError:  # which the call itself will tell
                continue

    def _lost(self, link: Link, error: NetworkError) -> None:
        _log.warning("%s: lost %s: %s", self.driver, link.name, error)
        self._causes[link.name] = printable(str(error))
