"""Each label owner's run by itself: what drives the baseline "alone"."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.federated import Driver
from dovetail.methods.fedoptimus import Coordinator
from dovetail.methods.fedoptimus.requests import Round, num_bytes
from dovetail.network import Engine
from dovetail.network.checkpoint import State


class Separately(Driver):
    """Coordinators of runs that have nothing to do with each other, a round of each after the
    other.

    Args:
        runs: label owner -> the coordinator of its run.
    """

    def __init__(self, runs: Mapping[str, Coordinator]) -> None:
        self.runs = dict(runs)
        self.num_rounds = 0

    def _going_on(self, number: int) -> list[Coordinator]:
        return [
            run for run in self.runs.values() if number <= run.num_rounds and not run.ended(number)
        ]

    def ended(self, number: int) -> bool:
        return not self._going_on(number)

    def _count(self) -> None:
        self.num_rounds = max(run.num_rounds for run in self.runs.values())

    def begin(self, network: Engine) -> None:
        for run in self.runs.values():
            run.begin(network)
        self._count()

    def begin_again(self, behind: Mapping[str, int], network: Engine) -> None:
        for run in self.runs.values():
            run.begin_again(behind, network)

    def round(self, number: int, network: Engine) -> Round:
        done = [run.round(number, network) for run in self._going_on(number)]
        metrics = {
            "loss": sum(each.metrics["loss"] for each in done) / len(done),
            "steps": max(each.metrics["steps"] for each in done),
            "bytes": num_bytes(network),
        }
        missed = {name: num for each in done for name, num in each.missed.items()}
        reasons = {name: why for each in done for name, why in each.reasons.items()}
        return Round(metrics=metrics, missed=missed, reasons=reasons)

    def due(self, number: int, every: int) -> bool:
        return any(run.due(number, every) for run in self._going_on(number))

    def finish(self, network: Engine) -> None:
        for run in self.runs.values():
            run.finish(network)

    def participants_of(self, label_owner: str) -> tuple[str, ...]:
        """The data owners whose embeddings this label owner's top knows."""
        return self.runs[label_owner].participants

    def state(self) -> State:
        return {name: run.state() for name, run in self.runs.items()}

    def restore(self, state: State) -> None:
        for name, run in self.runs.items():
            run.restore(state[name])
        self._count()
