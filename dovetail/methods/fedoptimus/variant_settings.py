"""A variant of FedOptimus: its settings, its coordinator, and how good its models are."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from dovetail.data import (
    SharedRows,
)
from dovetail.errors import (
    ConfigError,
)
from dovetail.federated import scored_without
from dovetail.methods import fedoptimus
from dovetail.methods.fedoptimus import predicting
from dovetail.methods.fedoptimus.coordinator import Choose
from dovetail.methods.fedoptimus.local_data import Labels, OwnerData, Part, columns_in, labels_in
from dovetail.methods.fedoptimus.separately import Separately
from dovetail.methods.outcome import DecisionSettings, Scores
from dovetail.methods.training import VariantRun
from dovetail.models import Secret
from dovetail.models.decisions import FittedThreshold
from dovetail.network import Engine


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
