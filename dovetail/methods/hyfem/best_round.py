"""The server keeps the round whose slices do best on rows that parties keep out of training.

The paper trains T rounds and keeps the last; of few rows parties learn their own by heart long
before.

    server                                     party
    Validate, with its new slice   -------->   how good is it on the rows that you keep out?
                                   <--------   Validated

What leaves a party besides: the mean loss and the accuracy of the server's weights on those rows,
and how many they are; nothing where its policy has a budget or its weights have noise.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from dovetail.federated import MAX_USES, BestRound, Federation, best, handles
from dovetail.methods.hyfem import layers
from dovetail.methods.hyfem.agreement import Holding
from dovetail.methods.hyfem.hyfem import Classifier, Extractors, Round
from dovetail.methods.outcome import goodness
from dovetail.models import generator
from dovetail.models.slices import ServerModel
from dovetail.models.vectors import load_weights
from dovetail.network import Message

_log = logging.getLogger(__name__)

#: A party scores a round on so many rows at most: more make it slow, and hardly a better choice.
MOST_SCORED = 2000

# --- What crosses the boundary -----------------------------------------------------------------


class Validate(Message):
    """Server -> party: P_m Theta_0 and Pi_m w_0 after a round; how good are they?"""

    family: ClassVar[str] = "hyfem"

    extractors: Extractors
    classifier: Classifier


class Validated(best.Scored):
    """Party -> server: its slice on the rows that it keeps out of training."""

    family: ClassVar[str] = "hyfem"


# --- What a party executes ---------------------------------------------------------------------


class Member(layers.Member):
    """A party that scores what the server makes of a round.

    Attributes:
        scored: (N,) the rows that it scores a round on, of those that it keeps out of training;
            none where it says no score.
    """

    scored: Tensor

    def scores(self) -> bool:
        """Whether it says how good a round is: neither noise nor a budget covers an exact score."""
        covered = self.data.private or self.config.private or self.local.budget
        return self.config.chooses and not covered

    def keeps_rows(self) -> bool:
        return super().keeps_rows() or self.scores()

    def training_rows(self) -> Tensor:
        """Of many rows that would judge, those that only a score would need train all the same."""
        rows = super().training_rows()
        self.scored = self.judged[:0]
        if not self.scores():
            return rows
        rng = generator(0, self.name, "scored rows")
        order = torch.randperm(len(self.judged), generator=rng)
        self.scored = self.judged[order[:MOST_SCORED].sort().values]
        if not super().keeps_rows():
            rows = torch.cat([rows, self.judged[order[MOST_SCORED:]]]).sort().values
            self.judged = self.scored
        return rows

    @handles(most=MAX_USES)  # scores, of weights that a server makes, tell labels
    @torch.no_grad()
    def validate(self, ask: Validate) -> Validated:
        """How good this slice is on the rows that did not train; nothing where it keeps none."""
        # Noise that an earlier ``Begin`` of this run asked for covers no exact score either.
        if not len(self.scored) or self.local.is_capped:
            return Validated(0.0, 0, 0.0)
        outputs, labels = self.outputs_of(ask.extractors, ask.classifier, self.scored)
        loss = self.loss(lambda given: given, outputs, labels).item()
        good = goodness(self.task, outputs.cpu(), labels.cpu())
        return Validated.of(good, len(self.scored), loss)

    def outputs_of(
        self, extractors: Tensor, classifier: Tensor, rows_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(N, C) outputs of a slice of the server's for these rows, and their labels."""
        network = copy.deepcopy(self.network).eval()
        load_weights(network, extractors, classifier)
        parts = [self.batch(rows_B) for rows_B in rows_N.split(1024)]
        return torch.cat([network(x) for x, _ in parts]), torch.cat([each for _, each in parts])


# --- What the server executes ------------------------------------------------------------------


class Coordinator(layers.Coordinator):
    """The server of a run, which asks how good each round's model is.

    Attributes:
        kept: its model after the best round so far; empty where there is none.
        silent: parties that did not say a score when asked.
    """

    saved: ClassVar[tuple[str, ...]] = (*layers.Coordinator.saved, "kept")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.kept, self.silent = ServerModel(), set[str]()
        if self.config.chooses:
            self.best_round = self._none_yet()

    def _none_yet(self) -> BestRound:
        return BestRound(self.config.patience, self.config.choose)

    def round(self, number: int, federation: Federation) -> Round:
        played = super().round(number, federation)
        if self.best_round is None:
            return played
        means = self.best_round.judge(number, self.validated(federation))
        if self.best_round.number == number:
            self.kept = copy.deepcopy(self.server)
        metrics = {**played.metrics, "best": self.best_round.number, **means}
        return replace(played, metrics=metrics)

    def validated(self, federation: Federation) -> Mapping[str, Validated]:
        """Party -> its score of this round's model, of those that trained in it.

        Who refuses has a part in the round all the same; it is named once.
        """
        here = [party for party in self.agreed.holdings if party not in federation.missing]
        asked = {party: Validate(*self.slice(party)) for party in here}
        sent = federation.send(asked, Validated, timeout_s=self.config.timeout_s)
        replies = sent.replies().fitting()
        for party, failure in replies.failures.items():
            if party not in self.silent:
                self.silent.add(party)
                _log.warning("%s has no say in which round is kept: %s", party, failure.cause)
        return dict(replies)

    def welcome(self, party: str, holding: Holding) -> None:
        """A new party; what was the best round knows nothing of it."""
        super().welcome(party, holding)
        if self.best_round is not None:
            self.best_round, self.kept = self._none_yet(), ServerModel()

    def settle(self) -> None:
        """The model becomes that of the best round, once."""
        super().settle()
        if self.kept.extractors:
            self.server, self.kept = self.kept, ServerModel()
