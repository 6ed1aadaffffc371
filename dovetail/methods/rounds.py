"""A run of a method that is not part of Dovetail, of which its author wrote the rounds alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from dovetail.data import Partitioned
from dovetail.errors import ConfigError
from dovetail.methods.outcome import Observer, Outcome, Scores, is_due, told
from dovetail.models import Model, NetworkSpec
from dovetail.models.metrics import score
from dovetail.network import Checkpoint, Ledger


@dataclass(frozen=True, eq=False)
class Round:
    """What a method has once a round is over.

    Attributes:
        number: which round, from 1.
        of: how many there will be.
        models: party -> what it would use alone if this were the last.
        ledger: what left each party so far.
        told: more for its line of ``metrics.jsonl``, such as a loss; JSON-ready.
    """

    number: int
    of: int
    models: Mapping[str, Model]
    ledger: Ledger
    told: Mapping[str, Any] = field(default_factory=dict)


#: Stage and seed -> its rounds, each as it ends.
Rounds = Callable[[str, int], Iterator[Round]]


@dataclass(frozen=True, kw_only=True)
class RoundsSetup:
    """A ``Setup`` that times and scores the rounds of a method.

    Stages are not saved in the middle: one that was stopped begins anew.

    Attributes:
        method: what the run is about; its models are kept.
        rulers: what to train beside it.
        data: who has what; models are scored on the test rows of their party.
        rounds: trains.
        evaluate_every: rounds between scores; 0 scores after the last only.
    """

    method: str
    rulers: tuple[str, ...]
    data: Partitioned
    rounds: Rounds
    evaluate_every: int = 1

    def train(
        self, stage: str, seed: int, observe: Observer, checkpoint: Checkpoint | None = None
    ) -> Outcome:
        """Train one stage, and score it at every party that has a model and test rows."""
        outcome = Outcome()
        began = time.perf_counter()
        for done in self.rounds(stage, seed):
            line = {"round": done.number, "seconds": time.perf_counter() - began, **done.told}
            outcome.models, outcome.ledger = dict(done.models), done.ledger
            if is_due(done.number, done.of, self.evaluate_every):
                scores = self._scores(done.models)
                outcome.scores = {stage: scores} if scores else {}
                line |= told(scores) if scores else {}
            observe(stage, done.of, line)
            began = time.perf_counter()
        return outcome

    def _scores(self, models: Mapping[str, Model]) -> dict[str, Scores]:
        scores: dict[str, Scores] = {}
        for name, model in models.items():
            own = None if self.data.test is None else self.data.test[name]
            if own is not None and own.labels is not None:
                scores[name] = score(self.data.task, model.outputs(own.joined()), own.labels)
        return scores


def model_of(data: Partitioned, party: str, network: nn.Module, spec: NetworkSpec) -> Model:
    """A network as this party uses it alone: from its raw columns, all of them in one block.

    Args:
        data: the run's.
        party: whose model it is.
        network: (B, F) of the party's features, joined, to (B, outputs).
        spec: what such a network is built from.

    Raises:
        ConfigError: the party has several blocks.
    """
    own = data.train[party]
    if len(own.blocks) != 1:
        raise ConfigError(
            f"party {party!r} has the blocks {list(own.blocks)}; a model of several is made with "
            "models.Model(...), which takes the input of each"
        )
    ((block, x),) = own.blocks.items()
    return Model(
        party,
        data.task,
        network,
        spec,
        {block: tuple(x.shape[1:])},
        {block: data.inputs[party]},
        {"label": data.label},
    )
