"""A method: what a run file and a party file say of it, and what makes its two sides.

A method's folder has its paper (``methods/chfl/__init__.py``), what its run trains
(``stages.py``), and how both files, the run's and a party's, set it up (``plugin.py``). No other
room names a method.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from pydantic import BaseModel
from torch import Tensor

from dovetail import data as dd
from dovetail.errors import ConfigError
from dovetail.federated import Driver, Local, Party, Played, train
from dovetail.methods.base import (
    SILENT,
    Asked,
    Loaded,
    Maker,
    Parts,
    Progress,
    Run,
    SavesModel,
)
from dovetail.methods.baselines import TITLES as BASELINES
from dovetail.methods.baselines import OwnRows, train_baselines
from dovetail.methods.homes import (
    DRIVER,
    Homes,
    HomeSection,
    check_nobody_is_active,
    home_of_site,
    homes_of_partition,
)
from dovetail.methods.outcome import (
    Deciding,
    Observer,
    Outcome,
    Scores,
    Setup,
    about_decision,
    told,
)
from dovetail.methods.party import Algorithm, Site, algorithm
from dovetail.methods.section import Section
from dovetail.models import Model
from dovetail.models.decisions import Decide, Decided
from dovetail.models.owners import Bottom
from dovetail.network import Checkpoint, Engine, InProcess, Precision
from dovetail.network.checkpoint import StatefulParty


class Method:
    """A method, and all that others ask of it.

    One whose parties all have labels, while a coordinator has no data, has a ``Side`` and a
    ``driver``. From these come simulation, party files, gRPC and jobs of NVFlare, with
    ``--resume``, ledger and policy: a party's home is the same whoever dealt its rows, and
    ``party`` serves it.
    Other methods have a ``setup``, ``load_sites``, ``load_driver`` and ``members`` of their own.

    Attributes:
        name: its section of both files.
        Settings: the section of a run file; every key has a default.
        HomeSettings: the section of a party file, likewise; None: it has none.
        stages: what can be trained, the method and its baselines -> what a table calls it.
        scores: other names under which its stages are scored -> what a table calls them.
        partitions: the kinds of partition that it is simulated on.
        driven_by: who drives it over a network: the "active" party, or a "coordinator" without
            data; None: it is trained in one process only.
        algorithms: the part of its messages' wire names before the dot -> what a policy calls it;
            those of its ``Side`` where it says none.
        Side: the class of a party's side, where a coordinator drives.
        models: who keeps which model after a run, in a sentence or two.
        silent: stages in which nothing leaves anybody; they have no ledger.
        decides: whether it minds a run's class_weights and threshold.
        at_home: keys of a run file that stand in every party's own file, where it has one.
    """

    decides: ClassVar[bool] = False
    at_home: ClassVar[Collection[str]] = ()
    name: ClassVar[str]
    Settings: ClassVar[type[BaseModel]] = Section
    HomeSettings: ClassVar[type[BaseModel] | None] = None
    stages: ClassVar[Mapping[str, str]]
    scores: ClassVar[Mapping[str, str]] = {}
    partitions: ClassVar[Collection[str]]
    driven_by: ClassVar[str | None] = None
    algorithms: ClassVar[Mapping[str, Algorithm]] = {}
    Side: ClassVar[type[Party] | None] = None
    models: ClassVar[str] = "Each party keeps what the method gives it."
    silent: ClassVar[Collection[str]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.Side is not None:
            cls.driven_by = cls.driven_by or DRIVER
            cls.HomeSettings = cls.HomeSettings or HomeSection

    def protocols(self) -> Mapping[str, Algorithm]:
        """The part of its messages' wire names before the dot -> the algorithm."""
        if self.algorithms or self.Side is None:
            return self.algorithms
        prefixes = {kind.wire_name().partition(".")[0] for kind in self.Side.accepts}
        return dict.fromkeys(sorted(prefixes), algorithm(self.name, self.Side))

    def check(self, run: Run, *, where: str) -> None:
        """Refuse what the sections' types allow and the method does not.

        Raises:
            ConfigError: naming the file and the section.
        """

    def check_home(self, section: Any) -> None:
        """Refuse what a party file's section allows and the method does not.

        Raises:
            ConfigError: what cannot be.
        """

    def resolved(self, run: Run) -> dict[str, Any]:
        """Its keys of the run file whose defaults the run file itself does not write out."""
        return {}

    # --- Its two sides --------------------------------------------------------------------------

    def home(self, site: Site) -> Any:
        """What a party has by its own file, as ``party`` takes it; mistakes are told now.

        Raises:
            ConfigError: no labels, or another task.
            DataError: rows that cannot be dealt out.
        """
        return home_of_site(site, site.sections.get(self.name))

    def dealt(self, data: Any) -> Mapping[str, Any]:
        """Party -> the same, of what a partition deals out."""
        return homes_of_partition(data)

    def homes(self, stage: str, homes: Mapping[str, Any]) -> Mapping[str, Any]:
        """The homes that a stage trains with; ``pooled(homes)`` for a baseline with all rows."""
        return homes

    def homes_of(self, training: Training, stage: str) -> Mapping[str, Any]:
        """The same, of a run."""
        return self.homes(stage, training.homes)

    def party(self, home: Any, local: Local) -> Party:
        """A party's side of a run: in simulation, of a party file in this process, at a site."""
        assert self.Side is not None
        return self.Side(home, local)

    def driver(self, stage: str, settings: Any, seed: int) -> Driver:
        """What drives a stage."""
        raise NotImplementedError(f"{type(self).__name__} has no driver")

    def driver_of(
        self, training: Training, stage: str, homes: Mapping[str, Any], settings: Any, seed: int
    ) -> Driver:
        """The same, of a run."""
        return self.driver(stage, settings, seed)

    def sides(self, stage: Staged) -> Mapping[str, StatefulParty]:
        """What answers in this process: the parties."""
        return stage.parties

    def rounds(self, stage: Staged) -> Iterator[Played]:
        """Trains round by round."""
        return train(stage.driver, stage.network, stage.checkpoint)

    def engine(self, parties: Mapping[str, Any], precision: Precision) -> Engine:
        """What reaches the parties of this process."""
        return InProcess(parties, driver=DRIVER, precision=precision)

    def engine_of(self, training: Training, stage: str, parties: Mapping[str, Any]) -> Engine:
        """What reaches the parties in a stage, wherever they are."""
        if training.loaded.connect is not None:
            return training.loaded.connect(stage)
        return self.engine(parties, training.run.engine.precision)

    def choose(
        self, training: Training, stage: str, seed: int, observe: Observer, checkpoint: Checkpoint
    ) -> Any:
        """A stage's settings, once what is chosen on validation rows is chosen."""
        return training.settings

    def model(self, party: Party, home: Any, stage: str = "") -> Model | None:
        """What a party can use alone, as it is now; at its home it knows no stage."""
        return party.model()

    def test(
        self,
        party: Party,
        home: Any,
        stage: str = "",
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

    def part_of(self, model: Model, party: str, blocks: Mapping[str, Sequence[str]]) -> Model:
        """A new party's part of a saved model of all blocks.

        Args:
            blocks: of the party: block -> its columns; none where they are not known.

        Raises:
            ConfigError: the method has no such model, or the model no such blocks.
        """
        raise ConfigError(f"{self.name!r} trains no model of which a new party could take a part")

    def validate(self, party: Party, home: Any) -> tuple[Tensor, Tensor] | None:
        """Outputs and labels of a party's validation rows, as it is now; None without any."""
        return None

    def decided(self, party: Party, home: Any) -> Decided | None:
        """The threshold and calibration that its run's settings ask a party for, where it has
        validation rows."""
        decide: Decide | None = getattr(getattr(party, "config", None), "decide", None)
        judged = None if decide is None else self.validate(party, home)
        return None if decide is None or judged is None else decide.decided(home.task, *judged)

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

    def unasked(
        self, training: Training, stage: str, seed: int, observe: Observer
    ) -> Outcome | None:
        """What a stage comes to that asks nobody: a model alone; None: it is another."""
        if stage not in BASELINES:
            return None
        return train_baselines(stage, self.rows_alone(training), seed, observe, training.deciding)

    def own_rows(self, home: Any) -> OwnRows:
        """What a party has for a model alone, on its own columns."""
        rows: OwnRows = home.own_rows()
        return rows

    def rows_alone(self, training: Training) -> dict[str, OwnRows]:
        """Party -> the same."""
        return {name: self.own_rows(home) for name, home in training.homes.items()}

    def scored(self, stage: Staged, *, last: bool = False) -> dict[str, dict[str, Scores]]:
        """Score name -> party -> scores on its test rows, as all is now."""
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
        """Party -> scores on rows that are kept apart, to be told as rounds go on."""
        return {}

    def asked_scores(self, stage: Staged, network: Engine) -> Mapping[str, Scores]:
        """Party -> scores that parties elsewhere tell when they are asked between rounds."""
        return {}

    def kept(self, stage: Staged) -> dict[str, Model]:
        """Party -> what it can use alone after a stage."""
        if stage.homes.keys() != stage.training.homes.keys():
            return {}  # nobody's
        made = {
            name: self.model(stage.parties[name], home, stage.name)
            for name, home in stage.homes.items()
        }
        return {name: model for name, model in made.items() if model is not None}

    def bottoms(self, stage: Staged) -> dict[str, Bottom]:
        """Party -> what it can use together with others' models only, after a stage."""
        return {}

    def about(self, stage: Staged) -> dict[str, Any]:
        """More to say of a stage in ``result.json``."""
        spent = stage.spent()
        return {"epsilon": spent} if spent else {}

    def outcome(self, stage: Staged, seed: int, observe: Observer) -> Outcome:
        """What a stage came to, when its rounds are over."""
        training = stage.training
        if not training.elsewhere:
            stage.decisions.update(self.decisions(stage))
        models = {
            name: replace(model, about={**model.about, **about_decision(stage.decisions.get(name))})
            for name, model in self.kept(stage).items()
        }
        outcome = Outcome(stage.scores(last=True), models, self.bottoms(stage))
        outcome.about = self.about(stage)
        if stage.name not in self.silent:
            outcome.ledger = stage.network.ledger
        return outcome

    # --- A run ----------------------------------------------------------------------------------

    def baselines(self, run: Run) -> tuple[str, ...]:
        """What is trained beside the method."""
        return run.baselines

    def asks(self, run: Run) -> tuple[str, ...]:
        """What policies of its parties must agree to, by its name there, for these stages."""
        named = dict.fromkeys(each.policy for each in self.protocols().values())
        return (*(("align",) if self.driven_by == "active" else ()), *named)

    def stage_settings(self, run: Run, stage: str) -> Mapping[str, Any]:
        """Setting -> value, of those that a stage's first message tells parties.

        One that is chosen while it trains has a table {"one_of": [values]}.
        """
        return {}

    def searched(self, run: Run) -> Mapping[str, Sequence[Any]]:
        """Key of a run file -> values that a search tries where the run file names none."""
        return {}

    def setup(self, run: Run, loaded: Loaded, device: torch.device) -> Setup:
        """Everything that one seed's run is a function of."""
        data = loaded.data
        return Training(
            kind=self,
            run=run,
            settings=run.settings(self.name, self.Settings),
            homes=data.holdings if isinstance(data, Homes) else self.dealt(data),
            loaded=loaded,
            device=device,
        )

    def load_sites(
        self, run: Run, sites: Mapping[str, Site], *, where: str, talk: Progress = SILENT
    ) -> Parts:
        """Party files: training and test data, and how each is aligned, where that matters.

        Raises:
            ConfigError: no party, a policy that refuses, or rows that cannot be learned from.
        """
        if self.Side is None:
            raise ConfigError(
                f"{where}: {run.method!r} is simulated only; give [data], not parties"
            )
        check_nobody_is_active(run, self.name, where=where)
        homes = {}
        for name, site in sites.items():
            site.check_policy(self.name, DRIVER)
            homes[name] = self.home(site)
        if not homes:
            raise ConfigError(f"{where}: parties names no party file")
        first = next(iter(homes.values()))
        nobody = dd.Federation([])  # aligned with nobody: each home has its rows
        return Homes(nobody, None, first.task, {}, first.label, homes), None, None

    def load_driver(self, run: Run, driver: Any, *, where: str) -> Parts:
        """What a driver has whose partners are elsewhere: as of ``load_sites``.

        Args:
            driver: an ``ActiveDriver`` or a ``CarryingDriver``, by ``driven_by``.
        """
        if self.Side is None:
            raise ConfigError(f"{where}: {run.method!r} is simulated only; leave [engine] out")
        driver.wait()
        return Homes[Any].nobody(), None, None

    def members(self, site: Site, allowed: Collection[str]) -> Mapping[str, Maker]:
        """Algorithm (a message's prefix) -> what makes a party's side of its runs.

        Of its own algorithms, those among ``allowed``. Mistakes in the table are told now.
        """
        prefixes = [prefix for prefix in self.protocols() if prefix in allowed]
        if not prefixes or self.Side is None:
            return {}
        home = self.home(site)

        def of_run(asked: Asked) -> Callable[[], StatefulParty]:
            def make() -> StatefulParty:
                party = self.party(home, asked.local())

                def keep() -> None:
                    model = self.model(party, home)
                    if model is not None:
                        about = about_decision(self.decided(party, home))
                        model = replace(model, about={**model.about, **about})
                        asked.keep(model, self.test(party, home))

                if party.finish_with is None:
                    return party
                return SavesModel(party, party.finish_with, keep)

            return make

        return dict.fromkeys(prefixes, of_run)

    def describe(self, site: Site, agreed: Collection[str]) -> Iterable[str]:
        """Lines on what a party does that agrees to these algorithms, by their policy's names."""
        return ()


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

    kind: Method
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
        return self.kind.baselines(self.run)

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
        return self.kind.engine_of(self, stage, parties)

    def train(
        self, stage: str, seed: int, observe: Observer, checkpoint: Checkpoint | None = None
    ) -> Outcome:
        """Train one stage, and score it at every party that has a model and test rows."""
        if (alone := self.kind.unasked(self, stage, seed, observe)) is not None:
            return alone
        staged = self.played(stage, seed, observe, checkpoint)
        if self.trying:
            judged = staged.driver.judged(staged.network)
            scores: dict[str, Scores] = {
                party: {"validation": value} for party, value in judged.items()
            }
            return Outcome({stage: scores}, ledger=staged.network.ledger)
        # The parties now have what they keep, which may be an earlier round's.
        return self.kind.outcome(staged, seed, observe)

    def played(
        self, stage: str, seed: int, observe: Observer, checkpoint: Checkpoint | None = None
    ) -> Staged:
        """A stage that asks others, its rounds over."""
        kind, checkpoint = self.kind, checkpoint or Checkpoint.none()
        homes = kind.homes_of(self, stage)
        settings = kind.choose(self, stage, seed, observe, checkpoint)
        parties = self.parties(homes)
        driver = kind.driver_of(self, stage, homes, settings, seed)
        staged = Staged(self, stage, homes, parties, driver, settings, checkpoint)
        engine = self.engine(stage, checkpoint.hosting(kind.sides(staged)))
        staged = replace(staged, network=engine)
        checkpoint.every *= driver.rounds_per_save
        for done in kind.rounds(staged):
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

    def scores(self, *, last: bool = False) -> dict[str, dict[str, Scores]]:
        """Score name -> party -> scores; of parties that are elsewhere, what they have told."""
        if not self.training.elsewhere:
            return self.training.kind.scored(self, last=last)
        told_of = dict(self.driver.scores())
        return {self.name: told_of} if told_of else {}

    def line(self, network: Engine) -> dict[str, Any]:
        """What a line of ``metrics.jsonl`` says of a round's scores."""
        kind = self.training.kind
        if self.training.elsewhere:
            asked = kind.asked_scores(self, network)
            return told(asked) if asked else {}
        scores = kind.scored(self)
        line = told(scores[self.name]) if self.name in scores else {}
        others = {name: each for name, each in scores.items() if name != self.name}
        line |= {name: each[name] for name, each in others.items() if name in each}
        if validated := kind.validated(self):
            means = told(validated)
            line["validation"] = means.get("accuracy", means.get("rmse"))
        return line

    def spent(self) -> list[dict[str, Any]]:
        """What noised releases have cost so far: of each sender to each receiver, where any is."""
        sides = [self.driver, *self.parties.values()]
        return [{"from": side.name, **each} for side in sides for each in side.spent()]
