"""The seam between an algorithm and whatever carries its messages.

A party lives where its data live and answers messages. The driver runs the paper's algorithm: it
asks parties and combines what comes back. An engine carries the asking.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from dovetail.errors import MessageError, PartyError, TrainingError
from dovetail.network.ledger import Ledger
from dovetail.network.messages import Message

R = TypeVar("R", bound=Message)


class Party(Protocol):
    """Whoever answers: keeps its model, optimizer and tables between messages."""

    @property
    def accepts(self) -> tuple[type[Message], ...]:
        """The message types it answers; an engine refuses any other for it."""

    def handle(self, message: Message) -> Message:
        """The answer to one message of a type in ``accepts``."""


class Replies(dict[str, R]):
    """Party -> reply, of those that answered as asked; ``failures`` has the others' errors."""

    def __init__(self, answered: Mapping[str, R], failures: Mapping[str, PartyError]) -> None:
        super().__init__(answered)
        self.failures = dict(failures)

    def or_raise(self) -> Replies[R]:
        """These replies, if every party answered.

        Raises:
            PartyError: the first failure.
        """
        for failure in self.failures.values():
            raise failure
        return self

    def some(self, where: str) -> Replies[R]:
        """These replies, if there is one.

        Args:
            where: what was played: "round 3".

        Raises:
            TrainingError: no party answered as asked.
        """
        if not self:
            why = next(iter(self.failures.values()), "there is no party")
            raise TrainingError(f"{where}: no party answered as asked; the first says: {why}")
        return self

    def fitting(
        self, of_party: Mapping[str, Mapping[str, int]] | None = None, **sizes: int
    ) -> Replies[R]:
        """These replies; one that is not as its type declares is a failure of who sent it.

        Args:
            of_party: party -> more sizes, of its own reply.
            sizes: letter of a shape -> its size; see ``Message.check``.
        """
        for party, reply in list(self.items()):
            try:
                reply.check(**sizes, **(of_party or {}).get(party, {}))
            except MessageError as cause:
                del self[party]
                self.failures[party] = PartyError(party, str(cause))
        return self


class Pending(Protocol, Generic[R]):
    """Messages under way."""

    def replies(self) -> Replies[R]:
        """Waits for the replies, or for the deadline."""


class Engine(ABC):
    """Carries messages from the driver to parties, and their replies back.

    Attributes:
        driver: the driver's name, in the ledger.
        ledger: what left each party so far.
        run: which run its messages belong to; "" where parties keep nothing by it.
    """

    run: str = ""

    def __init__(self, driver: str) -> None:
        self.driver = driver
        self.ledger = Ledger()

    @property
    @abstractmethod
    def parties(self) -> tuple[str, ...]:
        """Names of the parties that can be asked."""

    @abstractmethod
    def send(
        self, requests: Mapping[str, Message], reply: type[R], *, timeout_s: float | None = None
    ) -> Pending[R]:
        """Send each party its message and return at once, so that the driver can work meanwhile.

        Args:
            requests: party -> message.
            reply: the type of message that answers; any other counts as a failure.
            timeout_s: seconds until a party that has not answered counts as failed; None waits.
        """

    def ask(
        self, requests: Mapping[str, Message], reply: type[R], *, timeout_s: float | None = None
    ) -> Replies[R]:
        """Send each party its message and wait for the replies."""
        return self.send(requests, reply, timeout_s=timeout_s).replies()

    def patient(self) -> Engine:
        """Engine that waits longer for a lost party: for a question that is the whole run."""
        return self

    def notify(self, party: str, why: str) -> None:  # noqa: B027 - who needs it has it
        """Have whoever watches a party told that its answer did not count; waits for nothing.

        Nobody is notified where driver and party are one process: the driver's user is.
        """
