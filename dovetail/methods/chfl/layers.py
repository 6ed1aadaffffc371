"""Layers around CHFL's page: each is off by default, and then the page is the paper.

    private         the common tower's steps are DP-SGD, counted within the party's budget
    secure          common towers are summed under masks (``federated/secret_mean.py``)
    weights         line 7 in proportion to rows
    participation   a share of the members, drawn again for each round
    proximal        FedProx's pull of the common tower to theta_c
    choose          which round is kept, and by what
    gate            how much the private tower counts is chosen on validation rows
    zero_start      the private tower's last layer and U begin at zero
    by_party        a member's own learning_rate and mu, as V-A3 tunes them
    method          the paper's baselines: "common" is FedAvg on the common columns (FedProx with
                    ``proximal`` > 0), "local" each member alone with all its columns, "simple" the
                    method of V-B5, whose private tower reads the common one's class probabilities

A coordinator goes on where members come and go: who missed theta_c is given it before it trains.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from dovetail.alignment import columns
from dovetail.data.by_column import BLOCK
from dovetail.errors import ConfigError, MessageError, PartyError, TrainingError
from dovetail.federated import (
    MAX_USES,
    BestRound,
    Federation,
    Local,
    handles,
    read_settings,
    secret_mean,
    train,
)
from dovetail.federated import Round as BaseRound
from dovetail.federated.secret_mean import (
    Lasting,
    LastingFederation,
    SecretFederation,
    Sharing,
    Sums,
)
from dovetail.methods import chfl
from dovetail.methods.chfl import (
    Average,
    Begin,
    Describe,
    Description,
    Finish,
    Finished,
    Ready,
    Scored,
    Train,
    Trained,
)
from dovetail.methods.chfl.local_data import ChflData, Prepared
from dovetail.methods.settings.chfl import RunConfig as Config
from dovetail.models import ColumnsSpec, Model, generator, pull
from dovetail.models.decisions import Supervised, class_weights, on
from dovetail.models.optimizers import Optimizer
from dovetail.models.untaught import Untaught
from dovetail.models.vectors import vector_of
from dovetail.network import Engine, Replies
from dovetail.privacy import MIN_MEMBERS, SecretSums
from dovetail.settings.models import Choose, ClassWeights, ThresholdSettings
from dovetail.settings.privacy import PrivateSteps

#: The gates that are tried: what the private tower's logits are multiplied by.
GATES = (0.0, 0.25, 0.5, 0.75, 1.0)

#: So many rows' worth of belief that the common tower is enough: chosen on held-out rows of four
#: hospitals (benchmarks/chfl_gate.py), where 0 and 10 left more parties below their common tower.
GATE_ROWS = 30

#: The widest layer, and the most layers, that a member counts at all.
MAX_WIDTH, MAX_LAYERS = 2**24, 1000


A = TypeVar("A", Average, Finish)


# --- Settings ------------------------------------------------------------------------------------


# --- Messages of a sum in secret -----------------------------------------------------------------


GiveKey, PublicKey, GiveShare, Share = SHARED = secret_mean.messages("chfl", __name__)
LASTING = secret_mean.lasting_messages("chfl", __name__)
GiveKeys, PublicKeys, GiveParts, Parts, GiveMasked, Masked, GiveOpened, Opened = LASTING


# --- What a member executes ----------------------------------------------------------------------


class Pulled(Optimizer):
    """An optimizer that first adds FedProx's gradient, of strength/2 |theta - theta^t|^2.

    Args:
        inner: follows the gradients.
        strength: FedProx's mu; theta^t is as the parameters are now.
    """

    def __init__(self, inner: Optimizer, strength: float) -> None:
        self.parameters, self.state = inner.parameters, inner.state
        self._inner, self._strength = inner, strength
        self._anchor = [each.detach().clone() for each in inner.parameters]

    def step(self) -> None:
        """Pull, and follow the gradients."""
        pull(self.parameters, self._anchor, self._strength)
        self._inner.step()


class Member(chfl.Member, Sharing, Lasting):
    """A member as a run has it.

    Args:
        data: what it has.
        local: its context.
    """

    saved = (  # type: ignore[assignment]
        *chfl.Member.saved,
        "common_optimizer_kept",
        "installed",
        "trained",
        "weights_digest",
        "best_accuracy",
    )
    renamed = (*SHARED, *LASTING)
    Settings: ClassVar[type[chfl.Config]] = Config
    config: Config

    def __init__(self, data: ChflData, local: Local) -> None:
        super().__init__(data, local)
        self.sums = local.sums(data.members) or SecretSums(data.name)
        self.sums.quorum = data.quorum
        self.ahead: tuple[float, float] | None = None  # losses of a round already trained

    def sizes(self) -> dict[str, int]:
        """P; 0 of a member that trains alone."""
        if self.config.method == "local":
            return {"P": 0}
        return super().sizes()

    @handles
    def begin(self, ask: Begin) -> Ready:
        """Build its network, and what the run has beside it."""
        config = self.config = read_settings(Config, ask, ask.settings)
        if self.data.secure and config.method != "local" and not config.secure:
            raise ConfigError(
                "refuses to show its common column: its file says chfl.secure, so the run must, too"
            )
        if max(config.widths) > MAX_WIDTH or len(config.widths) > MAX_LAYERS:
            raise MessageError(
                f"{ask.wire_name()}: at most {MAX_LAYERS} layers of width {MAX_WIDTH}"
            )
        if not ask.common and config.method != "local":
            raise MessageError(f"{ask.wire_name()}: it does not offer []")
        ready = super().begin(ask)
        weights_C = class_weights(config.loss_weights, self.task, self.data.labels)
        self.loss = Supervised(self.task, on(self.local.device, weights_C))
        unique = self.columns.unique
        if unique is not None:
            if config.zero_start and config.method == "chfl":
                unique.start_at_zero()
            Untaught(unique.heads(), self.task, self.data.labels).silence()
            decayed = config.of_unique(self.batches.steps_per_pass)
            self.unique_optimizer = Optimizer.of(decayed, unique.trained())
        # Only one that goes on from round to round is kept.
        self.common_optimizer_kept: Optimizer | None = None
        if config.method == "local":
            self.common_optimizer_kept = Optimizer.of(config, self.columns.common.parameters())
        else:
            self.local.bound_steps(
                self.data.private,
                config.private,
                num_rows=len(self.labels),
                what="weights of its common column",
                key="[chfl] private = { clip = ..., noise = ... }",
            )
        labels = self.data.labels
        if self.local.is_private:  # whether anybody has a label is not to be told
            labels = labels.nan_to_num() if labels.is_floating_point() else labels
        self.untaught = Untaught([self.columns.common.layers[-1]], self.task, labels)
        self.installed = -1  # the round after which theta_c is in place
        self.trained = -1  # the round it did last
        # What its common tower follows from, as far as the coordinator says it to all: in secret
        # sums it goes into the masks. ``mu`` weighs the private tower, and may be one's own.
        alike = config.model_dump_json(exclude={"mu", "by_party"})
        self._opened = json.dumps([alike, ask.seed, ask.common, ask.agreed])
        self.weights_digest = ""
        self.best_accuracy = -1.0
        return Ready(0) if config.method == "local" else ready  # nothing need be alike

    def network_spec(self) -> ColumnsSpec:
        """Spec of the network of each baseline: what both towers read."""
        rows, config = self.prepared, self.config
        common, unique = rows.common, rows.unique
        if config.method == "local":
            common, unique = tuple(range(rows.x.shape[1])), ()
        elif config.method == "common":
            unique = ()
        return ColumnsSpec(
            common,
            unique,
            config.widths,
            self.task.num_outputs,
            config.mu,
            "input" if config.method == "simple" else "sum",
            gated=config.gate and config.method == "chfl" and bool(unique),
            own=self.data.own if config.method == "chfl" and unique else None,
        )

    def common_optimizer(self) -> Optimizer:
        """The common tower's: one that goes on where nothing is replaced."""
        if self.common_optimizer_kept is not None:
            return self.common_optimizer_kept
        fresh = super().common_optimizer()
        return Pulled(fresh, self.config.proximal) if self.config.proximal else fresh

    @handles(most=MAX_USES)
    def average(self, ask: Average) -> Scored:
        """Take theta_c over, choose the gate, and score with it."""
        self.trained = -1  # what it did is gone
        given = self._opened.encode() + ask.common_P.numpy().tobytes()
        self.weights_digest = hashlib.sha256(given).hexdigest()
        scored = super().average(self._naming_best(ask))
        self.installed = ask.number
        if self.config.choose == "each" and ask.number and scored.accuracy > self.best_accuracy:
            self.best_accuracy = scored.accuracy
            self.snapshots.keep(ask.number)
        return Scored(0.0, 0, 0.0) if self.local.budget is not None else scored  # not counted

    def _naming_best(self, ask: A) -> A:
        """The message; says of no best round where each member finds its own."""
        return replace(ask, best=0) if self.config.choose == "each" else ask

    def install(self, common_P: Tensor) -> None:
        """Put theta_c in place, unless it trains alone; choose the gate."""
        if self.config.method != "local":
            super().install(common_P)
        self.choose_gate()

    def scored(self) -> Scored:
        """Scores of its model on its validation rows; with the loss if the run chooses by it."""
        loss = self.loss if self.config.choose == "loss" else None
        return Scored.of(*self.data.score(self.columns, self.prepared, loss))

    @torch.no_grad()
    def choose_gate(self) -> None:
        """Let the private tower count as much as is best on the validation rows.

        The gate of the least loss, times N / (N + ``GATE_ROWS``) of N validation rows: few rows
        choose wrongly, and what they say leans towards the common tower. Without validation rows
        all of it counts, Eq. (7).
        """
        gate = self.columns.gate
        if gate is None:
            return
        gate.fill_(1.0)
        if self.prepared.validation is None:
            return
        x, labels = self.prepared.validation
        parts = x.split(8192)
        joint = torch.cat([self.columns(part) for part in parts])
        gate.fill_(0.0)
        common = torch.cat([self.columns(part) for part in parts])
        losses = {g: float(self.loss.of(torch.lerp(common, joint, g), labels)) for g in GATES}
        best, num_rows = min(GATES, key=losses.__getitem__), len(labels)
        gate.fill_(best * num_rows / (num_rows + GATE_ROWS))

    def can_train(self, ask: Train) -> bool:
        """Whether it has the theta_c that this round starts from."""
        return self._begun is not None and ask.number == self.installed + 1

    def learn(self) -> tuple[float, float]:
        """ClientLocalLearning, unless it was done side by side with others already."""
        losses, self.ahead = self.ahead, None
        if losses is None:
            self.untaught.keep()
            losses = super().learn()
            self.untaught.put_back()
        return losses

    @handles
    def train(self, ask: Train) -> Trained:
        """Train a round; send what the run and its own file say."""
        if not self.can_train(ask):
            raise PartyError(
                self.name,
                f"was asked for round {ask.number} but has the weights after round "
                f"{self.installed}",
            )
        trained = super().train(ask)
        loss, joint_loss = trained.loss, trained.joint_loss
        # Of weights of somebody's making an exact loss tells what noise on a step is to hide: then
        # none is told, nor whether it is a number.
        if self.local.is_capped:
            loss = joint_loss = 0.0
        elif not (math.isfinite(loss) and math.isfinite(joint_loss)):
            raise TrainingError(
                f"its loss is {loss}, its joint loss {joint_loss} in round {ask.number}; lower "
                f"the learning_rate ({self.config.learning_rate})"
            )
        self.trained = ask.number
        common_P = trained.common_P if self.config.sends else torch.empty(0)
        return self.local.with_cost(Trained(common_P, loss, joint_loss))

    def common_vector(self) -> Tensor:
        """(P,) theta_(c,k)."""
        return vector_of(self.columns.common).cpu()

    def summed(self, number: int) -> tuple[Tensor, str]:
        """theta_(c,k) of this round."""
        if not self.config.secure or self.trained != number or self.installed >= number:
            raise PartyError(self.name, f"has no weights to sum for round {number}")
        return self.common_vector(), self.weights_digest

    def unsaved(self) -> str:
        is_open = self.sums.number > getattr(self, "installed", -1)
        return "a secret sum is not done, and its key is nowhere else" if is_open else ""

    @handles
    def finish(self, ask: Finish) -> Finished:
        """Keep the parameters of the round that was chosen."""
        return super().finish(self._naming_best(ask))

    def model(self) -> Model:
        """The model as it is now."""
        model = super().model()
        return replace(model, about={"method": self.config.method, **model.about})


# --- What the coordinator executes ---------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Round(BaseRound):
    """Result of one round, with the losses' means over its participants in ``told``.

    Attributes:
        accuracies: member -> accuracy on its validation rows.
        participants: members whose common tower is in the average; of a secret sum that failed,
            none: theta_c is as it was before.
    """

    accuracies: Mapping[str, float]
    participants: tuple[str, ...]


class Coordinator(chfl.Coordinator):
    """A coordinator as a run has it.

    A round closes at its deadline with those who answered; who did not is asked again in the next.

    Args:
        config: the run's settings.
        seed: of everything random here and at the members.
    """

    family = "chfl"  # what its parties save under
    saved = (*chfl.Coordinator.saved, "current", "installed", "rng", "sums")  # type: ignore[assignment]
    config: Config

    def __init__(self, config: Config, *, seed: int) -> None:
        super().__init__(config, seed=seed)
        self.timeout_s = config.timeout_s
        self.best_round = BestRound(config.patience, config.choose)
        self.current: tuple[str, ...] = ()  # members that have theta_c as it is now
        self.installed = 0  # the round that it is of
        self.last_accuracies: dict[str, float] = {}  # of the last round
        self.sums = Sums()
        self.rng = generator(seed, "participation")

    def federation(self, engine: Engine) -> Federation:
        """Federation that takes means in the clear, or under masks."""
        if not self.config.secure:
            return super().federation(engine)
        if self.config.quorum is not None:
            return LastingFederation(engine, LASTING, self.config.quorum, timeout_s=self.timeout_s)
        return SecretFederation(engine, self.sums, SHARED, timeout_s=self.timeout_s)

    def begin(self, federation: Federation) -> None:
        """Agree on the common columns, and send theta_c^0.

        Raises:
            ConfigError: no common column, label sets that differ, columns of different types.
            PartyError: a member cannot begin.
        """
        members = federation.parties
        strangers = [name for name in self.config.by_party if name not in members]
        if strangers:
            raise ConfigError(
                f"by_party has settings of {strangers[0]!r}, who is no member; they are "
                f"{list(members)}"
            )
        super().begin(federation)

    def agree(self, described: Mapping[str, Description]) -> tuple[tuple[str, ...], str]:
        """The columns that all offer, and how raw ones are encoded."""
        return agree_on(described, self.config)

    def begin_of(self, member: str) -> Begin:
        """Message that opens the run of this member."""
        settings = self.config.of(member).model_dump_json()
        return Begin(settings, self.seed, *self.opening)

    def initial(self, num_common: int, num_outputs: int) -> Tensor:
        """(P,) theta_c^0; nothing where each member trains alone."""
        if self.config.method == "local":
            return torch.empty(0)
        return super().initial(num_common, num_outputs)

    def begin_again(self, behind: Mapping[str, int], federation: Federation) -> None:
        """Send theta_c to members that are behind before they train; members without state start
        again."""
        self.current = tuple(name for name in self.current if name not in behind)
        lost = [name for name, step in behind.items() if not step]
        if lost:
            federation.ask({member: self.begin_of(member) for member in lost}, Ready)

    def takes_part(self, number: int, federation: Federation) -> tuple[str, ...]:
        """Members that take part in this round, once each has theta_c."""
        chosen = self.draw(federation.parties)
        stale = [member for member in chosen if member not in self.current]
        if stale:  # they missed the last average, or come back after a fall
            self.send(number - 1, stale, federation)
        return tuple(member for member in chosen if member in self.current)

    def draw(self, members: Sequence[str]) -> tuple[str, ...]:
        """A share of the members."""
        least = MIN_MEMBERS if self.config.secure else 1
        num = max(least, round(self.config.participation * len(members)))
        if num >= len(members):
            return tuple(members)
        chosen = torch.randperm(len(members), generator=self.rng)[:num].sort().values
        return tuple(members[index] for index in chosen.tolist())

    @property
    def shares(self) -> Mapping[str, float] | None:
        """Member -> its weight in line 7."""
        return self.num_rows if self.config.weights == "samples" else None

    def send(self, number: int, to: Sequence[str], federation: Federation) -> Replies[Scored]:
        """Give these members theta_c as it is now; their scores."""
        if number != self.installed:
            self.installed, self.current = number, ()
        scored = super().send(number, to, federation)
        self.current = (*self.current, *scored)
        self.last_accuracies = {m: each.accuracy for m, each in scored.items() if each.num_rows}
        return scored

    def round(self, number: int, federation: Federation) -> Round:
        """Play a round of Algorithm 2."""
        done = super().round(number, federation)
        metrics = done.metrics if federation.included else {**done.metrics, "skipped": True}
        return Round(
            metrics=metrics, accuracies=self.last_accuracies, participants=federation.included
        )


def agree_on(described: Mapping[str, Description], config: Config) -> tuple[tuple[str, ...], str]:
    """The columns that all offer, in the first member's order, and how raw ones are encoded.

    Raises:
        ConfigError: none, types that differ, or label sets that differ.
    """
    return columns.agree_on(
        described,
        section="chfl",
        max_categories=config.max_categories,
        alone=config.method == "local",
    )
