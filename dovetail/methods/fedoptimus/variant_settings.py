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

from dovetail.data import (
    Classification,
    Input,
    Owners,
    PartyData,
    Regression,
    SharedRows,
    Survival,
    Task,
)
from dovetail.data.party import labelled_rows
from dovetail.data.survival import survival_of
from dovetail.errors import ConfigError
from dovetail.federated import Local, scored_without
from dovetail.methods import fedoptimus, selection
from dovetail.methods.baselines import LocalRows
from dovetail.methods.fedoptimus import predicting
from dovetail.methods.fedoptimus.coordinator import Choose
from dovetail.methods.fedoptimus.masked import UNASKED, SummingSettings
from dovetail.methods.fedoptimus.separately import Separately
from dovetail.methods.outcome import DecisionSettings, Scores
from dovetail.methods.training import VariantRun
from dovetail.models import Model, Secret
from dovetail.models.decisions import FittedThreshold
from dovetail.models.owners import BottomSpec
from dovetail.network import Engine
from dovetail.privacy import Budget, Release

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
    alone: LocalRows | None = None
    release: Release | None = None
    budget: Budget | None = None
    max_scored: int = 0

    @property
    def trained(self) -> Tensor:
        """The places that it trains on."""
        return labelled_rows(self.labels_S) if self.samples is None else self.samples


#: What an owner brings to a run: of its own file, or split by a partition.
OwnerData = Columns | Labels


def columns_in(party_data: Mapping[str, OwnerData]) -> dict[str, Columns]:
    """The data owners among them."""
    return {
        name: local_data
        for name, local_data in party_data.items()
        if isinstance(local_data, Columns)
    }


def labels_in(party_data: Mapping[str, OwnerData]) -> dict[str, Labels]:
    """The label owners among them."""
    return {
        name: local_data
        for name, local_data in party_data.items()
        if isinstance(local_data, Labels)
    }


def side_of(local_data: OwnerData, local: Local) -> fedoptimus.DataOwner | fedoptimus.LabelOwner:
    """An owner's side of a run: in simulation, of a party file in this process, at a site."""
    if (
        local.name != local_data.name
    ):  # of "alone", where a data owner stands once for each label owner
        local = Local(local_data.name, device=local.device, budget=local_data.budget)
    match local_data:
        case Columns():
            return fedoptimus.DataOwner(
                local_data.shared,
                local_data.bottom,
                local,
                test=local_data.scored.get("test"),
                input=local_data.input,
                release=local_data.release,
                summing=local_data.summing,
            )
        case Labels():
            return fedoptimus.LabelOwner(
                local_data.labels_S,
                local_data.task,
                local,
                samples=local_data.samples,
                test_labels=local_data.scored.get("test"),
                release=local_data.release,
                max_scored=local_data.max_scored,
            )


def holdings(data: Owners, bottoms: Mapping[str, BottomSpec]) -> dict[str, OwnerData]:
    """What data owners and label owners have, of a partition for simulation."""
    pool = data.train[data.data_owners[0]].ids  # of all data owners, in one order
    order = np.argsort(pool, kind="stable")

    def rows_in(part: PartyData) -> Tensor:
        return torch.from_numpy(order[np.searchsorted(pool, part.ids, sorter=order)])

    training = {name: rows_in(data.train[name]) for name in data.label_owners}
    chosen: dict[str, Tensor] = {}
    if data.validation is not None:
        chosen = {name: rows_in(part) for name, part in data.validation.items()}
    party_data: dict[str, OwnerData] = {}
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
        party_data[name] = Columns(name, shared, bottoms[name], scored, data.inputs[name])
    for name in data.label_owners:
        labels_here = data.train[name].required_labels
        marked: dict[Part, Tensor] = {}
        if data.test_labels is not None:
            marked["test"] = data.test_labels
        if data.validation is not None:
            marked["validation"] = data.validation[name].required_labels
        task = data.task
        if isinstance(task, Survival):  # its own baseline in the intervals of all
            task = survival_of(task.cuts, labels_here)
        party_data[name] = Labels(name, task, data.label, labels_here, scored=marked)
    return party_data


def separate(party_data: Mapping[str, OwnerData]) -> dict[str, OwnerData]:
    """Each label owner with data owners of its own, who have what all data owners have."""
    columns, labels = columns_in(party_data), labels_in(party_data)
    columns_data = {
        f"{holder} for {name}": columns[holder].only(name) for name in labels for holder in columns
    }
    return {**columns_data, **labels}


def together(party_data: Mapping[str, OwnerData]) -> dict[str, OwnerData]:
    """One label owner with everybody's labels; test rows are the first's, whom others share."""
    columns, labels = columns_in(party_data), labels_in(party_data)
    names = list(labels)

    def joined(parts: Sequence[SharedRows]) -> SharedRows:
        return replace(parts[0], rows_S=torch.cat([part.rows_S for part in parts]))

    held: dict[str, OwnerData] = {}
    for name, columns_here in columns.items():
        scored: dict[Part, Mapping[str, SharedRows]] = {}
        if "test" in columns_here.scored:
            scored["test"] = {EVERYBODY: columns_here.scored["test"][names[0]]}
        if "validation" in columns_here.scored:
            scored["validation"] = {
                EVERYBODY: joined([*columns_here.scored["validation"].values()])
            }
        held[name] = Columns(
            name,
            {EVERYBODY: joined([columns_here.shared[each] for each in names])},
            columns_here.bottom,
            scored,
            columns_here.input,
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
            {
                owner: joined([party_columns.shared[owner] for party_columns in every])
                for owner in first.shared
            },
            first.bottom,
            {
                part: {
                    owner: joined([party_columns.scored[part][owner] for party_columns in every])
                    for owner in rows
                }
                for part, rows in first.scored.items()
            },
        )
    }


def variant_config(
    config: fedoptimus.Config, variant: str, settings: Mapping[str, Any]
) -> fedoptimus.Config:
    """What a variant is trained with: the settings of all, less what it has none of, and its own.

    With one label owner an average changes nothing, so that how often there is one does not matter;
    momentum and SlowMo would.

    Raises:
        ValidationError: settings that cannot be.
    """
    values: dict[str, Any] = config.model_dump()
    if variant != "fedoptimus":
        values |= {"server": "average", "slowmo": "off", "share": 1.0, "iterate_average": 1}
        values["sync_every"] = max(config.sync_every, 10)
    return fedoptimus.Config(**{**values, **settings})


def coordinator_of(
    party_data: Mapping[str, OwnerData],
    variant: str,
    config: fedoptimus.Config,
    seed: int,
    *,
    elsewhere: tuple[Sequence[str], Sequence[str]] = ((), ()),
    secret: Secret | None = None,
    choosing: Callable[[Sequence[str], Sequence[str]], Choose | None],
) -> fedoptimus.Coordinator | Separately:
    """What drives a variant.

    Args:
        party_data: of this variant, those that are here.
        elsewhere: names of the data owners and of the label owners that are not.
        secret: of the site that drives; None in simulation.
        choosing: what chooses the data owners of a round, given names of both kinds.
    """
    columns, labels = columns_in(party_data), labels_in(party_data)

    def one(data_owners: Sequence[str], label_owners: Sequence[str]) -> fedoptimus.Coordinator:
        return fedoptimus.Coordinator(
            config,
            data_owners=data_owners,
            label_owners=label_owners,
            seed=seed,
            secret=secret,
            choose=choosing(data_owners, label_owners) if variant == "fedoptimus" else None,
        )

    driver: fedoptimus.Coordinator | Separately
    if variant == "alone":
        columns_of = {
            name: [each for each in columns if name in columns[each].shared] for name in labels
        }
        driver = Separately({name: one(columns_of[name], [name]) for name in labels})
    elif party_data:
        driver = one([*columns], [*labels])
    else:
        driver = one(*elsewhere)
    driver.rounds_per_save = rounds_per_epoch(config, labels)
    return driver


def local_rows(
    columns: Mapping[str, Columns], labels: Mapping[str, Labels], axis: int | None
) -> dict[str, LocalRows]:
    """Label owner -> what it has for a model alone: columns of its own, or, in a simulation,
    everybody's columns of its own samples, as of the variant "alone"."""
    alone_rows = {name: each.alone for name, each in labels.items() if each.alone is not None}
    if alone_rows or axis is None:
        return alone_rows
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
        found[name] = LocalRows(each.task, x, labels_N, test)
    return found


# --- How good the models are --------------------------------------------------------------------


class _Joint:
    """A label owner's model with the bottoms of those that its top knows, as they are now."""

    def __init__(self, variant_run: VariantRun, label_owner: str) -> None:
        names = variant_run.driver.participants_of(label_owner)
        self._columns = {
            variant_run.parties[name].name: variant_run.party_data[name] for name in names
        }
        self._owners = [variant_run.parties[name] for name in names]
        self._top = variant_run.parties[label_owner]

    def rows(self, part: Part) -> dict[str, SharedRows]:
        """Data owner -> its rows that are scored."""
        return {
            name: columns_here.scored[part][self._top.name]
            for name, columns_here in self._columns.items()
        }

    def outputs(self, part: Part) -> Tensor:
        """What it says of them."""
        model = predicting.joint(self._top, self._owners)
        return model.outputs(
            {name: shared.x[shared.rows_S] for name, shared in self.rows(part).items()}
        )


def scores_of(
    variant_run: VariantRun, part: Part = "test", *, last: bool = False
) -> dict[str, Scores]:
    """Label owner -> scores of its model with the participants' bottoms, as they are now."""
    known: dict[int, Tensor] = {}
    scores: dict[str, Scores] = {}
    for name, labels in labels_in(variant_run.party_data).items():
        if part not in labels.scored or not len(labels.scored[part]):
            continue
        joint = _Joint(variant_run, name)
        first = id(next(iter(joint.rows(part).values())))
        if (
            first not in known
            or variant_run.name == "alone"
            or not variant_run.settings.average_tops
        ):
            # After an average all label owners have one model, so that one of them is enough.
            known[first] = joint.outputs(part)
        outputs, truth = known[first], labels.scored[part]
        task = variant_run.parties[name].task
        scores[name] = variant_run.score(name, task, outputs, truth, last=last)
    return scores


def asked_scores(driver: fedoptimus.Coordinator, network: Engine) -> dict[str, Scores]:
    """Label owner elsewhere -> scores on its test rows, asked by messages."""
    asked = copy.copy(driver)
    asked.data_owners = driver.participants
    tested = [name for name in asked.label_owners if asked.ready[name].num_test]
    scores = predicting.score(asked, network, label_owners=tested)
    away = {owner: why for score in scores.values() for owner, why in score.missed.items()}
    for owner in away.keys() - driver.scored_without:
        scored_without(owner, away[owner])
    driver.scored_without = set(away)
    driver.measured = {
        name: {"accuracy": score.accuracy} if score.accuracy is not None else score.of_numbers
        for name, score in scores.items()
    }
    return dict(driver.measured)


def decisions(
    variant_run: VariantRun, decision_settings: DecisionSettings
) -> dict[str, FittedThreshold | None]:
    """Label owner -> its threshold, of its model with the participants' bottoms as they are now.

    Raises:
        ConfigError: it has no validation rows.
    """
    decisions_of: dict[str, FittedThreshold | None] = {}
    for name, labels_data in labels_in(variant_run.party_data).items():
        if not decision_settings.needs_rows:
            continue
        party = variant_run.parties[name]
        if party.fitted_threshold is not None:
            decisions_of[name] = party.fitted_threshold
            continue
        labels = labels_data.scored.get("validation")
        if labels is None:
            raise ConfigError(
                f"label owner {name!r} has no validation rows to choose a threshold or a "
                "calibration on; in a simulation give data.partition.validation, or leave "
                "threshold and calibrate out"
            )
        outputs = _Joint(variant_run, name).outputs("validation")
        decisions_of[name] = decision_settings.decision(party.task, outputs, labels)
    return decisions_of


def described_top(model: Model, *, method: str, label: str) -> Model:
    """A label owner's model with how it came about."""
    about = {**model.about, "method": method}
    return replace(model, about={**about, "label": label} if label else about)


def chooser_of(
    local_data: OwnerData, features: selection.Features | None
) -> selection.DataOwner | selection.LabelOwner:
    """An owner's side of a selection; a label owner's is on the rows that it trains on.

    A data owner whose embeddings are summed in secret only gives no distance without masks either.

    Args:
        features: what a data owner measures distances in; None: its columns.

    Raises:
        ConfigError: a label that is no class and no number.
    """
    if isinstance(local_data, Columns):
        shared = local_data.shared

        def columns(label_owner: str, samples_B: Tensor) -> Tensor:
            x = shared[label_owner][samples_B]
            return x.float().div_(255) if x.dtype == torch.uint8 else x.float()

        masked_only = local_data.summing.secure
        return selection.DataOwner(local_data.name, features or columns, masked_only=masked_only)
    if not isinstance(local_data.task, Classification | Regression):
        raise ConfigError(
            f"label owner {local_data.name!r}: [fedoptimus.selection] chooses data owners by "
            "mutual information with one class or number, and its label is "
            f'{local_data.task.predicts}; leave the selection out (variant = "paper" has it)'
        )
    labels_N = local_data.labels_S[local_data.trained]
    if labels_N.is_floating_point():
        labels_N = selection.binned(labels_N)
    return selection.LabelOwner(local_data.name, local_data.trained, labels_N)


def rounds_per_epoch(config: fedoptimus.Config, labels: Mapping[str, Labels]) -> int:
    """Whole rounds in a pass over the largest shard; 1 where rounds are counted, or it is not here.

    A checkpoint is saved once in so many: it has all replicas, and a round may be one step.
    """
    if config.rounds is not None or not labels:
        return 1
    rows = max(
        len(owner.labels_S if owner.samples is None else owner.samples) for owner in labels.values()
    )
    return max(1, math.ceil(rows / config.batch_size) // config.sync_every)
