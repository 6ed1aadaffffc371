"""What each partner of a vertical run is worth: mutual information, leave-one-out, Shapley.

Mutual information is that of a partner's columns with the label owner's labels, by
``methods.fedoptimus.selection``; nothing is trained. The other two (``shapley.py``) are differences
of the test score v of the run trained with some partners only (a coalition), in the score's better
direction. A partner whose columns another has as well is worth nothing to the first, and half to
the second. Beyond ``EXACT_PARTNERS`` Shapley's values are sampled.

Partners of APFed are valued twice: by the solo model, which says what a partner is worth after it
has left, and by classic vertical learning, which says what it is worth while it is there.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from dovetail.data import (
    Classification,
    SharedRows,
    Task,
)
from dovetail.errors import ConfigError, DataError
from dovetail.methods.apfed.local_data import LabelOwnerData
from dovetail.methods.apfed.training_data import label_owner_data, partner_data_of
from dovetail.methods.fedoptimus import selection
from dovetail.methods.fedoptimus.variant_settings import columns_in, labels_in
from dovetail.methods.outcome import Scores, Setup, mean_over, numbers
from dovetail.methods.training import Training
from dovetail.models.losses import loss_of, targets_of
from dovetail.models.metrics import SCORES, all_scores, headline
from dovetail.network import InProcess, Party
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

#: Rows that mutual information is estimated on, drawn by the seed.
INFORMATION_ROWS = 1000

#: Scores of which less is better.
LOWER_IS_BETTER = {name for name, more_is_better in SCORES.items() if not more_is_better}

#: Before the name of a joint model's score.
_JOINT = "joint "

#: The joint model: it needs every partner at each prediction.
_CLASSIC = "tvfl"

#: Methods of an active party with partners.
_OF_APFED = ("apfed", "apfed-r", "apfed-c", "apfed-d", "apfed-s", "tvfl")


# --- Runs whose partners can be valued -----------------------------------------------------------


class Game(Protocol):
    """A run, seen as partners who may or may not take part."""

    @property
    def partners(self) -> tuple[str, ...]:
        """Who may."""

    @property
    def owners(self) -> tuple[str, ...]:
        """Who has labels, and is scored."""

    @property
    def metric(self) -> str:
        """The score that counts, unless another is asked for."""

    @property
    def leaves(self) -> bool:
        """Whether partners leave after training, so that a joint model is another one."""

    def train(self, coalition: Collection[str], seed: int, *, joint: bool = False) -> Scores:
        """Test scores of the run with these partners; their mean over several owners.

        With ``joint`` also those of the joint model, called "joint NAME".

        Raises:
            ConfigError: there is no test row.
        """

    def information(self, partners: Collection[str], seed: int) -> dict[str, float]:
        """Partner -> nats that its columns tell about the labels."""


def check_valued(method: str) -> None:
    """Refuse a method without partners.

    Raises:
        ConfigError: naming those that have some.
    """
    if method not in (*_OF_APFED, "fedoptimus"):
        raise ConfigError(
            f"the method {method!r} has no partners to value; those of "
            f"{', '.join(_OF_APFED)} and fedoptimus have"
        )


def with_joint(run: RunFile) -> RunFile:
    """The run, with classic vertical learning beside it, by which partners are worth what they are
    while they are there."""
    if run.method not in _OF_APFED:
        return run
    return run.model_copy(update={"baselines": tuple({*run.baselines, _CLASSIC})})


def game(setup: Setup) -> Game:
    """The game of a run.

    Raises:
        ConfigError: a method without partners, or partners that live elsewhere.
    """
    loaded = setup.loaded if isinstance(setup, Training) else setup
    if getattr(loaded, "connect", None) is not None:
        raise ConfigError(
            "partners are valued where all tables are in one place: name every party's file in "
            "parties, and leave [engine] out"
        )
    check_valued(setup.method)
    assert isinstance(setup, Training)
    game: Game = _ApfedGame(setup) if setup.method in _OF_APFED else _FedOptimusGame(setup)
    if not game.partners:
        raise ConfigError("the run has no partner to value, only the party with labels")
    return game


def _silent(variant: str, total: int, line: dict[str, Any]) -> None:
    pass


@dataclass(frozen=True, eq=False)
class _ApfedGame:
    """APFed or classic vertical learning: nobody left is the active party alone."""

    setup: Training

    @property
    def partners(self) -> tuple[str, ...]:
        return tuple(partner_data_of(self.setup))

    @property
    def owners(self) -> tuple[str, ...]:
        return (self._label_owner_data.name,)

    @property
    def metric(self) -> str:
        return headline(self._label_owner_data.task)

    @property
    def _label_owner_data(self) -> LabelOwnerData:
        return label_owner_data(self.setup)

    @property
    def leaves(self) -> bool:
        return self.setup.method != _CLASSIC

    def train(self, coalition: Collection[str], seed: int, *, joint: bool = False) -> Scores:
        setup = self._with(coalition)
        if self._label_owner_data.test is None:
            raise ConfigError(_NO_TEST)
        nobody = "best-alone" if setup.method in ("apfed-d", "apfed-s") else "alone"
        variant = setup.method if coalition else nobody
        alone_scores = dict(
            numbers(
                setup.train(variant, seed, _silent).scores[variant][self._label_owner_data.name]
            )
        )
        if not joint:
            return alone_scores
        together = alone_scores
        if coalition:
            scores = setup.train(_CLASSIC, seed, _silent).scores
            together = dict(numbers(scores[_CLASSIC][self._label_owner_data.name]))
        return alone_scores | {f"{_JOINT}{name}": value for name, value in together.items()}

    def _with(self, coalition: Collection[str]) -> Training:
        """The run with these partners only."""
        name = self._label_owner_data.name
        party_data = {
            each: local_data
            for each, local_data in self.setup.party_data.items()
            if each in coalition
        }
        party_data[name] = self._label_owner_data.among(coalition)
        return replace(self.setup, party_data=party_data, last_only=True)

    def information(self, partners: Collection[str], seed: int) -> dict[str, float]:
        """Each on the labelled rows that it shares with the active party."""
        local_data, party_data = self._label_owner_data, partner_data_of(self.setup)
        train, alignment = local_data.train, local_data.alignment
        assert train.labels is not None
        labelled = torch.zeros(train.num_rows, dtype=torch.bool)
        labelled[train.labelled_rows()] = True
        values: dict[str, float] = {}
        for name in partners:
            samples = alignment.shared(local_data.name, name)
            rows = alignment.rows[local_data.name][samples]
            samples, rows = samples[labelled[rows]], rows[labelled[rows]]
            # In the order of the active party's rows: samples are numbered at random.
            order = rows.argsort()
            samples, rows = samples[order], rows[order]
            shared = party_data[name].shared
            assert shared is not None
            labels = _classes(local_data.task, train.labels[rows])
            parties: dict[str, Party] = {
                name: selection.DataOwner(name, _columns({local_data.name: shared})),
                local_data.name: selection.LabelOwner(local_data.name, samples, labels),
            }
            values |= _alone(parties, [name], [local_data.name], seed)
        return values


@dataclass(frozen=True, eq=False)
class _FedOptimusGame:
    """FedOptimus: data owners are the partners; nobody left predicts the classes' shares."""

    setup: Training

    @property
    def partners(self) -> tuple[str, ...]:
        return tuple(columns_in(self.setup.party_data))

    @property
    def owners(self) -> tuple[str, ...]:
        return tuple(labels_in(self.setup.party_data))

    @property
    def metric(self) -> str:
        return headline(self._task)

    @property
    def _task(self) -> Task:
        return next(iter(labels_in(self.setup.party_data).values())).task

    @property
    def leaves(self) -> bool:
        return False

    def train(self, coalition: Collection[str], seed: int, *, joint: bool = False) -> Scores:
        setup, settings = self.setup, self.setup.settings
        if not coalition:
            return mean_over(self._blind())
        columns = columns_in(setup.party_data)
        party_data = {
            name: local_data
            for name, local_data in setup.party_data.items()
            if name in coalition or name not in columns
        }
        chosen = settings.selection  # of few there is no choice
        few = 2 if chosen is None or not chosen.secure else selection.MASKED_OWNERS
        if chosen is not None and len(party_data) - len(self.owners) < few:
            settings = settings.model_copy(update={"selection": None})
        setup = replace(setup, party_data=party_data, settings=settings, last_only=True)
        scores = setup.train(setup.method, seed, _silent).scores
        if setup.method not in scores:
            raise ConfigError(_NO_TEST)
        return mean_over(scores[setup.method])

    def _blind(self) -> dict[str, Scores]:
        """Label owner -> scores of predicting every row alike, from its training labels."""
        scores: dict[str, Scores] = {}
        for name, labels_data in labels_in(self.setup.party_data).items():
            if "test" not in labels_data.scored:
                raise ConfigError(_NO_TEST)
            labels, task = labels_data.labels_S[labels_data.trained], labels_data.task
            if isinstance(task, Classification):
                counts = torch.bincount(labels, minlength=task.num_outputs)
                output = ((counts + 1) / (counts + 1).sum()).log()  # no class is impossible
            else:
                output = loss_of(task).start(targets_of(task, labels).mean(dim=0))
            tested = labels_data.scored["test"]
            scores[name] = all_scores(task, output.float().expand(len(tested), -1), tested)
        return scores

    def information(self, partners: Collection[str], seed: int) -> dict[str, float]:
        """On the rows that each label owner trains on, weighted by their number."""
        parties: dict[str, Party] = {}
        columns = columns_in(self.setup.party_data)
        for name in partners:
            parties[name] = selection.DataOwner(name, _columns(columns[name].shared))
        for name, labels_data in labels_in(self.setup.party_data).items():
            labels = _classes(labels_data.task, labels_data.labels_S[labels_data.trained])
            parties[name] = selection.LabelOwner(name, labels_data.trained, labels)
        return _alone(parties, list(partners), list(self.owners), seed)


_NO_TEST = (
    "the run has no test rows, and a coalition is worth its test score: set data.test (or test, "
    "with parties), or rank by mutual information alone with --by mi"
)


def _columns(shared: Mapping[str, SharedRows]) -> selection.Features:
    """Raw columns by label owner and sample."""
    return lambda owner, samples_B: shared[owner][samples_B]


def _classes(task: Task, labels: torch.Tensor) -> torch.Tensor:
    """Labels that mutual information can be estimated with: numbers by tenths of the rows."""
    return labels if isinstance(task, Classification) else selection.binned(labels)


def _alone(
    parties: Mapping[str, Party], partners: Sequence[str], owners: Sequence[str], seed: int
) -> dict[str, float]:
    """Partner -> nats, each by itself."""
    config = selection.Config(groups=0, rows=INFORMATION_ROWS)
    network = InProcess(parties, driver="value")
    scores = selection.score(network, partners, owners, config, seed=seed)
    for name in partners:
        if name in scores.missed:
            raise DataError(f"party {name!r}: {scores.missed[name]}")
    return dict(scores.values)


# --- Coalitions that are kept --------------------------------------------------------------------


class Kept:
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
    make: Callable[[int], Setup],
    seeds: Sequence[int],
    kept: Kept,
    *,
    by: Measure = "shapley",
    metric: str | None = None,
    partners: Sequence[str] | None = None,
    permutations: int | None = None,
    joint: bool = True,
    progress: Callable[[int, int], None] | None = None,
    clock: Callable[[], float],
) -> dict[str, Any]:
    """What partners are worth, ready for JSON.

    Args:
        make: seed -> the run.
        seeds: each is valued; means and spreads are over them.
        kept: coalitions that are trained already, and where new ones go.
        by: the dearest measure: "mi" trains nothing, "loo" P + 2 coalitions, "shapley" 2^P.
        metric: a test score; None: auc, accuracy or rmse, by the label.
        partners: who is valued; the others take part in every coalition. None: all.
        permutations: so many random orders stand for all coalitions; None: none up to
            ``EXACT_PARTNERS`` partners, 20 beyond.
        joint: value partners while they are there, too, where they leave after training; of runs
            that ``with_joint`` gave.
        progress: told how many coalitions of how many are trained.
        clock: seconds.

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
        return scores is not None and (not joint or any(name.startswith(_JOINT) for name in scores))

    missing = [(seed, each) for seed, each in wanted if not is_kept(seed, each)]
    for done, (seed, coalition) in enumerate(missing):
        if progress is not None:
            progress(len(wanted) - len(missing) + done, len(wanted))
        started = clock()
        scores = games[seed].train(coalition, seed, joint=joint)
        kept.add(seed, coalition, scores, clock() - started)
        _check_metric(metric, scores)
    if progress is not None and wanted:
        progress(len(wanted), len(wanted))

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
            joint_worth = partial(worth, seed, prefix=_JOINT)
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
            result["all_joint"] = _spread([sign * worth(seed, every, _JOINT) for seed in seeds])
            result["ranked"] = {"solo": ranked, "joint": ranked_by(f"joint_{by}")}
        result["coalitions"] = len(wanted)
        result["seconds"] = kept.seconds
    if by == "shapley":
        result["shapley"] = "exact" if sampled is None else f"{sampled} random orders"
    if always:
        result["always"] = sorted(always)
    return result


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
        known = [name for name in scores if name != "rows" and not name.startswith(_JOINT)]
        raise ConfigError(f"the run has no score {metric!r}; it has {', '.join(known)}")


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, sample standard deviation over seeds, and standard error of the mean."""
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return {
        "mean": statistics.fmean(values),
        "std": std,
        "error": std / math.sqrt(len(values)),
    }
