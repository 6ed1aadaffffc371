"""Times to an event: intervals agreed by all parties' events, a baseline of each party's own.

    server                                     party
    GiveEnds                       -------->   where would intervals end? (``alignment/times.py``)
                                   <--------   Ends
    Begin, with the agreed ends    -------->   fits its own baseline hazards in them

One output moves the log odds of all intervals alike, on top of a party's own baseline, as in a
survival model that is stratified by hospital; no count of an interval leaves a party.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from dovetail.alignment.columns import agreed_times
from dovetail.alignment.times import agree_times, rounded_up
from dovetail.data import Survival
from dovetail.data.survival import MOST_INTERVALS, survival_of
from dovetail.errors import ConfigError
from dovetail.federated import Federation, handles
from dovetail.methods.hyfem.agreement import Begin
from dovetail.methods.hyfem.calibration import CalibratedMember
from dovetail.methods.hyfem.hyfem import Coordinator
from dovetail.models.blocks import BlocksSpec
from dovetail.network import Doubles, Message, State


class GiveEnds(Message):
    """Server -> party: where would intervals of your times end?"""

    family: ClassVar[str] = "hyfem"


class Ends(Message):
    """Party -> server: these, rounded up to two digits; none where labels are no times."""

    family: ClassVar[str] = "hyfem"

    ends_Q: Doubles


class TimesMember(CalibratedMember):
    """A party that takes over the intervals that all agreed on."""

    @handles(before_begin=True)
    def give_ends(self, ask: GiveEnds) -> Ends:
        """Where intervals with as many of its own events each would end."""
        cuts = self.task.cuts if isinstance(self.task, Survival) else ()
        return Ends(torch.from_numpy(rounded_up(np.array(cuts, dtype=np.float64))))

    def agree(self, begin: Begin) -> BlocksSpec:
        if isinstance(self.task, Survival) and "times" in begin.task:
            labels = self.labels[self.labelled.to(self.device)].cpu()
            self.task = survival_of(agreed_times(begin.task), labels)
        return super().agree(begin)


class TimesCoordinator(Coordinator):
    """A server that has parties agree on intervals of their times."""

    saved: ClassVar[tuple[str, ...]] = (*Coordinator.saved, "times")
    times: tuple[float, ...] = ()

    def begin(self, federation: Federation) -> None:
        if isinstance(self.task, Survival):
            offered = federation.ask(GiveEnds(), Ends).or_raise()
            ends = {party: each.ends_Q.tolist() for party, each in offered.items()}
            self.times = agree_times(ends, MOST_INTERVALS)
            if not all(ends.values()):
                lacking = next(party for party, each in ends.items() if not each)
                raise ConfigError(
                    f"the run is of times to an event, and the label of {lacking!r} is none; give "
                    "label = { time = ..., event = ... } in its file"
                )
            self._take_times()
        super().begin(federation)

    def _take_times(self) -> None:
        self.task = self.agreed.task = Survival(self.times, (0.0,) * len(self.times))

    def restore(self, state: State) -> None:
        self.times = tuple(state.get("times", ()))
        if self.times:
            self._take_times()
        super().restore(state)
