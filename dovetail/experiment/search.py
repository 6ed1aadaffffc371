"""Settings chosen before a run, by trials on validation rows: [search] of a run file.

A share of the rows that would train is kept back, and each trial is scored on it; test rows are
not read. The first trial is the run file as it is, so that what is chosen was no worse there; the
others are drawn at random (Bergstra and Bengio 2012) from the method's values, or the file's.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dovetail import data as dd
from dovetail import methods
from dovetail.errors import ConfigError, TrainingError
from dovetail.experiment.runfile import RunFile, SearchSection, check_run
from dovetail.experiment.setup import NOTHING, Given, load_data, pooled_parts, read_pooled
from dovetail.experiment.stages import run as run_stages
from dovetail.files import merge
from dovetail.methods.base import SILENT, Loaded, Talk
from dovetail.methods.outcome import mean_over
from dovetail.models import generator
from dovetail.models.devices import device
from dovetail.models.metrics import headline
from dovetail.network.patience import write_text

#: What a run's folder says of its trials.
FILE = "search.json"

#: Fewer rows than this choose by luck.
MIN_ROWS = 10


@dataclass(frozen=True)
class Trial:
    """One trial.

    Attributes:
        settings: key -> value; none for the run file as it is.
        score: on the rows that judge, by ``metric``; None where it came to no end.
        log_loss: breaks ties.
        seconds: it took.
        failed: why there is no score.
    """

    settings: Mapping[str, Any]
    score: float | None
    log_loss: float | None
    seconds: float
    failed: str = ""


@dataclass(frozen=True)
class Found:
    """What a search came to.

    Attributes:
        metric: name of the score; "rmse" is the better the less.
        trials: in their order.
        best: the place of the best.
        rows: party with labels -> ids of the rows that judged.
    """

    metric: str
    trials: Sequence[Trial]
    best: int
    rows: Mapping[str, Sequence[Any]]

    @property
    def settings(self) -> Mapping[str, Any]:
        """What was chosen; none for the run file as it is."""
        return self.trials[self.best].settings

    def save(self, folder: Path) -> None:
        """Write ``search.json``."""
        told = {
            "metric": self.metric,
            "best": self.best,
            "trials": [
                {key: value for key, value in vars(trial).items() if value not in (None, "")}
                for trial in self.trials
            ],
            "judged on": {party: list(ids) for party, ids in self.rows.items()},
        }
        write_text(folder / FILE, json.dumps(told, indent=1) + "\n")


def search(run: RunFile, *, seed: int, given: Given = NOTHING, talk: Talk = SILENT) -> Found:
    """Try settings until the budget of ``run.search`` is spent.

    Args:
        run: the run file.
        seed: of the run: which labels it keeps.
        given: data that need not be read.
        talk: told of each trial.

    Raises:
        ConfigError: a run that is not a simulation, no keys to search, or no trial that ends.
    """
    section = run.search or SearchSection()
    if run.data is None:
        raise ConfigError(
            "[search] tries settings in simulation, where one place has all rows ([data] with a "
            "partition); leave it out where parties have files of their own"
        )
    keys = section.keys or methods.method_of(run.method).searched(run)
    if not keys:
        raise ConfigError(
            f"nothing is known to search for {run.method!r}; name keys and values, for example "
            '[search] keys = { "apfed.learning_rate" = [1e-3, 1e-2] }'
        )
    loaded = _held_back(run, section, given, seed)
    metric = headline(loaded.data.task)
    begun = time.perf_counter()
    trials: list[Trial] = []
    for settings in itertools.islice(_settings(keys, section.seed), section.trials):
        if trials and time.perf_counter() - begun > 60 * section.minutes:
            break
        trial = _try(with_settings(run, settings), settings, loaded, metric, seed)
        trials.append(trial)
        said = trial.failed or f"{metric} {trial.score:.4f}"
        talk.say(f"trial {len(trials)}: {said}  {dict(settings) or 'as the run file says'}")

    def rank(place: int) -> tuple[float, float, int]:
        trial = trials[place]
        if trial.score is None:
            return float("inf"), 0.0, place
        return trial.score if metric == "rmse" else -trial.score, trial.log_loss or 0.0, place

    best = min(range(len(trials)), key=rank)
    if trials[best].score is None:
        raise ConfigError(f"no trial of the search came to an end; the first: {trials[0].failed}")
    assert loaded.data.test is not None
    parties = loaded.data.test.parties
    labelled = [name for name, part in parties.items() if part.labels is not None]
    rows = {name: sorted(parties[name].ids.tolist()) for name in labelled or list(parties)[:1]}
    return Found(metric, tuple(trials), best, rows)


def searched(
    run: RunFile,
    out: Path,
    *,
    seed: int,
    resume: bool,
    given: Given = NOTHING,
    talk: Talk = SILENT,
) -> RunFile:
    """The run with what its search chose, which ``out`` keeps; a run that goes on knows it."""
    if run.search is None:
        return run
    kept = out / FILE
    if resume and kept.exists():
        told = json.loads(kept.read_text(encoding="utf-8"))
        settings = told["trials"][told["best"]]["settings"]
    else:
        found = search(run, seed=seed, given=given, talk=talk)
        out.mkdir(parents=True, exist_ok=True)
        found.save(out)
        settings = found.settings
        talk.say(f"chosen of {len(found.trials)}: {dict(settings) or 'the run file as it is'}")
    return with_settings(run, settings)


def with_settings(run: RunFile, settings: Mapping[str, Any]) -> RunFile:
    """The run, without its search, with these keys replaced, such as "apfed.learning_rate"."""
    values = _values(run)
    for key, value in settings.items():
        nested: Any = list(value) if isinstance(value, tuple) else value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        values = merge(values, nested)
    return check_run(values, where="[search]")


def _values(run: RunFile) -> dict[str, Any]:
    values: dict[str, Any] = run.model_dump(mode="json", exclude_none=True, exclude={"search"})
    return values


def _settings(keys: Mapping[str, Sequence[Any]], seed: int) -> Iterator[dict[str, Any]]:
    """Nothing, and then every other setting once, in random order."""
    yield {}
    known = [list(values) for values in keys.values()]
    rng = random.Random(seed)
    total = int(np.prod([len(values) for values in known]))
    places = rng.sample(range(total), min(total, 100_000))
    for place in places:
        chosen = []
        for values in known:
            place, index = divmod(place, len(values))
            chosen.append(values[index])
        yield dict(zip(keys, chosen, strict=True))


def _try(
    run: RunFile, settings: Mapping[str, Any], loaded: Loaded, metric: str, seed: int
) -> Trial:
    begun = time.perf_counter()
    try:
        run = run.model_copy(update={"rulers": (), "evaluate_every": 0})
        task = methods.method_of(run.method).setup(run, loaded, device(run.device))
        ((_, outcome),) = run_stages(task, seed, lambda *_: None)
        scores = mean_over(outcome.scores[run.method])
        score: float | None = scores[metric] if metric in scores else scores["accuracy"]
        failed = ""
    except TrainingError as error:
        scores, score, failed = {}, None, str(error)
    seconds = round(time.perf_counter() - begun, 2)
    return Trial(settings, score, scores.get("log_loss"), seconds, failed)


def _held_back(run: RunFile, section: SearchSection, given: Given, seed: int) -> Loaded:
    """The data of a trial: some training rows take the test rows' place.

    Where a run keeps few labels, the rows that judge are of these, so that a search has no more
    labels than the run.
    """
    assert run.data is not None
    train, _ = pooled_parts(run.data, given.pooled or read_pooled(run.data))
    classify = run.data.task == "classification"
    known = ~train.labels.missing
    kept: dict[str, np.ndarray] = {}
    if run.data.labels is not None:
        whole = load_data(run, given=given)
        for name, party in whole.data.train.parties.items():
            if party.labels is not None:
                rng = generator(seed, name, "kept labels")
                one = dd.keep_labels(whole.data, name, run.data.labels, rng).train[name]
                kept[name] = one.ids[one.labelled_rows().numpy()]
        known &= np.isin(train.ids, np.concatenate([*kept.values()]))
    places = np.flatnonzero(known)
    order = np.random.default_rng([section.seed, 1]).permutation(len(places))
    if classify:  # an even share of each class
        order = order[np.argsort(train.labels.values[places[order]], kind="stable")]
        share = max(2, round(1 / section.validation))
        judged = places[order[::share]]
    else:
        judged = places[order[: round(section.validation * len(places))]]
    if len(judged) < MIN_ROWS:
        raise ConfigError(
            f"{len(judged)} of {len(places)} labelled rows would judge the trials of [search], and "
            f"{MIN_ROWS} are too few to tell; label more rows, or leave the search out"
        )
    rest = np.setdiff1d(np.arange(train.num_rows), judged)
    left_out = dict.fromkeys(("rows", "labels", "test", "split_column", "test_source"))
    plain = run.model_copy(update={"data": run.data.model_copy(update=left_out)})
    parts = (train.take(rest), train.take(np.sort(judged)))
    loaded = load_data(plain, given=Given(given.where, pooled=parts))
    data = loaded.data
    for name, ids in kept.items():
        own = data.train[name]
        rows = torch.from_numpy(np.flatnonzero(np.isin(own.ids, ids)))
        marked = own.with_labels_on(rows)
        everyone = data.train.parties.values()
        parties = dd.Federation(marked if each.name == name else each for each in everyone)
        data = replace(data, train=parties)
    return replace(loaded, data=data)
