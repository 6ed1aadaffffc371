"""Parties of a simulation, split over processes of a Ray cluster: [engine] kind = "ray".

    this process                              one process for each free core
    party, as it was made         -------->   the parties it has: answer messages
    messages of all its parties   encoded ->  decode; ``handle`` of each; encode
    their answers              <- encoded

A party is made here, travels once with its rows, and answers there; all processes are asked at
once, with one call each, however many parties they have. Processes stay from variant to variant.
What is here is brought up to date by a party's ``state`` when somebody looks at it: to score it, or
to keep its model. If a process or its machine is lost, another is made with the same parties, from
their last states and the messages since, which gives the same bits, as a resumed run has them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from dovetail.cluster import Actor, RayTasks
from dovetail.errors import MessageError, PartyError, TrainingError
from dovetail.network import checkpoint
from dovetail.network.costs import cost_of, noted
from dovetail.network.engine import Engine
from dovetail.network.inprocess import InProcess
from dovetail.network.messages import Message, decode, encode
from dovetail.settings.section import Precision

R = TypeVar("R", bound=Message)

#: After so many calls, or bytes of messages, states are fetched, and these are forgotten.
_MOST_CALLS, _MOST_BYTES = 64, 2**26

#: What there is of an answer on the way: its type, its bytes, what it costs in privacy; or why not.
_Answer = tuple[type[Message], bytes, dict[str, float]] | PartyError

#: What travels: name -> what answers, and name -> the party inside it.
Made = tuple[dict[str, checkpoint.StatefulParty], dict[str, Any]]

#: Makes the engine that asks parties of one process: ``InProcess``, or one that stacks them.
Kind = Callable[..., Engine]


class Process:
    """Some parties of each variant, in a process of the cluster."""

    def __init__(self, num_threads: int) -> None:
        import torch

        torch.set_num_threads(num_threads)
        self._parties: dict[int, dict[str, checkpoint.StatefulParty]] = {}
        self._inside: dict[int, dict[str, Any]] = {}
        self._engines: dict[int, Engine] = {}

    def load(self, variant: int, kind: Kind, made: Made) -> None:
        """Begin with these parties of a variant; an engine of this kind asks them here."""
        parties, self._inside[variant] = made
        self._parties[variant] = parties
        self._engines[variant] = kind(parties, driver="driver")

    def unload(self, variant: int) -> None:
        """Forget a variant's parties."""
        del self._parties[variant], self._inside[variant], self._engines[variant]

    def ask(
        self, variant: int, encoded: dict[str, bytes], reply: type[Message]
    ) -> dict[str, _Answer]:
        """Each party's answer to its message; one that several were sent is decoded once."""
        parties, messages = self._parties[variant], dict[int, Message]()
        for name, data in encoded.items():
            if id(data) not in messages:
                messages[id(data)] = decode(data, parties[name].accepts, max_bytes=2**62)
        asked = {name: messages[id(data)] for name, data in encoded.items()}
        replies = self._engines[variant].ask(asked, reply)
        answers: dict[str, _Answer] = {**replies.failures}
        for name, answer in replies.items():
            try:
                answers[name] = type(answer), bytes(encode(answer)), cost_of(answer)
            except MessageError as cause:
                answers[name] = PartyError(name, str(cause))
        return answers

    def states(self, variant: int, names: list[str]) -> dict[str, bytes]:
        """States that their next answers depend on; none of one whose state lacks something."""
        states = {}
        for name in names:
            party = self._parties[variant][name]
            if not getattr(party, "unsaved", str)():
                try:
                    states[name] = checkpoint.written_state(party.state())
                except TrainingError:  # training has not begun
                    continue
        return states

    def spent(self, variant: int, names: list[str]) -> dict[str, list[dict[str, Any]]]:
        """Privacy costs of their noised releases so far."""
        return {name: [*self._inside[variant][name].spent()] for name in names}

    def restore(self, variant: int, states: dict[str, bytes]) -> None:
        """Go on from there."""
        for name, state in states.items():
            self._parties[variant][name].restore(checkpoint.read_state(state))


@dataclass
class Part:
    """Parties of one variant that one process has, and what makes them again.

    Attributes:
        variant: its number.
        names: of the parties.
        made: the parties as they are before their first message, on the cluster.
        states: their last ones, of those that had one.
        since: calls since then: party -> message, and the type that answers.
    """

    variant: int
    names: list[str]
    made: Any
    states: dict[str, bytes] = field(default_factory=dict)
    since: list[tuple[dict[str, bytes], type[Message]]] = field(default_factory=list)

    def put_back(self, states: Mapping[str, bytes]) -> None:
        """These parties are in these states now."""
        self.states |= states
        left = (
            ({name: data for name, data in encoded.items() if name not in states}, reply)
            for encoded, reply in self.since
        )
        self.since = [(encoded, reply) for encoded, reply in left if encoded]

    @property
    def is_long(self) -> bool:
        """Whether there is much to do again if the process is lost."""
        kept = {id(data): len(data) for encoded, _ in self.since for data in encoded.values()}
        return len(self.since) >= _MOST_CALLS or sum(kept.values()) > _MOST_BYTES


class Pool:
    """Processes of a cluster, over which parties of a variant are split: one a free core.

    Args:
        tasks: reaches the cluster.
        cpus: cores that a process takes.
    """

    def __init__(self, tasks: RayTasks, cpus: float) -> None:
        self._tasks, self._cpus = tasks, cpus
        self._actors: list[Actor] = []
        self._numbers = itertools.count()

    def __call__(
        self,
        parties: Mapping[str, Any],
        sides: Mapping[str, checkpoint.StatefulParty],
        variant: str,
        seed: int,
    ) -> tuple[Mapping[str, Any], Mapping[str, checkpoint.StatefulParty]]:
        """Parties as they are there, and what answers there.

        Raises:
            ConfigError: the cluster has no core that is free.
        """
        if len(self._actors) < len(sides):
            self._actors = self._tasks.actors(Process, len(sides), self._cpus, self._actors)
        hosted = Hosted(self._tasks, self._actors, next(self._numbers), parties, sides)
        return hosted, hosted.remote

    def engine(self, kind: Kind) -> Any:
        """Factory of an engine of this kind for parties that this gave."""
        return partial(AtOnce, kind=kind)

    def stop(self) -> None:
        """End the processes."""
        for actor in self._actors:
            actor.stop()
        self._actors = []


class Hosted(Mapping[str, Any]):
    """Parties of a variant that answer on a cluster: name -> what is here of it, up to date.

    Args:
        tasks: reaches the cluster.
        actors: processes there.
        variant: its number.
        here: name -> the party, as it is before its first message.
        answers: name -> what answers there: the party, or what keeps its limits.
    """

    def __init__(
        self,
        tasks: RayTasks,
        actors: list[Actor],
        variant: int,
        here: Mapping[str, Any],
        answers: Mapping[str, checkpoint.StatefulParty],
    ) -> None:
        self._here, self._answers = here, answers
        self._variant = variant
        self._parts: dict[Actor, Part] = {}
        names = list(answers)
        for place, actor in enumerate(actors[: len(names)]):
            names_here = names[place :: len(actors)]
            inside = {name: here[name] for name in names_here}
            made = tasks.share(({name: answers[name] for name in names_here}, inside))
            self._parts[actor] = Part(variant, names_here, made)
        self._actor = {name: actor for actor, part in self._parts.items() for name in part.names}
        self._kind: Kind = InProcess
        self._ahead: dict[str, _Answer] = {}
        self._stale: set[str] = set()  # asked since its state was fetched
        self._behind: set[str] = set()  # asked since what is here of it was brought up to date
        self.remote = {name: Remote(self, name, party) for name, party in answers.items()}

    def load(self, kind: Kind) -> None:
        """Have the parties travel; engines of this kind ask them there."""
        self._kind = kind
        for actor, part in self._parts.items():
            actor.made_by[self._variant] = partial(self._make, part)
        self._call("load", {actor: (kind, part.made) for actor, part in self._parts.items()})

    def _make(self, part: Part, call: Callable[..., Any]) -> None:
        """Start a process instead of one that was lost, with the same calls."""
        call("load", part.variant, self._kind, part.made)
        if part.states:
            call("restore", part.variant, part.states)
        for encoded, reply in part.since:
            call("ask", part.variant, encoded, reply)

    def ask_ahead(
        self, requests: Mapping[str, Message], reply: type[Message], precision: Precision
    ) -> None:
        """Ask all at once; each answer is kept until ``answer`` asks for it."""
        self._ahead = {}
        encoded: dict[int, bytes] = {}
        calls: dict[Actor, dict[str, bytes]] = {}
        for name, message in requests.items():
            try:
                if id(message) not in encoded:
                    encoded[id(message)] = bytes(encode(message, precision=precision))
            except MessageError as cause:
                self._ahead[name] = PartyError(name, str(cause))
                continue
            calls.setdefault(self._actor[name], {})[name] = encoded[id(message)]
        self._stale |= requests.keys()
        self._behind |= requests.keys()
        given = {actor: (sent, reply) for actor, sent in calls.items()}
        for actor, answers in self._call("ask", given).items():
            self._ahead |= answers
            self._parts[actor].since.append(given[actor])
        if any(part.is_long for part in self._parts.values()):
            self._fetch()

    def answer(self, name: str, message: Message) -> Message:
        """A party's answer, asked for ahead or now.

        Raises:
            PartyError: its failure.
        """
        if name not in self._ahead:
            self.ask_ahead({name: message}, Message, "float32")
        answer = self._ahead.pop(name)
        if isinstance(answer, PartyError):
            raise answer
        kind, data, cost = answer
        return noted(decode(data, (kind,), max_bytes=2**62), cost)

    def state(self, name: str) -> checkpoint.State | None:
        """A party's, which has all that its next answer depends on; None where none does."""
        if name in self._stale:
            self._fetch()
        part = self._parts[self._actor[name]]
        if name in self._stale:
            return None
        state = part.states.get(name)
        return self._answers[name].state() if state is None else checkpoint.read_state(state)

    def restore(self, name: str, state: checkpoint.State) -> None:
        """A party goes on from there."""
        actor, states = self._actor[name], {name: checkpoint.written_state(state)}
        self._call("restore", {actor: (states,)})
        self._parts[actor].put_back(states)
        self._stale.discard(name)
        self._behind.add(name)

    def spent(self) -> list[tuple[str, dict[str, Any]]]:
        """Each party, and what a noised release of it has cost so far; no state is fetched."""
        asked = {
            actor: ([name for name in part.names if name in self._behind],)
            for actor, part in self._parts.items()
        }
        told = self._call("spent", {actor: names for actor, names in asked.items() if names[0]})
        there = {name: costs for each in told.values() for name, costs in each.items()}
        return [
            (party.name, cost)
            for name, party in self._here.items()
            for cost in (there[name] if name in there else party.spent())
        ]

    def _fetch(self) -> None:
        """States of all whose last one is old."""
        stale = {
            actor: ([name for name in part.names if name in self._stale],)
            for actor, part in self._parts.items()
        }
        asked = {actor: names for actor, names in stale.items() if names[0]}
        for actor, states in self._call("states", asked).items():
            self._parts[actor].put_back(states)
            self._stale -= states.keys()

    def _call(self, what: str, given: Mapping[Actor, tuple[Any, ...]]) -> dict[Actor, Any]:
        """Call these processes at once."""
        started = [
            (actor, actor.start(what, self._variant, *more)) for actor, more in given.items()
        ]
        return {actor: call.result() for actor, call in started}

    def __getitem__(self, name: str) -> Any:
        if name in self._behind and (state := self.state(name)) is not None:
            self._here[name].restore(state)
            self._behind.discard(name)
        return self._here[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._here)

    def __len__(self) -> int:
        return len(self._here)

    def stop(self) -> None:
        """Forget them there."""
        for actor in self._parts:
            if actor.made_by.pop(self._variant, None) is not None:
                actor.start("unload", self._variant)


class Remote:
    """A party that answers in a process of a cluster.

    Args:
        hosted: those of its variant.
        name: the party's.
        party: as it is before its first message.
    """

    def __init__(self, hosted: Hosted, name: str, party: checkpoint.StatefulParty) -> None:
        self.accepts = party.accepts
        self.name, self.hosted = name, hosted

    def handle(self, message: Message) -> Message:
        return self.hosted.answer(self.name, message)

    def state(self) -> checkpoint.State:
        """As of the party there.

        Raises:
            TrainingError: training has not started, or a state does not have all.
        """
        state = self.hosted.state(self.name)
        if state is None:
            raise TrainingError(
                f"party {self.name!r} has nothing to save at this moment; write "
                "checkpoint_every = 0 to train without saving"
            )
        return state

    def restore(self, state: checkpoint.State) -> None:
        """Go on from there."""
        self.hosted.restore(self.name, state)


class AtOnce(InProcess):
    """``InProcess`` whose parties all compute at the same time, each process of a cluster its own.

    Args:
        parties: name -> a ``Remote``, or a ``Checkpointed`` of one.
        driver: the driver's name, in the ledger.
        kind: what asks the parties of one process there.
        precision: how float32 tensors travel.
    """

    def __init__(
        self,
        parties: Mapping[str, Any],
        *,
        driver: str,
        kind: Kind,
        precision: Precision = "float32",
    ) -> None:
        super().__init__(parties, driver=driver, precision=precision)
        inner = ((name, _inside(party)) for name, party in parties.items())
        self._remote = {name: party for name, party in inner if isinstance(party, Remote)}
        self._hosted = next((each.hosted for each in self._remote.values()), None)
        if self._hosted is not None:
            self._hosted.load(kind)

    def send(
        self, requests: Mapping[str, Message], reply: type[R], *, timeout_s: float | None = None
    ) -> Any:
        ahead = {
            name: request
            for name, request in requests.items()
            if name in self._remote and isinstance(request, self._remote[name].accepts)
        }
        if self._hosted is not None and ahead:
            self._hosted.ask_ahead(ahead, reply, self._precision)
        return super().send(requests, reply, timeout_s=timeout_s)


def _inside(party: Any) -> Any:
    return party.party if isinstance(party, checkpoint.Checkpointed) else party
