"""Times to an event: label owners agree on intervals, and each keeps a baseline of its own.

    coordinator                                label owner
    BeginLabels                    -------->
                                   <--------   LabelsReady, with the ends that would suit its times
    TakeTimes, the agreed ends     -------->   fits its own baseline hazards in them
                                   <--------   TimesTaken

The ends of an owner's are rounded up to two digits (``alignment/times.py``). The top's one output
moves the log odds of all intervals alike, so that no count of an interval leaves an owner.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch

from dovetail.alignment.times import agree_times, rounded_up
from dovetail.data import Survival
from dovetail.data.survival import MOST_INTERVALS, survival_of
from dovetail.errors import MessageError
from dovetail.federated import handles
from dovetail.methods.fedoptimus.coordinator import RunDriver
from dovetail.methods.fedoptimus.label_owner import LabelParty
from dovetail.methods.fedoptimus.messages import LabelsReady
from dovetail.network import Doubles, Engine, Message, State


class TakeTimes(Message):
    """Coordinator -> label owner: the intervals that all agreed on end here."""

    family: ClassVar[str] = "fedoptimus"

    ends_Q: Doubles


class TimesTaken(Message):
    """Label owner -> coordinator: it learns in these intervals."""

    family: ClassVar[str] = "fedoptimus"


class TimesLabels(LabelParty):
    """A label owner that takes over the intervals that all agreed on.

    Attributes:
        times: where they end; none before, and of other labels.
    """

    times: tuple[float, ...] = ()

    def ready(self) -> LabelsReady:
        self.times = ()
        return super().ready()

    def described(self) -> str:
        if not isinstance(self.task, Survival):
            return super().described()
        return json.dumps(
            {"kind": "survival", "ends": rounded_up(np.array(self.task.cuts)).tolist()}
        )

    # Gradients, scores and refusals in other intervals would tell a row's time.
    @handles(most=3)  # once; a driver that falls before it has saved anything asks again
    def take_times(self, message: TakeTimes) -> TimesTaken:
        """Learn in these intervals, which stay.

        Raises:
            MessageError: its labels are no times, the ends do not rise from 0 on, or it has others.
        """
        ends = message.ends_Q.numpy()
        if self.number > 1 or self.times not in ((), tuple(ends.tolist())):
            raise MessageError(
                f"{message.wire_name()}: intervals are agreed once, before the first step"
            )
        rise = len(ends) > 0 and bool((np.diff(ends, prepend=0.0) > 0).all())
        if not isinstance(self.task, Survival) or not rise or len(ends) > MOST_INTERVALS:
            raise MessageError(
                f"{message.wire_name()}: up to {MOST_INTERVALS} intervals of times to an event "
                f"rise from 0 on; its labels are {self.task.kind}, and {len(ends)} ends came"
            )
        self._learn_in(ends.tolist())
        return TimesTaken()

    def _learn_in(self, times: Sequence[float]) -> None:
        self.times = tuple(map(float, times))
        self.task = survival_of(self.times, self.labels_S[self.samples])
        self.learns(self.task)

    def state(self) -> State:
        """What its next answer depends on."""
        return {**super().state(), **({"times": list(self.times)} if self.times else {})}

    def restore(self, state: State) -> None:
        """Go on from there."""
        super().restore(state)
        if state.get("times"):
            self._learn_in(state["times"])


class TimesDriver(RunDriver):
    """A coordinator that has label owners agree on intervals of their times."""

    def agree(self, ready: Mapping[str, LabelsReady], network: Engine) -> dict[str, LabelsReady]:
        offered = {owner: _ends(each.task) for owner, each in ready.items()}
        if not all(offered.values()):
            return super().agree(ready, network)
        times = agree_times(offered, MOST_INTERVALS)
        message = TakeTimes(torch.tensor(times, dtype=torch.float64))
        network.ask(dict.fromkeys(ready, message), TimesTaken).or_raise()
        task = json.dumps({"kind": "survival", "ends": times})
        return super().agree({o: each.of_task(task) for o, each in ready.items()}, network)

    def begin_again(self, behind: Mapping[str, int], network: Engine) -> None:
        """Owners that lost their disk take part again, from their beginning."""
        super().begin_again(behind, network)
        times = _ends(self.ready[self.label_owners[0]].task)
        lost = [name for name in self.label_owners if behind.get(name) == 0]
        if times and lost:
            message = TakeTimes(torch.tensor(times, dtype=torch.float64))
            network.ask(dict.fromkeys(lost, message), TimesTaken)


def _ends(task: str) -> list[float]:
    """Where intervals of times would end, of a label owner's task; none of other labels."""
    try:
        described = json.loads(task)
        ends = described["ends"] if described["kind"] == "survival" else []
        return [float(end) for end in ends]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []
