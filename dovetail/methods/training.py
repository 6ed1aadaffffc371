"""What one run trains: a class for each kind of stage, and one stage while it is trained.

``Training`` is a run: its file, what its parties have, and where it computes. ``Variant`` is what
one of its stages is: who answers, who drives, what is scored and kept. ``Staged`` is such a stage
in training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from dovetail.errors import ConfigError
from dovetail.federated import Driver, Local, Party, Played, train
from dovetail.methods.base import Loaded, Run
from dovetail.methods.baselines import TITLES as BASELINES
from dovetail.methods.baselines import OwnRows, train_baselines
from dovetail.methods.homes import DRIVER
from dovetail.methods.outcome import (
    Deciding,
    Observer,
    Outcome,
    Scores,
    about_decision,
    told,
)
from dovetail.models import Model
from dovetail.models.decisions import Decide, Decided
from dovetail.models.owners import Bottom
from dovetail.network import Checkpoint, Engine, InProcess
from dovetail.network.checkpoint import StatefulParty


class Kind(Protocol):
    """What a training asks of its method; see ``method.Method``."""

    @property
    def name(self) -> str:
        """Its section of both files."""

    @property
    def driven_by(self) -> str | None:
        """Who drives it over a network."""

    def variant(self, stage: str) -> Variant:
        """What a stage is."""

    def homes(self, stage: str, homes: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the parties of a stage have."""

    def party(self, home: Any, local: Local) -> Party:
        """A party's side of a run."""

    def driver(self, stage: str, settings: Any, seed: int) -> Driver:
        """What drives a stage."""


class Variant:
    """What a stage of a run is: its method, or a baseline of it.

    Attributes:
        silent: nothing leaves anybody, so that the stage has no ledger.
        scores_alone: it trains the baselines of one party's rows, too.
        has_rounds: it asks others, or goes on from where it was stopped.
    """

    silent: bool = False
    scores_alone: ClassVar[bool] = False
    has_rounds: ClassVar[bool] = True

    def homes(self, training: Training, name: str) -> Mapping[str, Any]:
        """Party -> what it trains with."""
        return training.kind.homes(name, training.homes)

    def begin_settings(self, run: Run, name: str) -> Mapping[str, Any]:
        """Setting -> value, of those that the first message carries to parties.

        One that is chosen while it trains has a table {"one_of": [values]}.
        """
        return {}

    def settings(
        self, training: Training, name: str, seed: int, observe: Observer, checkpoint: Checkpoint
    ) -> Any:
        """What it is trained with, once what is chosen on validation rows is chosen."""
        return training.settings

    def driver(
        self, training: Training, name: str, homes: Mapping[str, Any], settings: Any, seed: int
    ) -> Driver:
        """What drives it."""
        return training.kind.driver(name, settings, seed)

    def engine(self, training: Training, name: str, parties: Mapping[str, Any]) -> Engine:
        """What reaches the parties, wherever they are."""
        if training.loaded.connect is not None:
            return training.loaded.connect(name)
        return self.in_process(training, parties)

    def in_process(self, training: Training, parties: Mapping[str, Any]) -> Engine:
        """What reaches parties of this process."""
        return InProcess(parties, driver=DRIVER, precision=training.run.engine.precision)

    def sides(self, stage: Staged) -> Mapping[str, StatefulParty]:
        """What answers in this process: the parties."""
        return stage.parties

    def rounds(self, stage: Staged) -> Iterator[Played]:
        """Trains round by round."""
        return train(stage.driver, stage.network, stage.checkpoint)

    def train(
        self,
        training: Training,
        name: str,
        seed: int,
        observe: Observer,
        checkpoint: Checkpoint | None = None,
    ) -> Outcome:
        """What a stage comes to: trained, and scored at every party with a model and test rows."""
        staged = training.played(name, seed, observe, checkpoint)
        if training.trying:
            judged = staged.driver.judged(staged.network)
            scores: dict[str, Scores] = {
                party: {"validation": value} for party, value in judged.items()
            }
            return Outcome({name: scores}, ledger=staged.network.ledger)
        # The parties now have what they keep, which may be an earlier round's.
        return self.outcome(staged, seed, observe)

    # --- A party's model; at its site it knows no stage -----------------------------------------

    def model(self, party: Party, home: Any, name: str = "") -> Model | None:
        """What a party can use alone, as it is now."""
        return party.model()

    def test(
        self,
        party: Party,
        home: Any,
        name: str = "",
        *,
        last: bool = False,
        decision: Decided | None = None,
    ) -> Scores:
        """A party's scores on its test rows, as it is now, with details of the last; none without
        any rows."""
        model = party.model()
        if model is None:
            return {}
        return dict(home.scores(model, last=last, decision=decision))

    def validate(self, party: Party, home: Any) -> tuple[Tensor, Tensor] | None:
        """Outputs and labels of a party's validation rows, as it is now; None without any."""
        return None

    def decided(self, party: Party, home: Any) -> Decided | None:
        """The threshold and calibration that its run's settings ask a party for, where it has
        validation rows."""
        decide: Decide | None = getattr(getattr(party, "config", None), "decide", None)
        judged = None if decide is None else self.validate(party, home)
        return None if decide is None or judged is None else decide.decided(home.task, *judged)

    # --- A stage, as it is now ------------------------------------------------------------------

    def decisions(self, stage: Staged) -> dict[str, Decided | None]:
        """Party -> its threshold and calibration, of its model as it is now.

        Raises:
            ConfigError: it has no validation rows.
        """
        found: dict[str, Decided | None] = {}
        deciding = stage.training.deciding
        for name, home in stage.homes.items():
            if name not in stage.training.homes or not deciding.needs_rows:
                continue
            judged = self.validate(stage.parties[name], home)
            if judged is None:
                raise ConfigError(
                    f"party {name!r} has no validation rows to choose a threshold or a "
                    "calibration on; give it validation_share, or leave threshold and calibrate out"
                )
            found[name] = deciding.decision(home.task, *judged)
        return found

    def scored(self, stage: Staged, *, last: bool = False) -> dict[str, dict[str, Scores]]:
        """Score name -> party -> scores on its test rows."""
        scores = {
            name: self.test(
                stage.parties[name],
                home,
                stage.name,
                last=last,
                decision=stage.decisions.get(name) if last else None,
            )
            for name, home in stage.homes.items()
        }
        tested = {name: each for name, each in scores.items() if each}
        return {stage.name: tested} if tested else {}

    def validated(self, stage: Staged) -> Mapping[str, Scores]:
        """Party -> scores on rows that are kept apart, reported as rounds go on."""
        return {}

    def asked_scores(self, stage: Staged, network: Engine) -> Mapping[str, Scores]:
        """Party -> scores that parties elsewhere report when they are asked between rounds."""
        return {}

    def kept(self, stage: Staged) -> dict[str, Model]:
        """Party -> what it can use alone after the stage."""
        if stage.homes.keys() != stage.training.homes.keys():
            return {}  # nobody's
        made = {
            name: self.model(stage.parties[name], home, stage.name)
            for name, home in stage.homes.items()
        }
        return {name: model for name, model in made.items() if model is not None}

    def bottoms(self, stage: Staged) -> dict[str, Bottom]:
        """Party -> what it can use together with others' models only, after the stage."""
        return {}

    def about(self, stage: Staged) -> dict[str, Any]:
        """More to say of the stage in ``result.json``."""
        spent = stage.spent()
        return {"epsilon": spent} if spent else {}

    def outcome(self, stage: Staged, seed: int, observe: Observer) -> Outcome:
        """What the stage came to, when its rounds are over."""
        if not stage.training.elsewhere:
            stage.decisions.update(self.decisions(stage))
        models = {
            name: replace(model, about={**model.about, **about_decision(stage.decisions.get(name))})
            for name, model in self.kept(stage).items()
        }
        outcome = Outcome(stage.scores(last=True), models, self.bottoms(stage))
        outcome.about = self.about(stage)
        if not self.silent:
            outcome.ledger = stage.network.ledger
        return outcome


class LocalBaseline(Variant):
    """One of ``baselines.TITLES``: learners on each party's rows, which ask nobody."""

    has_rounds = False

    def rows(self, training: Training) -> Mapping[str, OwnRows]:
        """Party -> its rows."""
        return {name: home.own_rows() for name, home in training.homes.items()}

    def train(
        self,
        training: Training,
        name: str,
        seed: int,
        observe: Observer,
        checkpoint: Checkpoint | None = None,
    ) -> Outcome:
        """Fitted and scored; there are no rounds to go on from."""
        return train_baselines(name, self.rows(training), seed, observe, training.deciding)


@dataclass(frozen=True, kw_only=True, eq=False)
class Training:
    """A run: what its file says, its homes, and where it computes.

    Attributes:
        kind: the method.
        run: the run file.
        settings: its section of the method.
        homes: party -> what it has; none of those that are elsewhere.
        loaded: its data, and what reaches parties that are elsewhere.
        device: where every party of this process computes.
        last_only: score after the last round only, whatever the run file says.
        trying: settings are tried, and parties judge them on rows that they keep out of training.
    """

    kind: Kind
    run: Run
    settings: Any
    homes: Mapping[str, Any]
    loaded: Loaded
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    last_only: bool = False
    trying: bool = False

    @property
    def evaluate_every(self) -> int:
        """Epochs or rounds between scores; 0: after the last only."""
        return 0 if self.last_only else self.run.evaluate_every

    @property
    def active(self) -> str | None:
        """The party with labels, where it drives; its home makes the driver."""
        return self.loaded.active if self.kind.driven_by == "active" else None

    @property
    def method(self) -> str:
        """What the run is about; its models are kept."""
        return self.run.method

    @property
    def baselines(self) -> tuple[str, ...]:
        """What to train beside it."""
        main = self.kind.variant(self.method)
        return tuple(
            name for name in self.run.baselines if not main.scores_alone or name not in BASELINES
        )

    @property
    def elsewhere(self) -> bool:
        """Whether those who learn a model are."""
        return self.loaded.connect is not None and self.active is None

    @property
    def deciding(self) -> Deciding:
        """What mistakes cost."""
        return Deciding(self.run.class_weights, self.run.threshold, self.run.calibrate)

    def parties(self, homes: Mapping[str, Any]) -> dict[str, Party]:
        """Their sides, in this process."""
        return {
            name: self.kind.party(home, self.local(name))
            for name, home in homes.items()
            if name != self.active
        }

    def local(self, name: str) -> Local:
        """The context of a party in this process."""
        site = self.loaded.sites.get(name)
        budget = None if site is None else site.policy.section.privacy
        return Local(name, device=self.device, budget=budget)

    def engine(self, stage: str, parties: Mapping[str, Any]) -> Engine:
        """What reaches the parties in a stage."""
        return self.kind.variant(stage).engine(self, stage, parties)

    def train(
        self, stage: str, seed: int, observe: Observer, checkpoint: Checkpoint | None = None
    ) -> Outcome:
        """Train one stage, and score it at every party that has a model and test rows."""
        return self.kind.variant(stage).train(self, stage, seed, observe, checkpoint)

    def played(
        self, stage: str, seed: int, observe: Observer, checkpoint: Checkpoint | None = None
    ) -> Staged:
        """A stage that asks others, its rounds over."""
        variant, checkpoint = self.kind.variant(stage), checkpoint or Checkpoint.none()
        homes = variant.homes(self, stage)
        settings = variant.settings(self, stage, seed, observe, checkpoint)
        parties = self.parties(homes)
        driver = variant.driver(self, stage, homes, settings, seed)
        staged = Staged(self, stage, homes, parties, driver, settings, checkpoint)
        engine = self.engine(stage, checkpoint.hosting(variant.sides(staged)))
        staged = replace(staged, network=engine)
        checkpoint.every *= driver.rounds_per_save
        for done in variant.rounds(staged):
            line = done.line()
            if driver.due(done.number, self.evaluate_every):
                line |= staged.line(engine)
            line |= done.left_out()
            if spent := staged.spent():
                line |= {"epsilon": max(each["epsilon"] for each in spent)}
            observe(stage, driver.num_rounds, line)
        return staged


@dataclass(frozen=True, eq=False)
class Staged:
    """A stage that is being trained.

    Attributes:
        training: the run.
        name: the stage.
        homes, parties: party -> what it has, and its side; none of those that are elsewhere.
        driver: what drives it.
        settings: what it is trained with.
        checkpoint: where it is saved.
        network: what reaches the parties.
        decisions: party -> its threshold, once training is over.
    """

    training: Training
    name: str
    homes: Mapping[str, Any]
    parties: Mapping[str, Any]
    driver: Any
    settings: Any
    checkpoint: Checkpoint
    network: Engine = field(default_factory=lambda: InProcess({}, driver=DRIVER))
    decisions: dict[str, Decided | None] = field(default_factory=dict)

    @property
    def variant(self) -> Variant:
        """What it is."""
        return self.training.kind.variant(self.name)

    def outcome(self, seed: int, observe: Observer) -> Outcome:
        """What it came to, when its rounds are over."""
        return self.variant.outcome(self, seed, observe)

    def scores(self, *, last: bool = False) -> dict[str, dict[str, Scores]]:
        """Score name -> party -> scores; of parties that are elsewhere, what they have told."""
        if not self.training.elsewhere:
            return self.variant.scored(self, last=last)
        told_of = dict(self.driver.scores())
        return {self.name: told_of} if told_of else {}

    def line(self, network: Engine) -> dict[str, Any]:
        """What a line of ``metrics.jsonl`` says of a round's scores."""
        if self.training.elsewhere:
            asked = self.variant.asked_scores(self, network)
            return told(asked) if asked else {}
        scores = self.variant.scored(self)
        line = told(scores[self.name]) if self.name in scores else {}
        others = {name: each for name, each in scores.items() if name != self.name}
        line |= {name: each[name] for name, each in others.items() if name in each}
        if validated := self.variant.validated(self):
            means = told(validated)
            line["validation"] = means.get("accuracy", means.get("rmse"))
        return line

    def spent(self) -> list[dict[str, Any]]:
        """What noised releases have cost so far: of each sender to each receiver, where any is."""
        sides = [self.driver, *self.parties.values()]
        return [{"from": side.name, **each} for side in sides for each in side.spent()]
