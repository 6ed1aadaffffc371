"""An epoch of a driver that asks parties in every step: steps, mean loss, and who was missing."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

from dovetail.errors import PartyError, TrainingError
from dovetail.federated import Epoch, LeftOut
from dovetail.network import Engine

_log = logging.getLogger(__name__)


#: Makes one step over an engine: its loss, and why parties had no part in it.
Step = Callable[[Engine], tuple[float, Mapping[str, PartyError]]]


class Epochs:
    """Plays epochs of steps, and reports parties that are left out of them.

    Args:
        party: who drives.
        remedy: what to do about a loss that is not finite, after "lower".
        step: makes one step.
    """

    def __init__(self, party: str, remedy: str, step: Step) -> None:
        self._party, self._remedy, self._step = party, remedy, step
        self._left_out = LeftOut()

    def play(self, number: int, num_steps: int, network: Engine) -> Epoch:
        """So many steps.

        Raises:
            TrainingError: the loss is no longer finite.
        """
        total = 0.0
        missed: dict[str, int] = {}
        reasons: dict[str, str] = {}
        for index in range(1, num_steps + 1):
            loss, failures = self._step(network)
            if not math.isfinite(loss):
                raise TrainingError(
                    f"party {self._party!r}: its loss is {loss} in epoch {number}, step {index}; "
                    f"lower {self._remedy}"
                )
            total += loss
            for party, failure in failures.items():
                missed[party] = missed.get(party, 0) + 1
                reason = f"epoch {number}, step {index}: {failure.cause}"
                reasons.setdefault(party, reason)
                self._left_out.warn(party, reason, network)
        metrics = {"loss": total / num_steps}
        return Epoch(metrics=metrics, num_steps=num_steps, missed=missed, reasons=reasons)


def warn_of(failures: Mapping[str, PartyError]) -> None:
    """Say which parties lost their state and do not begin again."""
    for failure in failures.values():
        _log.warning("it does not begin anew: %s", failure)
