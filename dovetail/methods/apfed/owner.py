"""Layers of APFed's label owner around the paper's step: epochs, and others.

The best epoch is judged by labelled rows that train nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.data import Alignment
from dovetail.errors import PartyError
from dovetail.federated import Driver, Epoch, Local
from dovetail.federated.party import SavedAttributes
from dovetail.methods.apfed.bound import Bound
from dovetail.methods.apfed.networks import SoloNetwork
from dovetail.methods.apfed.private import Solo
from dovetail.methods.apfed.questions import Questions
from dovetail.methods.apfed.unify import Balanced, Unify
from dovetail.methods.common_rows import Targets
from dovetail.methods.epochs import Epochs, warn_of
from dovetail.methods.settings.apfed import Layers
from dovetail.models import Model, RandomStream, network_input
from dovetail.models.optimizers import Optimizer, OptimizerGroup
from dovetail.network import Engine, Replies
from dovetail.privacy import distance_correlation

#: Fewer validation rows than this cannot tell one epoch from another.
MIN_VALIDATION = 30


class BestEpoch(SavedAttributes):
    """Keeps the networks of the epoch with the least loss on validation rows.

    Args:
        labelled: (L,) labelled rows.
        share: of them to hold out.
        patience: epochs without a better one, after which training ends; None: never.
        rng: draws the rows.

    Attributes:
        rows: held out, in order; none if they would be fewer than ``MIN_VALIDATION``.
        epoch: the best so far; 0 if there is none.
        loss, weights: its own.
    """

    saved = ("loss", "epoch", "weights")

    def __init__(
        self, labelled: Tensor, share: float, patience: int | None, rng: torch.Generator
    ) -> None:
        num_rows = round(share * len(labelled))
        enough = MIN_VALIDATION <= num_rows < len(labelled)
        chosen = torch.randperm(len(labelled), generator=rng)[: num_rows if enough else 0]
        self.rows = labelled[chosen].sort().values
        self._patience = patience
        self.loss, self.epoch = math.inf, 0
        self.weights: Mapping[str, Tensor] = {}

    @torch.no_grad()
    def judge(self, number: int, networks: nn.Module, loss: Callable[[Tensor], Tensor]) -> None:
        """Keep these networks if no epoch before did better.

        Args:
            number: of the epoch.
            networks: to be kept.
            loss: mean loss of rows.
        """
        if not len(self.rows):
            return
        networks.eval()
        losses = [loss(rows) * len(rows) for rows in self.rows.split(4096)]
        networks.train()
        mean = float(torch.stack(losses).sum()) / len(self.rows)
        if mean < self.loss:
            self.loss, self.epoch = mean, number
            self.weights = {n: w.detach().clone() for n, w in networks.state_dict().items()}

    def ended(self, number: int) -> bool:
        """Whether epoch ``number`` comes too long after the best."""
        return bool(self._patience and self.epoch and number - self.epoch > self._patience)

    def of(self, networks: nn.ModuleDict) -> nn.ModuleDict:
        """The networks of the best epoch; as they are now if there is none."""
        if not self.epoch:
            return networks
        kept = copy.deepcopy(networks)
        kept.load_state_dict(self.weights)
        return kept


class LabelOwner(Driver):
    """A label owner whose step is a subclass's.

    Attributes:
        name: the party's.
        config: its settings, the layers' among them.
        local: its context.
        x: (N, ...) its columns.
        targets: its labels.
        solo: its networks.
        optimizer: of their parameters.
        random: dropout's stream.
        questions: who is asked about which rows.
        bound: what is taken of partners' gradients.
        unify: makes gradients of weights of those of codes.
        best: the epoch whose networks are kept.
    """

    saved = ("solo", "optimizer", "random", "questions", "bound", "unify", "best", "local")

    name: str
    config: Layers
    local: Local
    x: Tensor
    targets: Targets
    solo: SoloNetwork
    optimizer: Optimizer | OptimizerGroup
    random: RandomStream

    def add_layers(self, alignment: Alignment | None, plain: Unify) -> None:
        """Set up what is around the step, when the networks are made.

        Args:
            alignment: rows by shared sample; None: nobody is asked.
            plain: Eq. (9), unless a layer takes its place.
        """
        config, local, solo = self.config, self.local, self.solo
        self.num_rounds = config.epochs
        # Which epoch is best, and how large a row's gradient is, would be more things told of rows
        # than DP-SGD counts.
        is_private = config.private is not None
        share = 0.0 if is_private else config.validation
        rng = local.generator("validation rows")
        self.best = BestEpoch(self.targets.rows, share, config.patience, rng)
        self.bound = Bound(config.clip, config.batch_size, local.device, measures=not is_private)
        local.bound_releases(config.codes, what="codes", key="apfed.codes")
        self.questions = Questions(
            self.targets.rows,
            self.best.rows,
            len(self.x),
            alignment,
            config,
            local,
            encode=self.encode,
            projection=solo.projection,
        )
        self.unify = plain
        if config.private is not None:
            self.unify = Solo(
                config.private, config.codes, self.x, self.targets, solo, self.random, local
            )
        elif config.balance is not None:
            self.unify = Balanced(config.balance, solo.encoder, solo.projection)
        remedy = f"its learning_rate ({config.learning_rate}) or trade_off"
        self._epochs = Epochs(self.name, remedy, self.step)

    # --- What the page says ----------------------------------------------------------------------

    def encode(self, rows_B: Tensor) -> Tensor:
        """(B, D) codes of these rows, with their graph."""
        raise NotImplementedError

    def task_loss(self, code_BD: Tensor, rows_B: Tensor) -> Tensor:
        """L_A of these codes."""
        raise NotImplementedError

    def step(self, network: Engine) -> tuple[float, Mapping[str, PartyError]]:
        """Make a step; L_A of its batch, and the parties that were left out."""
        raise NotImplementedError

    def open(self, parties: Iterable[str], network: Engine) -> Replies[Any]:
        """Let these parties know that training starts."""
        raise NotImplementedError

    # --- Around it -------------------------------------------------------------------------------

    def kept_apart(self, loss: Tensor, code_BD: Tensor, rows_B: Tensor) -> Tensor:
        """L_A, with codes driven from columns, and those of a class from each other, if set."""
        if self.config.decorrelate:
            local_BF = network_input(self.x[rows_B], code_BD.device)
            loss = loss + self.config.decorrelate * distance_correlation(local_BF, code_BD)
        return self.targets.spread(loss, [code_BD], rows_B)

    def begin_again(self, behind: Mapping[str, int], network: Engine) -> None:
        """Start a partner that lost its disk again, from its beginning."""
        warn_of(self.open([name for name, done in behind.items() if not done], network).failures)

    def round(self, number: int, network: Engine) -> Epoch:
        """All steps of one epoch."""
        epoch = self._epochs.play(number, self.questions.steps_per_epoch, network)
        self.best.judge(
            number, self.solo.networks, lambda rows: self.task_loss(self.encode(rows), rows)
        )
        return replace(epoch, cut=self.bound.taken())

    def ended(self, number: int) -> bool:
        """Whether epoch ``number`` comes too long after the best, or is not paid for."""
        return self.best.ended(number) or not self.unify.pays(*self.questions.visits())

    def spent(self) -> list[dict[str, Any]]:
        """Privacy costs of its codes, if they are noised, and of its model."""
        return [*self.unify.spent(), *self.local.spent()]

    def model(self) -> Model:
        """The best model so far, or as it is now: predicts alone."""
        return self.solo.model(self.best.of(self.solo.networks))
