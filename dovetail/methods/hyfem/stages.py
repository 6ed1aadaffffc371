"""HyFEM as a run trains it, beside the rulers of the paper's section 4 and Appendix C.1."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import torch

from dovetail.data import Blocks, Input, PartyData, Table, TableEncoder, Task
from dovetail.errors import ConfigError
from dovetail.methods import hyfem
from dovetail.methods.outcome import Observer, Outcome, Scores, is_due, score_party, told
from dovetail.models import Model, Secret
from dovetail.models.blocks import Extractor
from dovetail.network import Checkpoint, Engine, InProcess, Message, Pending, Precision, State

R = TypeVar("R", bound=Message)

#: What can be trained. "standalone" is each party alone with all its blocks, "pooled" everybody's
#: rows and all blocks in one place; "fedavg" and "fedprox" use the blocks that every party has;
#: "fedper" shares extractors only.
Stage = Literal["hyfem", "standalone", "pooled", "fedavg", "fedprox", "fedper"]

#: Who drives, in ledgers and among the models.
SERVER = "server"

#: The only party of the ruler "pooled".
POOLED = "pooled"


@dataclass(frozen=True, eq=False)
class Holding:
    """What one party learns from and is scored on.

    Attributes:
        train: its training rows.
        widths: hidden widths of its classifier.
        test: its test rows; None: it has none.
        raw: blocks of raw columns, of the training rows, which are encoded when training begins.
        raw_test: the same blocks, of the test rows.
        inputs: block -> how raw data becomes it, where that is this party's own.
        label: the label's name, where it is this party's own.
    """

    train: PartyData
    widths: tuple[int, ...]
    test: PartyData | None = None
    raw: Mapping[str, hyfem.Columns] = field(default_factory=dict)
    raw_test: Mapping[str, Table] = field(default_factory=dict)
    inputs: Mapping[str, Input] = field(default_factory=dict)
    label: str = ""

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of all."""
        return (*self.train.blocks, *self.raw)

    def only(self, blocks: Iterable[str]) -> Holding:
        """The same, with these blocks only."""
        wanted = set(blocks)
        encoded = {name: x for name, x in self.train.blocks.items() if name in wanted}
        raw = {name: own for name, own in self.raw.items() if name in wanted}
        return replace(self, train=replace(self.train, blocks=encoded), raw=raw)

    def member(
        self, task: Task, device: torch.device, secret: Secret | None = None
    ) -> hyfem.Member:
        """Its side of a stage."""
        return hyfem.Member(
            self.train, task, raw=self.raw, widths=self.widths, device=device, secret=secret
        )


def holdings(data: Blocks, widths: Mapping[str, tuple[int, ...]]) -> dict[str, Holding]:
    """Party -> what it holds, of a partition for simulation."""
    return {
        name: Holding(own, widths[name], None if data.test is None else data.test[name])
        for name, own in data.train.parties.items()
    }


def stage_config(
    config: hyfem.Config, stage: str, own: Mapping[str, Any], *, proximal: float
) -> hyfem.Config:
    """What a stage is trained with: the settings of all, less what it has none of, and its own.

    Raises:
        ValidationError: settings that cannot be.
    """
    mu = own.get("proximal", proximal)
    config = hyfem.Config(
        **{**config.model_dump(), **{key: own[key] for key in own if key != "proximal"}}
    )
    match stage:
        case "standalone" | "pooled":
            return hyfem.alone(config)
        case "fedavg":
            return hyfem.fedavg(config)
        case "fedprox":
            return hyfem.fedprox(config, mu)
        case "fedper":
            return hyfem.fedper(config)
    return config


@dataclass(frozen=True, kw_only=True)
class HyfemSetup:
    """Everything a run of HyFEM is a function of, but the seed.

    Attributes:
        method: what the run is about; its models are kept.
        task: what all parties' labels say.
        label: the label's name.
        extractors: block -> its extractor, of every block.
        parties: name -> what it holds; those of this process.
        config: settings of all stages.
        stages: stage -> its own settings, where they differ from ``config``.
        proximal: mu of the ruler "fedprox".
        rulers: what to train beside it.
        pooled: all blocks of everybody's rows; None where they are in no one place. Its test rows
            are those that the server's model is scored on.
        inputs: block -> how raw data becomes it; what ``predict`` needs.
        evaluate_every: rounds between scores on the test rows; 0 scores after the last only.
        device: where every party of this process computes.
        precision: how float32 tensors travel between parties of this process.
        connect: stage -> what reaches parties that live elsewhere; None: all are in ``parties``.
    """

    method: Stage
    task: Task
    label: str
    extractors: Mapping[str, Extractor]
    parties: Mapping[str, Holding]
    config: hyfem.Config
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    proximal: float = 0.01
    rulers: tuple[Stage, ...] = ()
    pooled: Holding | None = None
    inputs: Mapping[str, Input] = field(default_factory=dict)
    evaluate_every: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: Precision = "float32"
    connect: Callable[[str], Engine] | None = None

    def __post_init__(self) -> None:
        stages = (self.method, *self.rulers)
        if "pooled" in stages and self.pooled is None:
            raise ConfigError("'pooled' needs everybody's rows in one place; leave it out")
        if self.connect is None and not self.common and {"fedavg", "fedprox"} & {*stages}:
            raise ConfigError(
                "no block is at every party, and FedAvg and FedProx train on nothing else; leave "
                "'fedavg' and 'fedprox' out"
            )

    @property
    def common(self) -> tuple[str, ...]:
        """The blocks that every party has."""
        return tuple(
            block
            for block in self.extractors
            if all(block in own.blocks for own in self.parties.values())
        )

    def config_of(self, stage: str) -> hyfem.Config:
        """A stage's settings."""
        return stage_config(self.config, stage, self.stages.get(stage, {}), proximal=self.proximal)

    def train(
        self, stage: str, seed: int, observe: Observer, checkpoint: Checkpoint | None = None
    ) -> Outcome:
        """Train one stage, and score it at every party and at the server."""
        checkpoint = checkpoint or Checkpoint.none()
        config = self.config_of(stage)
        trial = self._trial(stage, config, seed, checkpoint)
        for done in trial.rounds(checkpoint):
            line: dict[str, Any] = {
                "round": done.number,
                "loss": statistics.fmean(done.losses.values()),
                "seconds": done.seconds,
            }
            if config.width == "free":
                line["widths"] = list(done.widths)
            last = done.number == config.rounds
            if is_due(done.number, config.rounds, self.evaluate_every):
                scores = self._score_all(stage, trial)
                line |= _line_of(stage, scores)
                if last:  # for a run that is stopped before its outcome is kept
                    checkpoint.extra["scores"] = scores
            if done.missed:
                line |= {"missed": dict(done.missed), "reasons": dict(done.reasons)}
            observe(stage, config.rounds, line)
        if stage == "fedper":  # a party's model has the last round's extractors only now
            checkpoint.extra["scores"] = self._score_all(stage, trial)
        outcome = Outcome(checkpoint.extra["scores"], self._kept(stage, trial))
        if stage not in ("standalone", "pooled"):  # where nothing leaves anybody
            outcome.ledger = trial.network.ledger
        return outcome

    def _trial(
        self, stage: str, config: hyfem.Config, seed: int, checkpoint: Checkpoint
    ) -> _Together | _Alone:
        """Coordinators and parties of one stage."""
        held = dict(self.parties)
        if stage == "pooled":
            assert self.pooled is not None
            held = {POOLED: self.pooled}
        blocks = tuple(self.extractors)
        if stage in ("fedavg", "fedprox") and self.connect is None:
            blocks = self.common
            held = {name: own.only(blocks) for name, own in held.items()}
        members = {name: own.member(self.task, self.device) for name, own in held.items()}

        def coordinator(blocks: Iterable[str]) -> hyfem.Coordinator:
            extractors = {block: self.extractors[block] for block in blocks}
            return hyfem.Coordinator(self.task, extractors, config, seed=seed, name=SERVER)

        network: Engine
        if self.connect is not None:
            network = self.connect(stage)
        else:
            hosted = checkpoint.hosting(members)
            network = InProcess(hosted, driver=SERVER, precision=self.precision)
        if stage != "standalone":
            return _Together(coordinator(blocks), network, members)
        own = {
            name: coordinator(block for block in self.extractors if block in each.blocks)
            for name, each in held.items()
        }
        return _Alone(own, network, members)

    def _score_all(self, stage: str, trial: _Together | _Alone) -> dict[str, dict[str, Scores]]:
        """Score name -> party -> scores on its test rows, of the models as they are now."""
        tested = {name: own for name, own in self.parties.items() if _is_tested(own)}
        whole = self.pooled if self.pooled is not None and _is_tested(self.pooled) else None

        def scored(name: str, model: Model, own: Holding) -> Scores:
            rate = self.config_of(stage).learning_rate
            return scores_of(name, model, own, what=stage, learning_rate=rate)

        if stage == "pooled":
            return {stage: {POOLED: scored(POOLED, trial.party(POOLED), whole)}} if whole else {}
        if isinstance(trial, _Together) and stage in ("fedavg", "fedprox") and whole is not None:
            return {stage: {SERVER: scored(SERVER, trial.coordinator.model(), whole)}}
        found = {
            stage: {name: scored(name, trial.party(name), own) for name, own in tested.items()}
        }
        if isinstance(trial, _Together) and stage == "hyfem" and whole is not None:
            found[SERVER] = {SERVER: scored(SERVER, trial.coordinator.model(), whole)}
        return {name: each for name, each in found.items() if each}

    def _kept(self, stage: str, trial: _Together | _Alone) -> dict[str, Model]:
        """Party -> its model, and the server's, with what ``predict`` needs."""
        models = {name: member.model() for name, member in trial.members.items()}
        if isinstance(trial, _Together) and stage in ("hyfem", "fedavg", "fedprox"):
            models[SERVER] = trial.coordinator.model()
        rate = self.config_of(stage).learning_rate
        return {
            name: told_model(
                model,
                self.parties.get(name),
                method=stage,
                label=self.label,
                learning_rate=rate,
                inputs=self.inputs,
            )
            for name, model in models.items()
        }


def told_model(
    model: Model,
    own: Holding | None,
    *,
    method: str,
    label: str,
    learning_rate: float,
    inputs: Mapping[str, Input] | None = None,
) -> Model:
    """A model with how it came about, and what ``predict`` needs."""
    known = {**(inputs or {}), **({} if own is None else own.inputs), **model.inputs}
    label = own.label if own is not None and own.label else label
    about = {**model.about, "method": method, "learning_rate": learning_rate}
    return replace(
        model,
        inputs={block: known[block] for block in model.shapes if block in known},
        about={**about, "label": label} if label else about,
    )


def model_of(member: hyfem.Member, own: Holding) -> Model:
    """What a party keeps at its home when training is over."""
    method = "fedper" if member.config.classifier == "own" else "hyfem"
    rate = member.config.learning_rate
    return told_model(member.model(), own, method=method, label=own.label, learning_rate=rate)


def scores_of_member(member: hyfem.Member, own: Holding) -> Scores:
    """A party's scores on its own test rows; none without rows."""
    rate = member.config.learning_rate
    return scores_of(member.name, member.model(), own, what="hyfem", learning_rate=rate)


def _is_tested(own: Holding) -> bool:
    return own.test is not None and own.test.labels is not None and own.test.num_rows > 0


def scores_of(name: str, model: Model, own: Holding, *, what: str, learning_rate: float) -> Scores:
    """A model's scores on this party's test rows; none without rows."""
    if own.test is None or own.test.labels is None or not own.test.num_rows:
        return {}
    x = {}
    for block in model.shapes:
        if block in own.raw_test:
            encoder = model.inputs[block]
            assert isinstance(encoder, TableEncoder)
            x[block] = encoder.transform(own.raw_test[block], allow_unseen=True)
        else:
            x[block] = own.test.blocks[block]
    outputs = model.outputs(x)
    return score_party(
        name, what, model.task, outputs, own.test.labels, learning_rate=learning_rate
    )


@dataclass(eq=False)
class _Together:
    """A coordinator and the parties that it drives."""

    coordinator: hyfem.Coordinator
    network: Engine
    members: Mapping[str, hyfem.Member]

    def rounds(self, checkpoint: Checkpoint) -> Iterator[hyfem.Round]:
        return hyfem.train(self.coordinator, self.network, checkpoint)

    def party(self, name: str) -> Model:
        """A party's model so far: its slice of the server's, if that has a classifier."""
        if self.coordinator.config.classifier == "own":
            return self.members[name].model()
        return self.coordinator.model_of(name)


@dataclass(eq=False)
class _Alone:
    """Each party with a coordinator of its own, one round of each after the other."""

    coordinators: Mapping[str, hyfem.Coordinator]
    network: Engine
    members: Mapping[str, hyfem.Member]

    def rounds(self, checkpoint: Checkpoint) -> Iterator[hyfem.Round]:
        engines = {name: _OneOf(self.network, name) for name in self.coordinators}
        done = checkpoint.resume(self, self.network)
        if not done:
            for name, own in self.coordinators.items():
                hyfem.begin(own, engines[name])
            checkpoint.save(0, self, self.network)
        num_rounds = next(iter(self.coordinators.values())).config.rounds
        for number in range(done + 1, num_rounds + 1):
            each = [
                hyfem.play_round(own, engines[name], number)
                for name, own in self.coordinators.items()
            ]
            yield hyfem.Round(
                number,
                {party: loss for round in each for party, loss in round.losses.items()},
                (),
                sum(round.seconds for round in each),
                {},
                {},
            )
            checkpoint.save(number, self, self.network)
        for name, own in self.coordinators.items():
            hyfem.finish(own, engines[name])

    def party(self, name: str) -> Model:
        return self.members[name].model()

    def state(self) -> State:
        return {name: own.state() for name, own in self.coordinators.items()}

    def restore(self, state: State) -> None:
        for name, own in self.coordinators.items():
            own.restore(state[name])


class _OneOf(Engine):
    """An engine, as one of its parties has it for itself."""

    def __init__(self, engine: Engine, party: str) -> None:
        super().__init__(engine.driver)
        self._engine = engine
        self._party = party

    @property
    def parties(self) -> tuple[str, ...]:
        return (self._party,)

    def send(
        self, requests: Mapping[str, Message], reply: type[R], *, timeout_s: float | None = None
    ) -> Pending[R]:
        return self._engine.send(requests, reply, timeout_s=timeout_s)


def _line_of(stage: str, scores: Mapping[str, Mapping[str, Scores]]) -> dict[str, Any]:
    """What a line of ``metrics.jsonl`` says of a round's scores."""
    line = told(scores[stage]) if stage in scores else {}
    if SERVER in scores:
        line[SERVER] = scores[SERVER][SERVER]
    return line
