"""A label owner besides Algorithm 1: it checks, bounds what leaves, scores and decides."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.alignment.times import rounded_up
from dovetail.data import Classification, Minibatches, Survival, shared_json
from dovetail.data.party import labelled_rows
from dovetail.data.survival import MOST_INTERVALS, survival_of
from dovetail.errors import ConfigError, MessageError, PartyError, TrainingError
from dovetail.federated import MAX_USES, Local, Party, handles
from dovetail.methods.fedoptimus.data_owner import COORDINATOR
from dovetail.methods.fedoptimus.ensemble import MembersLoss, drawn_folds
from dovetail.methods.fedoptimus.evaluation import InOrder
from dovetail.methods.fedoptimus.local_data import TEST, Labels
from dovetail.methods.fedoptimus.messages import (
    BeginLabels,
    Finished,
    FinishLabels,
    GiveHeldOut,
    HeldOut,
    LabelsReady,
    Measure,
    Measured,
    TakeTimes,
    TimesTaken,
    Validate,
)
from dovetail.methods.fedoptimus.requests import check_finite
from dovetail.methods.fedoptimus.settings import settings_of
from dovetail.methods.limits import LimitError
from dovetail.methods.settings.fedoptimus import Config
from dovetail.models import Model, RandomStream, derive_seed
from dovetail.models.decisions import FittedThreshold, class_weights, fit_threshold, on
from dovetail.models.learners import hold_out
from dovetail.models.optimizers import Optimizer
from dovetail.models.owners import MembersTop, TopSpec
from dovetail.models.untaught import Untaught
from dovetail.models.vectors import write_vector
from dovetail.network import Message, State, check_shape

M = TypeVar("M", bound=Message)


class LabelParty(Party):
    """A party with labels: its batches, checks, mechanism and model; ``LabelOwner`` learns.

    Args:
        data: what it has.
        local: its context. With a budget no loss, no weight of its top and no score leaves.

    Attributes:
        top: its network; None before training starts.
        fitted_threshold: on samples that it kept out of training.
        kept_P: the best top so far; None: the last is what stays.
        times: where the intervals end that all agreed on; none before, and of other labels.
    """

    fitted_threshold: FittedThreshold | None = None
    top: nn.Module
    optimizer: Optimizer
    config: Config
    number: int  # of the batch that is due
    batch: Tensor | None
    times: tuple[float, ...] = ()

    def __init__(self, data: Labels, local: Local) -> None:
        self.data = data
        self.labels_S, self.task, self.samples = data.labels_S, data.task, data.trained
        self._all_samples, self.held_out = self.samples, self.samples[:0]
        self._validated = self._tested = InOrder(self.held_out)
        self._num_scored = 0
        tested = data.scored.get(TEST) if local.budget is None else None  # scores are not counted
        self.test_labels = torch.empty(0) if tested is None else tested
        self.has_begun = False
        self.kept_P: Tensor | None = None
        num_labelled = int(torch.isin(self.samples, labelled_rows(self.labels_S)).sum())
        if not 0 < len(self.samples) == num_labelled:
            raise ConfigError(
                f"label owner {local.name!r} needs one training sample or more, each with a "
                f"label; it has {len(self.samples)}, of which "
                f"{num_labelled} have one"
            )

    def sizes(self) -> dict[str, int]:
        """E, the width of embeddings, and P, the parameters of its top."""
        if not self.has_begun:
            return {}
        num = sum(parameter.numel() for parameter in self.top.parameters())
        return {"E": self.config.embedding, "P": num}

    # --- Training begins ---------------------------------------------------------------------

    def open(self, begin: BeginLabels) -> Config:
        """The run's settings; it knows how its gradients leave, and what is kept out of training.

        Raises:
            MessageError: settings that cannot be.
            ConfigError: a run that its budget does not allow.
        """
        config = settings_of(begin)
        key = "[fedoptimus] gradients = { clip = ..., noise = ... }"
        self.local.bound_releases(self.data.release, config.gradients, what="gradients", key=key)
        if self.local.budget is not None and config.average_tops:
            raise ConfigError(
                "its policy.privacy sets a budget of epsilon, and its top's weights would leave "
                "without noise; set fedoptimus.average_tops = false"
            )
        if config.decide is not None:
            self.samples, held_out = hold_out(
                self._all_samples,
                self.labels_S[self._all_samples],
                seed=derive_seed(0, self.name, "threshold", secret=self.data.key),
                regression=not isinstance(self.task, Classification),
            )
            self.held_out = held_out.sort().values  # by drawn numbers: not as the table lies
        self._validated = self._tested = InOrder(self.held_out)
        self._num_scored = 0
        self.number, self.batch, self.kept_P = 1, None, None
        return config

    def build(self, begin: BeginLabels, config: Config) -> nn.Module:
        """The top with the weights w_0, which are the same at every label owner.

        Raises:
            MessageError: weights that would fill its memory.
        """
        values = not isinstance(self.task, Classification)
        self.spec: TopSpec = config.top_of(self.task.num_outputs, values=values)
        with torch.device("meta"):  # takes no memory
            num_bytes = sum(each.nbytes for each in self.spec.build().parameters())
        self.local.take(num_bytes * (config.iterate_average + 1))
        with RandomStream(begin.seed, "top", secret=begin.secret()):
            top = self.spec.build().to(self.local.device)
        labels = self.labels_S[self.samples]
        self.untaught = Untaught(_outputs(top), self.task, labels)
        if not config.average_tops:  # nobody else teaches them
            self.untaught.silence()
        self.untaught.keep()
        return top

    def minibatches(self, config: Config) -> Minibatches:
        """Endless shuffled batches of its samples; and who leaves which of them out."""
        batches = self.local.batches(self.samples, config.batch_size)
        fold_S = None
        if config.patience is not None:
            rng = self.local.generator("folds")
            fold_S = drawn_folds(len(self.labels_S), self.samples, config.members, rng)
        weights_C = class_weights(config.loss_weights, self.task, self.labels_S[self.samples])
        self._loss = MembersLoss(self.task, config, on(self.local.device, weights_C), fold_S)
        return batches

    def described(self) -> str:
        """Description of its labels, which must be equal at all label owners, as JSON."""
        if isinstance(self.task, Survival):
            ends = rounded_up(np.array(self.task.cuts)).tolist()
            return json.dumps({"kind": "survival", "ends": ends})
        return json.dumps(shared_json(self.task))

    def ready(self) -> LabelsReady:
        """Reply to the coordinator."""
        self.has_begun, self.times = True, ()
        num_test = len(self.test_labels)
        return LabelsReady(len(self.samples), len(self.labels_S), num_test, self.described())

    # Gradients, scores and refusals in other intervals would tell a row's time.
    @handles(most=3)  # once; a driver that falls before it has saved anything asks again
    def take_times(self, message: TakeTimes) -> TimesTaken:
        """Learn in these intervals, which stay.

        Raises:
            MessageError: its labels are no times, the ends do not rise from 0 on, or it has others.
        """
        ends = message.ends_Q.numpy()
        if self.number > 1 or self.times not in ((), tuple(ends.tolist())):
            raise MessageError(
                f"{message.wire_name()}: intervals are agreed once, before the first step"
            )
        rise = len(ends) > 0 and bool((np.diff(ends, prepend=0.0) > 0).all())
        if not isinstance(self.task, Survival) or not rise or len(ends) > MOST_INTERVALS:
            raise MessageError(
                f"{message.wire_name()}: up to {MOST_INTERVALS} intervals of times to an event "
                f"rise from 0 on; its labels are {self.task.kind}, and {len(ends)} ends came"
            )
        self._learn_in(ends.tolist())
        return TimesTaken()

    def _learn_in(self, times: Sequence[float]) -> None:
        self.times = tuple(map(float, times))
        self.task = survival_of(self.times, self.labels_S[self.samples])
        self._loss.task = self.task

    # --- Steps -------------------------------------------------------------------------------

    def mean(self, message: Any) -> Tensor:
        """(B, E) mean embedding of the batch that is due, which a gradient can be taken of.

        Args:
            message: ``Learn``.

        Raises:
            PartyError: another batch, or none.
            MessageError: numbers that cannot be.
        """
        if self.batch is None or message.batch != self.number:
            raise PartyError(
                self.name, f"was sent batch {message.batch}, but batch {self.number} is due"
            )
        if message.give_top:
            self._check_shared(message)
        check_shape(message, "mean_BE", (len(self.batch), self.config.embedding), torch.float32)
        check_finite(message, "mean_BE")
        mean_BE: Tensor = message.mean_BE
        return mean_BE.detach().to(self.local.device).requires_grad_()

    @property
    def due(self) -> Tensor:
        """(B,) samples of the batch that is due.

        Raises:
            PartyError: none is.
        """
        if self.batch is None:
            raise PartyError(self.name, "was sent a batch, but none is due")
        return self.batch

    def _check_shared(self, message: Message) -> None:
        if not self.config.average_tops:
            raise MessageError(f"{message.wire_name()}: each label owner keeps its own top here")

    def loss(self, mean_BE: Tensor) -> tuple[Tensor, float]:
        """The loss of the batch that is due, and that of the rows that members leave out."""
        due_B = self.due
        labels_B = self.labels_S[due_B].to(self.local.device)
        return self._loss(self.top, mean_BE, labels_B, due_B)

    def follow(self, loss: Tensor) -> None:
        """Make a step along the gradient of a loss.

        Raises:
            TrainingError: the loss is not finite.
        """
        if not loss.isfinite() and self.local.budget is None:
            raise TrainingError(
                f"its loss is {loss.item()}; lower the learning_rate ({self.config.learning_rate})"
            )
        self.optimizer.zero_grad()
        loss.backward()
        if loss.isfinite():  # else, under a budget, it goes on: a refusal would tell of labels
            self.optimizer.step()
            self.untaught.put_back()

    def bounded(self, gradient_BE: Tensor | None) -> Tensor:
        """The gradient of the mean embedding of the batch that is due, as it may leave."""
        assert gradient_BE is not None
        released = self.local.release(
            "gradients", COORDINATOR, self.due, gradient_BE, or_zeros=True
        )
        return released.cpu()

    def capped(self, loss: float, held_out: float) -> tuple[float, float]:
        """Losses as they may leave: zeros under a budget, as both reveal labels."""
        return (loss, held_out) if self.local.budget is None else (0.0, 0.0)

    def send(self, reply: M) -> M:
        """A reply with a gradient, and what that costs."""
        return self.local.with_cost(reply, "gradients", COORDINATOR)

    def take(self, message: Any) -> None:
        """Go on from the top of a ``TakeTop``, and keep it if it is the best so far.

        Raises:
            MessageError: each label owner keeps its own top here, or numbers that cannot be.
        """
        self._check_shared(message)
        check_finite(message, "top_P")
        write_vector(message.top_P.to(self.local.device), self.top)
        self.untaught.keep()
        if message.keep:
            self.kept_P = message.top_P.clone()

    # --- Scores ------------------------------------------------------------------------------

    # Sums over rows by embeddings that the coordinator names tell labels.
    @handles(most=MAX_USES)
    def measure(self, message: Measure) -> Measured:
        """How good its top is on its test samples, of which these come next."""
        anew = InOrder(torch.arange(len(self.test_labels)))
        starts = torch.equal(message.samples_B, anew.due())
        if starts:  # once more, or where the coordinator fell
            most = self.data.max_scored
            if most and self._num_scored >= most:
                raise LimitError(
                    f"refuses to score its test samples more than {most:,} times in "
                    "this run: its policy.max_uses; raise evaluate_every"
                )
            self._tested = anew
        measured = self._next(message, self._tested, self.test_labels)
        self._num_scored += starts
        return measured

    @handles
    def give_held_out(self, message: GiveHeldOut) -> HeldOut:
        """The samples that it kept out of training."""
        return HeldOut(self.held_out if self.local.budget is None else self.held_out[:0])

    @handles(most=3)
    def validate(self, message: Validate) -> Measured:
        """How good its top is on samples that it kept out; after the last it decides."""
        if self.local.budget is not None:
            raise ConfigError("its policy.privacy counts epsilon, and a score is not counted")
        measured = self._next(message, self._validated, self.labels_S)
        decide = self.config.decide
        if decide is not None and self._validated.is_done:
            outputs_NC = torch.cat(self._validated.outputs)
            self.fitted_threshold = fit_threshold(
                decide, self.task, outputs_NC, self.labels_S[self.held_out]
            )
        return measured

    def _next(self, message: Measure | Validate, scored: InOrder, labels_S: Tensor) -> Measured:
        width, device = self.config.embedding, self.local.device
        return scored.take(
            message, self._best(), self.task, labels_S, embedding=width, device=device
        )

    @handles
    def finish(self, message: FinishLabels) -> Finished:
        """Training is over: its top is as it is."""
        return Finished()

    def state(self) -> State:
        """State that its next answer depends on."""
        return {**super().state(), **({"times": list(self.times)} if self.times else {})}

    def restore(self, state: State) -> None:
        """Go on from there."""
        super().restore(state)
        if state.get("times"):
            self._learn_in(state["times"])
        self.untaught.keep()

    # --- Its model ---------------------------------------------------------------------------

    def _best(self) -> nn.Module:
        """The top as it was at its best, if that is kept, or as it is."""
        if self.kept_P is None:
            return self.top
        top = self.spec.build().to(self.local.device)
        write_vector(self.kept_P.to(self.local.device), top)
        return top

    def model(self) -> Model:
        """The top as it is, or was at its best: mean embeddings to predictions."""
        if not self.has_begun:
            raise PartyError(self.name, "has no model before training began")
        return Model(
            party=self.name,
            task=self.task,
            network=self._best(),
            spec=self.spec,
            shapes={"embedding": (self.config.embedding,)},
            about={"method": "fedoptimus", "seed": self.local.seed},
        )


def _outputs(top: nn.Module) -> list[nn.Module]:
    """The layers of a top that give its outputs."""
    if not isinstance(top, MembersTop):
        return [*top.children()][-1:]
    return [top.layers[-1], *([] if top.skip is None else [top.skip])]
