"""CHFL as a run trains it, beside the rulers of the paper's Table II and section V-B5."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dovetail.data import Classification, CommonUnique, PartyData, Table, TableEncoder
from dovetail.errors import ConfigError
from dovetail.methods import chfl
from dovetail.methods.outcome import Observer, Outcome, Scores, is_due, score_party, told
from dovetail.models import Model
from dovetail.network import Checkpoint, Engine, Precision
from dovetail.network.checkpoint import load_state

#: What can be trained. "chfl" has lateral connections, "chfl-mu0" only the sum of both columns'
#: outputs; "common" is FedAvg on the common columns, "fedprox" the same with FedProx's term;
#: "local" is each party alone with all its columns; "simple" is section V-B5; "pooled" has
#: everybody's rows in one place, common columns only.
Stage = Literal["chfl", "chfl-mu0", "common", "local", "fedprox", "simple", "pooled"]

_METHODS: Mapping[str, str] = {
    "chfl": "chfl",
    "chfl-mu0": "chfl",
    "common": "common",
    "fedprox": "common",
    "local": "local",
    "simple": "simple",
    "pooled": "local",
}

#: Who drives, in ledgers.
DRIVER = "coordinator"

#: The only party of the ruler "pooled".
POOLED = "pooled"


@dataclass(frozen=True, eq=False)
class Holding:
    """What one party learns from and is scored on.

    Attributes:
        rows: its training and validation rows.
        label: its label's name.
        test: its test rows, as ``rows`` has them: raw, or network inputs; None: it has none.
        test_labels: their labels.
    """

    rows: chfl.EncodedRows | chfl.TableRows
    label: str
    test: Table | Tensor | None = None
    test_labels: Tensor | None = None


def holdings(data: CommonUnique) -> dict[str, Holding]:
    """Party -> what it holds, of a partition for simulation."""
    held = {}
    for name, own in data.train.parties.items():
        encoder = data.inputs[name]
        assert isinstance(encoder, TableEncoder)
        assert isinstance(data.task, Classification)
        rows = chfl.EncodedRows(
            own,
            encoder.feature_names,
            data.common_features,
            data.task,
            None if data.validation is None else data.validation[name],
            encoder,
        )
        test = None if data.test is None else data.test[name]
        tested = (None, None) if test is None else (test.joined(), test.labels)
        held[name] = Holding(rows, data.label, *tested)
    return held


@dataclass(frozen=True)
class Search:
    """Settings to choose from on validation rows, as V-A3 does.

    Attributes:
        grid: field of ``chfl.Config`` -> values to try. A stage tries those that matter to it.
        rounds: of each trial.
        seed: of every trial; None: the run's own.
    """

    grid: Mapping[str, Sequence[float]] = field(default_factory=dict)
    rounds: int = 10
    seed: int | None = None


def stage_config(config: chfl.Config, stage: str, own: Mapping[str, Any]) -> chfl.Config:
    """What a stage is trained with: the settings of all, less what it has none of, and its own.

    Raises:
        ValidationError: settings that cannot be.
    """
    values: dict[str, Any] = {**config.model_dump(), "method": _METHODS[stage]}
    if stage == "chfl-mu0":
        values["mu"] = 0.0
    if stage != "fedprox":
        values["proximal"] = 0.0
    if values["method"] == "local":
        values |= {"secure": False, "participation": 1.0}
    return chfl.Config(**{**values, **own})


@dataclass(frozen=True, kw_only=True)
class ChflSetup:
    """Everything a run of CHFL is a function of, but the seed.

    Attributes:
        method: what the run is about; its models are kept.
        parties: name -> what it holds; those of this process.
        config: settings of all stages; ``proximal`` is that of "fedprox".
        stages: stage -> its own settings, where they differ from ``config``.
        search: what to choose on validation rows; a field in ``stages`` is not searched there.
        rulers: what to train beside it.
        evaluate_every: rounds between scores on the test rows; 0 scores after the last only.
        device: where every party of this process computes.
        precision: how float32 tensors travel between parties of this process.
        connect: stage -> what reaches parties that live elsewhere; None: all are in ``parties``.
        found: what a search with a seed of its own chose, kept for the other seeds of a run.
    """

    method: Stage
    parties: Mapping[str, Holding]
    config: chfl.Config
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    search: Search = field(default_factory=Search)
    rulers: tuple[Stage, ...] = ()
    evaluate_every: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: Precision = "float32"
    connect: Callable[[str], Engine] | None = None
    found: dict[str, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "pooled" in (self.method, *self.rulers):
            raw = [name for name, own in self.parties.items() if not _is_encoded(own)]
            if raw or self.connect is not None:
                raise ConfigError("'pooled' needs everybody's rows in one place; leave it out")

    def config_of(self, stage: str, chosen: Mapping[str, Any] | None = None) -> chfl.Config:
        """A stage's settings, with what was chosen for it."""
        return stage_config(self.config, stage, {**self.stages.get(stage, {}), **(chosen or {})})

    def train(
        self, stage: str, seed: int, observe: Observer, checkpoint: Checkpoint | None = None
    ) -> Outcome:
        """Choose what is to be chosen, train one stage, and score it at every party."""
        checkpoint = checkpoint or Checkpoint.none()
        held = {POOLED: pool(self.parties)} if stage == "pooled" else self.parties
        members = {name: chfl.Member(own.rows, device=self.device) for name, own in held.items()}
        config = self._chosen(stage, seed, observe, checkpoint, held)
        engine: Engine
        if self.connect is None:
            engine = chfl.Together(
                checkpoint.hosting(members), driver=DRIVER, precision=self.precision
            )
        else:
            engine = self.connect(stage)
        coordinator = chfl.Coordinator(config, seed=seed)
        for done in chfl.train(coordinator, engine, checkpoint):
            line: dict[str, Any] = {
                "round": done.number,
                "loss": done.loss,
                "joint_loss": done.joint_loss,
                "seconds": done.seconds,
                "best": done.best,
            }
            if done.accuracy is not None:
                line["validation"] = done.accuracy
                if done.best == done.number:  # all that is known of parties that are elsewhere
                    checkpoint.extra["validation"] = dict(done.accuracies)
            if self.evaluate_every and is_due(done.number, config.rounds, self.evaluate_every):
                scores = _score_all(stage, members, held)
                line |= told(scores) if scores else {}
            if done.missed:
                line["missed"] = dict.fromkeys(done.missed, 1)
                line["reasons"] = dict(done.missed)
            if not done.participants:
                line["skipped"] = True  # a secret sum that failed
            observe(stage, config.rounds, line)
        # The members now have the weights of the round that was chosen.
        scores = _score_all(stage, members, held)
        if self.connect is not None:
            kept = checkpoint.extra.get("validation", {})
            scores = {name: {"validation": accuracy} for name, accuracy in kept.items()}
        outcome = Outcome({stage: scores} if scores else {}, ledger=engine.ledger)
        if stage != "pooled":
            outcome.models = {
                name: trained_model(member, held[name], stage) for name, member in members.items()
            }
        return outcome

    def _chosen(
        self,
        stage: str,
        seed: int,
        observe: Observer,
        checkpoint: Checkpoint,
        held: Mapping[str, Holding],
    ) -> chfl.Config:
        """The stage's settings after the search; each trial is told before the first round."""
        plain = self.config_of(stage)
        grid = {
            name: values
            for name, values in self.search.grid.items()
            if len(values) and _matters(name, stage) and name not in self.stages.get(stage, {})
        }
        if not grid:
            return plain
        if checkpoint.done():  # a run that was stopped has chosen already
            kept = _stored(checkpoint)
            if kept is not None:
                return self.config_of(stage, kept)
        seeded = self.search.seed is not None
        chosen = self.found.get(stage) if seeded else None
        if chosen is None:
            tried = plain.model_copy(update={"rounds": self.search.rounds})

            numbers = itertools.count(1)

            def start(trial: chfl.Config) -> Engine:
                if self.connect is not None:
                    return self.connect(f"{stage}-trial-{next(numbers)}")
                members = {
                    name: chfl.Member(own.rows, device=self.device) for name, own in held.items()
                }
                return chfl.Together(members, driver=DRIVER, precision=self.precision)

            def note(trial: chfl.Trial) -> None:
                observe(
                    stage,
                    plain.rounds,
                    {
                        "trial": dict(trial.changed),
                        "validation": trial.accuracy,
                        "best": trial.round,
                        "rounds": trial.rounds,
                        "seconds": trial.seconds,
                    },
                )

            search_seed = self.search.seed if self.search.seed is not None else seed
            trials = chfl.search(tried, grid, start, seed=search_seed, observe=note)
            chosen = dict(trials[0].changed)
            if seeded:
                self.found[stage] = chosen
        observe(stage, plain.rounds, {"chosen": chosen, "seconds": 0.0})
        checkpoint.extra["chosen"] = chosen
        return self.config_of(stage, chosen)


def trained_model(member: chfl.Member, held: Holding, stage: str | None = None) -> Model:
    """A member's model, and how it came about."""
    model, config = member.model(), member.config
    about = {
        **model.about,
        "method": stage or config.method,
        "label": held.label,
        "learning_rate": config.learning_rate,
    }
    if config.method == "chfl":
        about["mu"] = config.mu
    return replace(model, about=about)


def _stored(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """What an earlier process chose, from the file that the run goes on from."""
    assert checkpoint.folder is not None
    state, _ = load_state(checkpoint.folder / "driver.safetensors")
    chosen: dict[str, Any] | None = state["extra"].get("chosen")
    return chosen


def _matters(name: str, stage: str) -> bool:
    """Whether a stage's result depends on this setting."""
    return {"mu": stage == "chfl", "proximal": stage == "fedprox"}.get(name, True)


def _is_encoded(own: Holding) -> bool:
    return isinstance(own.rows, chfl.EncodedRows)


def pool(parties: Mapping[str, Holding]) -> Holding:
    """Everybody's rows in one place, with the columns that all have; one party's test rows.

    In a simulation all parties have the same test rows.
    """
    rows = [own.rows for own in parties.values()]
    encoded = [own for own in rows if isinstance(own, chfl.EncodedRows)]
    first = encoded[0]
    shared = first.common
    places = [[list(own.features).index(name) for name in shared] for own in encoded]

    def joined(parts: Sequence[PartyData]) -> PartyData:
        x = torch.cat([part.joined()[:, place] for part, place in zip(parts, places, strict=True)])
        labels = torch.cat([part.labels for part in parts if part.labels is not None])
        return PartyData(
            POOLED, np.concatenate([part.ids for part in parts]), {"columns": x}, labels
        )

    validation = [own.validation for own in encoded if own.validation is not None]
    together = chfl.EncodedRows(
        joined([own.data for own in encoded]),
        shared,
        shared,
        first.task,
        joined(validation) if validation else None,
    )
    tested = next(iter(parties.values()))
    if not isinstance(tested.test, Tensor):
        return Holding(together, tested.label)
    return Holding(together, tested.label, tested.test[:, places[0]], tested.test_labels)


def scores_of(member: chfl.Member, held: Holding, what: str = "chfl") -> Scores:
    """A member's scores on its test rows, of its model as it is now; none without rows."""
    x, labels = held.test, held.test_labels
    if x is None or labels is None or not len(labels):
        return {}
    if isinstance(x, Table):
        assert member.prepared.input is not None
        x = member.prepared.input.transform(x, allow_unseen=True)
    outputs = member.model().outputs(x)
    rate = member.config.learning_rate
    return score_party(member.name, what, member.task, outputs, labels, learning_rate=rate)


def _score_all(
    stage: str, members: Mapping[str, chfl.Member], held: Mapping[str, Holding]
) -> dict[str, Scores]:
    """Party -> scores, of parties that have test rows."""
    scores = {name: scores_of(member, held[name], stage) for name, member in members.items()}
    return {name: own for name, own in scores.items() if own}
