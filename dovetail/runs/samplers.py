"""Samplers of a search: settings at random, or by Optuna, which learns from those tried."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Literal, Protocol

from dovetail.lazy import needed

if TYPE_CHECKING:
    import optuna

#: How settings are drawn.
Kind = Literal["random", "optuna"]

#: More settings than so many are not all numbered.
_MOST = 100_000

#: Optuna may name settings again that were tried; so often in a row, and the rest come in order.
_PATIENCE = 50

#: Key -> values to try, and key -> value.
Keys = Mapping[str, Sequence[Any]]
Settings = Mapping[str, Any]


class Sampler(Protocol):
    """Draws settings, each once."""

    def tried(self, settings: Settings, goodness: float | None) -> None:
        """Note the result of one, the more the better; None if it came to no end."""

    def draw(self) -> Iterator[dict[str, Any]]:
        """Settings that were not tried, until there are none; asked again after each ``tried``."""


def sampler(kind: Kind, keys: Keys, seed: int) -> Sampler:
    """Sampler that draws settings of these keys.

    Raises:
        ConfigError: Optuna is not installed.
    """
    return OptunaSampler(keys, seed) if kind == "optuna" else RandomSampler(keys, seed)


class RandomSampler:
    """Every setting once, in random order (Bergstra and Bengio 2012).

    Args:
        keys: key -> values.
        seed: of the order.
    """

    def __init__(self, keys: Keys, seed: int) -> None:
        self._keys = {key: list(values) for key, values in keys.items()}
        total = prod(map(len, self._keys.values()))
        self._drawn = random.Random(seed).sample(range(total), min(total, _MOST))
        self._known: list[dict[str, Any]] = []

    def tried(self, settings: Settings, goodness: float | None) -> None:
        self._known.append(dict(settings))

    def draw(self) -> Iterator[dict[str, Any]]:
        for number in self._drawn:
            chosen = {}
            for key, values in self._keys.items():
                number, index = divmod(number, len(values))
                chosen[key] = values[index]
            if chosen not in self._known:
                yield chosen


class OptunaSampler:
    """Optuna's tree-structured Parzen estimator (Bergstra et al. 2011).

    Args:
        keys: key -> values; Optuna sees their places, as a value may be a list.
        seed: of the estimator.

    Raises:
        ConfigError: Optuna is not installed.
    """

    def __init__(self, keys: Keys, seed: int) -> None:
        with needed('search.sampler = "optuna"', "'dovetail-fl[optuna]'; or leave sampler out"):
            import optuna
        self._optuna = optuna
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._keys = {key: list(values) for key, values in keys.items()}
        self._spaces: dict[str, optuna.distributions.BaseDistribution] = {
            key: optuna.distributions.CategoricalDistribution(range(len(values)))
            for key, values in self._keys.items()
        }
        self._study = optuna.create_study(
            direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed)
        )
        self._rest = RandomSampler(keys, seed)
        self._known: list[dict[str, Any]] = []

    def tried(self, settings: Settings, goodness: float | None) -> None:
        self._rest.tried(settings, goodness)
        self._known.append(dict(settings))
        if settings.keys() != self._keys.keys():
            return  # the run file as it is has no place among the values
        trials = self._optuna.trial
        done = trials.TrialState.FAIL if goodness is None else trials.TrialState.COMPLETE
        params = {key: values.index(settings[key]) for key, values in self._keys.items()}
        trial = trials.create_trial(
            state=done, value=goodness, params=params, distributions=self._spaces
        )
        self._study.add_trial(trial)

    def draw(self) -> Iterator[dict[str, Any]]:
        again = 0
        while again < _PATIENCE:
            asked: optuna.Trial = self._study.ask(self._spaces)
            chosen = {key: self._keys[key][choice] for key, choice in asked.params.items()}
            self._study.tell(asked, state=self._optuna.trial.TrialState.FAIL)  # told by ``tried``
            if chosen in self._known:
                again += 1
                continue
            again = 0
            yield chosen
        yield from self._rest.draw()
