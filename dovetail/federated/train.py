"""The one loop of rounds: begin or resume, play, save, finish."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Protocol, TypeVar

from dovetail.errors import TrainingError
from dovetail.federated.driver import Epoch, Played, Round
from dovetail.federated.federation import Federation, LeftOut, ending_announced, in_round
from dovetail.network import Checkpoint, Engine, State

P = TypeVar("P", bound="Played")
P_co = TypeVar("P_co", bound="Played", covariant=True)


class Plays(Protocol[P_co]):
    """A driver, and which kind of round it plays."""

    @property
    def tolerate_missing(self) -> bool: ...
    @property
    def num_rounds(self) -> int: ...
    def federation(self, engine: Engine) -> Federation: ...
    def begin(self, federation: Federation, /) -> None: ...
    def round(self, number: int, federation: Federation, /) -> P_co: ...
    def finish(self, federation: Federation, /) -> None: ...
    def begin_again(self, behind: Mapping[str, int], federation: Federation, /) -> None: ...
    def ended(self, number: int) -> bool: ...
    def state(self) -> State: ...
    def restore(self, state: State) -> None: ...


def train(driver: Plays[P], network: Engine, checkpoint: Checkpoint | None = None) -> Iterator[P]:
    """The loop of every method: resume or begin; play, give and save each round; finish.

    Args:
        driver: runs the algorithm.
        network: reaches the parties; the driver is given it as a ``Federation``.
        checkpoint: saves each round, and goes on from what it saved; None saves nothing.

    Raises:
        PartyError: a party cannot begin.
        TrainingError: a metric of a round is not finite.
    """
    saved = checkpoint or Checkpoint.none()
    left_out = LeftOut()
    federation = driver.federation(network)
    with ending_announced(network):
        done = saved.resume(driver, network, tolerate_missing=driver.tolerate_missing)
        if not done:
            driver.begin(federation)
            saved.save(0, driver, network)
        else:
            driver.begin_again(saved.behind, federation)
        for number in range(done + 1, driver.num_rounds + 1):
            if driver.ended(number):
                break
            started = time.perf_counter()
            played = play_round(driver, number, federation)
            if not isinstance(played, Epoch):  # a method of epochs tells each step as it is missed
                for party, why in played.left_out().get("reasons", {}).items():
                    left_out.notify(party, in_round(number, why), network)
            _check_finite(played, number)
            yield replace(played, number=number, seconds=time.perf_counter() - started)
            saved.save(number, driver, network)
        driver.finish(federation)


def play_round(driver: Plays[P], number: int, federation: Federation) -> P:
    """Play one round, and note which parties were missing in it."""
    federation.missing.clear()
    federation.number = number
    done = driver.round(number, federation)
    if isinstance(done, Round) and not done.missed:
        done = replace(done, missed=dict(federation.missing))
    return done


def _check_finite(played: Played, number: int) -> None:
    for name, value in played.metrics.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise TrainingError(f"its {name} is {value} in round {number}; lower its rate")
