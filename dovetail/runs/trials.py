"""How a setting is tried: trained on most rows, judged on the others; test rows are not read.

In simulation one place has all rows, and deals the rows that judge instead of test rows. Where
parties have files of their own, a label owner that drives judges on its labelled rows, and
where a coordinator drives every party judges on rows that it keeps out of training, at its site.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dovetail import data as dd
from dovetail import methods
from dovetail.alignment.stored import trial_variant
from dovetail.errors import ConfigError, ParticipationError, TrainingError
from dovetail.methods.base import Loaded
from dovetail.methods.outcome import Outcome, mean_over, missed_share, missed_text
from dovetail.models import generator
from dovetail.models.computing import device
from dovetail.models.metrics import SCORES, headline
from dovetail.node.driver import Coordinator, Driver
from dovetail.runs.one_seed import run as run_variants
from dovetail.runs.runfile import RunFile, SearchSection
from dovetail.runs.setup import Given, load_data, pooled_parts, read_pooled

#: Fewer rows than this choose by luck.
MIN_ROWS = 10


@dataclass(frozen=True)
class Trial:
    """Trial of a search.

    Attributes:
        settings: key -> value; none for the run file as it is.
        score: on the rows that judge, by ``Judging.metric``; None where it came to no end.
        log_loss: breaks ties.
        seconds: it took.
        bytes: that left parties and driver for it.
        failed: why there is no score.
    """

    settings: Mapping[str, Any]
    score: float | None = None
    log_loss: float | None = None
    seconds: float = 0.0
    bytes: int = 0
    failed: str = ""

    def goodness(self, metric: str) -> float | None:
        """The more the better; None where it came to no end."""
        if self.score is None:
            return None
        return self.score if SCORES.get(metric, True) else -self.score


@dataclass(frozen=True, eq=False)
class Judging:
    """Data that trials train and judge on.

    Attributes:
        loaded: the rows that train, and those that judge instead of test rows.
        metric: name of the score; "rmse" is the better the less.
        rows: party with labels -> ids of the rows that judge; none of those that stay at sites.
        elsewhere: every party judges at its site.
        driver: reaches parties that are elsewhere.
    """

    loaded: Loaded
    metric: str
    rows: Mapping[str, Sequence[Any]]
    elsewhere: bool = False
    driver: Driver | Coordinator | None = None

    def try_(self, run: RunFile, settings: Mapping[str, Any], number: int, seed: int) -> Trial:
        """Train with these settings, and judge.

        Raises:
            PartyError: a party that refuses, or that is lost.
            ParticipationError: a party that had too small a part in it.
        """
        begun = time.perf_counter()
        run = run.model_copy(update={"baselines": (), "evaluate_every": 0})
        try:
            outcome = self._train(run, number, seed)
            scores = mean_over(outcome.scores.get(run.method, {}))
        except ParticipationError:
            raise
        except TrainingError as error:
            seconds = round(time.perf_counter() - begun, 2)
            return Trial(settings, seconds=seconds, failed=str(error))
        score = scores.get(self.metric, scores.get("accuracy", scores.get("validation")))
        if score is None:
            raise ConfigError(
                "no party has rows to judge the trials of [search] on; give at least one some "
                "(of chfl: validation_share in its party file), or leave the search out"
            )
        sent = sum(each["sent"] for each in outcome.ledger.bytes_by_party().values())
        seconds = round(time.perf_counter() - begun, 2)
        return Trial(settings, score, scores.get("log_loss"), seconds, sent)

    def _train(self, run: RunFile, number: int, seed: int) -> Outcome:
        loaded = self.loaded
        if self.driver is not None:
            # A run of its own: each begins once, and counts at each party as a run of the day.
            self.driver.begin(seed, secrets.token_hex(8))
            connect = self.driver.connect
            loaded = replace(
                loaded, connect=lambda variant: connect(trial_variant(variant, number))
            )
        task = methods.method_of(run.method).setup(run, loaded, device(run.device))
        if self.elsewhere:
            task = replace(task, trying=True)
        ((_, outcome),) = run_variants(
            task, seed, lambda *_: None, compute=run.compute, device=device(run.device)
        )
        for party, why in outcome.about.get("distilled", {}).get("lost", {}).items():
            raise ParticipationError(
                f"party {party!r} was lost in a trial ({why}), which says nothing of its settings"
            )
        for party, missed in outcome.missed.items():
            if missed_share(missed) > 1 - run.min_participation:
                raise ParticipationError(
                    f"{missed_text(party, missed)} of a trial (first: {missed['first']}), which "
                    "says nothing of its settings"
                )
        return outcome


def judging(
    run: RunFile,
    section: SearchSection,
    given: Given,
    seed: int,
    loaded: Loaded | None,
    driver: Driver | Coordinator | None,
) -> Judging:
    """Data that the trials of a run train and judge on.

    Args:
        run: the run file.
        section: its search.
        given: data that need not be read.
        seed: of the run: which labels it keeps.
        loaded: what parties with files of their own have; None in simulation.
        driver: reaches parties that are elsewhere.

    Raises:
        ConfigError: too few rows to judge on.
    """
    if loaded is None:
        loaded = _held_back(run, section, given, seed)
    elif methods.coordinated(run.method):
        return Judging(loaded, "validation", {}, True, driver)
    else:
        loaded = _held_back_at_sites(loaded, section)
    assert loaded.data.test is not None
    parties = loaded.data.test.parties
    labelled = [name for name, part in parties.items() if part.labels is not None]
    rows = {name: sorted(parties[name].ids.tolist()) for name in labelled or list(parties)[:1]}
    return Judging(loaded, headline(loaded.data.task), rows, driver=driver)


def _held_back_at_sites(loaded: Loaded, section: SearchSection) -> Loaded:
    """The label owner's data of a trial: some labelled rows take the test rows' place."""
    data, alignment, active = loaded.data, loaded.alignment, loaded.active
    assert active is not None
    assert alignment is not None
    party_data = data.train[active]
    assert party_data.labels is not None
    labelled = party_data.labelled_rows()
    judged = _drawn(
        party_data.labels[labelled].numpy(), section, isinstance(data.task, dd.Classification)
    )
    judges = np.sort(labelled.numpy()[judged])
    rest = np.setdiff1d(np.arange(party_data.num_rows), judges)
    others = [each for name, each in data.train.parties.items() if name != active]

    def part(rows: np.ndarray) -> tuple[dd.Federation, dd.Alignment]:
        taken = party_data.take(torch.from_numpy(rows))
        return dd.Federation([taken, *others]), alignment.restricted(
            active, rows, party_data.num_rows
        )

    train, train_alignment = part(rest)
    test, test_alignment = part(judges)
    data = replace(data, train=train, test=test)
    return replace(loaded, data=data, alignment=train_alignment, test_alignment=test_alignment)


def _drawn(labels: np.ndarray, section: SearchSection, classify: bool) -> np.ndarray:
    """Places of the labelled rows that judge, of classes an even share each.

    Raises:
        ConfigError: too few.
    """
    order = np.random.default_rng([section.seed, 1]).permutation(len(labels))
    if classify:
        order = order[np.argsort(labels[order], kind="stable")]
        judged = order[:: max(2, round(1 / section.validation))]
    else:
        judged = order[: round(section.validation * len(labels))]
    if len(judged) < MIN_ROWS:
        raise ConfigError(
            f"{len(judged)} of {len(labels)} labelled rows would judge the trials of [search], and "
            f"{MIN_ROWS} are too few to tell; label more rows, or leave the search out"
        )
    return judged


def _held_back(run: RunFile, section: SearchSection, given: Given, seed: int) -> Loaded:
    """The data of a trial in simulation: some training rows take the test rows' place.

    Where a run keeps few labels, the rows that judge are of these, so that a search has no more
    labels than the run.
    """
    assert run.data is not None
    train, _ = pooled_parts(run.data, given.pooled or read_pooled(run.data))
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
    indices = np.flatnonzero(known)
    classify = run.data.task == "classification"
    judged = indices[_drawn(train.labels.values[indices], section, classify)]
    rest = np.setdiff1d(np.arange(train.num_rows), judged)
    left_out = dict.fromkeys(("rows", "labels", "test", "split_column", "test_source"))
    plain = run.model_copy(update={"data": run.data.model_copy(update=left_out)})
    parts = (train.take(rest), train.take(np.sort(judged)))
    loaded = load_data(plain, given=Given(given.where, pooled=parts))
    data = loaded.data
    for name, ids in kept.items():
        party_data = data.train[name]
        rows = torch.from_numpy(np.flatnonzero(np.isin(party_data.ids, ids)))
        marked = party_data.with_labels_on(rows)
        everyone = data.train.parties.values()
        parties = dd.Federation(marked if each.name == name else each for each in everyone)
        data = replace(data, train=parties)
    return replace(loaded, data=data)
