"""Recording of a party's host in its ledger: each request that came, and what left for it.

A line is written for each, but not for each of many failures in a row: a driver whose requests are
all refused must not fill the disk.

A large request's digest takes as long as reading it: it is taken, and the line written, by a thread
of its own while the request is answered (OpenSSL works without Python's lock). The answer's line
waits for the request's, and the answer for its own: what a driver was answered is in the ledger,
both ways, whenever this process is killed. Of a request that was not answered yet the line may be
missing, as when the process ends before it is read.
"""

from __future__ import annotations

import hashlib
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from dovetail.errors import NetworkError
from dovetail.network.control import Failed
from dovetail.network.counting import Tally, times
from dovetail.network.ledger import LedgerFile
from dovetail.network.messages import MAX_RUN_LENGTH, Data, Header, Message, Opened

#: Of failures in a row to one driver, a line of the ledger stands for one in so many of those
#: before it, and for one at least.
FAILURES_PER_COUNT = 10

#: Requests from this size on are written down while they are answered; of smaller ones a digest
#: takes less than handing it over.
LARGE_BYTES = 2**15

_log = logging.getLogger(__name__)


class NotWrittenError(Exception):
    """The ledger has no line for what came, or was to be sent."""


@dataclass
class _Failures:
    """How many left for one driver since its last answer, and how many the ledger's lines allow."""

    sent: int = 0
    written: int = 0

    @property
    def next_count(self) -> int:
        """For how many the next line will stand; 0: the last one stands for the next failure, too.

        >>> _Failures().next_count, _Failures(3, 5).next_count, _Failures(40, 40).next_count
        (1, 0, 4)
        """
        return 0 if self.sent < self.written else max(1, self.written // FAILURES_PER_COUNT)


@dataclass(frozen=True)
class _Request:
    """Request that came, as its line has it."""

    run: str = ""
    sequence: int = 0
    message: str = ""
    num_bytes: int = 0
    digest: str = ""


class Recorder:
    """Keeps a host's ledger; the host calls it for one message at a time.

    Args:
        name: the party's.
        ledger: None writes nothing.
    """

    def __init__(self, name: str, ledger: LedgerFile | None) -> None:
        self._name = name
        self._ledger = ledger
        self._failures: dict[str, _Failures] = {}
        self._waiting: dict[str, _Request] = {}  # driver -> what came and is not written yet
        self._connections: dict[str, int] = {}
        self._counted = Tally()
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None

    def connected(self, driver: str) -> None:
        """A new connection with a driver."""
        self._connections[driver] = self._connections.get(driver, 0) + 1

    def came(self, driver: str, data: Data | None, opened: Opened | None = None) -> None:
        """A request has come; without data, one that was not even read.

        Raises:
            NotWrittenError: it cannot be written down, and must not be answered.
        """
        if self._ledger is None:
            return
        failures = self._failures.get(driver)
        if failures is not None and failures.next_count != 1:
            self._waiting[driver] = _request(data, opened)  # of a row of failures, perhaps
        elif data is None or len(data) < LARGE_BYTES:
            self._write_came(driver, _request(data, opened))
        else:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="dovetail-ledger")
            self._writing = self._thread.submit(self._write_large, driver, data, opened)

    def settle(self) -> None:
        """Waits until what came is written down.

        Raises:
            NotWrittenError: it cannot be.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write_large(self, driver: str, data: Data, opened: Opened | None) -> None:
        self._write_came(driver, _request(data, opened))

    def left(
        self,
        driver: str,
        answer: Message,
        header: Header | None = None,
        encoded: Data | None = None,
    ) -> None:
        """An answer is about to leave.

        Args:
            driver: for whom.
            answer: what.
            header: of the request that it answers; None: of none that could be read.
            encoded: its bytes; None: it travels as a mere text.

        Raises:
            NotWrittenError: it cannot be written down, and must not be sent.
        """
        if self._ledger is None:
            return
        self.settle()
        waiting = self._waiting.pop(driver, None)
        if isinstance(answer, Failed):
            failures = self._failures.setdefault(driver, _Failures())
            count = failures.next_count
            if count:
                if waiting is not None:
                    self._write_came(driver, waiting, count=count)
                self._write_left(driver, answer, header, encoded, count=count)
                failures.written += count
            failures.sent += 1
            return
        if waiting is not None:
            self._write_came(driver, waiting)
        self._write_left(driver, answer, header, encoded)
        self._failures.pop(driver, None)

    def _write_came(self, driver: str, request: _Request, *, count: int = 1) -> None:
        assert self._ledger is not None
        try:
            self._ledger.came(
                driver,
                request.message,
                request.num_bytes if count == 1 else 0,
                run=request.run,
                sequence=request.sequence,
                count=count,
                digest=request.digest if count == 1 else "",
                connection=self._connections.get(driver, 0),
            )
        except (NetworkError, OSError) as error:
            raise self._unwritten(error) from None

    def _write_left(
        self,
        driver: str,
        answer: Message,
        header: Header | None,
        encoded: Data | None,
        *,
        count: int = 1,
    ) -> None:
        assert self._ledger is not None
        is_one = count == 1 and encoded is not None
        try:
            self._ledger.record(
                driver,
                answer,
                run="" if header is None else _printable_run(header.run),
                sequence=0 if header is None else header.sequence,
                precision="float32" if header is None else header.precision,
                count=count,
                digest=hashlib.sha256(encoded or b"").hexdigest() if is_one else "",
                connection=self._connections.get(driver, 0),
            )
        except (NetworkError, OSError) as error:
            raise self._unwritten(error) from None

    def _unwritten(self, error: Exception) -> NotWrittenError:
        count = self._counted.once_more("unwritten")
        if count:
            _log.error("%s: cannot write the ledger: %s%s", self._name, error, times(count))
        return NotWrittenError(str(error))


def _request(data: Data | None, opened: Opened | None) -> _Request:
    """Request as its line has it; without data, one that was not even read."""
    if data is None:
        return _Request()
    digest = hashlib.sha256(data).hexdigest()
    if opened is None:
        return _Request(num_bytes=len(data), digest=digest)
    header = opened.header
    run = _printable_run(header.run)
    return _Request(run, header.sequence, header.type, len(data) - opened.start, digest)


def _printable_run(run: str) -> str:
    """A run's name; "" of one that no honest driver gives."""
    return run if run.isprintable() and len(run.encode()) <= MAX_RUN_LENGTH else ""
