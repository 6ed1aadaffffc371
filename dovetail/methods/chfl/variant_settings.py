"""CHFL as a run trains it, beside the baselines of the paper's Table II and section V-B5.

Hyper-parameters are chosen on validation rows, as section V-A3 does. [search] of a run file is
another search: it tunes the run's method alone, in runs of their own, on rows that it takes from
training. Here each variant is tuned, baselines too, within its own run, on the validation rows that
parties have, and each party may take what is best on its own.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dovetail.alignment.stored import trial_variant
from dovetail.data import PartyData, stacked
from dovetail.data.by_column import BLOCK
from dovetail.errors import ConfigError
from dovetail.federated import train
from dovetail.methods.chfl import layers as chfl
from dovetail.methods.chfl.layers import Coordinator, Round
from dovetail.methods.outcome import Observer, described
from dovetail.methods.settings.chfl import (
    LOCAL_IN_SECRET,
    LOCAL_SETTINGS,
    UNIQUE_WEIGHT_DECAY,
    SearchSection,
)
from dovetail.methods.settings.chfl import RunConfig as Config
from dovetail.methods.training import Training
from dovetail.models import Model
from dovetail.network import Checkpoint, Engine
from dovetail.network.checkpoint import load_state


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


_METHODS: Mapping[str, str] = {
    "chfl": "chfl",
    "chfl-mu0": "chfl",
    "chfl-gate": "chfl",
    "common": "common",
    "fedprox": "common",
    "local": "local",
    "simple": "simple",
    "pooled": "local",
}

#: The only party of the baseline "pooled".
POOLED = "pooled"


def variant_config(config: chfl.Config, variant: str, settings: Mapping[str, Any]) -> chfl.Config:
    """Settings that a variant is trained with: those of all without what it has none of, and its
    own.

    Raises:
        ValidationError: settings that cannot be.
    """
    values: dict[str, Any] = {**config.model_dump(), "method": _METHODS[variant]}
    if variant == "chfl-mu0":
        values["mu"] = 0.0
    if variant == "chfl-gate":
        values |= {"gate": True, "zero_start": True, "unique_weight_decay": UNIQUE_WEIGHT_DECAY}
    if variant != "fedprox":
        values["proximal"] = 0.0
    if variant == "pooled":  # it has none of the parties
        values["by_party"] = {}
    if values["method"] == "local":
        values |= {"secure": False, "participation": 1.0}
    return chfl.Config(**{**values, **settings})


def chosen(
    training: Training,
    search: SearchSection,
    plain: chfl.Config,
    variant: str,
    seed: int,
    observe: Observer,
    checkpoint: Checkpoint,
    fixed: Collection[str],
    best_by_variant: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """Settings that a search chose for a variant; each trial is printed before the first round.

    Args:
        training: the run.
        search: what to choose from.
        plain: the variant's settings otherwise.
        fixed: settings of its own, which are not searched.
        best_by_variant: variant -> what a search with a seed of its own chose, for the run's other
            seeds.
    """
    grid = {
        name: values
        for name, values in search.grid().items()
        if len(values) and _matters(name, variant) and name not in fixed
    }
    if not grid:
        return {}
    if checkpoint.done():  # a run that was stopped has chosen already
        kept = _stored(checkpoint)
        if kept is not None:
            return kept
    best: dict[str, Any] | None = best_by_variant.get(variant) if search.seed is not None else None
    if best is None:
        numbers = itertools.count(1)
        party_data = training.kind.variant(variant).variant_data(training, variant)

        def start(trial: chfl.Config) -> Engine:
            return training.engine(
                trial_variant(variant, next(numbers)), training.parties(party_data)
            )

        by_loss = plain.choose == "loss"

        def note(trial: Trial) -> None:
            observe(
                variant,
                plain.rounds,
                {
                    "trial": dict(trial.changed),
                    "validation": trial.accuracy,
                    **({"validation_loss": -trial.figure} if by_loss else {}),
                    "best": trial.round,
                    "rounds": trial.rounds,
                    "seconds": trial.seconds,
                },
            )

        tried = plain.model_copy(update={"rounds": search.rounds})
        search_seed = seed if search.seed is None else search.seed
        trials = search_grid(tried, grid, start, seed=search_seed, observe=note)
        apart = LOCAL_IN_SECRET if plain.secure else LOCAL_SETTINGS
        best = local_best(trials, apart) if search.each else dict(trials[0].changed)
        if search.seed is not None:
            best_by_variant[variant] = best
    observe(variant, plain.rounds, {"chosen": best, "seconds": 0.0})
    checkpoint.extra["chosen"] = best
    return best


def local_best(trials: Sequence[Trial], apart: Collection[str] = LOCAL_SETTINGS) -> dict[str, Any]:
    """Settings that each party would take by its own rows (V-A3); others by the mean."""
    first, *_ = trials
    shared = {name: v for name, v in first.changed.items() if name not in apart}
    alike = [trial for trial in trials if shared.items() <= trial.changed.items()]
    by_party = {}
    for member in first.accuracies:
        best = max(alike, key=lambda trial: trial.accuracies.get(member, -1.0))
        settings = {name: v for name, v in best.changed.items() if name in apart}
        if settings:
            by_party[member] = settings
    return {**shared, "by_party": by_party} if by_party else shared


def trained_model(member: chfl.Member, variant: str = "") -> Model:
    """A member's model, and how it came about."""
    config = member.config
    about = {"learning_rate": config.learning_rate}
    if config.method == "chfl":
        about["mu"] = config.mu
    method = variant or config.method
    return described(member.model(), method=method, label=member.data.label, **about)


def _stored(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Settings that an earlier process chose, from the file that the run goes on from."""
    if checkpoint.folder is None:
        return None
    state, _ = load_state(checkpoint.folder / "driver.safetensors")
    best: dict[str, Any] | None = state["extra"].get("chosen")
    return best


def _matters(name: str, variant: str) -> bool:
    """Whether a variant's result depends on this setting."""
    return {"mu": variant in ("chfl", "chfl-gate"), "proximal": variant == "fedprox"}.get(
        name, True
    )


def pool(party_data: Mapping[str, chfl.ChflData]) -> chfl.ChflData:
    """Everybody's rows in one place, with the columns that all have.

    Where all parties have the same test rows, as in the paper's setting, they count once.
    """
    first = next(iter(party_data.values()))

    def joined(parts: Sequence[PartyData]) -> PartyData:
        table = stacked(POOLED, [part.tables[BLOCK].only(first.common) for part in parts])
        return PartyData(
            POOLED,
            np.concatenate([part.ids for part in parts]),
            labels=torch.cat([part.labels for part in parts if part.labels is not None]),
            label=first.label,
            tables={BLOCK: table},
        )

    validation = [
        local_data.validation
        for local_data in party_data.values()
        if local_data.validation is not None
    ]
    tests: list[PartyData] = []
    for local_data in party_data.values():
        test = local_data.test
        if test is not None and not any(np.array_equal(test.ids, each.ids) for each in tests):
            tests.append(test)
    return replace(
        first,
        train=joined([local_data.train for local_data in party_data.values()]),
        validation=joined(validation) if validation else None,
        test=joined(tests) if tests else None,
    )
