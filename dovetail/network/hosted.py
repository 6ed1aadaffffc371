"""Parties of a simulation, each in a process of a Ray cluster: [engine] kind = "ray".

    this process                        a process of the cluster
    party, as it was made   -------->   the party: answers messages
    handle(message)         encoded ->  decode, handle, encode
                            <- encoded

A party is made here, travels once with its rows, and answers there. What is here is brought up to
date by its ``state`` when somebody looks at it: to score it, or to keep its model. If its machine
is lost, it is begun again on another from its last state and the messages since, which gives the
same bits, as a resumed run has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dovetail.cluster import RETRIES, RayTasks, failed, threads
from dovetail.errors import ConfigError, NetworkError, TrainingError
from dovetail.network.checkpoint import State, StatefulParty
from dovetail.network.costs import cost_of, noted
from dovetail.network.messages import Message, decode, encode

#: After so many messages, or bytes of them, the state is fetched, and they are forgotten.
_MOST_MESSAGES, _MOST_BYTES = 64, 2**26


class Process:
    """One party, in a process of the cluster."""

    def __init__(self, party: StatefulParty, num_threads: int) -> None:
        import torch

        torch.set_num_threads(num_threads)
        self._party = party

    def handle(self, data: bytes) -> tuple[type[Message], bytes, dict[str, float]]:
        """The answer to an encoded message: its type, its bytes, and what it costs in privacy."""
        answer = self._party.handle(decode(data, self._party.accepts, max_bytes=2**62))
        return type(answer), bytes(encode(answer)), cost_of(answer)

    def state(self) -> State | None:
        """What the next answer depends on; None where a state does not tell all of it."""
        unsaved = getattr(self._party, "unsaved", str)
        try:
            return None if unsaved() else self._party.state()
        except TrainingError:  # training has not begun
            return None

    def restore(self, state: State) -> None:
        """Go on from there."""
        self._party.restore(state)


class Remote:
    """A party that answers in a process of a cluster.

    Args:
        tasks: reaches the cluster.
        name: the party's.
        party: as it is before its first message.
        cpus: share of a core that its process takes.
    """

    def __init__(self, tasks: RayTasks, name: str, party: StatefulParty, cpus: float) -> None:
        self.accepts = party.accepts
        self.name = name
        self._here = party
        self._stale = False
        self._tasks = tasks
        self._made = tasks.share(party)
        self._state: State | None = None
        self._since: list[bytes] = []
        self._begin(cpus)

    def _begin(self, cpus: float) -> None:
        kind = self._tasks.ray.remote(Process).options(num_cpus=cpus)
        self._process = kind.remote(self._made, threads())

    def handle(self, message: Message) -> Message:
        data = bytes(encode(message))
        kind, answer, cost = self._ask("handle", data)
        self._since.append(data)
        self._stale = True
        if len(self._since) >= _MOST_MESSAGES or sum(map(len, self._since)) > _MOST_BYTES:
            self.fetch()
        decoded: Message = decode(answer, (kind,), max_bytes=2**62)
        return noted(decoded, cost)

    def state(self) -> State:
        """As of the party there.

        Raises:
            TrainingError: training has not begun, or a state does not tell all.
        """
        state = self.fetch()
        if state is None:
            raise TrainingError(f"party {self.name!r} has nothing to save at this moment")
        return state

    def fetch(self) -> State | None:
        """Its state, from which it begins again if its machine is lost."""
        state: State | None = self._ask("state")
        if state is not None:
            self._state, self._since = state, []
        return state

    def restore(self, state: State) -> None:
        """Go on from there."""
        self._ask("restore", state)
        self._state, self._since, self._stale = state, [], True

    def catch_up(self) -> None:
        """Bring what is here to where the party there is."""
        if self._stale and (state := self.fetch()) is not None:
            self._here.restore(state)
            self._stale = False

    def stop(self) -> None:
        """End its process."""
        with suppress(Exception):  # its machine is gone
            self._tasks.ray.kill(self._process)

    def _ask(self, what: str, *given: Any) -> Any:
        ray = self._tasks.ray
        for _ in range(RETRIES + 1):
            try:
                return ray.get(getattr(self._process, what).remote(*given))
            except ray.exceptions.RayActorError as error:
                if error.actor_init_failed:  # it would fail anywhere
                    raise
                self._begin_again()
            except ray.exceptions.RayError as error:
                raise failed(ray, error, f"party {self.name!r}") from None
        raise NetworkError(
            f"the Ray cluster lost the process of party {self.name!r} {RETRIES + 1} times; see "
            "that its machines stay up and have the memory, and go on with --resume"
        )

    def _begin_again(self) -> None:
        """On another machine, beside whatever computes there."""
        self.stop()
        self._begin(0)
        ray = self._tasks.ray
        with suppress(ray.exceptions.RayActorError):  # lost again: told by the next call
            if self._state is not None:
                ray.get(self._process.restore.remote(self._state))
            for data in self._since:
                ray.get(self._process.handle.remote(data))


@dataclass(frozen=True)
class OnCluster:
    """Has each party of a variant answer in a process of its own on a cluster.

    Attributes:
        tasks: reaches the cluster.
        cpus: share of a core that each takes.
        at_once: all compute at the same time.
    """

    tasks: RayTasks
    cpus: float
    at_once: bool = True

    def __call__(
        self,
        parties: Mapping[str, Any],
        sides: Mapping[str, StatefulParty],
        variant: str,
        seed: int,
    ) -> tuple[Mapping[str, Any], Mapping[str, StatefulParty]]:
        """Parties as they are there, and what answers there."""
        hosted = Hosted(self.tasks, parties, sides, self.cpus)
        return hosted, hosted.remote


class Hosted(Mapping[str, Any]):
    """Parties that answer on a cluster: name -> what is here of it, up to date.

    Args:
        tasks: reaches the cluster.
        here: name -> the party, as it is before its first message.
        answers: name -> what answers there: the party, or what keeps its limits.
        cpus: share of a core that each takes.

    Raises:
        ConfigError: the cluster has not so many cores.
    """

    def __init__(
        self,
        tasks: RayTasks,
        here: Mapping[str, Any],
        answers: Mapping[str, StatefulParty],
        cpus: float,
    ) -> None:
        if cpus * len(answers) > tasks.slots:
            raise ConfigError(
                f"{len(answers)} parties of engine.cpus = {cpus:g} each need "
                f"{cpus * len(answers):g} cores, and the Ray cluster has {tasks.slots}; set "
                f"engine.cpus to {tasks.slots / len(answers):.2g} or less, or add machines"
            )
        self._here = here
        self.remote = {name: Remote(tasks, name, each, cpus) for name, each in answers.items()}

    def __getitem__(self, name: str) -> Any:
        if name in self.remote:
            self.remote[name].catch_up()
        return self._here[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._here)

    def __len__(self) -> int:
        return len(self._here)

    def stop(self) -> None:
        """End their processes."""
        for each in self.remote.values():
            each.stop()
