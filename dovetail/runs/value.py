"""Values of each partner of a vertical run: mutual information, leave-one-out, Shapley.

Mutual information is that of a partner's columns with the label owner's labels, by
``methods.selection``; nothing is trained. The other two (``shapley.py``) are differences
of the test score v of the run trained with some partners only (a coalition), in the score's better
direction. A partner whose columns another has as well is worth nothing to the first, and half to
the second. Beyond ``EXACT_PARTNERS`` Shapley's values are sampled.

Partners of APFed are valued twice: by the solo model, which says what a partner is worth after it
has left, and by the run's joint model, which says what it is worth while it is there; the paper's
variants have none, and classic vertical learning in its place.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dovetail.cluster import LOCAL, Tasks
from dovetail.data.wording import name_list
from dovetail.errors import ConfigError
from dovetail.methods import every, method_of
from dovetail.methods.facets.valued import JOINT, Game, Valued
from dovetail.methods.outcome import Scores
from dovetail.methods.training import Training
from dovetail.models.metrics import SCORES
from dovetail.runs.runfile import RunFile
from dovetail.runs.shapley import (
    Coalition,
    Measure,
    coalitions,
    leave_one_out,
    orders,
    shapley,
    shapley_sampled,
)

#: Coalitions of so many partners are all trained: 2^8 of them.
EXACT_PARTNERS = 8

#: Scores of which less is better.
LOWER_IS_BETTER = {name for name, more_is_better in SCORES.items() if not more_is_better}

# --- Runs whose partners can be valued -----------------------------------------------------------


def valued_of(method: str) -> Valued:
    """Facet of a method for the value of partners.

    Raises:
        ConfigError: a method without partners, naming those that have some.
    """
    valued = method_of(method).valued
    if valued is None or method not in valued.variants:
        named = [name for each in every().values() if each.valued for name in each.valued.variants]
        raise ConfigError(
            f"the method {method!r} has no partners to value; those of "
            f"{name_list(named, at_most=20)} have"
        )
    return valued


def with_joint(run: RunFile) -> RunFile:
    """The run, and beside it what values partners while they are there, where its own joint model
    does not."""
    joint = valued_of(run.method).joint(run.method)
    if joint is None:
        return run
    return run.model_copy(update={"baselines": tuple({*run.baselines, joint})})


def game(setup: Training) -> Game:
    """The game of a run.

    Raises:
        ConfigError: a method without partners, or partners that live elsewhere.
    """
    if setup.loaded.connect is not None:
        raise ConfigError(
            "partners are valued where all tables are in one place: name every party's file in "
            "parties, and leave [engine] out"
        )
    game = valued_of(setup.method).game(setup)
    if not game.partners:
        raise ConfigError("the run has no partner to value, only the party with labels")
    return game


# --- Coalitions that are kept --------------------------------------------------------------------


class CoalitionScores:
    """Scores of coalitions, a line each in a file, so that none is trained twice.

    Args:
        path: the file; None keeps them in memory only.
        about: what the runs are; lines about other runs are passed over, and kept.
    """

    def __init__(self, path: Path | None, about: str) -> None:
        self._path = path
        self._about = about
        self._scores: dict[tuple[int, Coalition], Scores] = {}
        self.seconds = 0.0
        if path is not None and path.exists() and not path.read_bytes().endswith(b"\n"):
            with path.open("a", encoding="utf-8") as file:
                file.write("\n")  # the last line was cut off
        for line in self._lines():
            if line.get("run") == about:
                self._scores[line["seed"], frozenset(line["partners"])] = line["scores"]
                self.seconds += line["seconds"]

    def _lines(self) -> Iterator[dict[str, Any]]:
        if self._path is None or not self._path.exists():
            return
        for text in self._path.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(text)
            except ValueError:  # cut off in the middle, as the last one can be
                continue

    def get(self, seed: int, coalition: Coalition) -> Scores | None:
        return self._scores.get((seed, coalition))

    def add(self, seed: int, coalition: Coalition, scores: Scores, seconds: float) -> None:
        self._scores[seed, coalition] = scores
        self.seconds += seconds
        if self._path is None:
            return
        line = {
            "run": self._about,
            "seed": seed,
            "partners": sorted(coalition),
            "scores": dict(scores),
            "seconds": seconds,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


# --- All of it -----------------------------------------------------------------------------------


def value(
    make: Callable[[int], Training],
    seeds: Sequence[int],
    kept: CoalitionScores,
    *,
    by: Measure = "shapley",
    metric: str | None = None,
    partners: Sequence[str] | None = None,
    permutations: int | None = None,
    joint: bool = True,
    progress: Callable[[int, int], None] | None = None,
    tasks: Tasks = LOCAL,
) -> dict[str, Any]:
    """Values of partners, ready for JSON.

    Args:
        make: seed -> the run.
        seeds: each is valued; means and spreads are over them.
        kept: coalitions that are trained already, and where new ones go.
        by: the most expensive measure: "mi" trains nothing, "loo" P + 2 coalitions, "shapley" 2^P.
        metric: a test score; None: auc, accuracy or rmse, by the label.
        partners: who is valued; the others take part in every coalition. None: all.
        permutations: so many random orders stand for all coalitions; None: none up to
            ``EXACT_PARTNERS`` partners, 20 beyond.
        joint: value partners while they are there, too, where they leave after training; of runs
            that ``with_joint`` gave.
        progress: told how many coalitions of how many are trained.
        tasks: where coalitions are trained.

    Raises:
        ConfigError: no partner, an unknown one, or a score that the run does not have.
    """
    games = {seed: game(make(seed)) for seed in seeds}
    first = games[seeds[0]]
    players = tuple(first.partners if partners is None else dict.fromkeys(partners))
    for name in players:
        if name not in first.partners:
            raise ConfigError(
                f"{name!r} is no partner of this run; they are {', '.join(first.partners)}"
            )
    metric = metric or first.metric
    if permutations is None and len(players) > EXACT_PARTNERS:
        permutations = 20
    sampled = permutations if by == "shapley" else None
    always = frozenset(first.partners) - frozenset(players)
    joined = {
        seed: None if sampled is None else orders(players, sampled, seed=seed) for seed in seeds
    }
    wanted = [(s, each | always) for s in seeds for each in coalitions(players, by, joined[s])]
    joint = joint and first.leaves

    def is_kept(seed: int, coalition: Coalition) -> bool:
        scores = kept.get(seed, coalition)
        return scores is not None and (not joint or any(name.startswith(JOINT) for name in scores))

    missing = [(seed, each) for seed, each in wanted if not is_kept(seed, each)]
    before = len(wanted) - len(missing)
    if progress is not None and wanted:
        progress(before, len(wanted))
    trained = tasks.map(partial(_trained, games, joint), missing)
    for done, (seed, coalition, scores, seconds) in enumerate(trained, before + 1):
        kept.add(seed, coalition, scores, seconds)
        _check_metric(metric, scores)
        if progress is not None:
            progress(done, len(wanted))

    sign = -1.0 if metric in LOWER_IS_BETTER else 1.0

    def worth(seed: int, coalition: Coalition, prefix: str = "") -> float:
        scores = kept.get(seed, coalition | always)
        assert scores is not None
        _check_metric(metric, scores)
        return sign * float(scores[prefix + metric])

    spread = {
        seed: _measured(games[seed], seed, players, partial(worth, seed), by, joined[seed])
        for seed in seeds
    }
    if joint:
        for seed in seeds:
            joint_worth = partial(worth, seed, prefix=JOINT)
            measured = _of_scores(players, joint_worth, by, joined[seed])
            spread[seed] |= {f"joint_{measure}": each for measure, each in measured.items()}
    summary: dict[str, dict[str, dict[str, float]]] = {}
    for name in players:
        summary[name] = {
            measure: _spread([spread[seed][measure][name][0] for seed in seeds])
            for measure in spread[seeds[0]]
        }
        if len(seeds) == 1 and joined[seeds[0]] is not None:
            for measure in ("shapley", "joint_shapley"):
                if measure in summary[name]:
                    summary[name][measure]["error"] = spread[seeds[0]][measure][name][1]

    def ranked_by(measure: str) -> list[str]:
        return sorted(players, key=lambda name: (-summary[name][measure]["mean"], name))

    ranked = ranked_by(by)
    every = frozenset(first.partners)
    result: dict[str, Any] = {
        "by": by,
        "metric": metric,
        "lower_is_better": metric in LOWER_IS_BETTER,
        "owners": list(first.owners),
        "seeds": list(seeds),
        "partners": {name: summary[name] for name in ranked},
    }
    if by != "mi":
        for what, coalition in (("all", every), ("none", always)):
            scored = [kept.get(seed, coalition) for seed in seeds]
            result[what] = _spread([each[metric] for each in scored if each is not None])
        if joint:
            result["all_joint"] = _spread([sign * worth(seed, every, JOINT) for seed in seeds])
            result["ranked"] = {"solo": ranked, "joint": ranked_by(f"joint_{by}")}
        result["coalitions"] = len(wanted)
        result["seconds"] = kept.seconds
    if by == "shapley":
        result["shapley"] = "exact" if sampled is None else f"{sampled} random orders"
    if always:
        result["always"] = sorted(always)
    return result


def _trained(
    games: Mapping[int, Game], joint: bool, asked: tuple[int, Coalition]
) -> tuple[int, Coalition, Scores, float]:
    """Train a coalition of one seed; its scores, and the seconds that it took."""
    seed, coalition = asked
    started = time.perf_counter()
    scores = games[seed].train(coalition, seed, joint=joint)
    return seed, coalition, scores, time.perf_counter() - started


def _measured(
    game: Game,
    seed: int,
    players: Sequence[str],
    worth: Callable[[Coalition], float],
    by: Measure,
    joined: Sequence[Sequence[str]] | None,
) -> dict[str, dict[str, tuple[float, float]]]:
    """Measure -> player -> what it is worth, and the standard error of sampling (0 elsewhere)."""
    information = game.information(players, seed)
    return {
        "mi": {name: (each, 0.0) for name, each in information.items()},
        **_of_scores(players, worth, by, joined),
    }


def _of_scores(
    players: Sequence[str],
    worth: Callable[[Coalition], float],
    by: Measure,
    joined: Sequence[Sequence[str]] | None,
) -> dict[str, dict[str, tuple[float, float]]]:
    """The measures that need trained coalitions."""
    measured = {}
    if by != "mi":
        measured["loo"] = leave_one_out(players, worth)
    if by == "shapley" and joined is None:
        measured["shapley"] = shapley(players, worth)
    values = {
        measure: {name: (each, 0.0) for name, each in values.items()}
        for measure, values in measured.items()
    }
    if joined is not None:
        values["shapley"] = shapley_sampled(joined, worth)
    return values


def _check_metric(metric: str, scores: Scores) -> None:
    if metric not in scores:
        known = [name for name in scores if name != "rows" and not name.startswith(JOINT)]
        raise ConfigError(f"the run has no score {metric!r}; it has {', '.join(known)}")


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, sample standard deviation over seeds, and standard error of the mean."""
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return {
        "mean": statistics.fmean(values),
        "std": std,
        "error": std / math.sqrt(len(values)),
    }
