"""FedOptimus and its baselines as a run trains them: with rounds, and each label owner alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail import data as dd
from dovetail.federated import Driver
from dovetail.methods import fedoptimus, selection
from dovetail.methods.base import Run, deciding, weighed
from dovetail.methods.baselines import LocalRows
from dovetail.methods.fedoptimus.choosing import Chooser
from dovetail.methods.fedoptimus.coordinator import Choose
from dovetail.methods.fedoptimus.local_data import (
    SELECTED,
    OwnerData,
    OwnerHoldings,
    check_counted,
    columns_in,
    labels_in,
)
from dovetail.methods.fedoptimus.sides import chooser_of, described_top
from dovetail.methods.fedoptimus.simulated import local_rows, separate, side_by_side, together
from dovetail.methods.fedoptimus.variant_settings import (
    asked_scores,
    coordinator_of,
    decisions,
    scores_of,
    variant_config,
)
from dovetail.methods.outcome import Observer, Scores
from dovetail.methods.settings.fedoptimus import FedOptimusSection
from dovetail.methods.training import LocalBaseline, Training, Variant, VariantRun
from dovetail.models import Model
from dovetail.models.decisions import FittedThreshold
from dovetail.models.owners import Bottom
from dovetail.network import Checkpoint, Composite, Engine
from dovetail.network.checkpoint import StatefulParty
from dovetail.settings.section import narrowed

#: Variants whose models are kept.
KEPT = ("fedoptimus", "classic")


def axis_of(training: Training) -> int | None:
    """Along which the parts of a row stand side by side; None: they are in no one place."""
    data = training.loaded.data
    return data.axis if isinstance(data, dd.Owners) else None


class OwnersVariant(Variant):
    """FedOptimus, or a baseline of it with rounds."""

    def __init__(self, variant: str) -> None:
        self.silent = (
            variant == "alone"
        )  # each label owner's run is by itself, and none is the run's

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
        """The coordinator of a variant."""
        data, asked = training.loaded.data, training.settings.selection

        def choosing(data_owners: Sequence[str], label_owners: Sequence[str]) -> Choose | None:
            if asked is None:
                return None
            every = math.ceil(asked.every / training.settings.sync_every)
            return Chooser(
                narrowed(asked, selection.Config), data_owners, label_owners, every=every, seed=seed
            )

        return coordinator_of(
            party_data,
            name,
            settings,
            seed,
            elsewhere=data.elsewhere if isinstance(data, OwnerHoldings) else ((), ()),
            secret=training.loaded.secret,
            choosing=choosing,
        )

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
        scores = scores_of(variant_run, last=last)
        return {variant_run.name: scores} if scores else {}

    def validated(self, variant_run: VariantRun) -> Mapping[str, Scores]:
        """Label owner -> scores on validation rows; a label owner alone has none."""
        return {} if variant_run.name == "alone" else scores_of(variant_run, "validation")

    def asked_scores(self, variant_run: VariantRun, network: Engine) -> Mapping[str, Scores]:
        """Label owner elsewhere -> scores on its test rows."""
        return asked_scores(variant_run.driver, network)

    def decisions(self, variant_run: VariantRun) -> dict[str, FittedThreshold | None]:
        """Label owner -> its threshold and calibration."""
        return decisions(variant_run, variant_run.training.decision_settings)

    def kept(self, variant_run: VariantRun) -> dict[str, Model]:
        """Label owner -> its top, which takes the mean of embeddings."""
        if variant_run.name not in KEPT:
            return {}
        return {
            name: described_top(
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
