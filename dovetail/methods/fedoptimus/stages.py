"""FedOptimus as a run trains it, beside its baselines: classic vertical, each alone, and pooled."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dovetail.data import Input, Owners, PartyData, SharedRows, Task
from dovetail.errors import ConfigError
from dovetail.federated import Local, scored_without
from dovetail.methods import fedoptimus
from dovetail.methods.baselines import OwnRows
from dovetail.methods.fedoptimus import predicting, selection
from dovetail.methods.fedoptimus.coordinator import Choose
from dovetail.methods.fedoptimus.masked import UNASKED, SummingSettings
from dovetail.methods.fedoptimus.separately import Separately
from dovetail.methods.outcome import Deciding, Scores, score_party
from dovetail.methods.training import Staged
from dovetail.models import Model, Secret
from dovetail.models.decisions import Decided
from dovetail.models.owners import BottomSpec
from dovetail.network import Engine
from dovetail.privacy import Budget, Release

#: What can be trained. "classic" is one label owner with everybody's labels, which is classic
#: vertical learning with a mean of embeddings; "alone" is each label owner alone with all data
#: owners; "pooled" has all columns and all labels in one place.
Stage = Literal["fedoptimus", "classic", "alone", "pooled"]

#: The only label owner of "classic" and "pooled", and the only data owner of "pooled".
EVERYBODY = "everybody"
POOLED = "pooled"

#: Which of a label owner's rows are scored.
Part = Literal["test", "validation"]


@dataclass(frozen=True, eq=False)
class Columns:
    """What a data owner has.

    Attributes:
        name: the party's.
        shared: label owner -> the rows of its samples, in the order shared with it.
        bottom: its network.
        scored: part -> label owner -> rows that are scored, in an order shared with it.
        input: how raw data becomes a row; what ``predict`` needs.
        release: how its embeddings leave; None: as the run says.
        budget: of its policy.
        summing: how its embeddings are summed.
    """

    name: str
    shared: Mapping[str, SharedRows]
    bottom: BottomSpec
    scored: Mapping[Part, Mapping[str, SharedRows]] = field(default_factory=dict)
    input: Input | None = None
    release: Release | None = None
    budget: Budget | None = None
    summing: SummingSettings = UNASKED

    def only(self, *label_owners: str) -> Columns:
        """The data owner's columns, for these label owners only."""
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
        name: the party's.
        task: what its labels say.
        label: the label's name.
        labels_S: of all samples of its shared order.
        samples: the places that it trains on; None: those that have a label.
        scored: part -> labels of the rows that are scored.
        alone: columns of its own table, which only its models alone learn from.
        release: how its gradients leave; None: as the run says.
        budget: of its policy.
        max_scored: how often it scores its test rows in a run that is driven from elsewhere, by its
            policy; 0: any number of times.
    """

    name: str
    task: Task
    label: str
    labels_S: Tensor
    samples: Tensor | None = None
    scored: Mapping[Part, Tensor] = field(default_factory=dict)
    alone: OwnRows | None = None
    release: Release | None = None
    budget: Budget | None = None
    max_scored: int = 0

    @property
    def trained(self) -> Tensor:
        """The places that it trains on."""
        if self.samples is not None:
            return self.samples
        labels = self.labels_S
        is_there = ~labels.isnan() if labels.is_floating_point() else labels >= 0
        return is_there.nonzero().flatten()


#: What an owner brings to a run: of its own file, or split by a partition.
Home = Columns | Labels


def columns_in(homes: Mapping[str, Home]) -> dict[str, Columns]:
    """The data owners among them."""
    return {name: home for name, home in homes.items() if isinstance(home, Columns)}


def labels_in(homes: Mapping[str, Home]) -> dict[str, Labels]:
    """The label owners among them."""
    return {name: home for name, home in homes.items() if isinstance(home, Labels)}


def side_of(home: Home, local: Local) -> fedoptimus.DataOwner | fedoptimus.LabelOwner:
    """An owner's side of a run: in simulation, of a party file in this process, at a site."""
    if local.name != home.name:  # of "alone", where a data owner stands once for each label owner
        local = Local(home.name, device=local.device, budget=home.budget)
    match home:
        case Columns():
            return fedoptimus.DataOwner(
                home.shared,
                home.bottom,
                local,
                test=home.scored.get("test"),
                input=home.input,
                release=home.release,
                summing=home.summing,
            )
        case Labels():
            return fedoptimus.LabelOwner(
                home.labels_S,
                home.task,
                local,
                samples=home.samples,
                test_labels=home.scored.get("test"),
                release=home.release,
                max_scored=home.max_scored,
            )


def holdings(data: Owners, bottoms: Mapping[str, BottomSpec]) -> dict[str, Home]:
    """What data owners and label owners have, of a partition for simulation."""
    pool = data.train[data.data_owners[0]].ids  # of all data owners, in one order
    order = np.argsort(pool, kind="stable")

    def rows_in(part: PartyData) -> Tensor:
        return torch.from_numpy(order[np.searchsorted(pool, part.ids, sorter=order)])

    training = {name: rows_in(data.train[name]) for name in data.label_owners}
    chosen: dict[str, Tensor] = {}
    if data.validation is not None:
        chosen = {name: rows_in(part) for name, part in data.validation.items()}
    homes: dict[str, Home] = {}
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
        homes[name] = Columns(name, shared, bottoms[name], scored, data.inputs[name])
    for name in data.label_owners:
        own = data.train[name].required_labels
        marked: dict[Part, Tensor] = {}
        if data.test_labels is not None:
            marked["test"] = data.test_labels
        if data.validation is not None:
            marked["validation"] = data.validation[name].required_labels
        homes[name] = Labels(name, data.task, data.label, own, scored=marked)
    return homes


def separate(homes: Mapping[str, Home]) -> dict[str, Home]:
    """Each label owner with data owners of its own, who have what all data owners have."""
    columns, labels = columns_in(homes), labels_in(homes)
    own = {
        f"{holder} for {name}": columns[holder].only(name) for name in labels for holder in columns
    }
    return {**own, **labels}


def together(homes: Mapping[str, Home]) -> dict[str, Home]:
    """One label owner with everybody's labels; test rows are the first's, whom others share."""
    columns, labels = columns_in(homes), labels_in(homes)
    names = list(labels)

    def joined(parts: Sequence[SharedRows]) -> SharedRows:
        return replace(parts[0], rows_S=torch.cat([part.rows_S for part in parts]))

    held: dict[str, Home] = {}
    for name, own in columns.items():
        scored: dict[Part, Mapping[str, SharedRows]] = {}
        if "test" in own.scored:
            scored["test"] = {EVERYBODY: own.scored["test"][names[0]]}
        if "validation" in own.scored:
            scored["validation"] = {EVERYBODY: joined([*own.scored["validation"].values()])}
        held[name] = Columns(
            name,
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
    every = torch.cat([labels[each].labels_S for each in names])
    held[EVERYBODY] = Labels(EVERYBODY, first.task, first.label, every, scored=marked)
    return held


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
            POOLED,
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


def coordinator_of(
    homes: Mapping[str, Home],
    stage: str,
    config: fedoptimus.Config,
    seed: int,
    *,
    elsewhere: tuple[Sequence[str], Sequence[str]] = ((), ()),
    secret: Secret | None = None,
    choosing: Callable[[Sequence[str], Sequence[str]], Choose | None],
) -> fedoptimus.Coordinator | Separately:
    """What drives a stage.

    Args:
        homes: of this stage, those that are here.
        elsewhere: names of the data owners and of the label owners that are not.
        secret: of the home that drives; None in simulation.
        choosing: what chooses the data owners of a round, given names of both kinds.
    """
    columns, labels = columns_in(homes), labels_in(homes)

    def one(data_owners: Sequence[str], label_owners: Sequence[str]) -> fedoptimus.Coordinator:
        return fedoptimus.Coordinator(
            config,
            data_owners=data_owners,
            label_owners=label_owners,
            seed=seed,
            secret=secret,
            choose=choosing(data_owners, label_owners) if stage == "fedoptimus" else None,
        )

    driver: fedoptimus.Coordinator | Separately
    if stage == "alone":
        own = {name: [each for each in columns if name in columns[each].shared] for name in labels}
        driver = Separately({name: one(own[name], [name]) for name in labels})
    elif homes:
        driver = one([*columns], [*labels])
    else:
        driver = one(*elsewhere)
    driver.rounds_per_save = rounds_per_epoch(config, labels)
    return driver


def own_rows(
    columns: Mapping[str, Columns], labels: Mapping[str, Labels], axis: int | None
) -> dict[str, OwnRows]:
    """Label owner -> what it has for a model alone: columns of its own, or, in a simulation,
    everybody's columns of its own samples, as of the stage "alone"."""
    own = {name: each.alone for name, each in labels.items() if each.alone is not None}
    if own or axis is None:
        return own
    whole = side_by_side(columns, axis)[POOLED]
    found = {}
    for name, each in labels.items():
        rows = whole.shared[name]
        x, labels_N = rows.x[rows.rows_S], each.labels_S
        if each.samples is not None:
            x, labels_N = x[each.samples], labels_N[each.samples]
        tested = whole.scored.get("test", {}).get(name)
        marked = each.scored.get("test")
        test = None if tested is None or marked is None else (tested.x[tested.rows_S], marked)
        found[name] = OwnRows(each.task, x, labels_N, test)
    return found


# --- How good the models are --------------------------------------------------------------------


class _Joint:
    """A label owner's model with the bottoms of those that its top knows, as they are now."""

    def __init__(self, stage: Staged, label_owner: str) -> None:
        names = stage.driver.participants_of(label_owner)
        self._columns = {stage.parties[name].name: stage.homes[name] for name in names}
        self._owners = [stage.parties[name] for name in names]
        self._top = stage.parties[label_owner]

    def rows(self, part: Part) -> dict[str, SharedRows]:
        """Data owner -> its rows that are scored."""
        return {name: own.scored[part][self._top.name] for name, own in self._columns.items()}

    def outputs(self, part: Part) -> Tensor:
        """What it says of them."""
        model = predicting.joint(self._top, self._owners)
        return model.outputs({name: own.x[own.rows_S] for name, own in self.rows(part).items()})


def scores_of(stage: Staged, part: Part = "test", *, last: bool = False) -> dict[str, Scores]:
    """Label owner -> scores of its model with the participants' bottoms, as they are now."""
    known: dict[int, Tensor] = {}
    scores: dict[str, Scores] = {}
    for name, labels in labels_in(stage.homes).items():
        if part not in labels.scored or not len(labels.scored[part]):
            continue
        joint = _Joint(stage, name)
        first = id(next(iter(joint.rows(part).values())))
        if first not in known or stage.name == "alone" or not stage.settings.average_tops:
            # After an average all label owners have one model, so that one of them is enough.
            known[first] = joint.outputs(part)
        scores[name] = score_party(
            name,
            stage.name,
            labels.task,
            known[first],
            labels.scored[part],
            learning_rate=stage.settings.learning_rate,
            last=last,
            decision=stage.decisions.get(name) if last else None,
        )
    return scores


def asked_scores(driver: fedoptimus.Coordinator, network: Engine) -> dict[str, Scores]:
    """Label owner elsewhere -> scores on its test rows, asked by messages."""
    asked = copy.copy(driver)
    asked.data_owners = driver.participants
    tested = [name for name in asked.label_owners if asked.ready[name].num_test]
    found = predicting.score(asked, network, label_owners=tested)
    away = {owner: why for own in found.values() for owner, why in own.missed.items()}
    for owner in away.keys() - driver.scored_without:
        scored_without(owner, away[owner])
    driver.scored_without = set(away)
    driver.measured = {
        name: {"accuracy": own.accuracy} if own.accuracy is not None else {"mse": own.loss}
        for name, own in found.items()
    }
    return dict(driver.measured)


def decisions(stage: Staged, deciding: Deciding) -> dict[str, Decided | None]:
    """Label owner -> its threshold, of its model with the participants' bottoms as they are now.

    Raises:
        ConfigError: it has no validation rows.
    """
    found: dict[str, Decided | None] = {}
    for name, own in labels_in(stage.homes).items():
        if not deciding.needs_rows:
            continue
        party = stage.parties[name]
        if party.decided is not None:
            found[name] = party.decided
            continue
        labels = own.scored.get("validation")
        if labels is None:
            raise ConfigError(
                f"label owner {name!r} has no validation rows to choose a threshold or a "
                "calibration on; in a simulation give data.partition.validation, or leave "
                "threshold and calibrate out"
            )
        outputs = _Joint(stage, name).outputs("validation")
        found[name] = deciding.decision(own.task, outputs, labels)
    return found


def told_top(model: Model, *, method: str, label: str) -> Model:
    """A label owner's model with how it came about."""
    about = {**model.about, "method": method}
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


def chooser_of(own: Labels) -> selection.LabelOwner:
    """A label owner's side of a selection: on the rows that it trains on."""
    labels_N = own.labels_S[own.trained]
    if labels_N.is_floating_point():
        labels_N = selection.binned(labels_N)
    return selection.LabelOwner(own.name, own.trained, labels_N)


def rounds_per_epoch(config: fedoptimus.Config, labels: Mapping[str, Labels]) -> int:
    """Whole rounds in a pass over the largest shard; 1 where rounds are counted, or it is not here.

    A checkpoint is saved once in so many: it has all replicas, and a round may be one step.
    """
    if config.rounds is not None or not labels:
        return 1
    rows = max(len(own.labels_S if own.samples is None else own.samples) for own in labels.values())
    return max(1, math.ceil(rows / config.batch_size) // config.sync_every)
