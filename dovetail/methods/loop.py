"""The two sides of a method, and the one loop of rounds: begin, play, save, resume, finish.

A ``Party`` lives where its data live and answers messages; a ``Driver`` runs the paper's algorithm.
What both save is what their ``saved`` names, so a method says nothing of files.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, TypeVar, get_type_hints

import torch
from torch import nn

from dovetail.errors import PartyError, TrainingError
from dovetail.models import Model
from dovetail.network import Checkpoint, Engine, Message, Replies, State
from dovetail.network.checkpoint import Stateful

M = TypeVar("M", bound=Message)
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Message])

# --- A party's side ----------------------------------------------------------------------------


def answers(handler: F) -> F:
    """Marks a method of a ``Party`` that answers the message which its argument is annotated as."""
    handler.__dict__["answers"] = True
    return handler


def answers_always(handler: F) -> F:
    """The same, of a message that may come before ``begin``."""
    handler.__dict__["always"] = True
    return answers(handler)


class Party:
    """A party's side of a run: one handler a message.

    A handler is marked with ``answers``; what it takes is by its annotation, and a message whose
    tensors are not as declared (``Message.check``) does not reach it. The one that is named
    ``begin`` comes first: what it was sent is saved, and sent to it again before ``saved`` is put
    back. After the one that is named ``finish`` its model is kept at its home.

    Attributes:
        name: the party's.
        saved: names of attributes that its next answer depends on: networks, optimizers,
            generators, tensors, numbers, or what has ``state`` and ``restore``.
        accepts: the messages that it answers, in the order of its handlers.
        finish_with: the message after which its model is kept; None: there is no ``finish``.
    """

    saved: ClassVar[tuple[str, ...]] = ()
    accepts: ClassVar[tuple[type[Message], ...]] = ()
    finish_with: ClassVar[type[Message] | None] = None
    name: str = "?"
    _handlers: ClassVar[Mapping[type[Message], str]] = {}
    _early: ClassVar[frozenset[str]] = frozenset(("begin",))  # handlers that need no ``begin``
    _begun: Message | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        handlers = dict(cls._handlers)
        for name, value in list(vars(cls).items()):
            if getattr(value, "__dict__", {}).get("answers"):
                hints = get_type_hints(value)
                hints.pop("return", None)
                (kind,) = hints.values()
                handlers[kind] = name
                if "always" in value.__dict__:
                    cls._early |= {name}
                if name == "finish":
                    cls.finish_with = kind
        cls._handlers = handlers
        cls.accepts = tuple(handlers)

    def handle(self, message: Message) -> Message:
        """The answer of the handler of this message.

        Raises:
            PartyError: anything before ``begin``, where there is such a handler.
            MessageError: tensors that are not as declared.
        """
        name = self._handlers[type(message)]
        begins = "begin" in self._handlers.values()
        if begins and self._begun is None and name not in self._early:
            raise PartyError(
                self.name,
                f"was sent {message.wire_name()} before training began, or was restarted since; go "
                "on with --resume",
            )
        message.check(**self.sizes())
        answer: Message = getattr(self, name)(message)
        if name == "begin":
            self._begun = message
        return answer

    def sizes(self) -> Mapping[str, int]:
        """Letters of shapes -> sizes that messages must have, as far as it knows them."""
        return {}

    def model(self) -> Model | None:
        """What it can use alone, as it is now; None: nothing."""
        return None

    def state(self) -> State:
        """What its next answer depends on.

        Raises:
            TrainingError: training has not begun.
        """
        begun = self._begun
        if begun is None and "begin" in self._handlers.values():
            raise TrainingError("it has nothing to save before training began")
        told = None if begun is None else {f.name: getattr(begun, f.name) for f in fields(begun)}
        return {"begun": told, **state_of(self, self.saved)}

    def spent(self) -> dict[str, Any] | None:
        """What its noised weights have cost so far, JSON-ready; None where none are."""
        return None

    def restore(self, state: State) -> None:
        """Go on from there."""
        if state["begun"] is not None:
            kind = next(each for each, name in self._handlers.items() if name == "begin")
            self.handle(kind(**state["begun"]))
        restore_into(self, self.saved, state)


def state_of(thing: object, names: Sequence[str]) -> State:
    """Attribute -> what it can be put back from."""
    found: State = {}
    for name in names:
        value = getattr(thing, name)
        if isinstance(value, nn.Module | torch.optim.Optimizer):
            found[name] = value.state_dict()
        elif isinstance(value, torch.Generator):
            found[name] = value.get_state()
        elif hasattr(value, "state") and hasattr(value, "restore"):
            found[name] = value.state()
        else:
            found[name] = value
    return found


def restore_into(thing: object, names: Sequence[str], state: State) -> None:
    """Put attributes back to what ``state_of`` gave."""
    for name in names:
        value = getattr(thing, name, None)
        if isinstance(value, nn.Module | torch.optim.Optimizer):
            value.load_state_dict(state[name])
        elif isinstance(value, torch.Generator):
            value.set_state(state[name])
        elif value is not None and hasattr(value, "state") and hasattr(value, "restore"):
            value.restore(state[name])
        else:
            setattr(thing, name, state[name])


# --- The driver's side -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one round did.

    Attributes:
        number: 1, 2, ...; ``train`` fills it.
        told: losses and the like, for its line of ``metrics.jsonl``; numbers must be finite.
        missed: party -> why it had no part in the round.
        seconds: wall time of the round; ``train`` fills it.
    """

    number: int = 0
    told: Mapping[str, Any] = field(default_factory=dict)
    missed: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0


class Driver:
    """Runs a method's algorithm over an engine.

    Attributes:
        saved: names of attributes that its next round depends on, as of ``Party``.
        num_rounds: how many there are.
    """

    saved: ClassVar[tuple[str, ...]] = ()
    num_rounds: int

    def ask(self, network: Engine, message: Message, reply: type[M]) -> Mapping[str, M]:
        """Every party's answer to one message.

        Raises:
            PartyError: one did not answer, or not as the reply declares.
        """
        return network.ask(dict.fromkeys(network.parties, message), reply).fitting().or_raise()

    def begin(self, network: Engine) -> None:
        """Open the run with every party."""

    def round(self, number: int, network: Engine) -> Round:
        """Ask, combine, step."""
        raise NotImplementedError(f"{type(self).__name__} has no round")

    def finish(self, network: Engine) -> None:
        """Tell the parties that training is over."""

    def begin_again(self, behind: Mapping[str, int], network: Engine) -> None:
        """The run goes on: party -> the older step that it goes on from; 0: it begins anew.

        Left out, such parties go on as they are.
        """

    def ended(self, number: int) -> bool:
        """Whether to stop before this round."""
        return False

    def scores(self) -> Mapping[str, Mapping[str, float]]:
        """Party -> scores that it has told of itself."""
        return {}

    def state(self) -> State:
        return state_of(self, self.saved)

    def restore(self, state: State) -> None:
        restore_into(self, self.saved, state)


def train(driver: Driver, network: Engine, checkpoint: Checkpoint | None = None) -> Iterator[Round]:
    """Trains round by round.

    Args:
        driver: runs the algorithm.
        network: reaches the parties.
        checkpoint: saves each round, and goes on from what it saved; None saves nothing.

    Raises:
        PartyError: a party cannot begin.
        TrainingError: what a round tells is not finite.
    """

    def play(number: int) -> Round:
        started = time.perf_counter()
        done = driver.round(number, network)
        for name, value in done.told.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise TrainingError(f"its {name} is {value} in round {number}; lower its rate")
        return replace(done, number=number, seconds=time.perf_counter() - started)

    return rounds(
        driver,
        network,
        checkpoint or Checkpoint.none(),
        total=lambda: driver.num_rounds,
        begin=lambda: driver.begin(network),
        again=lambda saved: driver.begin_again(saved.behind, network),
        play=play,
        ended=driver.ended,
        finish=lambda: driver.finish(network),
    )


def begin_anew(
    ask: Callable[[tuple[str, ...]], Replies[M]], log: logging.Logger
) -> Callable[[Checkpoint], None]:
    """What brings parties back that lost their state: they are asked to begin once more.

    Args:
        ask: asks these parties to begin.
        log: told who does not; each round says so too, and goes on without it.
    """

    def again(saved: Checkpoint) -> None:
        if saved.lost:
            for failure in ask(saved.lost).failures.values():
                log.warning("it does not begin anew: %s", failure)

    return again


class _Again(Protocol):
    def __call__(self, saved: Checkpoint, /) -> None:
        """Bring parties up to where the driver goes on; ``saved`` says who is lost or behind."""


def rounds(
    driver: Stateful,
    network: Engine,
    checkpoint: Checkpoint,
    *,
    total: Callable[[], int],
    begin: Callable[[], None],
    play: Callable[[int], R],
    finish: Callable[[], object] = lambda: None,
    again: _Again = lambda saved: None,
    ended: Callable[[int], bool] = lambda number: False,
    lenient: bool = True,
) -> Iterator[R]:
    """The loop of every method: resume or begin; play, give and save each round; finish.

    Args:
        driver: what is saved with the parties.
        network: reaches the parties.
        checkpoint: where; goes on from what it saved.
        total: how many rounds, once the run has begun.
        begin: opens the run.
        play: does round 1, 2, ...
        finish: tells the parties that it is over.
        again: called in place of ``begin`` where the run goes on.
        ended: whether to stop before this round.
        lenient: the method goes on without a party that does not save or restore.
    """
    done = checkpoint.resume(driver, network, lenient=lenient)
    if not done:
        begin()
        checkpoint.save(0, driver, network)
    else:
        again(checkpoint)
    for number in range(done + 1, total() + 1):
        if ended(number):
            break
        yield play(number)
        checkpoint.save(number, driver, network)
    finish()
