"""Training data and driver of each variant of APFed, and its results."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dovetail.data import Alignment, Federation, ImageInput, Partitioned, PartyData
from dovetail.methods.apfed.distilling import ALONE, Distilling, train_alone
from dovetail.methods.apfed.local_data import LabelOwnerData, PartnerData
from dovetail.methods.apfed.missing_party_baselines import MISSING_PARTY, train_with_missing
from dovetail.methods.base import weighed
from dovetail.methods.outcome import Observer, Outcome
from dovetail.methods.settings.apfed import ApfedSection
from dovetail.methods.training import Training

#: Variants that ask nobody, of those that party files allow.
ASK_NOBODY = {"alone", *ALONE, *MISSING_PARTY}

#: Variants that need to know which test rows are whose.
TOGETHER = {"tvfl", "apfed", "apfed-d", "pooled", *MISSING_PARTY}


# --- Data and driver -----------------------------------------------------------------------------


def label_owner_data(training: Training) -> LabelOwnerData:
    """Data of the active party."""
    local_data: LabelOwnerData = training.party_data[str(training.active)]
    return local_data


def partner_data_of(training: Training) -> dict[str, PartnerData]:
    """Partner -> what it has; nobody who is elsewhere."""
    return {
        name: each for name, each in training.party_data.items() if isinstance(each, PartnerData)
    }


def active_config(training: Training) -> ApfedSection:
    """The active party's settings, with the run's weights of classes."""
    section: ApfedSection = training.settings
    return weighed(section, training.run)


def distilling(training: Training, local_data: LabelOwnerData, seed: int) -> Distilling:
    """The label owner's side of "apfed-d", or what it learns alone."""
    return Distilling(
        **vars(local_data),
        section=training.settings,
        seed=seed,
        decision_settings=training.decision_settings,
        refit=training.settings.refit and training.run.test is not None,
        reported=training.reported,
    )


def train_unasked(training: Training, variant: str, seed: int, observe: Observer) -> Outcome:
    """A baseline without rounds: of the label owner alone, or of all columns in one place."""
    work = distilling(training, label_owner_data(training), seed)
    if variant in ALONE:
        return train_alone(work, variant, observe)
    data = training.loaded.data
    return train_with_missing(work, variant, data.train, data.test, observe)


# --- Everybody's columns in one place ------------------------------------------------------------


def pooled(data: Partitioned, local_data: LabelOwnerData) -> LabelOwnerData:
    """The active party's site with everybody's columns."""
    tested = local_data.test
    if data.test is not None and local_data.test_alignment is not None:
        tested = pool(data, data.test, local_data.name, local_data.test_alignment)
    return replace(
        local_data, train=pool(data, data.train, local_data.name, local_data.alignment), test=tested
    )


def pool(
    data: Partitioned, federation: Federation, active: str, alignment: Alignment | None = None
) -> PartyData:
    """Everybody's columns joined onto the active party's rows, as if one place held all.

    A party that lacks a row gives zeros for it: the mean of standardised columns. Rows are those
    that ``alignment`` names; left out, ids are compared in the clear.
    """
    alignment = alignment or federation.align(active)
    held = alignment.rows[active] >= 0
    party_data = federation[active].take(alignment.rows[active][held])
    parts: list[Tensor] = []
    for name, party in federation.parties.items():
        rows = alignment.rows[name][held]
        x = party.joined()
        part = x[rows.clamp(min=0)]
        part[rows < 0] = 0
        parts.append(part)
    return replace(party_data, blocks={"pooled": torch.cat(parts, dim=_join_axis(data, parts[0]))})


def _join_axis(data: Partitioned, part: Tensor) -> int:
    """The axis along which blocks lie side by side: columns, or the one that strips were cut."""
    first = next(iter(data.inputs.values()))
    if part.ndim == 4 and isinstance(first, ImageInput):
        return {"height": 2, "width": 3}[first.axis]
    return 1
