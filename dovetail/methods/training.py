"""Training of a run: a class for each kind of variant, and one variant while it is trained.

``Training`` is a run: its file, what its parties have, and where it computes. ``Variant`` is what
the method and each baseline is: who answers, who drives, what is scored and kept. ``VariantRun``
is one in training. ``Separately`` drives runs that have nothing to do with each other as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from dovetail.data import Task
from dovetail.errors import ConfigError
from dovetail.federated import Driver, Federation, Local, Party, Played, train
from dovetail.methods.base import Loaded, Run
from dovetail.methods.baselines import LocalRows, train_baselines
from dovetail.methods.local_data import DRIVER
from dovetail.methods.outcome import (
    DecisionSettings,
    Observer,
    Outcome,
    Scores,
    about_decision,
    metrics_of,
    score_party,
)
from dovetail.methods.settings.shared import BASELINES, FileRecord
from dovetail.models import Model
from dovetail.models.decisions import FittedThreshold, fit_threshold
from dovetail.models.owners import Bottom
from dovetail.models.relied import relied as relied_on
from dovetail.network import Checkpoint, Engine, InProcess, State
from dovetail.network.checkpoint import StatefulParty
from dovetail.network.hosted import Hosted
from dovetail.settings.models import ThresholdSettings

#: Block -> features of rows.
Blocks = Mapping[str, Tensor]

#: Parties of a run whose most important columns are told.
_RELIED = 4


def learning_rate_of(side: Party | Driver) -> float | None:
    """Of whoever trains by settings that have one."""
    rate: float | None = getattr(getattr(side, "config", None), "learning_rate", None)
    return rate


def task_of(party: Party, local_data: Any) -> Task:
    """Task that it predicts, as agreed on when training started, or else as its data say."""
    task: Task = getattr(party, "task", local_data.task)
    return task


class Variant:
    """Variant of a run: its method, or a baseline of it.

    Attributes:
        silent: nothing leaves anybody, so that the variant has no ledger.
        scores_alone: it trains the baselines of one party's rows, too.
        has_rounds: it asks others, or goes on from where it was stopped.
    """

    silent: bool = False
    scores_alone: ClassVar[bool] = False
    has_rounds: ClassVar[bool] = True

    def variant_data(self, training: Training, name: str) -> Mapping[str, Any]:
        """Party -> what it trains with."""
        return training.kind.variant_data(name, training.party_data)

    def begin_settings(self, run: Run, name: str) -> Mapping[str, Any]:
        """Setting -> value, of those that the first message carries to parties.

        One that is chosen while it trains has a table {"one_of": [values]}.
        """
        return {}

    def settings(
        self, training: Training, name: str, seed: int, observe: Observer, checkpoint: Checkpoint
    ) -> Any:
        """Settings that it is trained with, once what is chosen on validation rows is chosen."""
        return training.settings

    def driver(
        self, training: Training, name: str, party_data: Mapping[str, Any], settings: Any, seed: int
    ) -> Driver:
        """Driver of the variant."""
        return training.kind.driver(name, settings, seed)

    def engine(self, training: Training, name: str, parties: Mapping[str, Any]) -> Engine:
        """Engine that reaches the parties, wherever they are."""
        if training.loaded.connect is not None:
            return training.loaded.connect(name)
        return self.in_process(training, parties)

    def in_process(self, training: Training, parties: Mapping[str, Any]) -> Engine:
        """Engine that reaches parties of this process."""
        return training.in_process(parties, DRIVER)

    def sides(self, variant_run: VariantRun) -> Mapping[str, StatefulParty]:
        """Parties that answer in this process."""
        return variant_run.parties

    def rounds(self, variant_run: VariantRun) -> Iterator[Played]:
        """Trains round by round."""
        return train(variant_run.driver, variant_run.network, variant_run.checkpoint)

    def train(
        self,
        training: Training,
        name: str,
        seed: int,
        observe: Observer,
        checkpoint: Checkpoint | None = None,
    ) -> Outcome:
        """A variant, trained, and scored at every party with a model and test rows."""
        variant_run = training.played(name, seed, observe, checkpoint)
        with closing(variant_run):
            return self.judged(variant_run, seed, observe)

    def judged(self, variant_run: VariantRun, seed: int, observe: Observer) -> Outcome:
        """Outcome of a variant; of settings that are tried, the parties' scores of them."""
        if variant_run.training.trying:
            judged = variant_run.driver.judged(variant_run.network)
            scores: dict[str, Scores] = {
                party: {"validation": value} for party, value in judged.items()
            }
            return Outcome({variant_run.name: scores}, ledger=variant_run.network.ledger)
        # The parties now have what they keep, which may be an earlier round's.
        return self.outcome(variant_run, seed, observe)

    # --- A party's model; at its site it knows no variant -----------------------------------------

    def model(self, party: Party, local_data: Any, name: str = "") -> Model | None:
        """Model that a party can use alone, as it is now."""
        return party.model()

    def test(self, party: Party, local_data: Any) -> Scores:
        """A party's scores on its test rows, as it is now; none without any."""
        tested, rate = self.tested(party, local_data), learning_rate_of(party)
        if tested is None:
            return {}
        task = task_of(party, local_data)
        return score_party(party.name, "", task, *tested, learning_rate=rate)

    def tested(self, party: Party, local_data: Any) -> tuple[Tensor, Tensor] | None:
        """Outputs and labels of a party's test rows, as it is now; None without any."""
        model = party.model()
        return None if model is None else local_data.tested(model)

    def tested_rows(self, party: Party, local_data: Any) -> tuple[Model, Blocks] | None:
        """A party's model, with what becomes of raw columns, and its test rows; None: which columns
        the model relies on is not told."""
        model = party.model()
        rows = getattr(local_data, "tested_rows", None)
        return None if model is None or rows is None else (model, rows())

    def validate(self, party: Party, local_data: Any) -> tuple[Tensor, Tensor] | None:
        """Outputs and labels of a party's validation rows, as it is now; None without any."""
        return None

    def fitted_threshold(self, party: Party, local_data: Any) -> FittedThreshold | None:
        """The threshold and calibration that its run's settings ask a party for, where it has
        validation rows."""
        decide: ThresholdSettings | None = getattr(getattr(party, "config", None), "decide", None)
        judged = None if decide is None else self.validate(party, local_data)
        return (
            None
            if decide is None or judged is None
            else fit_threshold(decide, local_data.task, *judged)
        )

    # --- A variant, as it is now ------------------------------------------------------------------

    def decisions(self, variant_run: VariantRun) -> dict[str, FittedThreshold | None]:
        """Party -> its threshold and calibration, of its model as it is now.

        Raises:
            ConfigError: it has no validation rows.
        """
        found: dict[str, FittedThreshold | None] = {}
        decision_settings = variant_run.training.decision_settings
        for name, local_data in variant_run.party_data.items():
            if name not in variant_run.training.party_data or not decision_settings.needs_rows:
                continue
            judged = self.validate(variant_run.parties[name], local_data)
            if judged is None:
                raise ConfigError(
                    f"party {name!r} has no validation rows to choose a threshold or a "
                    "calibration on; give it validation_share, or leave threshold and calibrate out"
                )
            found[name] = decision_settings.decision(local_data.task, *judged)
        return found

    def scored(
        self, variant_run: VariantRun, *, last: bool = False
    ) -> dict[str, dict[str, Scores]]:
        """Score name -> party -> scores on its test rows."""
        scores = {}
        for name, local_data in variant_run.party_data.items():
            party = variant_run.parties[name]
            if (tested := self.tested(party, local_data)) is not None:
                task = task_of(party, local_data)
                rows = self.tested_rows(party, local_data) if last else None
                scores[name] = variant_run.score(name, task, *tested, last=last, rows=rows)
        return {variant_run.name: scores} if scores else {}

    def validated(self, variant_run: VariantRun) -> Mapping[str, Scores]:
        """Party -> scores on rows that are kept apart, reported as rounds go on."""
        return {}

    def asked_scores(self, variant_run: VariantRun, network: Engine) -> Mapping[str, Scores]:
        """Party -> scores that parties elsewhere report when they are asked between rounds."""
        return {}

    def kept(self, variant_run: VariantRun) -> dict[str, Model]:
        """Party -> what it can use alone after the variant."""
        if variant_run.party_data.keys() != variant_run.training.party_data.keys():
            return {}  # nobody's
        made = {
            name: self.model(variant_run.parties[name], local_data, variant_run.name)
            for name, local_data in variant_run.party_data.items()
        }
        return {name: model for name, model in made.items() if model is not None}

    def bottoms(self, variant_run: VariantRun) -> dict[str, Bottom]:
        """Party -> what it can use together with others' models only, after the variant."""
        return {}

    def about(self, variant_run: VariantRun) -> dict[str, Any]:
        """More to say of the variant in ``result.json``."""
        spent = variant_run.spent()
        return {"epsilon": spent} if spent else {}

    def outcome(self, variant_run: VariantRun, seed: int, observe: Observer) -> Outcome:
        """Outcome of the variant, when its rounds are over."""
        if not variant_run.training.elsewhere:
            variant_run.decisions.update(self.decisions(variant_run))
        models = {
            name: replace(
                model, about={**model.about, **about_decision(variant_run.decisions.get(name))}
            )
            for name, model in self.kept(variant_run).items()
        }
        outcome = Outcome(variant_run.scores(last=True), models, self.bottoms(variant_run))
        outcome.about = self.about(variant_run)
        if not self.silent:
            outcome.ledger = variant_run.network.ledger
        return outcome


class Roundless(Variant):
    """A baseline that asks nobody: there are no rounds to go on from."""

    has_rounds = False

    def learned(self, training: Training, name: str, seed: int, observe: Observer) -> Outcome:
        """The baseline, trained and scored."""
        raise NotImplementedError

    def train(
        self,
        training: Training,
        name: str,
        seed: int,
        observe: Observer,
        checkpoint: Checkpoint | None = None,
    ) -> Outcome:
        return self.learned(training, name, seed, observe)


class LocalBaseline(Roundless):
    """Baseline of ``baselines.TITLES``: learners on each party's rows."""

    def rows(self, training: Training) -> Mapping[str, LocalRows]:
        """Party -> its rows."""
        return {name: local_data.local_rows() for name, local_data in training.party_data.items()}

    def learned(self, training: Training, name: str, seed: int, observe: Observer) -> Outcome:
        return train_baselines(name, self.rows(training), seed, observe, training.decision_settings)


class Kind(FileRecord):
    """How a method trains: its variants, its parties' side, and what drives it.

    Attributes (beside those of ``FileRecord``):
        Side: the class of a party's side, where a coordinator drives.
    """

    Side: ClassVar[type[Party] | None] = None

    def variant(self, variant: str) -> Variant:
        """Variant of this name: who answers, who drives, what is scored and kept."""
        return LocalBaseline() if variant in BASELINES else Variant()

    def variant_data(self, variant: str, party_data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Data that a variant trains with; ``pooled(party_data)`` for a baseline with all rows."""
        return party_data

    def party(self, local_data: Any, local: Local) -> Party:
        """A party's side of a run: in simulation, of a party file in this process, at a site."""
        if self.Side is None:
            raise NotImplementedError(f"{type(self).__name__} names no Side")
        return self.Side(local_data, local)

    def driver(self, variant: str, settings: Any, seed: int) -> Driver:
        """Driver of a variant."""
        raise NotImplementedError(f"{type(self).__name__} has no driver")


@dataclass(frozen=True, kw_only=True, eq=False)
class Training:
    """A run: what its file says, its parties' data, and where it computes.

    Attributes:
        kind: the method.
        run: the run file.
        settings: its section of the method.
        party_data: party -> what it has; none of those that are elsewhere.
        loaded: its data, and what reaches parties that are elsewhere.
        device: where every party of this process computes.
        last_only: score after the last round only, whatever the run file says.
        trying: settings are tried, and parties judge them on rows that they keep out of training.
        reported: which columns models rely on is found, too: for a run with a folder of its own.
    """

    kind: Kind
    run: Run
    settings: Any
    party_data: Mapping[str, Any]
    loaded: Loaded
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    last_only: bool = False
    trying: bool = False
    reported: bool = False

    @property
    def evaluate_every(self) -> int:
        """Epochs or rounds between scores; 0: after the last only."""
        return 0 if self.last_only else self.run.evaluate_every

    @property
    def active(self) -> str | None:
        """The party with labels, where it drives; its site makes the driver."""
        return self.loaded.active if self.kind.driven_by == "active" else None

    @property
    def method(self) -> str:
        """Method of the run; its models are kept."""
        return self.run.method

    @property
    def baselines(self) -> tuple[str, ...]:
        """Names of the variants to train beside it."""
        main = self.kind.variant(self.method)
        return tuple(
            name for name in self.run.baselines if not main.scores_alone or name not in BASELINES
        )

    @property
    def elsewhere(self) -> bool:
        """Whether those who learn a model are."""
        return self.loaded.connect is not None and self.active is None

    @property
    def decision_settings(self) -> DecisionSettings:
        """Settings of decisions: costs of mistakes."""
        return DecisionSettings(self.run.class_weights, self.run.threshold, self.run.calibrate)

    def parties(self, party_data: Mapping[str, Any]) -> dict[str, Party]:
        """Their sides, in this process."""
        return {
            name: self.kind.party(local_data, self.local(name))
            for name, local_data in party_data.items()
            if name != self.active
        }

    def local(self, name: str) -> Local:
        """The context of a party in this process."""
        site = self.loaded.sites.get(name)
        budget = None if site is None else site.policy.section.privacy
        return Local(name, device=self.device, budget=budget)

    def in_process(
        self, parties: Mapping[str, Any], driver: str, kind: Callable[..., Engine] = InProcess
    ) -> Engine:
        """Engine that reaches parties of this process, or of a cluster's processes."""
        hosts = self.loaded.hosts
        kind = kind if hosts is None else hosts.engine(kind)
        return kind(parties, driver=driver, precision=self.run.engine.precision)

    def engine(self, variant: str, parties: Mapping[str, Any]) -> Engine:
        """Engine that reaches the parties in a variant."""
        return self.kind.variant(variant).engine(self, variant, parties)

    def train(
        self, variant: str, seed: int, observe: Observer, checkpoint: Checkpoint | None = None
    ) -> Outcome:
        """Train one variant, and score it at every party that has a model and test rows."""
        return self.kind.variant(variant).train(self, variant, seed, observe, checkpoint)

    def sides(self, variant_name: str) -> Mapping[str, StatefulParty]:
        """Parties that answer in a variant, in a process that neither drives nor scores it."""
        variant = self.kind.variant(variant_name)
        party_data = variant.variant_data(self, variant_name)
        parties, none = self.parties(party_data), Checkpoint.none()
        return variant.sides(
            VariantRun(self, variant_name, party_data, parties, None, self.settings, none)
        )

    def played(
        self, variant_name: str, seed: int, observe: Observer, checkpoint: Checkpoint | None = None
    ) -> VariantRun:
        """A variant that asks others, its rounds over."""
        variant, checkpoint = self.kind.variant(variant_name), checkpoint or Checkpoint.none()
        party_data = variant.variant_data(self, variant_name)
        settings = variant.settings(self, variant_name, seed, observe, checkpoint)
        parties = self.parties(party_data)
        driver = variant.driver(self, variant_name, party_data, settings, seed)
        variant_run = VariantRun(
            self, variant_name, party_data, parties, driver, settings, checkpoint
        )
        sides = variant.sides(variant_run)
        if self.loaded.hosts is not None and sides:
            hosted, sides = self.loaded.hosts(parties, sides, variant_name, seed)
            variant_run = replace(variant_run, parties=hosted)
        engine = self.engine(variant_name, checkpoint.hosting(sides))
        variant_run = replace(variant_run, network=engine)
        checkpoint.every *= driver.rounds_per_save
        for done in variant.rounds(variant_run):
            line = done.line()
            if driver.due(done.number, self.evaluate_every):
                line |= variant_run.line(engine)
            line |= done.left_out()
            if spent := variant_run.spent():
                line |= {"epsilon": max(each["epsilon"] for each in spent)}
            observe(variant_name, driver.num_rounds, line)
        return variant_run


@dataclass(frozen=True, eq=False)
class VariantRun:
    """A variant that is being trained.

    Attributes:
        training: the run.
        name: the variant.
        party_data, parties: party -> what it has, and its side; none of those that are elsewhere.
        driver: what drives it.
        settings: what it is trained with.
        checkpoint: where it is saved.
        network: what reaches the parties.
        decisions: party -> its threshold, once training is over.
    """

    training: Training
    name: str
    party_data: Mapping[str, Any]
    parties: Mapping[str, Any]
    driver: Any
    settings: Any
    checkpoint: Checkpoint
    network: Engine = field(default_factory=lambda: InProcess({}, driver=DRIVER))
    decisions: dict[str, FittedThreshold | None] = field(default_factory=dict)

    @property
    def variant(self) -> Variant:
        """Variant of the run."""
        return self.training.kind.variant(self.name)

    def close(self) -> None:
        """End processes that its parties have on a cluster."""
        if isinstance(self.parties, Hosted):
            self.parties.stop()

    def outcome(self, seed: int, observe: Observer) -> Outcome:
        """Outcome of the variant, when its rounds are over."""
        return self.variant.outcome(self, seed, observe)

    def scores(self, *, last: bool = False) -> dict[str, dict[str, Scores]]:
        """Score name -> party -> scores; of parties that are elsewhere, what they have told."""
        if not self.training.elsewhere:
            return self.variant.scored(self, last=last)
        reported_of = dict(self.driver.scores())
        return {self.name: reported_of} if reported_of else {}

    def line(self, network: Engine) -> dict[str, Any]:
        """Metrics of a round's scores for a line of ``metrics.jsonl``."""
        if self.training.elsewhere:
            asked = self.variant.asked_scores(self, network)
            return metrics_of(asked) if asked else {}
        scores = self.variant.scored(self)
        line = metrics_of(scores[self.name]) if self.name in scores else {}
        others = {name: each for name, each in scores.items() if name != self.name}
        line |= {name: each[name] for name, each in others.items() if name in each}
        if validated := self.variant.validated(self):
            means = metrics_of(validated)
            line["validation"] = means.get("accuracy", means.get("rmse", means.get("c_index")))
        return line

    def score(
        self,
        party: str,
        task: Task,
        outputs: Tensor,
        labels: Tensor,
        *,
        last: bool,
        name: str = "",
        rows: tuple[Model, Blocks] | None = None,
    ) -> Scores:
        """Scores of a model's outputs for a party's rows.

        Args:
            name: of what is scored; "": the variant.
            rows: the model and these rows, if the columns that it relies on are reported;
                else None. They are of the run's own method, and of the parties that a report shows.
        """
        what, relied, training = name or self.name, None, self.training
        is_shown = what == training.run.method and party in [*self.party_data][:_RELIED]
        if rows is not None and training.reported and is_shown:
            relied = partial(relied_on, *rows, labels, seed=0)
        return score_party(
            party,
            what,
            task,
            outputs,
            labels,
            learning_rate=learning_rate_of(self.driver),
            last=last,
            decision=self.decisions.get(party),
            relied=relied,
        )

    def spent(self) -> list[dict[str, Any]]:
        """Privacy costs of noised releases so far: of each sender to each receiver, if there are
        any."""
        sides = [self.driver, *([] if isinstance(self.parties, Hosted) else self.parties.values())]
        spent = [(side.name, each) for side in sides for each in side.spent()]
        if isinstance(self.parties, Hosted):
            spent += self.parties.spent()
        return [{"from": name, **each} for name, each in spent]


D = TypeVar("D", bound=Driver)


class Separately(Driver, Generic[D]):
    """A round of each run after the other.

    Args:
        runs: name -> what drives it.
    """

    def __init__(self, runs: Mapping[str, D]) -> None:
        self.runs = dict(runs)
        self.num_rounds = 0

    def reach(self, name: str, network: Federation) -> Federation:
        """Federation that reaches the parties of a run."""
        return network

    def together(self, done: Mapping[str, Played], network: Federation) -> Played:
        """Result of a round of each run as one; name -> round."""
        raise NotImplementedError

    def _going_on(self, number: int) -> list[str]:
        return [
            name
            for name, run in self.runs.items()
            if number <= run.num_rounds and not run.ended(number)
        ]

    def ended(self, number: int) -> bool:
        return not self._going_on(number)

    def due(self, number: int, every: int) -> bool:
        return any(self.runs[name].due(number, every) for name in self._going_on(number))

    def begin(self, network: Federation) -> None:
        for name, run in self.runs.items():
            run.begin(self.reach(name, network))
        self._count()

    def begin_again(self, behind: Mapping[str, int], network: Federation) -> None:
        for name, run in self.runs.items():
            reached = self.reach(name, network)
            here = {party: step for party, step in behind.items() if party in reached.parties}
            run.begin_again(here, reached)

    def round(self, number: int, network: Federation) -> Played:
        going_on = self._going_on(number)
        done = {name: self.runs[name].round(number, self.reach(name, network)) for name in going_on}
        return self.together(done, network)

    def finish(self, network: Federation) -> None:
        for name, run in self.runs.items():
            run.finish(self.reach(name, network))

    def state(self) -> State:
        return {name: run.state() for name, run in self.runs.items()}

    def restore(self, state: State) -> None:
        for name, run in self.runs.items():
            run.restore(state[name])
        self._count()

    def _count(self) -> None:
        self.num_rounds = max(run.num_rounds for run in self.runs.values())
