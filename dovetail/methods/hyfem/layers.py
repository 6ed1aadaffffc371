"""Layers around HyFEM's page: each is off by default, and then the page is the paper.

    start, classifier   "own" starts with classifiers of the parties' own, matched in round 1; "own"
                        shares extractors only (FedPer), "frozen" trains extractors only
    match_rounds        the assignment is kept from then on
    weights             "even": p_m = 1/M
    class_weights       rows of the output layer count by a party's samples of that class, or by its
                        rows that know that label: a mean over those that do
    scale_blocks        features are multiplied by the number of all blocks over that of a party's
    loss_weights        each class counts in Eq. (3) as a run's class_weights say
    held_classes        Eq. (3)'s softmax is over a party's own classes (FedRS, Li and Zhan 2021),
                        so that a round unlearns none that it lacks
    average_last        the server's model is the mean over its last rounds
    decide              a run's threshold and calibration of probabilities are decided on rows that
                        a party keeps out of training; a search asks for the score on them
    choose, patience    the round is kept whose slices do best on such rows: the paper keeps the
                        last, and of few rows parties learn their own by heart long before

Always: networks become models that predict alone, a party's from its blocks, the server's from
those a table has; of several labels a party sends back what it cannot learn as it came; a new party
takes its part of what others have trained (Remark 2). Of times to an event all parties agree on
intervals, and each has a baseline of its own:

    server                                     party
    GiveEnds                       -------->   where would intervals end? (``alignment/times.py``)
                                   <--------   Ends
    Begin, with the agreed ends    -------->   fits its own baseline hazards in them

The one output moves the log odds of all intervals alike, on top of a party's own baseline, as in a
survival model that is stratified by hospital; no count of an interval leaves a party.

To choose a round, the server asks of each:

    Validate, with its new slice   -------->   how good is it on the rows that you keep out?
                                   <--------   Validated

What leaves a party besides: the mean loss and the accuracy of the server's weights on those rows,
and how many they are; nothing where its policy has a budget or its weights have noise.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dovetail.alignment.columns import agreed_times
from dovetail.alignment.times import agree_times, rounded_up
from dovetail.data import Classification, Survival
from dovetail.data.survival import MOST_INTERVALS, survival_of
from dovetail.errors import ConfigError, MessageError, PartyError, TrainingError
from dovetail.federated import MAX_USES, BestRound, Federation, best, handles
from dovetail.methods.hyfem import hyfem
from dovetail.methods.hyfem.agreement import Begin, Hello, Holding, Ready
from dovetail.methods.hyfem.hyfem import Classifier, Extractors, Finish, Finished, Round, Train
from dovetail.methods.hyfem.models import loaded, model_of
from dovetail.methods.outcome import goodness
from dovetail.methods.settings.hyfem import Config, Settings
from dovetail.models import Model, derive_seed, generator, matching
from dovetail.models.blocks import BlocksSpec
from dovetail.models.decisions import class_weights, on
from dovetail.models.learners import hold_out
from dovetail.models.slices import ServerModel, flattened
from dovetail.models.untaught import Untaught
from dovetail.models.vectors import classifier_vector, load_classifier, load_weights
from dovetail.network import Doubles, Engine, Message, State

_log = logging.getLogger(__name__)

#: A party scores a round on so many rows at most: more make it slow, and hardly a better choice.
MOST_SCORED = 2000

# --- What crosses the boundary -----------------------------------------------------------------


class GiveEnds(Message):
    """Server -> party: where would intervals of your times end?"""

    family: ClassVar[str] = "hyfem"


class Ends(Message):
    """Party -> server: these, rounded up to two digits; none where labels are no times."""

    family: ClassVar[str] = "hyfem"

    ends_Q: Doubles


class GiveScore(Message):
    """Server -> party: how good is your model, on rows that you kept out of training?"""

    family: ClassVar[str] = "hyfem"


class Score(Message):
    """Party -> server: accuracy on so many rows; of numbers 1 / (1 + mean squared error)."""

    family: ClassVar[str] = "hyfem"

    goodness: float
    num_rows: int

    def check(self, **sizes: int) -> None:
        """Refuse what is no score."""
        if not 0 <= self.goodness <= 1 or self.num_rows < 0:
            what = f"{self.goodness} of {self.num_rows} rows is no score"
            raise MessageError(f"{self.wire_name()}: {what}")


class Validate(Message):
    """Server -> party: P_m Theta_0 and Pi_m w_0 after a round; how good are they?"""

    family: ClassVar[str] = "hyfem"

    extractors: Extractors
    classifier: Classifier


class Validated(best.Scored):
    """Party -> server: its slice on the rows that it keeps out of training."""

    family: ClassVar[str] = "hyfem"


# --- What a party executes ---------------------------------------------------------------------


class Member(hyfem.Member):
    """A party as a run has it.

    Attributes:
        judged: (N,) rows that it keeps out of training where a run decides something on them.
        scored: (N,) the rows that it scores a round on, of those that it keeps out of training;
            none where it says no score.
    """

    settings: ClassVar[type[Config]] = Settings
    config: Settings
    judged: Tensor
    scored: Tensor

    @handles(before_begin=True)
    def give_ends(self, ask: GiveEnds) -> Ends:
        """Where intervals with as many of its own events each would end."""
        cuts = self.task.cuts if isinstance(self.task, Survival) else ()
        return Ends(torch.from_numpy(rounded_up(np.array(cuts, dtype=np.float64))))

    def begin(self, ask: Begin) -> Ready:
        ready, labels = super().begin(ask), self.labels
        weights_C = class_weights(self.config.loss_weights, self.task, self.labels)
        self.class_weights_C = on(self.device, weights_C)
        self.network.classifier.requires_grad_(self.config.classifier != "frozen")
        if self.config.classifier == "own":  # it is not pulled to what it never was
            self.config = self.config.model_copy(update={"mu_2": 0.0})
        if self.local.is_private:  # whether anybody has a label is not to be told
            labels = labels.nan_to_num() if labels.is_floating_point() else labels
        self.untaught = Untaught([*self.network.classifier.children()][-1:], self.task, labels)
        return ready

    def agree(self, begin: Begin) -> BlocksSpec:
        if isinstance(self.task, Survival) and "times" in begin.task:
            labels = self.labels[self.labelled.to(self.device)].cpu()
            self.task = survival_of(agreed_times(begin.task), labels)
        spec = super().agree(begin)
        return replace(spec, of=begin.num_blocks) if self.config.scale_blocks else spec

    def training_rows(self) -> Tensor:
        """Of many rows that would judge, those that only a score would need train all the same."""
        rows = super().training_rows()
        self.judged = self.scored = rows[:0]
        if self.keeps_rows():
            rows, self.judged = hold_out(
                rows,
                self.labels[rows.to(self.device)].cpu(),
                seed=derive_seed(0, self.name, "threshold"),
                regression=not isinstance(self.task, Classification),
            )
        if not self.scores():
            return rows
        rng = generator(0, self.name, "scored rows")
        order = torch.randperm(len(self.judged), generator=rng)
        self.scored = self.judged[order[:MOST_SCORED].sort().values]
        if self.config.decide is None:
            rows = torch.cat([rows, self.judged[order[MOST_SCORED:]]]).sort().values
            self.judged = self.scored
        return rows

    def scores(self) -> bool:
        """Whether it says how good a round is: neither noise nor a budget covers an exact score."""
        covered = self.data.private or self.config.private or self.local.budget
        return self.config.chooses and not covered

    def keeps_rows(self) -> bool:
        """Whether something is decided on rows that do not train."""
        return self.config.decide is not None or self.scores()

    def loss(self, call: Callable[..., Tensor], /, *batch: Any, reduction: str = "mean") -> Tensor:
        if not (self.config.held_classes and isinstance(self.task, Classification)):
            return super().loss(call, *batch, reduction=reduction)
        labels = self.labels[self.labelled.to(self.device)]
        absent_C = torch.bincount(labels, minlength=self.task.num_outputs) == 0

        def of_held(x: Any) -> Tensor:
            return call(x).masked_fill(absent_C, -math.inf)

        return super().loss(of_held, *batch, reduction=reduction)

    @torch.no_grad()
    def take(self, sent: Train | Finish, *, load: bool) -> None:
        network = self.network
        keeps = self.config.classifier if self.started else self.config.start
        mine = classifier_vector(network.classifier)
        super().take(sent, load=load)
        if keeps == "own":
            load_classifier(network.classifier, mine)
        if not self.started:  # nor is one that began apart
            self.w_0 = [each.detach().clone() for each in network.classifier.parameters()]
        self.untaught.keep()

    def weights(self) -> tuple[Tensor, Tensor]:
        self.untaught.put_back()
        extractors, classifier = super().weights()
        return extractors, classifier if self.config.classifier == "matched" else torch.empty(0)

    def held_out(self) -> tuple[Tensor, Tensor] | None:
        """Outputs and labels of the rows that did not train; None without any."""
        if not len(self.judged):
            return None
        x = {name: block[self.judged] for name, block in self.blocks.items()}
        return self.model().outputs(x), self.labels[self.judged.to(self.device)].cpu()

    @handles(most=3)  # a trial asks once; one that falls as it finishes asks again
    def give_score(self, message: GiveScore) -> Score:
        """How good its model is on rows that did not train; nothing within a budget."""
        held = self.held_out() if self.local.budget is None else None
        return Score(0.0, 0) if held is None else Score(goodness(self.task, *held), len(held[1]))

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

    def model(self) -> Model:
        """The model as it is now: predicts alone.

        Raises:
            TrainingError: training has not started.
        """
        if self._begun is None:
            raise TrainingError(f"party {self.name!r} has no model before training began")
        about = {"method": "hyfem", "seed": self.local.seed}
        return model_of(self.name, self.task, self.network, self.spec, self.inputs, about)


# --- What the server executes ------------------------------------------------------------------


class Coordinator(hyfem.Coordinator):
    """The server as a run has it.

    Attributes:
        times: where intervals of times to an event end, as all agreed; none of other labels.
        sums: of extractors and classifiers of the last rounds.
        summed: of how many rounds.
        kept: its model after the best round so far; empty where there is none.
        silent: parties that did not say a score when asked.
    """

    saved: ClassVar[tuple[str, ...]] = (*hyfem.Coordinator.saved, "times", "sums", "summed", "kept")
    config: Settings
    times: tuple[float, ...] = ()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sums, self.summed = ServerModel(), 0
        self.kept, self.silent = ServerModel(), set[str]()
        if self.config.chooses:
            self.best_round = self._none_yet()

    # --- It begins ---------------------------------------------------------------------------

    def begin(self, federation: Federation) -> None:
        if isinstance(self.task, Survival):
            offered = federation.ask(GiveEnds(), Ends).or_raise()
            ends = {party: each.ends_Q.tolist() for party, each in offered.items()}
            self.times = agree_times(ends, MOST_INTERVALS)
            if not all(ends.values()):
                lacking = next(party for party, each in ends.items() if not each)
                raise ConfigError(
                    f"the run is of times to an event, and the label of {lacking!r} is none; give "
                    "label = { time = ..., event = ... } in its file"
                )
            self._take_times()
        super().begin(federation)

    def _take_times(self) -> None:
        self.task = self.agreed.task = Survival(self.times, (0.0,) * len(self.times))

    def hello(self) -> Hello:
        return Hello(self.config.class_weights)

    def start(self) -> None:
        super().start()
        self.sums, self.summed = ServerModel(), 0

    def restore(self, state: State) -> None:
        self.times = tuple(state["times"])
        if self.times:
            self._take_times()
        super().restore(state)

    # --- Rounds ------------------------------------------------------------------------------

    def p(self) -> Mapping[str, float]:
        return self.agreed.weights(even=self.config.weights == "even")

    def round(self, number: int, federation: Federation) -> Round:
        played = super().round(number, federation)
        if self.config.average_last > 1 and number > self.num_rounds - self.config.average_last:
            self._add()
        metrics = {**played.metrics}
        if self.config.width == "free":
            metrics["widths"] = list(self.server.widths)
        if self.best_round is not None:
            means = self.best_round.judge(number, self.validated(federation))
            if self.best_round.number == number:
                self.kept = copy.deepcopy(self.server)
            metrics |= {"best": self.best_round.number, **means}
        return replace(played, metrics=metrics)

    def _none_yet(self) -> BestRound:
        return BestRound(self.config.patience, self.config.choose)

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

    def _add(self) -> None:
        """A server that grew starts again: of neurons that were not there is no mean."""
        server, sums = self.server, self.sums
        shapes = [layer.shape for layer in server.classifier]
        if [layer.shape for layer in sums.classifier] != shapes:
            self.summed = 0
            sums.extractors = {
                block: torch.zeros(vector.shape, dtype=torch.float64)
                for block, vector in server.extractors.items()
            }
            sums.classifier = [np.zeros(shape) for shape in shapes]
        self.summed += 1
        for block, vector in server.extractors.items():
            sums.extractors[block] = sums.extractors[block] + vector
        for i, layer in enumerate(server.classifier):
            sums.classifier[i] = sums.classifier[i] + layer

    def sizes(self, sent: Train) -> dict[str, int]:
        sizes = super().sizes(sent)
        return sizes if self.config.classifier == "matched" else {**sizes, "W": 0}

    def match(self, p: Sequence[float]) -> None:
        if self.config.classifier == "matched":
            super().match(p)

    def assign(
        self,
        w: Sequence[matching.Classifier],
        p: Sequence[float],
        start: matching.Assignments | None,
    ) -> matching.Assignments:
        limit = self.config.match_rounds
        if start is not None and limit is not None and self.combined > limit:
            return start
        from_nothing = self.config.start == "own" and self.combined == 1
        return super().assign(w, p, None if from_nothing else start)

    def output_weights(self) -> np.ndarray | None:
        if self.config.class_weights and self.agreed.num_counted:
            return self.agreed.class_counts().astype(np.float64)
        return None

    # --- A new party -------------------------------------------------------------------------

    def welcome(self, party: str, holding: Holding) -> None:
        """A new party with blocks the server knows counts from the next round on.

        It takes those neurons that most parties have.

        Raises:
            PartyError: what it holds does not fit the others.
        """
        widths, server = self.server.widths, self.server
        if any(width > most for width, most in zip(holding.widths, widths, strict=False)):
            raise PartyError(
                party, f"its hidden widths {holding.widths} exceed the server's {widths}"
            )
        self.agreed.note(party, holding)
        chosen = []
        for i, width in enumerate(holding.widths):
            held = np.concatenate([assignment[i] for assignment in server.assignments.values()])
            popularity = np.bincount(held, minlength=widths[i])
            chosen.append(np.sort(np.argsort(-popularity, kind="stable")[:width]))
        server.assignments[party] = tuple(chosen)
        self.known[party] = self.slice(party)
        if self.best_round is not None:  # what was the best round knows nothing of it
            self.best_round, self.kept = self._none_yet(), ServerModel()

    def invite(self, federation: Federation, party: str) -> None:
        """A new party gets its model at once, and takes part from the next round on.

        Raises:
            PartyError: it cannot begin, or holds what does not fit the others.
        """
        self.welcome(party, federation.ask({party: self.hello()}, Holding).or_raise()[party])
        self.ask_to_begin(federation, [party]).or_raise()
        asked, timeout_s = {party: Finish(*self.known[party])}, self.config.timeout_s
        federation.ask(asked, Finished, timeout_s=timeout_s).or_raise()

    # --- It ends -----------------------------------------------------------------------------

    def finish(self, federation: Federation) -> None:
        self.settle()
        super().finish(federation)

    def settle(self) -> None:
        """The model becomes the mean over the last rounds, or that of the best, once."""
        if self.summed:
            server, sums = self.server, self.sums
            server.extractors = {
                block: (vector / self.summed).float() for block, vector in sums.extractors.items()
            }
            server.classifier = [layer / self.summed for layer in sums.classifier]
            self.summed, self.sums.classifier = 0, []
        if self.kept.extractors:
            self.server, self.kept = self.kept, ServerModel()

    def judged(self, network: Engine) -> dict[str, float]:
        """Party -> how good its model is on rows that it kept out of training."""
        replies = self.ask(network, GiveScore(), Score)
        return {party: reply.goodness for party, reply in replies.items() if reply.num_rows}

    def model(self) -> Model:
        """The server's model: predicts from all blocks, or from those a table has.

        Raises:
            TrainingError: the parties keep their classifiers, so that the server has none.
        """
        self._check_has_classifier()
        server, blocks = self.server, self.agreed.blocks
        theta = torch.cat([server.extractors[block] for block in blocks])
        spec = self.agreed.spec(blocks, server.widths)
        return self._model(self.name, spec, theta, flattened(server.classifier))

    def model_of(self, party: str) -> Model:
        """A party's slice of the server's model, as ``Finish`` would send it.

        Raises:
            TrainingError: the parties keep their classifiers.
        """
        self._check_has_classifier()
        holding = self.agreed.holdings[party]
        spec = self.agreed.spec(holding.blocks, holding.widths)
        return self._model(party, spec, *self.slice(party))

    def about(self) -> dict[str, Any]:
        """Description of how a model came about, which is kept with it."""
        return {"method": "hyfem", "seed": self.seed}

    def _check_has_classifier(self) -> None:
        if self.config.classifier == "own":
            raise TrainingError(
                'the server has no classifier with classifier = "own"; each party has its model'
            )

    def _model(self, party: str, spec: BlocksSpec, theta: Tensor, w: Tensor) -> Model:
        if self.config.scale_blocks:
            spec = replace(spec, of=len(self.agreed.blocks))
        network = loaded(spec, theta, w)
        return model_of(party, self.task, network, spec, self.agreed.encodings, self.about())
