"""What a run of APFed trains: homes and driver of each stage, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from dovetail.data import Alignment, Federation, ImageInput, Partitioned, PartyData
from dovetail.federated import Driver, Local
from dovetail.methods import apfed, vertical
from dovetail.methods.apfed import assisting, distil, sealed
from dovetail.methods.apfed.distilling import ALONE, Distilling, finish, train_alone
from dovetail.methods.apfed.home import LabelHome, PartnerHome
from dovetail.methods.apfed.missing_party_baselines import GONE, train_gone
from dovetail.methods.apfed.sections import ApfedSection
from dovetail.methods.apfed.stacks import Config as DistilTeacher
from dovetail.methods.base import weighed
from dovetail.methods.method import Staged, Training
from dovetail.methods.outcome import Observer, Outcome, Scores, score_party
from dovetail.methods.section import encoder_spec
from dovetail.methods.substitutes import Substitute, predict_alone
from dovetail.models import Head, Model
from dovetail.models.decisions import Decided
from dovetail.models.learners.distil import DistilConfig

#: Stages of APFed itself, and the loss that all partners then have; None: each its own.
LOSSES: Mapping[str, Literal["reconstruction", "contrastive"] | None] = {
    "apfed": None,
    "apfed-r": "reconstruction",
    "apfed-c": "contrastive",
}

#: Baselines as the paper's Table 2 names them, from what stands in for the partners.
SUBSTITUTES: Mapping[Substitute, str] = {
    "zeros": "tvfl-0",
    "average": "tvfl-a",
    "random": "tvfl-r",
}

#: Stages that ask nobody, and those that party files allow among them.
ALONE_HERE = {"alone", "pooled"}
ASK_NOBODY = {"alone", *ALONE, *GONE}

#: Stages that need to know which test rows are whose.
TOGETHER = {"tvfl", "apfed-d", "apfed-s", "pooled", *GONE}


# --- Homes and driver ----------------------------------------------------------------------------


def label_home(training: Training) -> LabelHome:
    """What the active party has."""
    assert training.active is not None
    home = training.homes[training.active]
    assert isinstance(home, LabelHome)
    return home


def partner_homes(training: Training) -> dict[str, PartnerHome]:
    """Partner -> what it has; nobody who is elsewhere."""
    return {name: each for name, each in training.homes.items() if isinstance(each, PartnerHome)}


def active_config(training: Training) -> apfed.Config:
    """The active party's settings, with the run's weights of classes."""
    section: ApfedSection = training.settings
    fields = set(apfed.Config.model_fields)
    return weighed(apfed.Config(**section.model_dump(include=fields)), training.run)


def homes_of(training: Training, stage: str) -> dict[str, LabelHome | PartnerHome]:
    """The homes that a stage trains with: whoever is asked, and the active party's."""
    section: ApfedSection = training.settings
    home, partners = label_home(training), partner_homes(training)
    if stage == "pooled":
        home = _pooled(training.loaded.data, home)
    if stage in ALONE_HERE and section.overlap == "common":
        home = home.on_common_rows()
    found: dict[str, LabelHome | PartnerHome] = {}
    for name in training.homes:
        if name == home.name:
            found[name] = home
        elif stage not in ALONE_HERE:
            found[name] = _of_stage(partners[name], stage, section)
    return found


def _of_stage(home: PartnerHome, stage: str, section: ApfedSection) -> PartnerHome:
    """A partner's home, for its side of a stage."""
    if stage == "apfed-d":
        return replace(home, side="distil")
    if stage == "apfed-s":
        return replace(home, side="sealed")
    if stage == "tvfl":
        alike = home if home.own else home.alike(section, encoder_spec(section.encoder))
        return replace(alike, side="vertical")
    loss = LOSSES[stage]
    return home if loss is None else home.with_loss(loss)


def driver_of(training: Training, stage: str, home: LabelHome, seed: int) -> Driver:
    """The active party, which drives."""
    if stage == "apfed-d":
        return distilling(training, home, seed).teacher()
    section: ApfedSection = training.settings
    if stage == "apfed-s":
        return assisted(distilling(training, home, seed), section)
    config = active_config(training)
    given: dict[str, Any] = {
        "seed": seed,
        "encoder": encoder_spec(section.encoder),
        "head": Head(section.head, section.dropout),
    }
    local = Local(home.name, device=training.device, secret=home.secret)
    if stage == "tvfl":
        fields = set(vertical.Config.model_fields)
        alike = vertical.Config(**config.model_dump(include=fields))
        return vertical.Owner(
            home.train,
            home.alignment,
            home.task,
            alike,
            local,
            **given,
        )
    if training.deciding.needs_rows:
        home = home.without_labels_on(home.held_out(seed))
    alignment = home.alignment if stage in LOSSES else None
    return apfed.Active(home.train, alignment, home.task, config, local, **given)


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


def assisted(work: Distilling, section: ApfedSection) -> sealed.Active:
    """The label owner of "apfed-s"."""
    teacher = work.teacher()
    return sealed.Active(
        work.name,
        teacher.owner,
        teacher.train,
        teacher.test,
        section.sealed.smoothers,
        seed=work.seed,
        secret=work.secret,
        timeout_s=section.sealed.timeout_s,
    )


def train_unasked(training: Training, stage: str, seed: int, observe: Observer) -> Outcome | None:
    """A stage of the active party alone, or of everybody's columns in one place; None: another."""
    if stage in ALONE:
        return train_alone(distilling(training, label_home(training), seed), stage, observe)
    if stage in GONE:
        work, data = distilling(training, label_home(training), seed), training.loaded.data
        return train_gone(work, stage, data.train, data.test, observe)
    return None


# --- Scores and models ---------------------------------------------------------------------------


def scores_of(
    active: apfed.Active,
    home: LabelHome,
    stage: str,
    *,
    last: bool = False,
    decision: Decided | None = None,
) -> Scores:
    """The active party's scores on its test rows, predicting alone."""
    if home.test is None or home.test.labels is None:
        return {}
    outputs = active.model().outputs(home.test.joined())
    return _score(active, home, stage, outputs, home.test.labels, last=last, decision=decision)


def _score(
    side: apfed.Active | vertical.Owner,
    home: LabelHome,
    what: str,
    outputs: Tensor,
    labels: Tensor,
    *,
    last: bool = False,
    decision: Decided | None = None,
) -> dict[str, Any]:
    return score_party(
        home.name,
        what,
        home.task,
        outputs,
        labels,
        learning_rate=side.config.learning_rate,
        last=last,
        decision=decision,
    )


def vertical_scores(stage: Staged, home: LabelHome, *, last: bool) -> dict[str, dict[str, Scores]]:
    """Of classic vertical learning: with its partners present, and of the last with them gone.

    Partners are asked after an epoch, never when training is over: what the last one gave is kept
    with the state, for a stage that is resumed after it.
    """
    owner, extra = stage.driver, stage.checkpoint.extra
    assert isinstance(owner, vertical.Owner)
    if home.test is None:
        return {}
    if not last:
        together = _score_together(owner, stage, home, last=owner.number == owner.num_rounds)
        if together is None:
            return {}
        extra["scores"] = {stage.name: {home.name: together}}
        return {stage.name: {home.name: together}}
    found: dict[str, dict[str, Scores]] = dict(extra.get("scores", {}))
    assert home.test.labels is not None
    for substitute, outputs in predict_alone(owner, home.test.joined()).items():
        name = SUBSTITUTES[substitute]
        scored = _score(owner, home, name, outputs, home.test.labels, last=True)
        found[name] = {home.name: scored}
    return found


def _score_together(
    owner: vertical.Owner, stage: Staged, home: LabelHome, *, last: bool
) -> dict[str, Any] | None:
    """Scores with every partner present, on the test samples that all have; None if too few.

    Where that is not every test row, "rows" says how many.
    """
    own, alignment = home.test, home.test_alignment
    if own is None or own.labels is None or alignment is None:
        return None
    samples = alignment.shared(*alignment.rows)
    if len(samples) < owner.rows.min_rows:  # partners answer about no fewer
        return None
    # In the order of its own rows: samples are numbered at random in each alignment, sums are not.
    samples = samples[alignment.rows[home.name][samples].argsort()]
    rows = alignment.rows[home.name][samples]
    outputs = vertical.predict(owner, stage.network, own.joined()[rows], samples)
    scores = _score(owner, home, "tvfl", outputs, own.labels[rows], last=last)
    return scores if len(rows) == own.num_rows else {**scores, "rows": len(rows)}


def model_of(active: apfed.Active, home: LabelHome, stage: str) -> Model:
    """What predicts alone, from raw columns."""
    model = active.model()
    about = {**model.about, "method": stage, "label": home.label}
    if told := active.unify.told():
        about["private"] = told
    inputs = {} if home.input is None else dict.fromkeys(model.shapes, home.input)
    return replace(model, inputs=inputs, about=about)


def distilled(stage: Staged, home: LabelHome, seed: int, observe: Observer) -> Outcome:
    """Of APFed-D: the student, when the teacher is trained; and what each partner keeps."""
    active = stage.driver
    assert isinstance(active, distil.Active)
    outcome = finish(distilling(stage.training, home, seed), active, stage.network, observe)
    if spent := [
        {"from": name, "to": home.name, "what": "columns", **partner.released.told()}
        for name, partner in stage.parties.items()
        if partner.released is not None and partner.released.once.noise
    ]:
        outcome.about["epsilon"] = spent
    if outcome.joint is not None:  # those that are elsewhere keep their own at home
        outcome.bottoms = {
            name: partner.bottom_model()
            for name, partner in stage.parties.items()
            if name in outcome.about["distilled"]["partners"]
        }
    return outcome


def answered(stage: Staged, home: LabelHome, seed: int, observe: Observer) -> Outcome:
    """Of APFed-S: teacher and student, when partners have answered; and what each keeps."""
    active = stage.driver
    assert isinstance(active, sealed.Active)
    work = distilling(stage.training, home, seed)
    outcome = assisting.finish(work, active, stage.network, observe)
    outcome.bottoms = {
        name: stage.parties[name].bottom_model()
        for name in active.partners
        if name in stage.parties
    }
    return outcome


# --- Everybody's columns in one place ------------------------------------------------------------


def _pooled(data: Partitioned, home: LabelHome) -> LabelHome:
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
