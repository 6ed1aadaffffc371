"""The one loop of rounds: begin or resume, play, save, finish."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol, TypeVar

from dovetail.errors import TrainingError
from dovetail.federated.driver import Epoch, Played, Round
from dovetail.federated.federation import Federation
from dovetail.federated.missing_parties import LeftOut, ending_announced, in_round
from dovetail.network import Checkpoint, Engine, State
from dovetail.network.checkpoint import Stateful

R = TypeVar("R")
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
    """Trains round by round.

    Args:
        driver: runs the algorithm.
        network: reaches the parties; the driver is given it as a ``Federation``.
        checkpoint: saves each round, and goes on from what it saved; None saves nothing.

    Raises:
        PartyError: a party cannot begin.
        TrainingError: what a round tells is not finite.
    """

    left_out = LeftOut()
    federation = driver.federation(network)

    def play(number: int) -> P:
        started = time.perf_counter()
        done = play_round(driver, number, federation)
        if not isinstance(done, Epoch):  # a method of epochs tells each step as it is missed
            for party, why in done.left_out().get("reasons", {}).items():
                left_out.notify(party, in_round(number, why), network)
        for name, value in done.metrics.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise TrainingError(f"its {name} is {value} in round {number}; lower its rate")
        return replace(done, number=number, seconds=time.perf_counter() - started)

    return rounds(
        driver,
        network,
        checkpoint or Checkpoint.none(),
        total=lambda: driver.num_rounds,
        begin=lambda: driver.begin(federation),
        again=lambda saved: driver.begin_again(saved.behind, federation),
        play=play,
        ended=driver.ended,
        finish=lambda: driver.finish(federation),
        tolerate_missing=driver.tolerate_missing,
    )


def play_round(driver: Plays[P], number: int, federation: Federation) -> P:
    """One round, with who was missing in it."""
    federation.missing.clear()
    federation.number = number
    done = driver.round(number, federation)
    if isinstance(done, Round) and not done.missed:
        done = replace(done, missed=dict(federation.missing))
    return done


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
    tolerate_missing: bool = True,
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
        tolerate_missing: the method goes on without a party that does not save or restore.
    """
    with ending_announced(network):
        done = checkpoint.resume(driver, network, tolerate_missing=tolerate_missing)
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
