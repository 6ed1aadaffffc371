"""Hyper-parameters chosen on validation rows, as section V-A3 does.

[search] of a run file is another search: it tunes the run's method alone, in runs of their own, on
rows that it takes from training. Here each variant is tuned, baselines too, within its own run, on
the validation rows that parties have, and each party may take what is best on its own.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.errors import ConfigError
from dovetail.federated import train
from dovetail.methods.chfl.layers import Coordinator, Round
from dovetail.methods.settings.chfl import RunConfig as Config
from dovetail.network import Engine


@dataclass(frozen=True)
class Trial:
    """Trial of a search: one setting.

    Attributes:
        config: the whole setting.
        changed: the fields that the search varied.
        figure: what trials are compared by, on validation rows: best mean accuracy over members,
            or less the least loss.
        accuracy: best mean accuracy over members; by loss, that of the round of the least.
        accuracies: member -> best accuracy on its validation rows.
        round: the round of the best figure.
        rounds: rounds that were trained.
        seconds: wall time.
    """

    config: Config
    changed: Mapping[str, Any]
    figure: float
    accuracy: float
    accuracies: Mapping[str, float]
    round: int
    rounds: int
    seconds: float


def search_grid(
    config: Config,
    grid: Mapping[str, Sequence[Any]],
    start: Callable[[Config], Engine],
    *,
    seed: int,
    observe: Callable[[Trial], None] | None = None,
) -> list[Trial]:
    """Trains once for each combination of the grid's values; the trials, best first.

    Args:
        config: what the grid does not vary.
        grid: field of ``Config`` -> values to try.
        start: reaches members for one trial; new ones in a simulation.
        seed: the same for every trial.
        observe: called after each trial, to log it.

    Raises:
        ConfigError: no validation rows.
    """
    trials = []
    for values in itertools.product(*grid.values()):
        changed = dict(zip(grid, values, strict=True))
        tried = Config(**{**config.model_dump(), **changed})
        network = start(tried)
        started = time.perf_counter()
        coordinator = Coordinator(tried, seed=seed)
        best: dict[str, float] = {}
        num_rounds = 0
        for done in train(coordinator, network):
            assert isinstance(done, Round)
            num_rounds = done.number
            for member, accuracy in done.accuracies.items():
                best[member] = max(best.get(member, 0.0), accuracy)
        if not best:
            raise ConfigError("a search needs validation rows; give at least one member some")
        kept = coordinator.best_round.accuracies.values()
        by_loss = tried.choose == "loss"
        accuracy = sum(kept) / len(kept) if by_loss else coordinator.best_round.figure
        trial = Trial(
            tried,
            changed,
            coordinator.best_round.figure,
            accuracy,
            best,
            coordinator.best_round.number,
            num_rounds,
            time.perf_counter() - started,
        )
        trials.append(trial)
        if observe is not None:
            observe(trial)
    # sorted is stable: of equally good ones, the one tried first.
    return sorted(trials, key=lambda trial: -_criterion(trial))


def _criterion(trial: Trial) -> float:
    if trial.config.choose == "each":
        return sum(trial.accuracies.values()) / len(trial.accuracies)
    return trial.figure
