"""CHFL: columns that all parties have are learned together, the others locally.

Mori, Teranishi, Furukawa: "Continual Horizontal Federated Learning for Heterogeneous Data",
arXiv:2203.02108.

Several parties have different samples, the same labels, some columns in common and some private
ones. A network of two towers (the paper: columns) reads them. The common tower is trained by
FedAvg. The private one never leaves its party, and relies on the first through lateral connections.
Nothing flows back into the common tower, so that no party's private features disturb what all learn
together. In the end every party has a model that reads all its features and asks nobody.

    theta_c^(t+1) = 1/K sum_k theta_(c,k)^t                                          line 7
    z_u^(i+1) = a(W_u^(i+1) z_u^(i) + b_u^(i+1) + mu U^(i+1) z_c^(i))                Eq. (6)
    F(x_c, x_u) = softmax(z_c^(L) + z_u^(L))                                         Eq. (7)

    Paper        Here                     Shape   Lives at
    X_k^c        Member.x_common          (N, F)  member k
    X_k^u        Member.x_unique          (N, F)  member k
    theta_c^t    Coordinator.common_P     (P,)    coordinator; sent to every member
    theta_(c,k)  Member.columns.common            member k; sent back as (P,)
    theta_(u,k)  Member.columns.unique            member k; never leaves it
    U_k          Member.columns.unique.laterals   member k; never leaves it
    mu, E, eta   Config.mu, .local_epochs, .learning_rate
    T            Config.rounds
    K            members that answer in a round

    Letters: K members, N rows, B rows of a minibatch, F features, C columns of a table, P
    parameters of the common tower.

What crosses the boundary, besides theta_c: names and types of the columns a member offers as
common, its classes, how many rows it has, and accuracy and loss on its validation rows; for each of
those columns also how many values there are, their mean and squared deviation, or each category's
count: so all encode them alike (``alignment/columns.py``). Of times to an event also where
intervals of a party's would end, rounded up to two digits; each keeps its own baseline hazards.

Departures from the paper:
    - Eq. (6) prints the activation a at the last layer too; logits are added, so it has none there.
    - Below Eq. (7) the joint loss uses theta_c^t; it uses theta_(c,k), which line 14 has
      just updated, as the sentence before says.
    - Lines 15 and 16 are one step: both gradients are taken at the same parameters.
    - The common tower's Adam starts again each round, when its parameters are replaced; that of the
      private tower goes on.
    - V-A3 has each client tune on its own validation rows. Here the round of the best mean accuracy
      is kept for all.
    - A party without private columns has the common tower alone.

What is not in the paper is in layers: gate, start at zero, participation, weights by samples,
proximal term, sums in secret, private steps, the choice of a round (``layers.py``), members trained
side by side (``stacked.py``), the search (``variant_settings.py``). A run has these; with their
defaults it is this page, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from dovetail.alignment import columns
from dovetail.federated import best
from dovetail.federated.driver import Driver, Round
from dovetail.federated.federation import Federation
from dovetail.federated.local import Local
from dovetail.federated.party import MAX_USES, Party, handles, read_settings
from dovetail.methods.chfl.local_data import ChflData
from dovetail.methods.settings.chfl import Config
from dovetail.models import Column, ColumnsSpec, Model, Optimizer, RandomStream
from dovetail.models.decisions import Supervised
from dovetail.models.vectors import vector_of, write_vector
from dovetail.network import Message, Replies, Weights
from dovetail.settings.models import OptimizerConfig

# --- What crosses the boundary -----------------------------------------------------------------


class Describe(columns.Describe):
    """Coordinator -> member: what do you offer?"""


class Description(columns.Description):
    """Member -> coordinator: the columns it offers as common, its classes, how many rows it has."""


class Begin(Message):
    """Coordinator -> member: training starts, on these common columns.

    ``settings`` is the ``Config`` as JSON; ``agreed`` says how common columns are encoded, ""
    where there are none.
    """

    settings: str
    seed: int
    common: tuple[str, ...]
    agreed: str


class Ready(Message):
    """Member -> coordinator: how many features its common tower reads."""

    num_common: int


class Average(Message):
    """Coordinator -> member: theta_c after round ``number`` (line 4 of the next).

    ``best`` is the best round before this one, 0 where there is none.
    """

    number: int
    best: int
    common_P: Weights


class Scored(best.Scored):
    """Member -> coordinator: its model on its validation rows."""


class Train(Message):
    """Coordinator -> member: do round ``number`` from the theta_c you have (line 5)."""

    number: int


class Trained(Message):
    """Member -> coordinator: theta_(c,k) (line 19)."""

    common_P: Weights
    loss: float  # means over the round's minibatches, before their steps
    joint_loss: float


class Finish(Message):
    """Coordinator -> member: training is over; keep the parameters after round ``best``."""

    best: int


class Finished(Message):
    """Member -> coordinator: the round whose parameters it kept."""

    number: int


# --- What a member executes --------------------------------------------------------------------


class Member(Party):
    """A party that learns with the others: keeps its rows, its private tower and U."""

    saved = ("columns", "unique_optimizer", "batches", "snapshots")
    Settings: ClassVar[type[Config]] = Config

    def __init__(self, data: ChflData, local: Local) -> None:
        self.data, self.snapshots = data, best.Snapshots()
        self.task, self.loss = data.task, Supervised(data.task)

    def sizes(self) -> dict[str, int]:
        """P, the parameters of theta_c."""
        return {"P": sum(each.numel() for each in self.columns.common.parameters())}

    @handles(before_begin=True)
    def describe(self, ask: Describe) -> Description:
        """Description of what the party offers, and what others must know of it."""
        return Description.of(self.data.summaries(), self.task, len(self.data.rows))

    @handles
    def begin(self, ask: Begin) -> Ready:
        """Build its network, and take its batches from the start."""
        self.config = read_settings(self.Settings, ask, ask.settings)
        self.data = self.data.on_times(ask.agreed)
        self.task, self.loss = self.data.task, Supervised(self.data.task)
        self.prepared = self.data.prepare(ask.common, ask.agreed, self.local.device)
        self.spec, device = self.network_spec(), self.local.device
        common = self.local.build(self.spec.build_common, "common column")  # replaced by theta_c
        unique = self.local.build(self.spec.build_unique, "unique column")
        self.columns = self.spec.join_columns(common, unique).to(device)
        self.unique_optimizer = (
            None if unique is None else Optimizer.of(self.config, unique.trained())
        )
        self.batches = self.local.batches(self.data.rows, self.config.batch_size)
        self.x_common = self.prepared.features(self.spec.common).to(device)
        self.x_unique = self.prepared.features(self.spec.unique).to(device)
        self.labels = self.data.labels.to(device)
        return Ready(len(self.spec.common))

    def network_spec(self) -> ColumnsSpec:
        """Spec of the network: what both towers read."""
        sizes = self.config.widths, self.task.num_outputs
        return ColumnsSpec(self.prepared.common, self.prepared.unique, *sizes, self.config.mu)

    @handles(most=MAX_USES)  # scores, of weights that a coordinator makes, tell labels
    def average(self, ask: Average) -> Scored:
        """Take theta_c over (line 11), and score with it."""
        self.install(ask.common_P)
        self.snapshots.keep(ask.best)
        self.snapshots.take(ask.number, self.columns)
        return self.scored()

    def install(self, common_P: Tensor) -> None:
        """Put theta_c in place."""
        write_vector(common_P, self.columns.common)

    def scored(self) -> Scored:
        """Scores of its model on its validation rows, as it is now."""
        return Scored.of(*self.data.score(self.columns, self.prepared))

    @handles
    def train(self, ask: Train) -> Trained:
        """Train a round of the common tower, which is sent; the private tower stays."""
        losses = self.learn()
        return Trained(vector_of(self.columns.common).cpu(), *losses)  # line 19

    def learn(self) -> tuple[float, float]:
        """ClientLocalLearning, lines 10-18: mean losses of the common tower, and of both."""
        common, optimizer = self.columns.common, self.common_optimizer()
        losses, num = torch.zeros(2, device=self.local.device), self.config.local_epochs
        passes = self.local.passes(self.batches, num, self.x_common, self.x_unique, self.labels)
        for rows_B, x_common, x_unique, labels_B in passes:  # lines 12 and 13
            loss = self.local.step(optimizer, common, self.loss, rows_B, x_common, labels_B)  # 14
            joint_loss = loss
            if self.unique_optimizer is not None:
                with torch.no_grad():  # theta_(c,k) is fixed: no gradient reaches it
                    z_common = common.outputs(x_common)
                outputs = self.columns.joint(x_unique, z_common)  # Eq. (6), (7)
                joint_loss = self.loss.of(outputs, labels_B)
                self.local.descend(self.unique_optimizer, joint_loss)  # lines 15 and 16
            losses += torch.stack((loss, joint_loss.detach()))
        num_steps = num * self.batches.steps_per_pass
        return losses[0].item() / num_steps, losses[1].item() / num_steps

    def common_optimizer(self) -> Optimizer:
        """The common tower's: a fresh one, as its parameters were replaced."""
        return Optimizer.of(self.config, self.columns.common.parameters())

    @handles
    def finish(self, ask: Finish) -> Finished:
        """Keep the parameters of the round that was chosen."""
        self.snapshots.keep(ask.best)
        return Finished(self.snapshots.put_back(self.columns))

    def model(self) -> Model:
        """Predicts alone from all of this party's features, Eq. (7)."""
        return self.data.model(self.columns, self.spec, self.prepared, {"seed": self.local.seed})


# --- What the coordinator executes: Algorithm 2 ------------------------------------------------


class Coordinator(Driver):
    """Drives a run, and has no data.

    Args:
        config: the run's settings.
        seed: of everything random here and at the members.
    """

    saved = ("opening", "common_P", "num_rows")

    def __init__(self, config: Config, *, seed: int) -> None:
        self.config, self.seed, self.num_rounds = config, seed, config.rounds  # T, line 2
        self.best_round: best.BestRound = best.BestRound()
        self.opening: tuple[tuple[str, ...], str] = ((), "")  # common columns, their encoding
        self.common_P = torch.empty(0)
        self.num_rows: dict[str, int] = {}

    def begin(self, federation: Federation) -> None:
        """Agree on the common columns, and send theta_c^0."""
        described = federation.ask(Describe(), Description).or_raise()
        self.opening = self.agree(described)
        self.num_rows = {member: description.num_rows for member, description in described.items()}
        requests = {member: self.begin_of(member) for member in described}
        ready = federation.ask(requests, Ready).or_raise()
        num_common = federation.same(ready, "num_common")
        self.common_P = self.initial(num_common, columns.num_outputs(described))
        self.send(0, federation.parties, federation).or_raise()

    def agree(self, described: Mapping[str, Description]) -> tuple[tuple[str, ...], str]:
        """The columns that all offer, and how raw ones are encoded."""
        return columns.agree_on(described, section="chfl")

    def begin_of(self, member: str) -> Begin:
        """Message that opens the run of this member."""
        return Begin(self.config.model_dump_json(), self.seed, *self.opening)

    def initial(self, num_common: int, num_outputs: int) -> Tensor:
        """(P,) theta_c^0."""
        with RandomStream(self.seed, "common column"):
            return vector_of(Column.build(num_common, self.config.widths, num_outputs)).cpu()

    def round(self, number: int, federation: Federation) -> Round:
        """Play a round of Algorithm 2."""
        asked, num = self.takes_part(number, federation), federation.size(self.common_P)
        replies = federation.ask(Train(number), Trained, to=asked, P=num)  # lines 3-6
        # line 7
        self.common_P = federation.mean(replies, "common_P", self.shares, before=self.common_P)
        scored = self.send(number, federation.parties, federation)
        means = self.best_round.judge(number, scored)
        losses = federation.figures(replies, "loss", "joint_loss")
        return Round(metrics={**losses, "best": self.best_round.number, **means})

    def send(self, number: int, to: Sequence[str], federation: Federation) -> Replies[Scored]:
        """Give these members theta_c as it is now (line 4); their scores."""
        message = Average(number, self.best_round.before(number), self.common_P)
        return federation.ask(message, Scored, to=to)

    def finish(self, federation: Federation) -> None:
        """Every member keeps the parameters that were chosen."""
        federation.end(Finish(self.best_round.number), Finished)
