"""FedOptimus and its baselines as a run trains them: with rounds, and each label owner alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail import data as dd
from dovetail.data import MultiLabel, MultiTarget, SharedRows, Survival
from dovetail.errors import ConfigError
from dovetail.federated import Driver, Federation, Local, scored_without
from dovetail.methods import fedoptimus, selection
from dovetail.methods.base import Run, deciding, weighed
from dovetail.methods.baselines import LocalRows
from dovetail.methods.facets.valued import classes_of
from dovetail.methods.fedoptimus import predicting
from dovetail.methods.fedoptimus.choosing import Chooser
from dovetail.methods.fedoptimus.local_data import (
    SELECTED,
    Columns,
    Labels,
    OwnerData,
    OwnerHoldings,
    Part,
    check_counted,
    columns_in,
    labels_in,
    local_rows,
    separate,
    side_by_side,
    together,
)
from dovetail.methods.fedoptimus.requests import Round, num_bytes
from dovetail.methods.outcome import Observer, Scores, described
from dovetail.methods.settings.fedoptimus import FedOptimusSection
from dovetail.methods.training import LocalBaseline, Separately, Training, Variant, VariantRun
from dovetail.models import Model
from dovetail.models.decisions import FittedThreshold
from dovetail.models.owners import Bottom
from dovetail.network import Checkpoint, Composite, Engine
from dovetail.network.checkpoint import StatefulParty
from dovetail.settings.section import narrowed


def side_of(local_data: OwnerData, local: Local) -> fedoptimus.DataOwner | fedoptimus.LabelOwner:
    """An owner's side of a run: in simulation, of a party file in this process, at a site."""
    if local.name != local_data.name:  # of "alone": each label owner has data owners of its own
        local = Local(local_data.name, device=local.device, budget=local_data.budget)
    if isinstance(local_data, Columns):
        return fedoptimus.DataOwner(local_data, local)
    return fedoptimus.LabelOwner(local_data, local)


def chooser_of(
    local_data: OwnerData, features: selection.Features | None
) -> selection.DataOwner | selection.LabelOwner:
    """An owner's side of a selection; a label owner's is on the rows that it trains on.

    A data owner whose embeddings are summed in secret only gives no distance without masks either.

    Args:
        features: what a data owner measures distances in; None: its columns.

    Raises:
        ConfigError: a label that is neither one class nor one number.
    """
    if isinstance(local_data, Columns):
        shared = local_data.shared

        def columns(label_owner: str, samples_B: Tensor) -> Tensor:
            x = shared[label_owner][samples_B]
            return x.float().div_(255) if x.dtype == torch.uint8 else x.float()

        masked_only = local_data.summing.secure
        return selection.DataOwner(local_data.name, features or columns, masked_only=masked_only)
    if isinstance(local_data.task, Survival | MultiLabel | MultiTarget):
        raise ConfigError(
            f"label owner {local_data.name!r}: [fedoptimus.selection] chooses data owners by "
            "mutual information with one class or number, and its label is "
            f'{local_data.task.predicts}; leave the selection out (variant = "paper" has it)'
        )
    labels_N = classes_of(local_data.task, local_data.labels_S[local_data.trained])
    return selection.LabelOwner(local_data.name, local_data.trained, labels_N, local_data.key)


#: Variants whose models are kept.
KEPT = ("fedoptimus", "classic")


def variant_config(
    config: fedoptimus.Config, variant: str, settings: Mapping[str, Any]
) -> fedoptimus.Config:
    """Settings that a variant is trained with: those of all without what it has none of, and its
    own.

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


def axis_of(training: Training) -> int | None:
    """Along which the parts of a row stand side by side; None: they are in no one place."""
    data = training.loaded.data
    return data.axis if isinstance(data, dd.Owners) else None


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


class Apart(Separately[fedoptimus.Coordinator]):
    """Each label owner with a coordinator of its own: "alone"."""

    def together(self, done: Mapping[str, Any], network: Federation) -> Round:
        rounds = list(done.values())
        metrics = {
            "loss": sum(each.metrics["loss"] for each in rounds) / len(rounds),
            "steps": max(each.metrics["steps"] for each in rounds),
            "bytes": num_bytes(network),
        }
        missed = {name: num for each in rounds for name, num in each.missed.items()}
        reasons = {name: why for each in rounds for name, why in each.reasons.items()}
        return Round(metrics=metrics, missed=missed, reasons=reasons)

    def participants_of(self, label_owner: str) -> tuple[str, ...]:
        """The data owners whose embeddings this label owner's top knows."""
        return self.runs[label_owner].participants


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
        """Outputs of the joint model for these rows."""
        model = predicting.joint(self._top, self._owners)
        return model.outputs(
            {name: shared.x[shared.rows_S] for name, shared in self.rows(part).items()}
        )


class OwnersVariant(Variant):
    """FedOptimus, or a baseline of it with rounds."""

    def __init__(self, variant: str) -> None:
        # Of "alone" each label owner's run is by itself, and none is the run's.
        self.silent = variant == "alone"

    def variant_data(self, training: Training, name: str) -> Mapping[str, OwnerData]:
        """Everybody's own; of a baseline with all labels, or all, in one place, as if they were."""
        match name:
            case "alone":
                return separate(training.party_data)
            case "classic":
                return together(training.party_data)
            case "pooled":
                party_data = together(training.party_data)
                axis = axis_of(training) or 1  # setup refuses "pooled" of rows in no one place
                return {**side_by_side(columns_in(party_data), axis), **labels_in(party_data)}
        return training.party_data

    def begin_settings(self, run: Run, name: str) -> Mapping[str, Any]:
        """The settings that ``BeginData`` and ``BeginLabels`` carry."""
        section = run.settings("fedoptimus", FedOptimusSection)
        given = section.variants.get(name, {})
        plain = deciding(weighed(narrowed(section, fedoptimus.Config), run), run)
        return variant_config(plain, name, given).model_dump(mode="json")

    def settings(
        self, training: Training, name: str, seed: int, observe: Observer, checkpoint: Checkpoint
    ) -> fedoptimus.Config:
        """A variant's settings."""
        section: FedOptimusSection = training.settings
        plain = weighed(narrowed(section, fedoptimus.Config), training.run)
        if training.run.data is None and name == "fedoptimus":
            plain = deciding(plain, training.run, judges=training.trying)
        return variant_config(plain, name, section.variants.get(name, {}))

    def driver(
        self, training: Training, name: str, party_data: Mapping[str, Any], settings: Any, seed: int
    ) -> Driver:
        """The coordinator; of label owners that each train alone, one for each."""
        columns, labels = columns_in(party_data), labels_in(party_data)
        asked = training.settings.selection if name == "fedoptimus" else None

        def one(data_owners: Sequence[str], label_owners: Sequence[str]) -> fedoptimus.Coordinator:
            choose = None
            if asked is not None:
                every = math.ceil(asked.every / training.settings.sync_every)
                config = narrowed(asked, selection.Config)
                choose = Chooser(config, data_owners, label_owners, every=every, seed=seed)
            return fedoptimus.Coordinator(
                settings,
                data_owners=data_owners,
                label_owners=label_owners,
                seed=seed,
                secret=training.loaded.secret,
                choose=choose,
            )

        driver: fedoptimus.Coordinator | Apart
        if name == "alone":
            columns_of = {
                owner: [each for each in columns if owner in columns[each].shared]
                for owner in labels
            }
            driver = Apart({owner: one(columns_of[owner], [owner]) for owner in labels})
        elif party_data:
            driver = one([*columns], [*labels])
        else:
            data = training.loaded.data
            driver = one(*data.elsewhere) if isinstance(data, OwnerHoldings) else one((), ())
        driver.rounds_per_save = rounds_per_epoch(settings, labels)
        return driver

    def sides(self, variant_run: VariantRun) -> Mapping[str, StatefulParty]:
        """Owners that train, and answer a selection too: in process a name stands for one party."""
        asked = variant_run.training.settings.selection
        if asked is None or variant_run.name != "fedoptimus":
            return variant_run.parties
        found: dict[str, StatefulParty] = {}
        for name, local_data in variant_run.party_data.items():
            check_counted(local_data, SELECTED)
            party = variant_run.parties[name]
            embeds = asked.by == "embeddings" and isinstance(party, fedoptimus.DataOwner)
            chooser = chooser_of(local_data, party.features if embeds else None)
            found[name] = Composite(party, chooser)
        return found

    def scored(
        self, variant_run: VariantRun, *, last: bool = False
    ) -> dict[str, dict[str, Scores]]:
        """Score name -> label owner -> scores of its model with the data owners' networks."""
        scores = self.scores_of(variant_run, last=last)
        return {variant_run.name: scores} if scores else {}

    def validated(self, variant_run: VariantRun) -> Mapping[str, Scores]:
        """Label owner -> scores on validation rows; a label owner alone has none."""
        return {} if variant_run.name == "alone" else self.scores_of(variant_run, "validation")

    def scores_of(
        self, variant_run: VariantRun, part: Part = "test", *, last: bool = False
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

    def asked_scores(self, variant_run: VariantRun, network: Engine) -> Mapping[str, Scores]:
        """Label owner elsewhere -> scores on its test rows, asked by messages."""
        driver = variant_run.driver
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

    def decisions(self, variant_run: VariantRun) -> dict[str, FittedThreshold | None]:
        """Label owner -> its threshold, of its model with the participants' bottoms as they are.

        Raises:
            ConfigError: it has no validation rows.
        """
        decision_settings = variant_run.training.decision_settings
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

    def kept(self, variant_run: VariantRun) -> dict[str, Model]:
        """Label owner -> its top, which takes the mean of embeddings."""
        if variant_run.name not in KEPT:
            return {}
        return {
            name: described(
                variant_run.parties[name].model(), method=variant_run.name, label=local_data.label
            )
            for name, local_data in labels_in(variant_run.party_data).items()
        }

    def bottoms(self, variant_run: VariantRun) -> dict[str, Bottom]:
        """Data owner -> its bottom, of those whose embeddings the tops know."""
        if variant_run.name not in KEPT or variant_run.training.elsewhere:
            return {}
        return {
            name: variant_run.parties[name].bottom_model()
            for name in variant_run.driver.participants
        }


class OwnersAlone(LocalBaseline):
    """Learners on each label owner's rows."""

    def rows(self, training: Training) -> dict[str, LocalRows]:
        """Label owner -> what it has for a model alone."""
        party_data = training.party_data
        return local_rows(columns_in(party_data), labels_in(party_data), axis_of(training))
