"""What can be trained that asks partners, or learns as if it did: a class a kind of stage.

Each says who answers, who drives, and what is scored and kept. A new one is a class here, a line in
``VARIANTS``, and its partner's side in ``home.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from torch import Tensor

from dovetail.federated import Driver, Local, Played
from dovetail.methods import apfed, vertical
from dovetail.methods.apfed import assisting, second_question, teaching
from dovetail.methods.apfed.distilling import ALONE, finish
from dovetail.methods.apfed.home import LabelHome, PartnerHome, labels_of
from dovetail.methods.apfed.missing_party_baselines import GONE
from dovetail.methods.apfed.sections import ApfedSection
from dovetail.methods.apfed.stages import (
    ASK_NOBODY,
    active_config,
    distilling,
    label_home,
    partner_homes,
    pooled,
    train_unasked,
)
from dovetail.methods.limits import limited
from dovetail.methods.outcome import Observer, Outcome, Scores, score_party
from dovetail.methods.section import encoder_spec
from dovetail.methods.substitutes import Substitute, predict_alone
from dovetail.methods.training import Staged, Training, Variant
from dovetail.models import Head, Model
from dovetail.models.decisions import Decided
from dovetail.network import Checkpoint, Engine, InProcess
from dovetail.network.checkpoint import StatefulParty


class ApfedVariant(Variant):
    """A stage of APFed: the label owner drives.

    Attributes:
        alone: nobody is asked.
    """

    alone: bool = False

    def label_home(self, training: Training, home: LabelHome) -> LabelHome:
        """What the label owner trains with."""
        return home

    def partner_home(self, training: Training, home: PartnerHome) -> PartnerHome:
        """A partner's home, for its side."""
        return home

    def active(self, training: Training, home: LabelHome, seed: int) -> Driver:
        """The label owner, which drives."""
        raise NotImplementedError

    def homes(self, training: Training, name: str) -> dict[str, LabelHome | PartnerHome]:
        """Whoever is asked, and the label owner."""
        owner = label_home(training)
        homes: dict[str, LabelHome | PartnerHome] = {
            party: self.partner_home(training, home)
            for party, home in partner_homes(training).items()
            if not self.alone
        }
        homes[owner.name] = self.label_home(training, owner)
        return {party: homes[party] for party in training.homes if party in homes}

    def driver(
        self, training: Training, name: str, homes: Mapping[str, Any], settings: Any, seed: int
    ) -> Driver:
        """The label owner."""
        return self.active(training, homes[label_home(training).name], seed)

    def engine(self, training: Training, name: str, parties: Mapping[str, Any]) -> Engine:
        """What reaches the partners; alone, nobody."""
        if name in ASK_NOBODY:
            return self.in_process(training, parties)
        return super().engine(training, name, parties)

    def in_process(self, training: Training, parties: Mapping[str, Any]) -> Engine:
        """What reaches partners of this process."""
        precision = training.run.engine.precision
        return InProcess(parties, driver=label_home(training).name, precision=precision)

    def sides(self, stage: Staged) -> Mapping[str, StatefulParty]:
        """Partners, of party files within their policies."""
        return {
            name: limited(party, stage.homes[name].limits) for name, party in stage.parties.items()
        }

    def scored(self, stage: Staged, *, last: bool = False) -> dict[str, dict[str, Scores]]:
        """Nothing while there is no model."""
        return {}

    def decisions(self, stage: Staged) -> dict[str, Decided | None]:
        """The label owner's threshold, by labelled rows that were held out."""
        return {}

    def kept(self, stage: Staged) -> dict[str, Model]:
        """What the label owner uses alone."""
        return {}


def owner_of(stage: Staged) -> LabelHome:
    """What the label owner has in a stage."""
    home: LabelHome = stage.homes[label_home(stage.training).name]
    return home


# --- APFed, and learning alone -------------------------------------------------------------------


@dataclass(frozen=True)
class Paper(ApfedVariant):
    """APFed.

    Attributes:
        loss: that all partners have; None: each its own.
    """

    loss: Literal["reconstruction", "contrastive"] | None = None

    def partner_home(self, training: Training, home: PartnerHome) -> PartnerHome:
        return home if self.loss is None else home.with_loss(self.loss)

    def active(self, training: Training, home: LabelHome, seed: int) -> apfed.Active:
        section: ApfedSection = training.settings
        if training.deciding.needs_rows:
            home = home.without_labels_on(home.held_out(seed))
        return apfed.Active(
            home.train,
            None if self.alone else home.alignment,
            home.task,
            active_config(training),
            Local(home.name, device=training.device, secret=home.secret),
            seed=seed,
            encoder=encoder_spec(section.encoder),
            head=Head(section.head, section.dropout),
        )

    def scored(self, stage: Staged, *, last: bool = False) -> dict[str, dict[str, Scores]]:
        home = owner_of(stage)
        if home.test is None or home.test.labels is None:
            return {}
        outputs = stage.driver.model().outputs(home.test.joined())
        scores = score_party(
            home.name,
            stage.name,
            home.task,
            outputs,
            home.test.labels,
            learning_rate=stage.driver.config.learning_rate,
            last=last,
            decision=stage.decisions.get(home.name) if last else None,
        )
        return {stage.name: {home.name: scores}}

    def decisions(self, stage: Staged) -> dict[str, Decided | None]:
        home = owner_of(stage)
        deciding = stage.training.deciding
        if not deciding.needs_rows:
            return {}
        held_out = home.train.take(home.held_out(stage.driver.local.seed))
        outputs = stage.driver.model().outputs(held_out.joined())
        return {home.name: deciding.decision(home.task, outputs, labels_of(held_out))}

    def kept(self, stage: Staged) -> dict[str, Model]:
        home = owner_of(stage)
        model = stage.driver.model()
        about = {**model.about, "method": stage.name, "label": home.label}
        if told := stage.driver.unify.told():
            about["private"] = told
        inputs = {} if home.input is None else dict.fromkeys(model.shapes, home.input)
        return {home.name: replace(model, inputs=inputs, about=about)}

    def about(self, stage: Staged) -> dict[str, Any]:
        best = stage.driver.best.epoch
        return ({"best epoch": best} if best else {}) | super().about(stage)


class Alone(Paper):
    """The label owner without partners."""

    alone = True

    def label_home(self, training: Training, home: LabelHome) -> LabelHome:
        section: ApfedSection = training.settings
        return home.on_common_rows() if section.overlap == "common" else home


class Pooled(Alone):
    """Everybody's columns in one place; the model is nobody's."""

    def label_home(self, training: Training, home: LabelHome) -> LabelHome:
        return super().label_home(training, pooled(training.loaded.data, home))

    def kept(self, stage: Staged) -> dict[str, Model]:
        return {}


# --- Classic vertical learning -------------------------------------------------------------------

#: Baselines as the paper's Table 2 names them, from what stands in for the partners.
SUBSTITUTES: Mapping[Substitute, str] = {"zeros": "tvfl-0", "average": "tvfl-a", "random": "tvfl-r"}


class Vertical(ApfedVariant):
    """Classic vertical learning: scored with its partners present, and of the last with them gone.

    Partners are asked after an epoch, never when training is over: what the last one gave is kept
    with the state, for a stage that is resumed after it.
    """

    def partner_home(self, training: Training, home: PartnerHome) -> PartnerHome:
        section: ApfedSection = training.settings
        alike = home if home.own else home.alike(section, encoder_spec(section.encoder))
        return replace(alike, side="vertical")

    def active(self, training: Training, home: LabelHome, seed: int) -> vertical.Owner:
        section: ApfedSection = training.settings
        fields = set(vertical.Config.model_fields)
        return vertical.Owner(
            home.train,
            home.alignment,
            home.task,
            vertical.Config(**active_config(training).model_dump(include=fields)),
            Local(home.name, device=training.device, secret=home.secret),
            seed=seed,
            encoder=encoder_spec(section.encoder),
            head=Head(section.head, section.dropout),
        )

    def scored(self, stage: Staged, *, last: bool = False) -> dict[str, dict[str, Scores]]:
        home = owner_of(stage)
        owner, extra = stage.driver, stage.checkpoint.extra
        if home.test is None:
            return {}
        if not last:
            together = self._together(stage, home, last=owner.number == owner.num_rounds)
            if together is None:
                return {}
            extra["scores"] = {stage.name: {home.name: together}}
            return {stage.name: {home.name: together}}
        scores: dict[str, dict[str, Scores]] = dict(extra.get("scores", {}))
        labels = labels_of(home.test)
        for substitute, outputs in predict_alone(owner, home.test.joined()).items():
            name = SUBSTITUTES[substitute]
            scores[name] = {home.name: self._score(stage, home, name, outputs, labels, last=True)}
        return scores

    def _together(self, stage: Staged, home: LabelHome, *, last: bool) -> dict[str, Any] | None:
        """Scores with every partner present, on the test samples that all have; None if too few.

        If that is not every test row, "rows" says how many.
        """
        test, alignment = home.test, home.test_alignment
        if test is None or test.labels is None or alignment is None:
            return None
        samples = alignment.shared(*alignment.rows)
        if len(samples) < stage.driver.rows.min_rows:  # partners answer about no fewer
            return None
        # In the order of its own rows: samples are numbered at random in each alignment, sums not.
        samples = samples[alignment.rows[home.name][samples].argsort()]
        rows = alignment.rows[home.name][samples]
        outputs = vertical.predict(stage.driver, stage.network, test.joined()[rows], samples)
        scores = self._score(stage, home, stage.name, outputs, test.labels[rows], last=last)
        return scores if len(rows) == test.num_rows else {**scores, "rows": len(rows)}

    def _score(
        self,
        stage: Staged,
        home: LabelHome,
        what: str,
        outputs: Tensor,
        labels: Tensor,
        *,
        last: bool,
    ) -> dict[str, Any]:
        rate = stage.driver.config.learning_rate
        scores = score_party(
            home.name, what, home.task, outputs, labels, learning_rate=rate, last=last
        )
        return dict(scores)


# --- APFed-D -------------------------------------------------------------------------------------


class Distilled(ApfedVariant):
    """APFed-D: the student learns when the teacher is trained."""

    scores_alone = True

    def partner_home(self, training: Training, home: PartnerHome) -> PartnerHome:
        return replace(home, side="distil")

    def active(self, training: Training, home: LabelHome, seed: int) -> Driver:
        return distilling(training, home, seed).teacher()

    def rounds(self, stage: Staged) -> Iterator[Played]:
        return teaching.train(stage.driver, stage.network, stage.checkpoint)

    def outcome(self, stage: Staged, seed: int, observe: Observer) -> Outcome:
        work = distilling(stage.training, owner_of(stage), seed)
        outcome = finish(work, stage.driver, stage.network, observe)
        if spent := [
            {"from": name, "to": work.name, "what": "columns", **partner.released.told()}
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


# --- APFed-S -------------------------------------------------------------------------------------


class Sealed(ApfedVariant):
    """APFed-S: teacher and student learn when partners have answered."""

    scores_alone = True

    def partner_home(self, training: Training, home: PartnerHome) -> PartnerHome:
        return replace(home, side="sealed")

    def active(self, training: Training, home: LabelHome, seed: int) -> Driver:
        work, section = distilling(training, home, seed), training.settings.sealed
        teacher = work.teacher()
        return second_question.Active(
            work.name,
            teacher.owner,
            teacher.train,
            teacher.test,
            section.smoothers,
            seed=work.seed,
            secret=work.secret,
            timeout_s=section.timeout_s,
            max_rows=section.rows,
            more=section.second,
        )

    def rounds(self, stage: Staged) -> Iterator[Played]:
        work = distilling(stage.training, owner_of(stage), stage.driver.seed)
        pays = partial(assisting.pays, work, stage.driver)
        return assisting.rounds(stage.driver, stage.network, stage.checkpoint, pays=pays)

    def outcome(self, stage: Staged, seed: int, observe: Observer) -> Outcome:
        work = distilling(stage.training, owner_of(stage), seed)
        outcome = assisting.finish(work, stage.driver, stage.network, observe)
        if outcome.joint is not None:  # those that are elsewhere keep their own at home
            outcome.bottoms = {
                name: partner.bottom_model()
                for name, partner in stage.parties.items()
                if name in stage.driver.partners
            }
        return outcome


# --- Who asks nobody -----------------------------------------------------------------------------


class Unasked(ApfedVariant):
    """A baseline without rounds."""

    has_rounds = False

    def train(
        self,
        training: Training,
        name: str,
        seed: int,
        observe: Observer,
        checkpoint: Checkpoint | None = None,
    ) -> Outcome:
        """What the label owner learns alone, or of everybody's columns in one place."""
        return train_unasked(training, name, seed, observe)


#: Stage -> what it is.
VARIANTS: Mapping[str, ApfedVariant] = {
    "apfed": Paper(),
    "apfed-r": Paper("reconstruction"),
    "apfed-c": Paper("contrastive"),
    "alone": Alone(),
    "pooled": Pooled(),
    "tvfl": Vertical(),
    "apfed-d": Distilled(),
    "apfed-s": Sealed(),
    **dict.fromkeys((*ALONE, *GONE), Unasked()),
}
