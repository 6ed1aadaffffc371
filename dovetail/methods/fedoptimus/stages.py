"""FedOptimus as a run trains it, beside its rulers: classic vertical, each alone, and pooled."""

from __future__ import annotations

import copy
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dovetail.data import Input, Owners, PartyData, SharedRows, Task
from dovetail.errors import ConfigError
from dovetail.methods import fedoptimus
from dovetail.methods.fedoptimus import choosing, predicting, selection
from dovetail.methods.outcome import (
    Deciding,
    Observer,
    Outcome,
    Scores,
    about_decision,
    is_due,
    score_party,
    told,
)
from dovetail.methods.rulers import TITLES as RULERS
from dovetail.methods.rulers import OwnRows, train_rulers
from dovetail.models import Model, Secret
from dovetail.models.decisions import Decided
from dovetail.models.owners import Bottom, BottomSpec
from dovetail.network import Checkpoint, Composite, Engine, InProcess, Precision
from dovetail.network.checkpoint import StatefulParty

#: What can be trained. "classic" is one label owner with everybody's labels, which is classic
#: vertical learning with a mean of embeddings; "alone" is each label owner alone with all data
#: owners; "pooled" has all columns and all labels in one place.
Stage = Literal["fedoptimus", "classic", "alone", "pooled"]

#: Who drives, in ledgers.
DRIVER = "coordinator"

#: The only label owner of "classic" and "pooled", and the only data owner of "pooled".
EVERYBODY = "everybody"
POOLED = "pooled"

#: Which of a label owner's rows are scored.
Part = Literal["test", "validation"]


@dataclass(frozen=True, eq=False)
class Columns:
    """What a data owner has.

    Attributes:
        shared: label owner -> the rows of its samples, in the order shared with it.
        bottom: its network.
        scored: part -> label owner -> rows that are scored, in an order shared with it.
        input: how raw data becomes a row; what ``predict`` needs.
    """

    shared: Mapping[str, SharedRows]
    bottom: BottomSpec
    scored: Mapping[Part, Mapping[str, SharedRows]] = field(default_factory=dict)
    input: Input | None = None

    def only(self, *label_owners: str) -> Columns:
        """The same, for these label owners."""
        return replace(
            self,
            shared={name: self.shared[name] for name in label_owners},
            scored={
                part: {name: rows[name] for name in label_owners}
                for part, rows in self.scored.items()
            },
        )


@dataclass(frozen=True, eq=False)
class Labels:
    """What a label owner has.

    Attributes:
        labels_S: of all samples of its shared order.
        samples: the places that it trains on; None: those that have a label.
        scored: part -> labels of the rows that are scored.
        alone: columns of its own table, which only its models alone learn from.
    """

    labels_S: Tensor
    samples: Tensor | None = None
    scored: Mapping[Part, Tensor] = field(default_factory=dict)
    alone: OwnRows | None = None


def holdings(
    data: Owners, bottoms: Mapping[str, BottomSpec]
) -> tuple[dict[str, Columns], dict[str, Labels]]:
    """What data owners and label owners have, of a partition for simulation."""
    pool = data.train[data.data_owners[0]].ids  # of all data owners, in one order
    order = np.argsort(pool, kind="stable")

    def places(part: PartyData) -> Tensor:
        return torch.from_numpy(order[np.searchsorted(pool, part.ids, sorter=order)])

    training = {name: places(data.train[name]) for name in data.label_owners}
    chosen: dict[str, Tensor] = {}
    if data.validation is not None:
        chosen = {name: places(part) for name, part in data.validation.items()}
    columns = {}
    for name in data.data_owners:
        x = data.train[name].joined()
        scored: dict[Part, Mapping[str, SharedRows]] = {}
        if data.test is not None:
            tested = data.test[name].joined()
            rows = SharedRows(name, tested, torch.arange(len(tested)))
            scored["test"] = dict.fromkeys(data.label_owners, rows)
        if chosen:
            scored["validation"] = {
                owner: SharedRows(name, x, rows_S) for owner, rows_S in chosen.items()
            }
        shared = {owner: SharedRows(name, x, rows_S) for owner, rows_S in training.items()}
        columns[name] = Columns(shared, bottoms[name], scored, data.inputs[name])
    labels = {}
    for name in data.label_owners:
        own = data.train[name].labels
        assert own is not None
        marked: dict[Part, Tensor] = {}
        if data.test_labels is not None:
            marked["test"] = data.test_labels
        if data.validation is not None:
            kept = data.validation[name].labels
            assert kept is not None
            marked["validation"] = kept
        labels[name] = Labels(own, scored=marked)
    return columns, labels


def together(
    columns: Mapping[str, Columns], labels: Mapping[str, Labels]
) -> tuple[dict[str, Columns], dict[str, Labels]]:
    """One label owner with everybody's labels; test rows are the first's, whom others share."""
    names = list(labels)

    def joined(parts: Sequence[SharedRows]) -> SharedRows:
        return replace(parts[0], rows_S=torch.cat([part.rows_S for part in parts]))

    held = {}
    for name, own in columns.items():
        scored: dict[Part, Mapping[str, SharedRows]] = {}
        if "test" in own.scored:
            scored["test"] = {EVERYBODY: own.scored["test"][names[0]]}
        if "validation" in own.scored:
            scored["validation"] = {EVERYBODY: joined([*own.scored["validation"].values()])}
        held[name] = Columns(
            {EVERYBODY: joined([own.shared[each] for each in names])},
            own.bottom,
            scored,
            own.input,
        )
    marked: dict[Part, Tensor] = {}
    first = labels[names[0]]
    if "test" in first.scored:
        marked["test"] = first.scored["test"]
    if "validation" in first.scored:
        marked["validation"] = torch.cat([labels[each].scored["validation"] for each in names])
    whole = Labels(torch.cat([labels[each].labels_S for each in names]), scored=marked)
    return held, {EVERYBODY: whole}


def side_by_side(columns: Mapping[str, Columns], axis: int) -> dict[str, Columns]:
    """One data owner with everybody's columns; rows are in one order at all of them."""
    every = list(columns.values())
    made: dict[int, Tensor] = {}  # rows that several parts share are joined once

    def joined(parts: Sequence[SharedRows]) -> SharedRows:
        first = parts[0]
        if id(first.x) not in made:
            made[id(first.x)] = torch.cat([part.x for part in parts], dim=axis)
        return SharedRows(POOLED, made[id(first.x)], first.rows_S)

    first = every[0]
    return {
        POOLED: Columns(
            {owner: joined([own.shared[owner] for own in every]) for owner in first.shared},
            first.bottom,
            {
                part: {owner: joined([own.scored[part][owner] for own in every]) for owner in rows}
                for part, rows in first.scored.items()
            },
        )
    }


def stage_config(
    config: fedoptimus.Config, stage: str, own: Mapping[str, Any]
) -> fedoptimus.Config:
    """What a stage is trained with: the settings of all, less what it has none of, and its own.

    With one label owner an average changes nothing, so that how often there is one does not matter;
    momentum and SlowMo would.

    Raises:
        ValidationError: settings that cannot be.
    """
    values: dict[str, Any] = config.model_dump()
    if stage != "fedoptimus":
        values |= {"server": "average", "slowmo": "off", "share": 1.0, "iterate_average": 1}
        values["sync_every"] = max(config.sync_every, 10)
    return fedoptimus.Config(**{**values, **own})


@dataclass(frozen=True, kw_only=True)
class FedOptimusSetup:
    """Everything a run of FedOptimus is a function of, but the seed.

    Attributes:
        method: what the run is about; its models are kept.
        task: what all label owners predict.
        label: the label's name.
        columns: data owner -> what it has; those of this process.
        labels: label owner -> what it has; those of this process.
        config: settings of all stages.
        stages: stage -> its own settings, where they differ from ``config``.
        selection: how the data owners of a round are chosen; None: by ``config.share``, at random.
        select_every: rounds from one choice to the next; 0: once.
        select_by: what a data owner measures distances in.
        rulers: what to train beside it.
        axis: along which the parts of a row stand side by side for "pooled"; None: they are not
            all in one place, and nor are the labels for "classic".
        evaluate_every: epochs (rounds, where ``config.rounds`` says how many) between scores on the
            test rows; 0 scores after the last only.
        device: where every party of this process computes.
        precision: how float32 tensors travel between parties of this process.
        connect: stage -> what reaches parties that live elsewhere; None: all are here.
        elsewhere: names of the data owners and of the label owners that ``connect`` reaches.
        secret: of the home that drives; None in simulation.
        deciding: what mistakes cost; a threshold is chosen on a label owner's validation rows.
    """

    method: Stage
    task: Task
    label: str
    columns: Mapping[str, Columns]
    labels: Mapping[str, Labels]
    config: fedoptimus.Config
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    selection: selection.Config | None = None
    select_every: int = 0
    select_by: Literal["embeddings", "columns"] = "embeddings"
    rulers: tuple[Stage, ...] = ()
    axis: int | None = None
    evaluate_every: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: Precision = "float32"
    connect: Callable[[str], Engine] | None = None
    elsewhere: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    secret: Secret | None = None
    deciding: Deciding = field(default_factory=Deciding)

    def __post_init__(self) -> None:
        for stage in ("classic", "pooled"):
            if stage in (self.method, *self.rulers) and self.axis is None:
                raise ConfigError(f"{stage!r} needs everybody's labels in one place; leave it out")
        if self.connect is not None and "alone" in (self.method, *self.rulers):
            raise ConfigError("'alone' is trained in one process only; leave it out")

    def config_of(self, stage: str) -> fedoptimus.Config:
        """A stage's settings."""
        return stage_config(self.config, stage, self.stages.get(stage, {}))

    def train(
        self, stage: str, seed: int, observe: Observer, checkpoint: Checkpoint | None = None
    ) -> Outcome:
        """Train one stage, and score it at every label owner."""
        checkpoint = checkpoint or Checkpoint.none()
        if stage in RULERS:
            return train_rulers(stage, self.own_rows(), seed, observe, self.deciding)
        if stage == "alone":
            return self._train_alone(seed, observe)
        columns, labels = self._held(stage)
        checkpoint.every *= rounds_per_epoch(self.config_of(stage), labels)
        trial = _Trial(self, stage, columns, labels, seed, checkpoint)
        for line, total in trial.rounds():
            observe(stage, total, line)
        # Over a network as the last round told them: asking again would send the rows again.
        elsewhere = self.connect is not None
        scores = checkpoint.extra.get("scores", {}) if elsewhere else trial.scores(last=True)
        outcome = Outcome({stage: scores} if scores else {}, ledger=trial.network.ledger)
        if self.connect is None and stage in ("fedoptimus", "classic"):
            outcome.models = trial.tops()
            outcome.bottoms = trial.bottoms()
        return outcome

    def own_rows(self) -> dict[str, OwnRows]:
        """Label owner -> what it has for a model alone: columns of its own, or, in a simulation,
        everybody's columns of its own samples, as of the stage "alone"."""
        own = {name: each.alone for name, each in self.labels.items() if each.alone is not None}
        if own or self.axis is None:
            return own
        whole = side_by_side(self.columns, self.axis)[POOLED]
        found = {}
        for name, each in self.labels.items():
            rows = whole.shared[name]
            x, labels = rows.x[rows.rows_S], each.labels_S
            if each.samples is not None:
                x, labels = x[each.samples], labels[each.samples]
            tested = whole.scored.get("test", {}).get(name)
            test = None if tested is None else tested.x[tested.rows_S]
            found[name] = OwnRows(self.task, x, labels, test, each.scored.get("test"))
        return found

    def _held(self, stage: str) -> tuple[Mapping[str, Columns], Mapping[str, Labels]]:
        if stage == "fedoptimus":
            return self.columns, self.labels
        columns, labels = together(self.columns, self.labels)
        if stage == "classic":
            return columns, labels
        assert self.axis is not None
        return side_by_side(columns, self.axis), labels

    def _train_alone(self, seed: int, observe: Observer) -> Outcome:
        """A round of each label owner after the other; saves nothing, it begins anew."""
        trials = {
            name: _Trial(
                self,
                "alone",
                {owner: own.only(name) for owner, own in self.columns.items()},
                {name: labels},
                seed,
                Checkpoint.none(),
            )
            for name, labels in self.labels.items()
        }
        scores: dict[str, Scores] = {}
        for round in itertools.zip_longest(*(trial.rounds() for trial in trials.values())):
            lines = [each[0] for each in round if each is not None]
            line: dict[str, Any] = {
                "round": lines[0]["round"],
                "loss": statistics.fmean(each["loss"] for each in lines),
                "steps": max(each["steps"] for each in lines),
                "seconds": sum(each["seconds"] for each in lines),
                "bytes": sum(trial.num_bytes for trial in trials.values()),
            }
            scores |= {
                name: own
                for trial in trials.values()
                for name, own in trial.checkpoint.extra.get("scores", {}).items()
            }
            if any("accuracy" in each or "rmse" in each for each in lines):
                line |= told(scores)
            observe("alone", max(each[1] for each in round if each is not None), line)
        scores = {
            name: own for trial in trials.values() for name, own in trial.scores(last=True).items()
        }
        return Outcome({"alone": scores} if scores else {})


class _Trial:
    """A coordinator and the owners that it drives, in one stage."""

    def __init__(
        self,
        setup: FedOptimusSetup,
        stage: str,
        columns: Mapping[str, Columns],
        labels: Mapping[str, Labels],
        seed: int,
        checkpoint: Checkpoint,
    ) -> None:
        self.setup = setup
        self.stage = stage
        self.columns = columns
        self.labels = labels
        self.checkpoint = checkpoint
        self.config = setup.config_of(stage)
        device = setup.device
        self.data_owners = {
            name: fedoptimus.DataOwner(
                name,
                own.shared,
                own.bottom,
                test=own.scored.get("test"),
                input=own.input,
                device=device,
            )
            for name, own in columns.items()
        }
        self.label_owners = {
            name: fedoptimus.LabelOwner(
                name,
                own.labels_S,
                setup.task,
                samples=own.samples,
                test_labels=own.scored.get("test"),
                device=device,
            )
            for name, own in labels.items()
        }
        names = (tuple(columns), tuple(labels))
        if setup.connect is not None:
            self.network: Engine = setup.connect(stage)
            names = setup.elsewhere
        else:
            parties = checkpoint.hosting(self._parties())
            self.network = InProcess(parties, driver=DRIVER, precision=setup.precision)
        self.coordinator = fedoptimus.Coordinator(
            self.config,
            data_owners=names[0],
            label_owners=names[1],
            seed=seed,
            secret=setup.secret,
        )
        self.chooser: choosing.Chooser | None = None
        if setup.selection is not None and stage == "fedoptimus":
            self.chooser = choosing.Chooser(
                setup.selection, *names, every=setup.select_every, seed=seed
            )
            self._restored = False

    def _parties(self) -> dict[str, StatefulParty]:
        """In process a name stands for one party, whatever it is asked for."""
        parties: dict[str, StatefulParty] = {**self.data_owners, **self.label_owners}
        if self.setup.selection is not None and self.stage == "fedoptimus":
            for name, own in self.data_owners.items():
                features = features_of(self.columns[name].shared, own, self.setup.select_by)
                parties[name] = Composite(own, selection.DataOwner(name, features))
            for name, labeller in self.label_owners.items():
                parties[name] = Composite(labeller, chooser_of(name, self.labels[name]))
        return parties

    @property
    def num_bytes(self) -> int:
        """What left all parties and the coordinator so far."""
        return sum(each["sent"] for each in self.network.ledger.bytes_by_party().values())

    def choose(self, number: int, network: Engine) -> Sequence[str]:
        """The data owners of a round; what the choice depends on is saved with the run."""
        assert self.chooser is not None
        extra = self.checkpoint.extra
        if not self._restored and "selection" in extra:
            self.chooser.restore(extra["selection"])
        self._restored = True
        chosen = self.chooser(number, network)
        extra["selection"] = self.chooser.state()
        return chosen

    def rounds(self) -> Iterator[tuple[dict[str, Any], int]]:
        """A line for each round, and how many there are."""
        extra = self.checkpoint.extra
        before, told_of = 0, None
        train = fedoptimus.train(
            self.coordinator,
            self.network,
            self.checkpoint,
            self.choose if self.chooser is not None else None,
        )
        for done in train:
            total = self.coordinator.num_rounds
            if not before and done.number > 1:  # resumed
                before = done.step - self.config.sync_every
            line: dict[str, Any] = {
                "round": done.number,
                "step": done.step,
                "loss": done.loss,
                "seconds": done.seconds,
                "steps": done.step - before,
                "bytes": self.num_bytes,
            }
            if self.chooser is not None:
                latest = self.chooser.latest
                if latest is not None and latest is not told_of:
                    told_of = latest
                    line["participants"] = list(done.participants)
                    line["scores"] = dict(latest.values)
                    line["distances"] = latest.distances
            if self._is_due(before, done.step, done.number, total):
                scores = self.scores()
                line |= told(scores) if scores else {}
                extra["scores"] = scores
                if self.setup.connect is None:
                    chosen = self.scores("validation")
                    if chosen:
                        means = told(chosen)
                        line["validation"] = means.get("accuracy", means.get("rmse"))
            if done.missed:
                line |= {"missed": dict(done.missed), "reasons": dict(done.reasons)}
            before = done.step
            yield line, total

    def _is_due(self, before: int, step: int, number: int, total: int) -> bool:
        """Whether an epoch (or round) that is to be scored ended with this round."""
        every = self.setup.evaluate_every
        if self.config.rounds is not None:
            return is_due(number, total, every)
        steps = self.coordinator.steps_per_epoch * every
        return number == total or (every > 0 and step // steps > before // steps)

    @property
    def participants(self) -> list[str]:
        """Whose embeddings are in the mean that top models know: those chosen last, or all."""
        return list(self.coordinator.participants)

    def scores(self, part: Part = "test", *, last: bool = False) -> dict[str, Scores]:
        """Label owner -> scores of its model with the participants' bottoms, as they are now."""
        if self.setup.connect is not None:
            return self._scores_elsewhere()
        known: dict[int, Tensor] = {}
        scores: dict[str, Scores] = {}
        owners = [self.data_owners[name] for name in self.participants]
        for name, labels in self.labels.items():
            if part not in labels.scored or not len(labels.scored[part]):
                continue
            rows = {owner.name: self.columns[owner.name].scored[part][name] for owner in owners}
            first = id(rows[owners[0].name])
            if first not in known or not self.config.average_tops:
                # After an average all label owners have one model, so that one of them is enough.
                model = predicting.joint(self.label_owners[name], owners)
                known[first] = model.outputs(
                    {owner: each.x[each.rows_S] for owner, each in rows.items()}
                )
            rate = self.config.learning_rate
            truth = labels.scored[part]
            scores[name] = score_party(
                name,
                self.stage,
                self.setup.task,
                known[first],
                truth,
                learning_rate=rate,
                last=last,
                decision=self.decision(name) if last else None,
            )
        return scores

    def _scores_elsewhere(self) -> dict[str, Scores]:
        """The same by messages, at label owners that have test rows."""
        asked = copy.copy(self.coordinator)
        asked.data_owners = tuple(self.participants)
        tested = [name for name in asked.label_owners if asked.ready[name].num_test]
        found = predicting.score(asked, self.network, label_owners=tested)
        return {
            name: {"accuracy": own.accuracy} if own.accuracy is not None else {"mse": own.loss}
            for name, own in found.items()
        }

    def decision(self, name: str) -> Decided | None:
        """A label owner's threshold, of its model with the participants' bottoms as they are now.

        Raises:
            ConfigError: it has no validation rows.
        """
        deciding = self.setup.deciding
        if not deciding.needs_rows:
            return None
        labels = self.labels[name].scored.get("validation")
        if labels is None:
            raise ConfigError(
                f"label owner {name!r} has no validation rows to choose a threshold or a "
                "calibration on; in a simulation give data.partition.validation, or leave "
                "threshold and calibrate out"
            )
        owners = [self.data_owners[owner] for owner in self.participants]
        model = predicting.joint(self.label_owners[name], owners)
        rows = {owner.name: self.columns[owner.name].scored["validation"][name] for owner in owners}
        outputs = model.outputs({owner: each.x[each.rows_S] for owner, each in rows.items()})
        return deciding.decision(self.setup.task, outputs, labels)

    def tops(self) -> dict[str, Model]:
        """Label owner -> its model, which takes the mean of embeddings."""
        return {
            name: told_top(
                own.model(),
                method=self.stage,
                label=self.setup.label,
                decision=self.decision(name),
            )
            for name, own in self.label_owners.items()
        }

    def bottoms(self) -> dict[str, Bottom]:
        """Data owner -> its model, of those whose embeddings the top models know."""
        return {name: self.data_owners[name].bottom_model() for name in self.participants}


def told_top(model: Model, *, method: str, label: str, decision: Decided | None = None) -> Model:
    """A label owner's model with how it came about."""
    about = {**model.about, "method": method, **about_decision(decision)}
    return replace(model, about={**about, "label": label} if label else about)


def features_of(
    shared: Mapping[str, SharedRows],
    owner: fedoptimus.DataOwner,
    by: Literal["embeddings", "columns"],
) -> selection.Features:
    """What a data owner measures distances in."""

    def columns(label_owner: str, samples_B: Tensor) -> Tensor:
        x = shared[label_owner][samples_B]
        return x.float().div_(255) if x.dtype == torch.uint8 else x.float()

    return owner.features if by == "embeddings" else columns


def chooser_of(name: str, own: Labels) -> selection.LabelOwner:
    """A label owner's side of a selection: on the rows that it trains on."""
    samples = own.samples
    if samples is None:
        labels = own.labels_S
        is_there = ~labels.isnan() if labels.is_floating_point() else labels >= 0
        samples = is_there.nonzero().flatten()
    labels_N = own.labels_S[samples]
    if labels_N.is_floating_point():
        labels_N = selection.binned(labels_N)
    return selection.LabelOwner(name, samples, labels_N)


def rounds_per_epoch(config: fedoptimus.Config, labels: Mapping[str, Labels]) -> int:
    """Whole rounds in a pass over the largest shard; 1 where rounds are counted, or it is not here.

    A checkpoint is saved once in so many: it has all replicas, and a round may be one step.
    """
    if config.rounds is not None or not labels:
        return 1
    rows = max(len(own.labels_S if own.samples is None else own.samples) for own in labels.values())
    return max(1, math.ceil(rows / config.batch_size) // config.sync_every)
