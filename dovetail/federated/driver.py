"""The driver's side of a run, and the one loop of rounds: begin or resume, play, save, finish."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeVar

from dovetail.errors import TrainingError
from dovetail.federated.best import BestRound
from dovetail.federated.federation import Federation, LeftOut, ending_announced, in_round
from dovetail.federated.party import restore_into, state_of
from dovetail.network import Checkpoint, Engine, Message, State

M = TypeVar("M", bound=Message)


def is_due(number: int, total: int, every: int) -> bool:
    """Whether to score after this epoch or round: each so many, and the last; 0: only the last."""
    return number == total or (every > 0 and number % every == 0)


@dataclass(frozen=True, kw_only=True)
class Played:
    """Result of one round, whatever a method calls a round.

    Attributes:
        number: 1, 2, ...; ``train`` fills it.
        metrics: losses and the like, for its line of ``metrics.jsonl``; numbers must be finite.
        seconds: wall time of the round; ``train`` fills it.
    """

    number: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def line(self) -> dict[str, Any]:
        """Line for ``metrics.jsonl``, without scores and missing parties."""
        raise NotImplementedError

    def left_out(self) -> dict[str, Any]:
        """Missing parties, for the line; nothing if there are none."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Round(Played):
    """A round of which each party is asked once.

    Attributes:
        missed: party -> why it had no part in the round.
    """

    missed: Mapping[str, str] = field(default_factory=dict)

    def line(self) -> dict[str, Any]:
        return {"round": self.number, **self.metrics, "seconds": self.seconds}

    def left_out(self) -> dict[str, Any]:
        if not self.missed:
            return {}
        return {"missed": dict.fromkeys(self.missed, 1), "reasons": dict(self.missed)}


@dataclass(frozen=True, kw_only=True)
class Epoch(Played):
    """A round of many steps, each of which asks parties.

    Attributes:
        num_steps: how many.
        missed: party -> steps it was left out of.
        reasons: party -> why, the first time in this epoch.
        cut: party -> what it sent that was cut off.
    """

    num_steps: int
    missed: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    cut: Mapping[str, int] = field(default_factory=dict)

    @property
    def loss(self) -> Any:
        """Mean training loss over its steps; None where it gives none."""
        return self.metrics.get("loss")

    def line(self) -> dict[str, Any]:
        return {
            "epoch": self.number,
            **self.metrics,
            "seconds": self.seconds,
            "steps": self.num_steps,
        }

    def left_out(self) -> dict[str, Any]:
        reported = (
            {"missed": dict(self.missed), "reasons": dict(self.reasons)} if self.missed else {}
        )
        return reported | ({"cut": dict(self.cut)} if self.cut else {})


class Driver:
    """Runs a method's algorithm over the parties of a run.

    Attributes:
        saved: names of attributes that its next round depends on, as of ``Party``.
        num_rounds: how many there are; known when training has started.
        tolerate_missing: it goes on without a party that does not save or restore.
        rounds_per_save: a checkpoint that is saved so often is saved once in so many rounds.
        timeout_s: how long a question waits for answers; None: as long as it takes.
        best_round: which round was the best, and when to stop; None: the last, after all of them.
    """

    saved: ClassVar[tuple[str, ...]] = ()
    num_rounds: int
    tolerate_missing: ClassVar[bool] = True
    rounds_per_save: int = 1
    timeout_s: float | None = None
    best_round: BestRound | None = None

    def federation(self, engine: Engine) -> Federation:
        """Federation that reaches the parties of its runs."""
        return Federation(engine, timeout_s=self.timeout_s)

    def ask(self, network: Engine, message: Message, reply: type[M]) -> Mapping[str, M]:
        """Every party's answer to one message.

        Raises:
            PartyError: one did not answer, or not as the reply declares.
        """
        return network.ask(dict.fromkeys(network.parties, message), reply).fitting().or_raise()

    def begin(self, federation: Federation, /) -> None:
        """Open the run with every party."""

    def round(self, number: int, federation: Federation, /) -> Played:
        """Ask, combine, step."""
        raise NotImplementedError(f"{type(self).__name__} has no round")

    def finish(self, federation: Federation, /) -> None:
        """Let the parties know that training is over."""

    def begin_again(self, behind: Mapping[str, int], federation: Federation, /) -> None:
        """The run goes on: party -> the older step that it goes on from; 0: it starts again.

        Left out, such parties go on as they are.
        """

    def takes_part(self, number: int, federation: Federation) -> Sequence[str]:
        """Parties that take part in a round."""
        return federation.parties

    @property
    def shares(self) -> Mapping[str, float] | None:
        """Party -> its weight in a mean, in any unit; None: all alike."""
        return None

    def ended(self, number: int) -> bool:
        """Whether to stop before this round."""
        return self.best_round is not None and self.best_round.ended(number)

    def due(self, number: int, every: int) -> bool:
        """Whether to score after this round, where each so many epochs or rounds are scored."""
        return is_due(number, self.num_rounds, every)

    def scores(self) -> Mapping[str, Mapping[str, float]]:
        """Party -> scores that it has reported of itself."""
        if self.best_round is None:
            return {}
        return {
            name: {"validation": accuracy} for name, accuracy in self.best_round.accuracies.items()
        }

    def judged(self, network: Engine) -> Mapping[str, float]:
        """Party -> how good its model is on rows that it keeps out of training, 0 to 1; asked when
        training is over, where settings are tried (``runs/trials.py``)."""
        return {} if self.best_round is None else dict(self.best_round.accuracies)

    def spent(self) -> Sequence[Mapping[str, Any]]:
        """As of ``Party``."""
        return ()

    def state(self) -> State:
        return state_of(self, self._saved())

    def restore(self, state: State) -> None:
        restore_into(self, self._saved(), state)

    def _saved(self) -> tuple[str, ...]:
        return self.saved if self.best_round is None else (*self.saved, "best_round")


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
