"""The two sides of a method, and the one loop of rounds: begin, play, save, resume, finish.

A ``Party`` lives where its data live and answers messages; a ``Driver`` runs the paper's algorithm.
What both save is what their ``saved`` names, so a method says nothing of files.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar, get_type_hints, overload

import torch
from torch import Tensor, nn

from dovetail.errors import PartyError, TrainingError
from dovetail.methods.missing_parties import LeftOut, end_told, in_round
from dovetail.methods.outcome import is_due
from dovetail.models import Model
from dovetail.models.optimizers import Optimizer
from dovetail.network import Checkpoint, Engine, Message, State
from dovetail.network.checkpoint import Stateful
from dovetail.privacy.release import Releasing
from dovetail.privacy.steps import Stepping

M = TypeVar("M", bound=Message)
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Message])
P = TypeVar("P", bound="Played")
P_co = TypeVar("P_co", bound="Played", covariant=True)

# --- A party's side ----------------------------------------------------------------------------


@overload
def handles(handler: F, /) -> F: ...
@overload
def handles(*, before_begin: bool = False) -> Callable[[F], F]: ...
def handles(handler: F | None = None, /, *, before_begin: bool = False) -> F | Callable[[F], F]:
    """Marks a method of a ``Party`` as the handler of the message that it is annotated with.

    Args:
        before_begin: the message may come before ``begin``.
    """

    def mark(handler: F) -> F:
        handler.__dict__["handles"] = True
        if before_begin:
            handler.__dict__["before_begin"] = True
        return handler

    return mark if handler is None else mark(handler)


class Party:
    """A party's side of a run: one handler a message.

    A handler is marked with ``handles``; what it takes is by its annotation, and a message whose
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
            if getattr(value, "__dict__", {}).get("handles"):
                hints = get_type_hints(value)
                hints.pop("return", None)
                (kind,) = hints.values()
                handlers[kind] = name
                if "before_begin" in value.__dict__:
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
        if not isinstance(answer, Message):
            kind = type(answer).__name__
            raise TypeError(f"{type(self).__name__}.{name} is to return a message, got {kind}")
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

    def spent(self) -> Sequence[Mapping[str, Any]]:
        """What leaves it noised: "to" whom, "what", and what that has cost so far; JSON-ready."""
        return ()

    def counts_at_least(self, releases: int) -> None:
        """Every row was released so often, or more, whatever its state says."""
        for name in self.saved:
            value = getattr(self, name, None)
            if isinstance(value, Releasing | Stepping):
                value.at_least(releases)

    def restore(self, state: State) -> None:
        """Go on from there."""
        if state["begun"] is not None:
            kind = next(each for each, name in self._handlers.items() if name == "begin")
            self.handle(kind(**state["begun"]))
        restore_into(self, self.saved, state)


def state_of(thing: object, names: Sequence[str]) -> State:
    """Attribute -> what it can be put back from."""
    return {name: _told(getattr(thing, name)) for name in names}


def restore_into(thing: object, names: Sequence[str], state: State) -> None:
    """Put attributes back to what ``state_of`` gave."""
    for name in names:
        value = getattr(thing, name, None)
        back = _put_back(value, state[name])
        if back is not value:
            setattr(thing, name, back)


def _told(value: Any) -> Any:
    if isinstance(value, nn.Module | torch.optim.Optimizer | Optimizer):
        return value.state_dict()
    if isinstance(value, torch.Generator):
        return value.get_state()
    if hasattr(value, "state") and hasattr(value, "restore"):
        return value.state()
    if is_dataclass(value):
        return {each.name: _told(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: _told(each) for key, each in value.items()}
    return value


def _put_back(value: Any, state: Any) -> Any:
    """What the attribute is from here on: as it is now, gone back, or what was told of it."""
    if isinstance(value, nn.Module | torch.optim.Optimizer | Optimizer):
        value.load_state_dict(state)
    elif isinstance(value, torch.Generator):
        value.set_state(state)
    elif hasattr(value, "state") and hasattr(value, "restore"):
        value.restore(state)
    elif state is not None and is_dataclass(value):
        return replace(value, **state)  # type: ignore[type-var]
    elif isinstance(value, Tensor) and isinstance(state, Tensor):
        return state.to(value.device)
    elif isinstance(value, Mapping) and isinstance(state, Mapping):
        return {key: _put_back(value.get(key), each) for key, each in state.items()}
    else:
        return state
    return value


# --- The driver's side -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Played:
    """What one round did, whatever a method calls a round.

    Attributes:
        number: 1, 2, ...; ``train`` fills it.
        told: losses and the like, for its line of ``metrics.jsonl``; numbers must be finite.
        seconds: wall time of the round; ``train`` fills it.
    """

    number: int = 0
    told: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def line(self) -> dict[str, Any]:
        """Its line of ``metrics.jsonl``, but for scores and who was left out."""
        raise NotImplementedError

    def left_out(self) -> dict[str, Any]:
        """What the line says of who was left out; nothing of nobody."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Round(Played):
    """A round of which each party is asked once.

    Attributes:
        missed: party -> why it had no part in the round.
    """

    missed: Mapping[str, str] = field(default_factory=dict)

    def line(self) -> dict[str, Any]:
        return {"round": self.number, **self.told, "seconds": self.seconds}

    def left_out(self) -> dict[str, Any]:
        if not self.missed:
            return {}
        return {"missed": dict.fromkeys(self.missed, 1), "reasons": dict(self.missed)}


@dataclass(frozen=True, kw_only=True)
class Epoch(Played):
    """A round of many steps, each of which asks parties.

    Attributes:
        num_steps: how many.
        missed: party -> steps it was left out of.
        reasons: party -> why, the first time in this epoch.
        cut: party -> what it sent that was cut off.
    """

    num_steps: int
    missed: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    cut: Mapping[str, int] = field(default_factory=dict)

    @property
    def loss(self) -> Any:
        """Mean training loss over its steps; None where it tells none."""
        return self.told.get("loss")

    def line(self) -> dict[str, Any]:
        return {
            "epoch": self.number,
            **self.told,
            "seconds": self.seconds,
            "steps": self.num_steps,
        }

    def left_out(self) -> dict[str, Any]:
        told = {"missed": dict(self.missed), "reasons": dict(self.reasons)} if self.missed else {}
        return told | ({"cut": dict(self.cut)} if self.cut else {})


class Driver:
    """Runs a method's algorithm over an engine.

    Attributes:
        saved: names of attributes that its next round depends on, as of ``Party``.
        num_rounds: how many there are; known when training has begun.
        lenient: it goes on without a party that does not save or restore.
        rounds_per_save: a checkpoint that is saved so often is saved once in so many rounds.
    """

    saved: ClassVar[tuple[str, ...]] = ()
    num_rounds: int
    lenient: ClassVar[bool] = True
    rounds_per_save: int = 1

    def ask(self, network: Engine, message: Message, reply: type[M]) -> Mapping[str, M]:
        """Every party's answer to one message.

        Raises:
            PartyError: one did not answer, or not as the reply declares.
        """
        return network.ask(dict.fromkeys(network.parties, message), reply).fitting().or_raise()

    def begin(self, network: Engine) -> None:
        """Open the run with every party."""

    def round(self, number: int, network: Engine) -> Played:
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

    def due(self, number: int, every: int) -> bool:
        """Whether to score after this round, where each so many epochs or rounds are scored."""
        return is_due(number, self.num_rounds, every)

    def scores(self) -> Mapping[str, Mapping[str, float]]:
        """Party -> scores that it has told of itself."""
        return {}

    def judged(self, network: Engine) -> Mapping[str, float]:
        """Party -> how good its model is on rows that it keeps out of training, 0 to 1; asked when
        training is over, where settings are tried (``runs/trials.py``)."""
        return {}

    def spent(self) -> Sequence[Mapping[str, Any]]:
        """As of ``Party``."""
        return ()

    def state(self) -> State:
        return state_of(self, self.saved)

    def restore(self, state: State) -> None:
        restore_into(self, self.saved, state)


class Plays(Protocol[P_co]):
    """A driver, and which kind of round it plays."""

    @property
    def lenient(self) -> bool: ...
    @property
    def num_rounds(self) -> int: ...
    def begin(self, network: Engine) -> None: ...
    def round(self, number: int, network: Engine) -> P_co: ...
    def finish(self, network: Engine) -> None: ...
    def begin_again(self, behind: Mapping[str, int], network: Engine) -> None: ...
    def ended(self, number: int) -> bool: ...
    def state(self) -> State: ...
    def restore(self, state: State) -> None: ...


def train(driver: Plays[P], network: Engine, checkpoint: Checkpoint | None = None) -> Iterator[P]:
    """Trains round by round.

    Args:
        driver: runs the algorithm.
        network: reaches the parties.
        checkpoint: saves each round, and goes on from what it saved; None saves nothing.

    Raises:
        PartyError: a party cannot begin.
        TrainingError: what a round tells is not finite.
    """

    left_out = LeftOut()

    def play(number: int) -> P:
        started = time.perf_counter()
        done = driver.round(number, network)
        if not isinstance(done, Epoch):  # a method of epochs tells each step as it is missed
            for party, why in done.left_out().get("reasons", {}).items():
                left_out.notify(party, in_round(number, why), network)
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
        lenient=driver.lenient,
    )


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
    with end_told(network):
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
