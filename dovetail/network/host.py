"""A party's side of every engine that carries bytes: refuse, decode, answer, write down, encode.

Each process of a driver draws an id and numbers its requests from 1; no clock is asked. A number
that is not larger than the last is a replay and is refused, and so is whatever comes of a process
that another has taken the place of. Only the very last request may come again, first thing on a new
connection, when the driver cannot know whether its answer was lost: it is answered from the kept
bytes, handled once and written down once.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from dovetail.errors import DataError, DovetailError, MessageError, PartyError
from dovetail.network import checkpoint, messages
from dovetail.network.control import Failed, Notice, Noticed
from dovetail.network.counting import Tally, times
from dovetail.network.engine import Party
from dovetail.network.heads import Heads, Tell, Told
from dovetail.network.ledger import LedgerFile
from dovetail.network.logs import of_run
from dovetail.network.printable import printable
from dovetail.network.recording import NotWrittenError, Recorder
from dovetail.network.renewal import Identity

#: (run, algorithm, driver) -> the party that answers in that run; raises to refuse.
OpenRun = Callable[[str, str, str], Party]

#: The party's policy: (header, driver); raises to refuse.
Admit = Callable[[messages.Header, str], None]

#: Told of every refusal: (driver, message type, run, cause); the middle ones are empty if unread.
OnRefusal = Callable[[str, str, str, str], None]

#: Runs of one driver kept in memory. The longest idle makes room for another; a checkpoint lets it
#: come back.
MAX_RUNS = 8

#: Processes of a driver that are remembered after another has taken their place.
MAX_REPLACED = 10_000

_UNWRITTEN = "it cannot write its ledger, and sends nothing that is not written down"

_CHECKPOINT_TYPES = {kind.wire_name() for kind in checkpoint.REQUESTS}

_log = logging.getLogger(__name__)


@dataclass
class _Last:
    """The last request of one driver."""

    instance: str
    sequence: int
    reply: messages.Data
    may_repeat: bool = False


class Host:
    """Answers requests as bytes, one at a time, of one driver or of several.

    What goes wrong is the answer, too: a ``Failed`` with the cause of a ``DovetailError``, or with
    the mere type of any other exception, whose traceback goes to this party's log.

    Args:
        name: the party's.
        open_run: makes the party of a run, when its first message comes.
        admit: the party's policy. A checkpoint's requests come to it under the algorithm they are
            about: ``apfed.Save``, ``apfed.Restore``.
        ledger: where it is written down what comes to this party and leaves it; None writes
            nothing.
        on_refusal: called with every request that is refused, beside the log.
        max_bytes: the largest request.
        identity: signs the heads of its ledger, and checks those of drivers'; None: no certificate.
        on_restart: called with a driver whose process is another than before, or the first.
        account: what the party says of a driver's runs, when that leaves: (run, driver) -> text.
        on_notice: told that what it answered did not count: (driver, run, why).
    """

    def __init__(
        self,
        name: str,
        open_run: OpenRun,
        *,
        admit: Admit | None = None,
        ledger: LedgerFile | None = None,
        on_refusal: OnRefusal | None = None,
        max_bytes: int = messages.MAX_MESSAGE_BYTES,
        identity: Identity | None = None,
        on_restart: Callable[[str], None] | None = None,
        account: Callable[[str, str], str] | None = None,
        on_notice: Callable[[str, str, str], None] | None = None,
    ) -> None:
        self.name = name
        self._on_notice = on_notice
        self._on_restart = on_restart
        self._account = account
        self._replaced: dict[str, OrderedDict[str, None]] = {}  # driver -> its processes before
        self._heads = None if ledger is None else Heads(ledger, identity)
        self.max_bytes = max_bytes
        self._open_run = open_run
        self._admit = admit
        self._recorder = Recorder(name, ledger)
        self._on_refusal = on_refusal
        self._lock = threading.Lock()
        self._last: dict[str, _Last] = {}
        self._asked: dict[str, messages.Opened] = {}  # driver -> what is being answered
        self._counted = Tally()  # lines of the log: one for many of a kind
        self._runs: OrderedDict[tuple[str, str, str], Party] = OrderedDict()

    def connected(self, driver: str) -> None:
        """A new connection: its first request may be the last one again."""
        with self._lock:
            self._recorder.connected(driver)
            if driver in self._last:
                self._last[driver].may_repeat = True

    def letter(self, driver: str) -> str:
        """The request of a driver that is being answered, as INSTANCE/NUMBER/DIGEST; "": none.

        Of a driver's process that asks again, as this one was killed, all three are as before.
        """
        opened = self._asked.get(driver)
        if opened is None:
            return ""
        return f"{opened.header.instance}/{opened.header.sequence}/{opened.digest}"

    def resume(self, driver: str, instance: str, sequence: int) -> None:
        """This process goes on where another ended: the last request that it answered."""
        with self._lock:
            self._last[driver] = _Last(instance, sequence, b"")

    def turn_away(self, opened: messages.Opened, driver: str, cause: str) -> messages.Data:
        """The refusal of a request that its carrier found wrong; written down as any other."""
        with self._lock:
            return self._turned_away(opened, driver, cause)

    def handle(self, data: messages.Data, driver: str) -> messages.Data:
        """The answer to one request of a driver, whose name the caller has verified."""
        with self._lock:
            try:
                opened = messages.open_message(data)
            except MessageError as error:
                self.refuse(driver, f"{len(data)} bytes: {error}")
                try:
                    self._recorder.came(driver, data)
                except NotWrittenError as unwritten:
                    return self._unwritten(unwritten, driver)
                return self._recorded(Failed(str(error)), driver)
            header = opened.header
            last = self._last.get(driver)
            if last is None or last.instance != header.instance:
                if header.instance in self._replaced.get(driver, ()):
                    return self._out_of_place(opened, driver)
                self._begin_process(driver, last)
                last = None
            may_repeat = last is not None and last.may_repeat
            if last is not None:
                last.may_repeat = False
                if header.sequence == last.sequence and may_repeat:
                    return last.reply
                if header.sequence <= last.sequence:
                    return self._replayed(opened, driver, last.sequence)
            self._asked[driver] = opened
            try:
                with of_run(printable(header.run)):
                    reply = self._reply(opened, driver)
            finally:
                del self._asked[driver]
            self._last[driver] = _Last(header.instance, header.sequence, reply)
            return reply

    def _begin_process(self, driver: str, last: _Last | None) -> None:
        """From here on another process of the driver asks."""
        if last is not None:
            replaced = self._replaced.setdefault(driver, OrderedDict())
            replaced[last.instance] = None
            while len(replaced) > MAX_REPLACED:
                replaced.popitem(last=False)
        if self._on_restart is not None:
            self._on_restart(driver)

    def pass_over(self, cause: str, driver: str) -> str:
        """Text to a driver whose request is not even read, once that is written down."""
        with self._lock:
            self.refuse(driver, cause)
            try:
                self._recorder.came(driver, None)
                self._recorder.left(driver, Failed(cause))
            except NotWrittenError as error:
                self._unwritten(error, driver)
                return _UNWRITTEN
            return cause

    def refuse(self, driver: str, cause: str, *, kind: str = "", run: str = "") -> None:
        """Log what is not answered as asked, and report to whoever keeps count."""
        kind, run, cause = printable(kind)[:100], printable(run), printable(cause)
        count = self._counted.once_more("refused", driver, kind, cause)
        if count:
            _log.warning(
                "%s: refused %s of run %r from %s: %s%s",
                self.name,
                kind or "a message",
                run,
                driver,
                cause,
                times(count),
            )
        if self._on_refusal is not None:
            self._on_refusal(driver, kind, run, cause)

    def _out_of_place(self, opened: messages.Opened, driver: str) -> messages.Data:
        cause = (
            "it was sent a message of a process of the driver that another has taken the place "
            "of: a replayed message, or two drivers with one certificate; run only one"
        )
        return self._turned_away(opened, driver, cause)

    def _replayed(self, opened: messages.Opened, driver: str, last: int) -> messages.Data:
        number = opened.header.sequence
        cause = f"it was sent number {number} after number {last}: a replayed message"
        return self._turned_away(opened, driver, cause)

    def _turned_away(self, opened: messages.Opened, driver: str, cause: str) -> messages.Data:
        header = opened.header
        self.refuse(driver, cause, kind=header.type, run=header.run)
        try:
            self._recorder.came(driver, opened.data, opened)
        except NotWrittenError as error:
            return self._unwritten(error, driver, header)
        return self._recorded(Failed(cause), driver, header)

    def _reply(self, opened: messages.Opened, driver: str) -> messages.Data:
        """The encoded answer, written down; or the failure."""
        header = opened.header
        try:
            self._recorder.came(driver, opened.data, opened)
        except NotWrittenError as error:  # what is not written down is not answered
            return self._unwritten(error, driver, header)
        try:
            return self._recorded(self._answer(opened, driver), driver, header)
        except NotWrittenError as error:
            return self._unwritten(error, driver, header)
        except MessageError as error:  # the answer cannot be encoded
            self._log_failure(header, driver, str(error))
            return self._recorded(Failed(str(error)), driver, header)

    def _answer(self, opened: messages.Opened, driver: str) -> messages.Message:
        header = opened.header
        try:
            if header.type == Tell.wire_name():
                return self._exchange_heads(opened, driver)
            if header.type == Notice.wire_name():
                return self._noticed(opened, driver)
            try:
                party, request = self._admitted(opened, driver)
            except DovetailError as error:
                self.refuse(driver, _cause(error), kind=header.type, run=header.run)
                return Failed(_cause(error))
            if isinstance(request, checkpoint.Save) and self._heads is not None:
                self._heads.keep(driver, request.head)
            answer = party.handle(request)
            if isinstance(answer, checkpoint.Saved) and self._heads is not None:
                self._recorder.settle()
                answer = replace(answer, head=self._heads.current())
            return answer
        except NotWrittenError:
            raise
        except DovetailError as error:
            self._log_failure(header, driver, _cause(error))
            if type(error) is DataError:  # which may name values and files
                return Failed("its table does not fit what was asked; its log has the details")
            return Failed(_cause(error))
        except Exception as error:
            kind = type(error).__name__
            count = self._counted.once_more("a bug", driver, header.type, kind, str(error))
            if count:
                asked = (self.name, printable(header.type)[:100], printable(header.run))
                _log.exception("%s: a bug in %s of run %r%s", *asked, times(count))
            return Failed(f"internal error: {type(error).__name__}; its log has the details")

    def _exchange_heads(self, opened: messages.Opened, driver: str) -> messages.Message:
        """Where each other's ledgers stand, of a driver that is about to leave."""
        message = messages.decode(opened, (Tell,), max_bytes=self.max_bytes)
        assert isinstance(message, Tell)
        self._recorder.settle()  # the head is to have the line of this, too
        account = "" if self._account is None else self._account(opened.header.run, driver)
        if self._heads is None:
            return Told(account=account)
        self._heads.keep(driver, message.head)
        return Told(self._heads.current(), account)

    def _noticed(self, opened: messages.Opened, driver: str) -> messages.Message:
        """The driver did not take what this party answered."""
        notice = messages.decode(opened, (Notice,), max_bytes=self.max_bytes)
        assert isinstance(notice, Notice)
        if self._on_notice is not None:
            self._on_notice(driver, printable(opened.header.run), printable(notice.why))
        return Noticed()

    def _admitted(self, opened: messages.Opened, driver: str) -> tuple[Party, messages.Message]:
        """The party and the request; tensors are decoded only once all else is in order."""
        header = opened.header
        algorithm, _, kind = header.type.partition(".")
        about: checkpoint.Save | checkpoint.Restore | None = None
        if header.type in _CHECKPOINT_TYPES:
            named = messages.decode(opened, checkpoint.REQUESTS, max_bytes=self.max_bytes)
            assert isinstance(named, checkpoint.Save | checkpoint.Restore)
            about = named
            algorithm = about.algorithm
        if self._admit is not None:
            self._admit(replace(header, type=f"{algorithm}.{kind}"), driver)
        party = self._party(header.run, algorithm, driver)
        if not any(header.type == accepted.wire_name() for accepted in party.accepts):
            raise MessageError(f"it does not answer {header.type}")
        return party, about or messages.decode(opened, party.accepts, max_bytes=self.max_bytes)

    def _party(self, run: str, algorithm: str, driver: str) -> Party:
        key = (driver, run, algorithm)
        is_new = key not in self._runs
        party = self._runs.get(key) or self._open_run(run, algorithm, driver)
        self._runs[key] = party
        self._runs.move_to_end(key)
        of_driver = [each for each in self._runs if each[0] == driver] if is_new else []
        for oldest in of_driver[:-MAX_RUNS]:
            del self._runs[oldest]
            _log.info("%s: run %r made room for run %r", self.name, oldest[1], run)
        return party

    def _recorded(
        self, answer: messages.Message, driver: str, header: messages.Header | None = None
    ) -> messages.Data:
        """The answer's bytes, once it is written down that they leave; no header: of none."""
        run, sequence = ("", 0) if header is None else (header.run, header.sequence)
        precision = "float32" if header is None else header.precision
        encoded = messages.encode(answer, run=run, sequence=sequence, precision=precision)
        try:
            self._recorder.left(driver, answer, header, encoded)
        except NotWrittenError as error:
            return self._unwritten(error, driver, header)
        return encoded

    def _unwritten(
        self, error: NotWrittenError, driver: str, header: messages.Header | None = None
    ) -> messages.Data:
        """Reply to the driver of what could not be written; whoever watches here sees why, as of a
        refusal."""
        kind, run, sequence = (
            ("", "", 0) if header is None else (header.type, header.run, header.sequence)
        )
        self.refuse(driver, str(error), kind=kind, run=run)
        return messages.encode(Failed(_UNWRITTEN), run=run, sequence=sequence)

    def _log_failure(self, header: messages.Header, driver: str, cause: str) -> None:
        count = self._counted.once_more("no answer", driver, header.type, cause)
        if count:
            asked = (self.name, printable(header.type)[:100], printable(header.run), driver)
            why = f"{printable(cause)}{times(count)}"
            _log.warning("%s: no answer to %s of run %r from %s: %s", *asked, why)


def _cause(error: DovetailError) -> str:
    return error.cause if isinstance(error, PartyError) else str(error)
