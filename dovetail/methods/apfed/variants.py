"""Variants that ask partners, or learn as if they did: a class for each kind; and their data.

Each says who answers, who drives, and what is scored and kept. A new one is a class here, a line in
``VARIANTS``, and its partner's side in ``local_data.py``.

Two are baselines of the literature for partners that may leave, scored beside APFed-D.
"party-dropout" is Sun et al.'s (PlugVFL), "laser" Valdeira et al.'s (LASER-VFL); see
``models/learners/subsets.py``. Both have the teacher's networks and settings, learn from every
labelled row of the label owner, shared or not, and are scored with the partners there and gone
("...-gone"). They are trained in one place, as baselines: no partner is asked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from dovetail.data import Alignment, Federation, ImageInput, Partitioned, PartyData
from dovetail.errors import ConfigError
from dovetail.federated import Driver, Local, Played
from dovetail.methods import apfed, vertical
from dovetail.methods.apfed import assisting, distilled, sealed, teaching
from dovetail.methods.apfed.distil import AlignedRows
from dovetail.methods.apfed.distilling import ALONE, Distilling, Help, finish, train_alone
from dovetail.methods.apfed.local_data import LabelOwnerData, PartnerData, labels_of
from dovetail.methods.base import weighed
from dovetail.methods.baselines import features, judged_rows
from dovetail.methods.limits import limited
from dovetail.methods.outcome import Observer, Outcome, Scores, numbers
from dovetail.methods.section import encoder_spec
from dovetail.methods.settings.apfed import ApfedSection
from dovetail.methods.substitutes import Substitute, predict_alone
from dovetail.methods.training import Roundless, Training, Variant, VariantRun
from dovetail.models import Head, Model, Unchanged
from dovetail.models.decisions import FittedThreshold
from dovetail.models.learners.distil import Owner
from dovetail.models.learners.subsets import fit_laser, fit_party_dropout
from dovetail.network import Engine
from dovetail.network.checkpoint import StatefulParty
from dovetail.settings.section import narrowed

#: Variant -> what a table calls its scores with the partners there; with "-gone", without them.
MISSING_PARTY: Mapping[str, str] = {
    "party-dropout": "party dropout",
    "laser": "LASER",
}


def train_with_missing(
    work: Distilling,
    variant: str,
    train: Federation,
    test: Federation | None,
    observe: Observer,
) -> Outcome:
    """Train and score one of ``GONE``.

    Raises:
        ConfigError: nobody beside the label owner.
    """
    started = time.perf_counter()
    name = work.train.name
    partners = [party for party in work.alignment.rows if party != name]
    if not partners:
        raise ConfigError(f"the baseline {variant!r} needs a party beside {name!r}")
    owner = work.owner()
    xs, held_PR = _parts(train, work.alignment, name, partners, owner.x_RF)
    labelled = owner.labelled
    config = work.config.stack("network")
    fit = fit_laser if variant == "laser" else fit_party_dropout
    fitted = fit(
        [x_RF[labelled] for x_RF in xs],
        judged_rows(owner.labelled_rows()),
        config,
        seed=work.seed,
        held_PN=held_PR[:, labelled],
        encode_on=[x_RF[held_R] for x_RF, held_R in zip(xs, held_PR, strict=True)],
    )
    outcome = Outcome()
    line: dict[str, Any] = {"epoch": 1, "seconds": time.perf_counter() - started, "steps": 1}
    if work.test is not None:
        local_NF = features(work.test.joined())
        without_partner = fitted.outputs([local_NF, *(None for _ in partners)])
        outcome.scores[f"{variant}-gone"] = {name: work.scored(f"{variant}-gone", without_partner)}
        line |= numbers(outcome.scores[f"{variant}-gone"][name])
        if test is not None and work.test_alignment is not None:
            test_xs, there_PN = _parts(test, work.test_alignment, name, partners, local_NF)
            rows = there_PN.all(dim=0).nonzero().flatten()
            if len(rows):
                together = fitted.outputs([x_NF[rows] for x_NF in test_xs])
                scored = work.scored(variant, together, rows)
                whole = len(rows) == len(local_NF)
                outcome.scores[variant] = {name: scored if whole else {**scored, "rows": len(rows)}}
    observe(variant, 1, line)
    return outcome


def _parts(
    federation: Federation,
    alignment: Alignment,
    name: str,
    partners: list[str],
    local_RF: Tensor,
) -> tuple[list[Tensor], Tensor]:
    """Every party's features in the label owner's rows, its own first, and (P, R) who has which.

    Zeros stand where a partner has no such row.
    """
    table = AlignedRows.of(local_RF, name, alignment)
    xs, held = [local_RF], [torch.ones(len(local_RF), dtype=torch.bool)]
    for party in partners:
        x = features(federation[party].joined())
        samples_R = table.samples[party]
        there_R = samples_R >= 0
        x_RF = torch.zeros(len(local_RF), x.shape[1])
        x_RF[there_R] = x[alignment.rows[party][samples_R[there_R]]]
        xs.append(x_RF)
        held.append(there_R)
    return xs, torch.stack(held)


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


class ApfedVariant(Variant):
    """A variant of APFed: the label owner drives.

    Attributes:
        alone: nobody is asked.
    """

    alone: bool = False

    def label_owner_data(self, training: Training, local_data: LabelOwnerData) -> LabelOwnerData:
        """Data that the label owner trains with."""
        return local_data

    def partner_data(self, training: Training, local_data: PartnerData) -> PartnerData:
        """A partner's site, for its side."""
        return local_data

    def active(self, training: Training, local_data: LabelOwnerData, seed: int) -> Driver:
        """The label owner, which drives."""
        raise NotImplementedError

    def variant_data(
        self, training: Training, name: str
    ) -> dict[str, LabelOwnerData | PartnerData]:
        """Whoever is asked, and the label owner."""
        owner = label_owner_data(training)
        party_data: dict[str, LabelOwnerData | PartnerData] = {
            party: self.partner_data(training, local_data)
            for party, local_data in partner_data_of(training).items()
            if not self.alone
        }
        party_data[owner.name] = self.label_owner_data(training, owner)
        return {party: party_data[party] for party in training.party_data if party in party_data}

    def driver(
        self, training: Training, name: str, party_data: Mapping[str, Any], settings: Any, seed: int
    ) -> Driver:
        """The label owner."""
        return self.active(training, party_data[label_owner_data(training).name], seed)

    def engine(self, training: Training, name: str, parties: Mapping[str, Any]) -> Engine:
        """Engine that reaches the partners; alone, it reaches nobody."""
        if name in ASK_NOBODY:
            return self.in_process(training, parties)
        return super().engine(training, name, parties)

    def in_process(self, training: Training, parties: Mapping[str, Any]) -> Engine:
        """Engine that reaches partners of this process."""
        return training.in_process(parties, label_owner_data(training).name)

    def sides(self, variant_run: VariantRun) -> Mapping[str, StatefulParty]:
        """Partners, of party files within their policies."""
        return {
            name: limited(party, variant_run.party_data[name].limits)
            for name, party in variant_run.parties.items()
        }

    def scored(
        self, variant_run: VariantRun, *, last: bool = False
    ) -> dict[str, dict[str, Scores]]:
        """Nothing while there is no model."""
        return {}

    def decisions(self, variant_run: VariantRun) -> dict[str, FittedThreshold | None]:
        """The label owner's threshold, by labelled rows that were held out."""
        return {}

    def kept(self, variant_run: VariantRun) -> dict[str, Model]:
        """Models that the label owner uses alone."""
        return {}


def owner_of(variant_run: VariantRun) -> LabelOwnerData:
    """Data of the label owner in a variant."""
    local_data: LabelOwnerData = variant_run.party_data[label_owner_data(variant_run.training).name]
    return local_data


# --- APFed, and learning alone -------------------------------------------------------------------


@dataclass(frozen=True)
class Paper(ApfedVariant):
    """APFed.

    Attributes:
        loss: that all partners have; None: each its own.
    """

    loss: Literal["reconstruction", "contrastive"] | None = None

    def partner_data(self, training: Training, local_data: PartnerData) -> PartnerData:
        if self.loss is None or local_data.from_file:  # no run changes a file's
            return local_data
        return local_data.with_loss(self.loss)

    def active(self, training: Training, local_data: LabelOwnerData, seed: int) -> apfed.Active:
        section: ApfedSection = training.settings
        training.decision_settings.check(local_data.task)
        if training.decision_settings.needs_rows:
            local_data = local_data.without_labels_on(local_data.held_out(seed))
        return apfed.Active(
            local_data.train,
            None if self.alone else local_data.alignment,
            local_data.task,
            active_config(training),
            Local(local_data.name, device=training.device, secret=local_data.secret),
            seed=seed,
            encoder=encoder_spec(section.encoder),
            head=Head(section.head, section.dropout),
            loss=self.loss or "",
        )

    def scored(
        self, variant_run: VariantRun, *, last: bool = False
    ) -> dict[str, dict[str, Scores]]:
        local_data = owner_of(variant_run)
        if local_data.test is None or local_data.test.labels is None:
            return {}
        model, x = variant_run.driver.model(), local_data.test.joined()
        outputs, labels = model.outputs(x), local_data.test.labels
        rows = None
        if last and local_data.input is not None:
            model = replace(model, inputs=dict.fromkeys(model.shapes, local_data.input))
            rows = model, dict.fromkeys(model.shapes, x)
        scores = variant_run.score(
            local_data.name, local_data.task, outputs, labels, last=last, rows=rows
        )
        return {variant_run.name: {local_data.name: scores}}

    def decisions(self, variant_run: VariantRun) -> dict[str, FittedThreshold | None]:
        local_data = owner_of(variant_run)
        decision_settings = variant_run.training.decision_settings
        if not decision_settings.needs_rows:
            return {}
        held_out = local_data.train.take(local_data.held_out(variant_run.driver.local.seed))
        outputs = variant_run.driver.model().outputs(held_out.joined())
        return {
            local_data.name: decision_settings.decision(
                local_data.task, outputs, labels_of(held_out)
            )
        }

    def kept(self, variant_run: VariantRun) -> dict[str, Model]:
        local_data = owner_of(variant_run)
        model = variant_run.driver.model()
        about = {**model.about, "method": variant_run.name, "label": local_data.label}
        if report := variant_run.driver.unify.report():
            about["private"] = report
        inputs = {} if local_data.input is None else dict.fromkeys(model.shapes, local_data.input)
        return {local_data.name: replace(model, inputs=inputs, about=about)}

    def about(self, variant_run: VariantRun) -> dict[str, Any]:
        best = variant_run.driver.best.epoch
        return ({"best epoch": best} if best else {}) | super().about(variant_run)


class Alone(Paper):
    """The label owner without partners."""

    alone = True

    def label_owner_data(self, training: Training, local_data: LabelOwnerData) -> LabelOwnerData:
        section: ApfedSection = training.settings
        return local_data.on_common_rows() if section.overlap == "common" else local_data


class Pooled(Alone):
    """Everybody's columns in one place; the model is nobody's."""

    def label_owner_data(self, training: Training, local_data: LabelOwnerData) -> LabelOwnerData:
        return super().label_owner_data(training, pooled(training.loaded.data, local_data))

    def kept(self, variant_run: VariantRun) -> dict[str, Model]:
        return {}


# --- Classic vertical learning -------------------------------------------------------------------

#: Baselines as the paper's Table 2 names them, from what stands in for the partners.
SUBSTITUTES: Mapping[Substitute, str] = {"zeros": "tvfl-0", "average": "tvfl-a", "random": "tvfl-r"}


class Vertical(ApfedVariant):
    """Classic vertical learning: scored with its partners present, and of the last with them gone.

    Partners are asked after an epoch, never when training is over: what the last one gave is kept
    with the state, for a variant that is resumed after it.
    """

    def partner_data(self, training: Training, local_data: PartnerData) -> PartnerData:
        alike = local_data if local_data.from_file else local_data.alike(training.settings)
        return replace(alike, side="vertical")

    def active(self, training: Training, local_data: LabelOwnerData, seed: int) -> vertical.Owner:
        section: ApfedSection = training.settings
        encoder = encoder_spec(section.encoder) if local_data.has_columns else Unchanged()
        return vertical.Owner(
            local_data.train,
            local_data.alignment,
            local_data.task,
            narrowed(active_config(training), vertical.Config),
            Local(local_data.name, device=training.device, secret=local_data.secret),
            seed=seed,
            encoder=encoder,
            head=Head(section.head, section.dropout),
        )

    def scored(
        self, variant_run: VariantRun, *, last: bool = False
    ) -> dict[str, dict[str, Scores]]:
        local_data = owner_of(variant_run)
        owner, extra = variant_run.driver, variant_run.checkpoint.extra
        if local_data.test is None:
            return {}
        if not last:
            together = self._together(
                variant_run, local_data, last=owner.number == owner.num_rounds
            )
            if together is None:
                return {}
            extra["scores"] = {variant_run.name: {local_data.name: together}}
            return {variant_run.name: {local_data.name: together}}
        scores: dict[str, dict[str, Scores]] = dict(extra.get("scores", {}))
        if not local_data.has_columns:  # without partners nothing is left to predict from
            return scores
        labels = labels_of(local_data.test)
        for substitute, outputs in predict_alone(owner, local_data.test.joined()).items():
            name = SUBSTITUTES[substitute]
            score = variant_run.score(
                local_data.name, local_data.task, outputs, labels, last=True, name=name
            )
            scores[name] = {local_data.name: score}
        return scores

    def _together(
        self, variant_run: VariantRun, local_data: LabelOwnerData, *, last: bool
    ) -> dict[str, Any] | None:
        """Scores with every partner present, on the test samples that all have; None if too few.

        If that is not every test row, "rows" says how many.
        """
        test, alignment = local_data.test, local_data.test_alignment
        if test is None or test.labels is None or alignment is None:
            return None
        samples = alignment.shared(*alignment.rows)
        if len(samples) < variant_run.driver.rows.min_rows:  # partners answer about no fewer
            return None
        # In the order of its own rows: samples are numbered at random in each alignment, sums not.
        samples = samples[alignment.rows[local_data.name][samples].argsort()]
        rows = alignment.rows[local_data.name][samples]
        outputs = vertical.predict(
            variant_run.driver, variant_run.network, test.joined()[rows], samples
        )
        scores = variant_run.score(
            local_data.name, local_data.task, outputs, test.labels[rows], last=last
        )
        return {**scores} if len(rows) == test.num_rows else {**scores, "rows": len(rows)}


# --- APFed-D and APFed-S -------------------------------------------------------------------------


class Helped(ApfedVariant):
    """A student learns at the label owner when partners have done their part."""

    scores_alone = True

    def help_of(self, work: Distilling, driver: Any, owner: Owner) -> Help:
        """Help of the partners."""
        raise NotImplementedError

    def outcome(self, variant_run: VariantRun, seed: int, observe: Observer) -> Outcome:
        started = time.perf_counter()
        work = distilling(variant_run.training, owner_of(variant_run), seed)
        owner = work.owner()
        help = self.help_of(work, variant_run.driver, owner)
        outcome = finish(work, owner, help, variant_run.network, observe, started)
        if outcome.joint is not None:  # those that are elsewhere keep their own at its site
            outcome.bottoms = {
                name: partner.bottom_model()
                for name, partner in variant_run.parties.items()
                if name in variant_run.driver.partners
            }
        return outcome


class Distilled(Helped):
    """APFed-D: a teacher is trained with the partners."""

    def partner_data(self, training: Training, local_data: PartnerData) -> PartnerData:
        return replace(local_data, side="distil")

    def active(self, training: Training, local_data: LabelOwnerData, seed: int) -> Driver:
        return distilling(training, local_data, seed).teacher()

    def rounds(self, variant_run: VariantRun) -> Iterator[Played]:
        return teaching.train(variant_run.driver, variant_run.network, variant_run.checkpoint)

    def help_of(self, work: Distilling, driver: Any, owner: Owner) -> Help:
        return distilled.help_of(work, driver, owner)

    def outcome(self, variant_run: VariantRun, seed: int, observe: Observer) -> Outcome:
        outcome = super().outcome(variant_run, seed, observe)
        to = owner_of(variant_run).name
        if spent := [
            {"from": name, "to": to, "what": "columns", **partner.released.report()}
            for name, partner in variant_run.parties.items()
            if partner.released is not None and partner.released.once.noise
        ]:
            outcome.about["epsilon"] = spent
        return outcome


class Sealed(Helped):
    """APFed-S: partners answer once."""

    def partner_data(self, training: Training, local_data: PartnerData) -> PartnerData:
        return replace(local_data, side="sealed")

    def active(self, training: Training, local_data: LabelOwnerData, seed: int) -> Driver:
        work, section = distilling(training, local_data, seed), training.settings.sealed
        teacher = work.teacher()
        return sealed.Active(
            teacher.owner,
            teacher.train,
            teacher.test,
            teacher.local,
            seed=work.seed,
            timeout_s=section.timeout_s,
            max_rows=section.rows,
            fill=section.fill,
        )

    def rounds(self, variant_run: VariantRun) -> Iterator[Played]:
        # Partners in this process have nothing on a disk: a run that goes on asks them again.
        saved = None if variant_run.parties else variant_run.checkpoint
        return assisting.rounds(variant_run.driver, variant_run.network, saved)

    def help_of(self, work: Distilling, driver: Any, owner: Owner) -> Help:
        return assisting.help_of(work, driver, owner)


# --- Who asks nobody -----------------------------------------------------------------------------


class Unasked(Roundless, ApfedVariant):
    """A baseline without rounds."""

    def learned(self, training: Training, name: str, seed: int, observe: Observer) -> Outcome:
        """Outcome of learning alone, or with everybody's columns in one place."""
        return train_unasked(training, name, seed, observe)


#: Variant -> what it is.
VARIANTS: Mapping[str, ApfedVariant] = {
    "apfed": Sealed(),
    "apfed-mixed": Paper(),
    "apfed-r": Paper("reconstruction"),
    "apfed-c": Paper("contrastive"),
    "alone": Alone(),
    "pooled": Pooled(),
    "tvfl": Vertical(),
    "apfed-d": Distilled(),
    **dict.fromkeys((*ALONE, *MISSING_PARTY), Unasked()),
}
