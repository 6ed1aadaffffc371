"""The engine that calls parties directly: simulation, tests, the default of every command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, TypeVar

from dovetail.errors import DovetailError, MessageError, PartyError
from dovetail.network.engine import Engine, Party, Replies
from dovetail.network.messages import Message, decode, encode
from dovetail.settings.section import Precision

R = TypeVar("R", bound=Message)

#: Told of each exchange: driver, party, request and answer, as they arrived.
Listener = Callable[[str, str, Message, Message], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def overheard(by: Listener) -> Iterator[None]:
    """Engines of one process that are made in this context report what they carry.

    For an audit, which asks what each side could learn. Without it nothing is kept or computed.
    """
    token = _listener.set(by)
    try:
        yield
    finally:
        _listener.reset(token)


@dataclass(frozen=True)
class _Answered(Generic[R]):
    answered: Replies[R]

    def replies(self) -> Replies[R]:
        return self.answered


class InProcess(Engine):
    """Calls each party's ``handle`` in turn.

    A party's ``DovetailError`` is its failure, as it would be across a wire; any other exception
    is a bug and is not caught.

    Args:
        parties: name -> party.
        driver: the driver's name, in the ledger.
        through_bytes: encode and decode every message, as a wire would; slower, same results.
        precision: how float32 tensors travel. Any other than float32 goes through bytes, so that
            the results are those of a wire.
    """

    def __init__(
        self,
        parties: Mapping[str, Party],
        *,
        driver: str,
        through_bytes: bool = False,
        precision: Precision = "float32",
    ) -> None:
        super().__init__(driver)
        self._parties = dict(parties)
        self._precision = precision
        self._through_bytes = through_bytes or precision != "float32"
        self._listener = _listener.get()

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(self._parties)

    def send(
        self, requests: Mapping[str, Message], reply: type[R], *, timeout_s: float | None = None
    ) -> _Answered[R]:
        answered: dict[str, R] = {}
        failures: dict[str, PartyError] = {}
        for name, request in requests.items():
            try:
                answered[name] = self._call(name, request, reply)
            except PartyError as failure:
                failures[name] = failure
            except DovetailError as cause:
                failures[name] = PartyError(name, str(cause))
        return _Answered(Replies(answered, failures))

    def _call(self, name: str, request: Message, reply: type[R]) -> R:
        party = self._parties.get(name)
        if party is None:
            raise PartyError(name, f"no such party; there are {list(self._parties)}")
        if not isinstance(request, party.accepts):
            raise MessageError(f"it does not answer {request.wire_name()}")
        request = self._carried(self.driver, name, request, party.accepts)
        answer = self._carried(name, self.driver, party.handle(request), (reply,))
        if not isinstance(answer, reply):
            raise MessageError(f"expected {reply.wire_name()}, got {answer.wire_name()}")
        if self._listener is not None:
            self._listener(self.driver, name, request, answer)
        return answer

    def _carried(
        self,
        sender: str,
        receiver: str,
        message: Message,
        accept: tuple[type[Message], ...],
    ) -> Message:
        """The message as it arrives."""
        if self._through_bytes:
            data = encode(message, precision=self._precision)
            self.ledger.record(sender, receiver, message, self._precision)
            return decode(data, accept)
        self.ledger.record(sender, receiver, message)
        return message
