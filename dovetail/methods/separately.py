"""Runs that have nothing to do with each other, driven as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from dovetail.federated import Driver, Federation
from dovetail.federated.driver import Played
from dovetail.network import State

D = TypeVar("D", bound=Driver)


class Separately(Driver, Generic[D]):
    """A round of each run after the other.

    Args:
        runs: name -> what drives it.
    """

    def __init__(self, runs: Mapping[str, D]) -> None:
        self.runs = dict(runs)
        self.num_rounds = 0

    def reach(self, name: str, network: Federation) -> Federation:
        """Federation that reaches the parties of a run."""
        return network

    def together(self, done: Mapping[str, Played], network: Federation) -> Played:
        """Result of a round of each run as one; name -> round."""
        raise NotImplementedError

    def _going_on(self, number: int) -> list[str]:
        return [
            name
            for name, run in self.runs.items()
            if number <= run.num_rounds and not run.ended(number)
        ]

    def ended(self, number: int) -> bool:
        return not self._going_on(number)

    def due(self, number: int, every: int) -> bool:
        return any(self.runs[name].due(number, every) for name in self._going_on(number))

    def begin(self, network: Federation) -> None:
        for name, run in self.runs.items():
            run.begin(self.reach(name, network))
        self._count()

    def begin_again(self, behind: Mapping[str, int], network: Federation) -> None:
        for name, run in self.runs.items():
            reached = self.reach(name, network)
            here = {party: step for party, step in behind.items() if party in reached.parties}
            run.begin_again(here, reached)

    def round(self, number: int, network: Federation) -> Played:
        going_on = self._going_on(number)
        done = {name: self.runs[name].round(number, self.reach(name, network)) for name in going_on}
        return self.together(done, network)

    def finish(self, network: Federation) -> None:
        for name, run in self.runs.items():
            run.finish(self.reach(name, network))

    def state(self) -> State:
        return {name: run.state() for name, run in self.runs.items()}

    def restore(self, state: State) -> None:
        for name, run in self.runs.items():
            run.restore(state[name])
        self._count()

    def _count(self) -> None:
        self.num_rounds = max(run.num_rounds for run in self.runs.values())
