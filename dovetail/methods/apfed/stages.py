"""What a run of APFed trains: homes and driver of each stage, and what comes of it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dovetail.data import Alignment, Federation, ImageInput, Partitioned, PartyData
from dovetail.methods import apfed
from dovetail.methods.apfed.distilling import ALONE, Distilling, train_alone
from dovetail.methods.apfed.home import LabelHome, PartnerHome
from dovetail.methods.apfed.missing_party_baselines import GONE, train_gone
from dovetail.methods.apfed.sections import ApfedSection
from dovetail.methods.apfed.stacks import Config as DistilTeacher
from dovetail.methods.base import weighed
from dovetail.methods.outcome import Observer, Outcome
from dovetail.methods.training import Training
from dovetail.models.learners.distil import DistilConfig

#: Stages that ask nobody, of those that party files allow.
ASK_NOBODY = {"alone", *ALONE, *GONE}

#: Stages that need to know which test rows are whose.
TOGETHER = {"tvfl", "apfed-d", "apfed-s", "pooled", *GONE}


# --- Homes and driver ----------------------------------------------------------------------------


def label_home(training: Training) -> LabelHome:
    """What the active party has."""
    home: LabelHome = training.homes[str(training.active)]
    return home


def partner_homes(training: Training) -> dict[str, PartnerHome]:
    """Partner -> what it has; nobody who is elsewhere."""
    return {name: each for name, each in training.homes.items() if isinstance(each, PartnerHome)}


def active_config(training: Training) -> apfed.Config:
    """The active party's settings, with the run's weights of classes."""
    section: ApfedSection = training.settings
    fields = set(apfed.Config.model_fields)
    return weighed(apfed.Config(**section.model_dump(include=fields)), training.run)


def distilling(training: Training, home: LabelHome, seed: int) -> Distilling:
    """The label owner's side of "apfed-d", or what it learns alone."""
    section: ApfedSection = training.settings
    teacher, students = DistilTeacher.model_fields, DistilConfig.__dataclass_fields__
    told = section.distil.model_dump()
    return Distilling(
        **vars(home),
        config=DistilTeacher(**{key: told[key] for key in teacher}),
        students=DistilConfig(**{key: told[key] for key in students if key in told}),
        seed=seed,
        deciding=training.deciding,
        label_epsilon=section.label_epsilon,
        label_stages=section.label_stages,
    )


def train_unasked(training: Training, stage: str, seed: int, observe: Observer) -> Outcome:
    """A baseline without rounds: of the label owner alone, or of all columns in one place."""
    work = distilling(training, label_home(training), seed)
    if stage in ALONE:
        return train_alone(work, stage, observe)
    data = training.loaded.data
    return train_gone(work, stage, data.train, data.test, observe)


# --- Everybody's columns in one place ------------------------------------------------------------


def pooled(data: Partitioned, home: LabelHome) -> LabelHome:
    """The active party's home with everybody's columns."""
    tested = home.test
    if data.test is not None and home.test_alignment is not None:
        tested = pool(data, data.test, home.name, home.test_alignment)
    return replace(home, train=pool(data, data.train, home.name, home.alignment), test=tested)


def pool(
    data: Partitioned, federation: Federation, active: str, alignment: Alignment | None = None
) -> PartyData:
    """Everybody's columns joined onto the active party's rows, as if one place held all.

    A party that lacks a row gives zeros for it: the mean of standardised columns. Rows are those
    that ``alignment`` names; left out, ids are compared in the clear.
    """
    alignment = alignment or federation.align(active)
    held = alignment.rows[active] >= 0
    own = federation[active].take(alignment.rows[active][held])
    parts: list[Tensor] = []
    for name, party in federation.parties.items():
        rows = alignment.rows[name][held]
        x = party.joined()
        part = x[rows.clamp(min=0)]
        part[rows < 0] = 0
        parts.append(part)
    return replace(own, blocks={"pooled": torch.cat(parts, dim=_join_axis(data, parts[0]))})


def _join_axis(data: Partitioned, part: Tensor) -> int:
    """The axis along which blocks lie side by side: columns, or the one that strips were cut."""
    first = next(iter(data.inputs.values()))
    if part.ndim == 4 and isinstance(first, ImageInput):
        return {"height": 2, "width": 3}[first.axis]
    return 1
