"""A party's side of a run: it answers messages, in its context, and is saved by what it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, ClassVar, Self, TypeVar, cast, get_type_hints, overload

import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor, nn

from dovetail.errors import MessageError, PartyError, TrainingError
from dovetail.federated.local import Local
from dovetail.models import Model
from dovetail.models.optimizers import Optimizer
from dovetail.network import Message, State
from dovetail.network.messages import undeclared
from dovetail.privacy.release import Releasing
from dovetail.privacy.steps import Stepping

M = TypeVar("M", bound=Message)
S = TypeVar("S", bound=BaseModel)
F = TypeVar("F", bound=Callable[..., Message])


#: Of ``handles(most=...)``: as often as the party's policy says (``max_uses``).
MAX_USES = 0


@overload
def handles(handler: F, /) -> F: ...
@overload
def handles(*, before_begin: bool = False, most: int | None = None) -> Callable[[F], F]: ...
def handles(
    handler: F | None = None, /, *, before_begin: bool = False, most: int | None = None
) -> F | Callable[[F], F]:
    """Marks a method of a ``Party`` as the handler of the message that it is annotated with.

    Args:
        before_begin: the message may come before ``begin``.
        most: how often a party at a site answers it in one run, if a run that keeps the rules
            needs few, however often it is resumed; ``MAX_USES``: as often as its policy says. An
            answer whose ``num_rows`` is 0 is none.
    """

    def mark(handler: F) -> F:
        handler.__dict__["handles"] = True
        if before_begin:
            handler.__dict__["before_begin"] = True
        if most is not None:
            handler.__dict__["most"] = most
        return handler

    return mark if handler is None else mark(handler)


class Party:
    """A party's side of a run: one handler a message.

    It is made of what it has and of its context, ``Member(rows, local)``, and not without the
    latter. A handler is marked with ``handles``; what it takes is by its annotation, and a message
    whose tensors are not as declared (``Message.check``) does not reach it. The one that is named
    ``begin`` comes first: what it was sent is saved, and sent to it again before ``saved`` is put
    back. After the one that is named ``finish`` its model is kept at its site.

    Attributes:
        name: the party's.
        local: its context.
        saved: names of attributes that its next answer depends on: networks, optimizers,
            generators, tensors, numbers, or what has ``state`` and ``restore``. What the context
            counts is saved with them.
        accepts: the messages that it answers, in the order of its handlers.
        starts: those with which training starts: a policy limits how often a run may.
        few: message -> how often it is answered in one run; see ``handles``.
        goes_on: whether its driver goes on where a party is at an older step than it was, with a
            state that is the party's own, or told by the number of the round. Who would go on with
            weights of no run has its driver say the step with ``Restore``.
        predicts: whether it answers of an alignment that was made for a prediction; what trains is
            of one that its party keeps, and reports.
        finish_with: the message, or any of several, after which its model is whole: that of
            ``finish``, unless it says another; None: there is none.
        finished: called with it when its model is whole, to keep that at its site; None: nobody
            keeps it. It does not hold the party, which would then outlive its place in memory.
        has_local: whether it is made with a context.
        renamed: messages of base classes' handlers under the method's names (``Message.named``).
    """

    has_local: ClassVar[bool] = True
    local: Local
    saved: ClassVar[tuple[str, ...]] = ()
    accepts: ClassVar[tuple[type[Message], ...]] = ()
    begins: ClassVar[tuple[type[Message], ...]] = ()
    few: ClassVar[Mapping[type[Message], int]] = {}
    goes_on: ClassVar[bool] = True
    predicts: ClassVar[bool] = False
    finish_with: ClassVar[type[Message] | tuple[type[Message], ...] | None] = None
    renamed: ClassVar[tuple[type[Message], ...]] = ()
    name: str
    finished: Callable[[Any], None] | None = None
    _handlers: ClassVar[Mapping[type[Message], str]] = {}
    _early: ClassVar[frozenset[str]] = frozenset(("begin",))  # handlers that need no ``begin``
    _begun: Message | None = None

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Refuse a party without its context.

        Raises:
            TypeError: no ``Local`` among the arguments.
        """
        party = super().__new__(cls)
        if cls.has_local:
            contexts = [each for each in (*args, *options.values()) if isinstance(each, Local)]
            if len(contexts) != 1:
                raise TypeError(f"{cls.__name__} is made with its context: give it a Local")
            party.local = contexts[0]
            party.name = party.local.name
        return party

    def __getnewargs__(self) -> tuple[Local, ...]:
        """For another process of a cluster, where it is made with its context, too."""
        return (self.local,) if self.has_local else ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        handlers: dict[type[Message], str] = {}
        few: dict[type[Message], int] = {}
        early = {"begin"}
        marked = (  # bases first, so that the nearest has the last word
            (name, value)
            for base in reversed(cls.__mro__)
            for name, value in list(vars(base).items())
            if getattr(value, "__dict__", {}).get("handles")
        )
        for name, value in marked:
            hints = get_type_hints(value)
            hints.pop("return", None)
            (kind,) = map(cls.named, hints.values())
            if wrong := undeclared(kind):
                raise TypeError(
                    f"{kind.__name__}.{wrong[0]} is a tensor of nothing: declare it: Samples, "
                    "Weights, Floats or the like, so that a party's policy can limit it"
                )
            handlers[kind] = name
            if "most" in value.__dict__:
                few[kind] = value.__dict__["most"]
            if "before_begin" in value.__dict__:
                early.add(name)
            if name == "finish":
                cls.finish_with = kind
        cls._early = frozenset(early)
        cls._handlers, cls.few = handlers, few
        cls.accepts = tuple(handlers)
        cls.begins = tuple(kind for kind, name in handlers.items() if name == "begin")

    @classmethod
    def named(cls, kind: type[M]) -> type[M]:
        """A message under the name that the method gives it."""
        return cast(type[M], next((each for each in cls.renamed if each.__base__ is kind), kind))

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
        message.check(**({} if begins and self._begun is None else self.sizes()))
        if name == "begin" and self.has_local:
            self.local.begin(getattr(message, "seed", 0))
        answer: Message = getattr(self, name)(message)
        if not isinstance(answer, Message):
            kind = type(answer).__name__
            raise TypeError(f"{type(self).__name__}.{name} is to return a message, got {kind}")
        if name == "begin":
            self._begun = message
        if self.finished and self.finish_with and isinstance(message, self.finish_with):
            self.finished(self)
        return answer

    def sizes(self) -> Mapping[str, int]:
        """Letters of shapes -> sizes that messages must have, once it has started."""
        return {}

    def model(self) -> Model | None:
        """Model that the party can use alone, as it is now; None: nothing."""
        return None

    def state(self) -> State:
        """State that its next answer depends on.

        Raises:
            TrainingError: training has not started.
        """
        begun = self._begun
        if begun is None and "begin" in self._handlers.values():
            raise TrainingError("it has nothing to save before training began")
        fields_of_begin = (
            None if begun is None else {f.name: getattr(begun, f.name) for f in fields(begun)}
        )
        local = {"local": self.local.state()} if self.has_local else {}
        return {"begun": fields_of_begin, **local, **state_of(self, self.saved)}

    def spent(self) -> Sequence[Mapping[str, Any]]:
        """Privacy costs of what leaves it noised: "to" whom, "what", and the cost so far;
        JSON-ready."""
        return self.local.spent() if self.has_local else ()

    def counts_at_least(self, releases: int) -> None:
        """Every row was released so often, or more, whatever its state says."""
        if self.has_local:
            self.local.at_least(releases)
        for name in self.saved:
            value = getattr(self, name, None)
            if isinstance(value, Releasing | Stepping):
                value.at_least(releases)

    def unsaved(self) -> str:
        """Description of what its next answer depends on and ``state`` lacks; "" for nothing.

        A party that joins by mailbox and may end after each letter stays while there is such a
        thing, as a gradient that is due for codes it has sent.
        """
        return ""

    def restore(self, state: State) -> None:
        """Go on from there."""
        if state["begun"] is not None:
            kind = next(each for each, name in self._handlers.items() if name == "begin")
            finished, self.finished = self.finished, None  # what is restored was kept before
            self.handle(kind(**state["begun"]))
            self.finished = finished
        if self.has_local:
            self.local.restore(state["local"])
        restore_into(self, self.saved, state)


def read_settings(kind: type[S], message: Message, text: str) -> S:
    """Settings in a driver's message, read from JSON.

    Raises:
        MessageError: it cannot be.
    """
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        wrong = f"{message.wire_name()}: settings that cannot be ({error})"
        raise MessageError(wrong) from None


class SavedAttributes:
    """Something whose state is that of some of its attributes.

    Attributes:
        saved: their names.
    """

    saved: ClassVar[tuple[str, ...]]

    def state(self) -> State:
        return state_of(self, self.saved)

    def restore(self, state: State) -> None:
        restore_into(self, self.saved, state)


def state_of(thing: object, names: Sequence[str]) -> State:
    """Attribute -> what it can be put back from."""
    return {name: _plain(getattr(thing, name)) for name in names}


def restore_into(thing: object, names: Sequence[str], state: State) -> None:
    """Put attributes back to what ``state_of`` gave."""
    for name in names:
        value = getattr(thing, name, None)
        back = _put_back(value, state[name])
        if back is not value:
            setattr(thing, name, back)


def _plain(value: Any) -> Any:
    if isinstance(value, nn.Module | torch.optim.Optimizer | Optimizer):
        return value.state_dict()
    if isinstance(value, torch.Generator):
        return value.get_state()
    if hasattr(value, "state") and hasattr(value, "restore"):
        return value.state()
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return value


def _put_back(value: Any, state: Any) -> Any:
    """Value of the attribute after going back: as it is now, restored, or loaded from the state."""
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
