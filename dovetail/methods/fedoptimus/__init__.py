"""FedOptimus: many owners of columns, several owners of labels, the useful ones chosen.

Shrivastava et al.: "FedOptimus: Optimizing Vertical Federated Learning for Scalability and
Efficiency", Algorithm 1, in the Multi-VFL setting of Mugunthan et al. 2021.

Data owner d has columns of all samples, label owner n the labels of its own. Data owner d keeps
one replica of its bottom model for each label owner; label owner n has a top model, which reads
the mean of the data owners' embeddings. In a round each label owner makes K minibatch steps with
the data owners that were chosen; then replicas and tops are averaged, and the average is stepped
by momentum.

    h_n = 1/|S_t| sum_(d in S_t) f_(w_dn)(x_d)                             line 10
    w_bar = sum_n (n_n / n) w_n                                            FedAvg
    m' = beta m + (1 - beta) (w_t - w_bar),  w_hat = w_t - eta m'          FedAvgM, lines 11, 12
    w_(t+1) = (1 - alpha) w_t + alpha w_hat                                SlowMo, line 13

    Paper        Here                        Shape    Lives at
    x_d          DataOwner.shared            (N, ..)  data owner d
    w_d          DataOwner.replicas          (N, P)   data owner d; never leaves it
    embedding    Embeddings.embedding_BE     (B, E)   data owner d; sent to the coordinator
    h_n          Learn.mean_BE               (B, E)   coordinator; sent to label owner n
    dl/dh_n      Learned.gradient_BE         (B, E)   label owner n; sent on to the data owners
    top of n     LabelOwner.top              (P,)     label owner n; sent to be averaged
    S_t, P_t     ``choose``, Config.share
    K            Config.sync_every, Config.iterate_average
    beta, mu     Config.beta                 (the paper's text and Algorithm 1)
    alpha        Config.alpha; gamma = 1 - alpha
    eta, eta^g   Config.server_learning_rate

    Letters: N label owners, D data owners, B rows of a minibatch, E embedding width, P parameters,
    S samples of an order that a label owner shares with all data owners.

The coordinator has no data. It sees embeddings, their gradients, which samples a batch has, and
the tops; labels stay with their owners.

Departures from the paper, which leaves much open:
    - Replicas of a data owner's bottom model are averaged at home, tops by the coordinator: the
      w_t of the paper is one model. ``average_tops = False`` lets each label owner keep its own.
    - "K-step averaging" is K steps between two averages in the text (``sync_every``, after Zhou and
      Cong 2018) and the mean of the last K iterates in line 8 (``iterate_average``).
    - SlowMo is an interpolation in the text ("interpolate"), a pull to the initial weights in
      line 13 ("initial"), and in its source, Wang et al. 2019, a slow momentum ("momentum").
    - eta of FedAvgM is not given; 1 steps the whole way.
    - The optimizers of the parties go on over an average; only weights are averaged.
    - A data owner that does not answer in time is left out of that step's mean, and asked again in
      the next. A label owner that does not answer has no batch in the next steps until it does.
    - SGD as printed learns slowly from embeddings that are averaged over many owners;
      ``optimizer = "adam"`` is not in the paper.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Any, Literal, Protocol

import torch
from pydantic import Field, ValidationError, model_validator
from torch import Tensor, nn

from dovetail.data import Classification, Minibatches, SharedRows, Task
from dovetail.data.inputs import Input
from dovetail.errors import (
    AlignmentError,
    ConfigError,
    MessageError,
    PartyError,
    TrainingError,
)
from dovetail.federated import Driver, Party, Played, end, handles
from dovetail.methods.limits import LimitError
from dovetail.methods.outcome import goodness_of_error
from dovetail.models import (
    Model,
    OptimizerConfig,
    RandomStream,
    Secret,
    derive_key,
    derive_seed,
    generator,
    key_of,
)
from dovetail.models.decisions import (
    ClassWeights,
    Decide,
    Decided,
    class_weights,
    on,
    supervised_loss,
)
from dovetail.models.learners import hold_out
from dovetail.models.owners import (
    Bottom,
    BottomSpec,
    EncodedMlp,
    MembersNetwork,
    MembersSpec,
    MembersTop,
    TopSpec,
    embed_rows,
    mean_embedding,
)
from dovetail.models.replicas import Replicas, replicas_of
from dovetail.models.vectors import vector_of, write_vector
from dovetail.network import (
    Engine,
    Integers,
    Message,
    Numbers,
    State,
    Values,
    check_shape,
    noted,
)
from dovetail.privacy import Budget, Release, Releasing, within

_log = logging.getLogger(__name__)

# --- Hyper-parameters --------------------------------------------------------------------------

#: Share of a label that is spread over all classes; "classes": 0.1 of more than two of them.
Smoothing = Annotated[float, Field(ge=0, lt=1)] | Literal["classes"]


class Config(OptimizerConfig):
    """Settings of a run; the coordinator's, sent to every party."""

    momentum: float = Field(default=0.0, ge=0, lt=1)  # of the parties' SGD; beta is the server's
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    learning_rate: float = Field(default=1e-3, gt=0, allow_inf_nan=False)  # eta, section 3.2
    epochs: int = Field(default=100, ge=1)  # section 3.2
    rounds: int | None = Field(default=None, ge=1)  # so many rounds instead of epochs
    batch_size: int = Field(default=128, ge=1)  # section 3.2
    sync_every: int = Field(default=5, ge=1)  # K: local steps between averages, section 3.2
    iterate_average: int = Field(default=1, ge=1)  # K of line 8; 1 averages nothing
    server: Literal["average", "fedavgm"] = "fedavgm"  # lines 11 and 12
    beta: float = Field(default=0.9, ge=0, lt=1)  # beta, section 3.2; mu in Algorithm 1
    server_learning_rate: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # eta^g
    slowmo: Literal["off", "interpolate", "initial", "momentum"] = "interpolate"  # line 13
    alpha: float = Field(default=0.99, gt=0, le=1)  # 1 - gamma, section 3.2
    slow_momentum: float = Field(default=0.5, ge=0, lt=1)  # beta of Wang et al. 2019, Alg. 1
    slow_learning_rate: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # alpha, ibid.
    share: float = Field(default=1.0, gt=0, le=1)  # P_t: share of the data owners in a round
    average_tops: bool = True  # the paper's w_t is one global model
    embedding: int = Field(default=64, ge=1)  # E
    top: tuple[int, ...] = (64,)  # hidden widths: two fully connected layers, section 3.2
    skip: bool = False  # tops read the mean embedding linearly, too
    members: int = Field(default=1, ge=1)  # networks side by side, which share the embedding
    smoothing: Smoothing = 0.0  # share of a label that is spread over all classes
    # Epochs without a better held-out loss, after which training ends and the best is what stays:
    # each member leaves out a part of the rows of its own. None: the last epoch stays.
    patience: int | None = Field(default=None, ge=1)
    loss_weights: ClassWeights | None = None  # of classes; a run's class_weights
    # what parties decide on validation rows; a run's threshold and calibrate
    decide: Decide | None = Field(default=None, exclude_if=lambda value: value is None)
    timeout_s: float | None = Field(default=None, gt=0)  # how long a step waits for an answer
    # How embeddings leave data owners, and gradients label owners; None: as they are. A party's own
    # file may say otherwise.
    embeddings: Release | None = None
    gradients: Release | None = None

    @model_validator(mode="after")
    def _members_fit(self) -> Config:
        if self.embedding % self.members:
            raise ValueError(
                f"{self.members} members share an embedding of width {self.embedding}; choose a "
                "multiple of members"
            )
        if self.patience is not None and (self.members < 2 or not self.average_tops):
            raise ValueError(
                "patience needs members of 2 or more, each of which is judged on rows that it "
                "leaves out, and average_tops"
            )
        return self


#: A member leaves out one row in so many times the members: each row fewer is missed, and one row
#: in ``_FOLDS`` is enough to judge by.
_FOLDS = 2

#: Of more than two classes: 1.35 points on covertype; of two it costs AUC (docs/fedoptimus.md).
_SMOOTHING = 0.1

#: Whom embeddings and gradients are for, in accounts; of rows that are of another table, too.
_COORDINATOR, _COORDINATOR_TEST = "the coordinator", "the coordinator, of test rows"


# --- What crosses the boundary -----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class BeginLabels(Message):
    """Coordinator -> label owner: training starts. ``settings`` is the ``Config`` as JSON.

    ``start`` is what all tops' first weights are drawn from, beside the seed: hexadecimal digits
    that label owners are told and data owners are not, who could else read labels out of the first
    gradients. "" in simulation.
    """

    settings: str
    seed: int
    start: str


@dataclass(frozen=True, eq=False)
class LabelsReady(Message):
    """Label owner -> coordinator: its shard's size, and what its labels say.

    ``num_samples`` and ``num_test`` count the orders that it shares with the data owners.
    """

    num_rows: int
    num_samples: int
    num_test: int
    task: str  # as JSON


@dataclass(frozen=True, eq=False)
class BeginData(Message):
    """Coordinator -> data owner: training starts, with these label owners."""

    settings: str
    seed: int
    label_owners: tuple[str, ...]
    num_samples: tuple[int, ...]
    num_rows: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class DataReady(Message):
    """Data owner -> coordinator: it holds all of those samples."""


@dataclass(frozen=True, eq=False)
class Draw(Message):
    """Coordinator -> label owner: which samples are your next batch? (asked only at first)"""


@dataclass(frozen=True, eq=False)
class Batch(Message):
    """Label owner -> coordinator: its batch, which stays the same until it is learned."""

    batch: int  # 1, 2, ...
    samples_B: Integers  # places in its shared order


@dataclass(frozen=True, eq=False)
class Step(Message):
    """Coordinator -> data owner: step along this gradient, then embed the next batches.

    ``gradient_BE`` is that of the mean embedding divided by how many were in the mean, one label
    owner's rows after the other's; ``learned`` counts them, 0 for a label owner that did not
    answer. It belongs to the batches of step ``previous``; 0: there is no gradient.
    """

    round: int
    step: int  # 1, 2, ...
    previous: int
    gradient_BE: Annotated[Tensor, Values(torch.float32, "GE", finite=False)]
    learned: tuple[int, ...]
    samples_B: Integers  # one label owner's after the other's
    sizes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Embeddings(Message):
    """Data owner -> coordinator: embeddings of the samples asked for."""

    embedding_BE: Numbers


@dataclass(frozen=True, eq=False)
class Learn(Message):
    """Coordinator -> label owner: the mean embedding of its batch (line 10); learn from it."""

    batch: int
    mean_BE: Numbers
    give_top: bool  # the round ends: the reply has the top's weights


@dataclass(frozen=True, eq=False)
class Learned(Message):
    """Label owner -> coordinator: dl/dh, and its next batch; the top only where asked for."""

    loss: float
    gradient_BE: Annotated[Tensor, Values(torch.float32, "GE", finite=False)]
    batch: int
    samples_B: Integers
    top_P: Numbers
    #: The batch's losses, each by the member that leaves the row out, as if one left out each row;
    #: 0 without patience.
    held_out: float = 0.0


@dataclass(frozen=True, eq=False)
class Average(Message):
    """Coordinator -> data owner: the round's last gradient, as in ``Step``; then average.

    ``keep``: the average is the best so far, and stays unless a better one follows.
    """

    round: int
    previous: int
    gradient_BE: Annotated[Tensor, Values(torch.float32, "GE", finite=False)]
    learned: tuple[int, ...]
    keep: bool = False


@dataclass(frozen=True, eq=False)
class Averaged(Message):
    """Data owner -> coordinator: its replicas are one model again."""

    round: int


@dataclass(frozen=True, eq=False)
class TakeTop(Message):
    """Coordinator -> label owner: the top after this round; ``keep`` as in ``Average``."""

    round: int
    top_P: Numbers
    keep: bool = False


@dataclass(frozen=True, eq=False)
class TopTaken(Message):
    """Label owner -> coordinator: it goes on from there."""

    round: int


@dataclass(frozen=True, eq=False)
class FinishLabels(Message):
    """Coordinator -> label owner: training is over."""


@dataclass(frozen=True, eq=False)
class FinishData(Message):
    """Coordinator -> data owner, of those whose embeddings the tops know: training is over."""


@dataclass(frozen=True, eq=False)
class Finished(Message):
    """Any owner -> coordinator: it has its model."""


@dataclass(frozen=True, eq=False)
class Embed(Message):
    """Driver -> data owner: embed these samples with the model as it is; nothing is learned.

    ``test``: samples of the test table, in the order shared with that label owner.
    """

    label_owner: str
    samples_B: Integers
    test: bool


@dataclass(frozen=True, eq=False)
class Measure(Message):
    """Coordinator -> label owner: the mean embedding of its test samples; how good is the top?

    They come in its order, ``SCORED_AT_ONCE`` at a time and the rest; see ``Measured``.
    """

    samples_B: Integers
    mean_BE: Numbers


@dataclass(frozen=True, eq=False)
class Measured(Message):
    """Label owner -> coordinator: sums over all samples, with the last; before it zeros.

    Those of a few samples would tell their labels. ``num_right`` is 0 in a regression.
    """

    loss: float
    num_right: int
    num_rows: int

    def of(self, owner: str, num: int) -> Measured:
        """It, if it can be of so many samples.

        Raises:
            PartyError: it cannot.
        """
        if self.num_rows != num or not 0 <= self.num_right <= num or not math.isfinite(self.loss):
            raise PartyError(owner, f"{self.wire_name()}: sums that cannot be")
        return self


@dataclass(frozen=True, eq=False)
class GiveHeldOut(Message):
    """Coordinator -> label owner: which samples did you keep out of training?"""


@dataclass(frozen=True, eq=False)
class HeldOut(Message):
    """Label owner -> coordinator: these places of its shared order."""

    samples_N: Integers


@dataclass(frozen=True, eq=False)
class Validate(Message):
    """Coordinator -> label owner: the mean embedding of samples that it kept out; decide by all.

    They come once, in its order, ``SCORED_AT_ONCE`` at a time and the rest. With the last it
    chooses what its settings ask for.
    """

    samples_B: Integers
    mean_BE: Numbers


#: Samples of a ``Measure`` or ``Validate``, but for the last.
SCORED_AT_ONCE = 1024

#: The most that a party's weights may take, with the iterates it keeps, whose sizes ``Begin`` sets.
MAX_PARAMETER_BYTES = 2**28

#: The widest embedding or layer of a top, and the most layers, that a party counts at all.
MAX_WIDTH, MAX_LAYERS = 2**20, 100


def _start(begin: BeginLabels) -> bytes | None:
    """What is mixed into w_0 of the tops.

    Raises:
        MessageError: no hexadecimal digits.
    """
    try:
        return bytes.fromhex(begin.start) or None
    except ValueError:
        raise MessageError(f"{begin.wire_name()}: its start is no hexadecimal number") from None


def _config(begin: BeginLabels | BeginData) -> Config:
    """The settings, if they can be and are of a size."""
    try:
        config = Config.model_validate_json(begin.settings)
    except ValidationError as error:
        raise MessageError(f"{begin.wire_name()}: settings that cannot be ({error})") from None
    if max(config.embedding, *config.top, 1) > MAX_WIDTH or len(config.top) > MAX_LAYERS:
        raise MessageError(f"{begin.wire_name()}: at most {MAX_LAYERS} layers of width {MAX_WIDTH}")
    return config


def _check_bytes(begin: Message, num_bytes: int) -> None:
    if num_bytes > MAX_PARAMETER_BYTES:
        raise MessageError(
            f"{begin.wire_name()}: asks for {num_bytes} bytes of weights here, of at most "
            f"{MAX_PARAMETER_BYTES}; lower embedding, top or iterate_average"
        )


#: No embedding, gradient of one or weight has larger numbers, unless its sender is out of hand.
MAX_VALUE = 1e6


def _check_finite(message: Message, name: str) -> None:
    values: Tensor = getattr(message, name)
    if not values.numel():
        return
    least, most = values.aminmax()  # not a copy of them all, as by their abs()
    largest = torch.maximum(-least, most)
    if not largest <= MAX_VALUE:
        what = f"above {MAX_VALUE:g}" if largest.isfinite() else "not finite"
        raise MessageError(f"{message.wire_name()}: {name} is {what}")


def top_of(config: Config, num_outputs: int) -> TopSpec:
    """The top that every label owner has."""
    return TopSpec(config.embedding, config.top, num_outputs, config.skip, config.members)


# --- Steps on averages -------------------------------------------------------------------------


def fedavgm(
    w: Tensor, average: Tensor, m: Tensor, *, beta: float, eta: float
) -> tuple[Tensor, Tensor]:
    """Lines 11 and 12: the new weights and momentum."""
    delta = w - average
    m = beta * m + (1 - beta) * delta
    return w - eta * m, m


def interpolate(w: Tensor, w_hat: Tensor, *, alpha: float) -> Tensor:
    """SlowMo as the text displays it; at alpha 1 there is nothing left of ``w``."""
    return w_hat if alpha == 1 else (1 - alpha) * w + alpha * w_hat


def pull_to_initial(w_0: Tensor, w_hat: Tensor, *, alpha: float) -> Tensor:
    """SlowMo(w_(t+1), w_0, gamma) of line 13, with gamma = 1 - alpha."""
    return interpolate(w_0, w_hat, alpha=alpha)


def slow_momentum(
    w: Tensor, w_hat: Tensor, u: Tensor, *, beta: float, alpha: float
) -> tuple[Tensor, Tensor]:
    """Wang et al. 2019, Algorithm 1, lines 7 and 8: the new weights and slow momentum.

    Their 1/gamma_t and gamma_t are one learning rate here, and cancel out.
    """
    u = beta * u + (w - w_hat)
    return w - alpha * u, u


class ServerOptimizer:
    """Lines 11 to 13 on one vector of weights, from round to round.

    Args:
        config: which steps, and their constants.
        w_P: w_0.
    """

    def __init__(self, config: Config, w_P: Tensor) -> None:
        self.config = config
        self.w_P = w_P.clone()
        self.initial_P = w_P.clone() if config.slowmo == "initial" else w_P.new_empty(0)
        self.m_P = torch.zeros_like(w_P) if config.server == "fedavgm" else w_P.new_empty(0)
        self.u_P = torch.zeros_like(w_P) if config.slowmo == "momentum" else w_P.new_empty(0)

    def step(self, average_P: Tensor) -> Tensor:
        """w_(t+1), from w_t and the average of the round's weights."""
        config, w_P, w_hat_P = self.config, self.w_P, average_P
        if config.server == "fedavgm":
            w_hat_P, self.m_P = fedavgm(
                w_P, average_P, self.m_P, beta=config.beta, eta=config.server_learning_rate
            )
        match config.slowmo:
            case "interpolate":
                w_hat_P = interpolate(w_P, w_hat_P, alpha=config.alpha)
            case "initial":
                w_hat_P = pull_to_initial(self.initial_P, w_hat_P, alpha=config.alpha)
            case "momentum":
                w_hat_P, self.u_P = slow_momentum(
                    w_P,
                    w_hat_P,
                    self.u_P,
                    beta=config.slow_momentum,
                    alpha=config.slow_learning_rate,
                )
        self.w_P = w_hat_P
        return w_hat_P

    def state(self) -> State:
        return {"w": self.w_P, "initial": self.initial_P, "m": self.m_P, "u": self.u_P}

    def restore(self, state: State) -> None:
        device = self.w_P.device
        self.w_P, self.initial_P = state["w"].to(device), state["initial"].to(device)
        self.m_P, self.u_P = state["m"].to(device), state["u"].to(device)


class Iterates:
    """The last K iterates of some weights (line 8); keeps nothing where K is 1."""

    def __init__(self, num: int) -> None:
        self.num = num
        self.kept: list[Tensor] = []

    def add(self, weights: Tensor) -> None:
        if self.num > 1:
            self.kept = [*self.kept[-(self.num - 1) :], weights.detach().clone()]

    def mean(self, weights: Tensor) -> Tensor:
        """Of those that are kept; the weights themselves where there are none."""
        if not self.kept:
            return weights.detach()
        total = torch.zeros_like(self.kept[0])
        for kept in self.kept:
            total += kept
        return total / len(self.kept)

    def state(self) -> State:
        return {"kept": list(self.kept)}

    def restore(self, state: State) -> None:
        self.kept = list(state["kept"])


def weighted_mean(rows_NP: Tensor, weights_N: Sequence[float]) -> Tensor:
    """sum_n (n_n / n) w_n, first to last."""
    total = sum(weights_N)
    mean_P = torch.zeros_like(rows_NP[0])
    for row_P, weight in zip(rows_NP, weights_N, strict=True):
        mean_P.add_(row_P, alpha=weight / total)
    return mean_P


# --- What a data owner executes ----------------------------------------------------------------


class DataOwner(Party):
    """A party with columns: a bottom model with one replica for each label owner.

    Args:
        name: the party.
        shared: label owner -> its rows in the order shared with that one; it holds all of them.
        bottom: its bottom network; ``Config.embedding`` sets the last width.
        test: the same of the test table.
        input: how raw rows become network inputs, to be kept with the network.
        release: how its embeddings leave; None: as the run says.
        budget: of its policy; None: nothing caps them.
        device: where it computes.
        secret: of its home, mixed into all it draws; None in simulation.
    """

    has_local = False

    saved = ("replicas", "optimizer", "server", "iterates", "open_round", "released", "kept_P")

    def __init__(
        self,
        name: str,
        shared: Mapping[str, SharedRows],
        bottom: BottomSpec,
        *,
        test: Mapping[str, SharedRows] | None = None,
        input: Input | None = None,
        release: Release | None = None,
        budget: Budget | None = None,
        device: torch.device | None = None,
        secret: Secret | None = None,
    ) -> None:
        self._secret = secret
        self.name = name
        self.shared = dict(shared)
        self.spec = bottom
        self.test = dict(test or {})
        self.input = input
        self.device = device or torch.device("cpu")
        self.replicas: Replicas | None = None
        self.release, self.budget = release, budget
        self.released: Releasing | None = None
        if not self.shared:
            raise ConfigError(f"data owner {name!r} shares no rows with any label owner")
        shapes = {tuple(each.x.shape[1:]) for each in [*shared.values(), *self.test.values()]}
        if len(shapes) > 1:
            raise ConfigError(f"data owner {name!r} has rows of different shapes: {sorted(shapes)}")
        (self.shape,) = shapes

    def sizes(self) -> dict[str, int]:
        """E, the width of embeddings."""
        return {} if self.replicas is None else {"E": self.config.embedding}

    @handles
    def begin(self, begin: BeginData) -> DataReady:
        """Make its network, a replica for each label owner."""
        config = _config(begin)
        num = len(begin.label_owners)
        if not num == len(begin.num_samples) == len(begin.num_rows) == len(set(begin.label_owners)):
            raise MessageError(f"{begin.wire_name()}: each label owner has one name and two counts")
        if not num or min(begin.num_rows) < 1:
            raise MessageError(f"{begin.wire_name()}: one or more label owners, each with rows")
        for owner, num_samples in zip(begin.label_owners, begin.num_samples, strict=True):
            self._check_shard(owner, num_samples)
        members = config.members
        encoding = None
        if isinstance(self.spec, EncodedMlp):
            self.spec, encoding = self.spec.fitted(self._trained_rows(begin.label_owners))

        def build() -> nn.Module:
            width = config.embedding // members
            if isinstance(self.spec, EncodedMlp):
                return self.spec.build(self.shape, width, encoding)
            return self.spec.build(self.shape, width)

        with torch.device("meta"):  # takes no memory
            sizes = [p.nbytes for p in build().parameters()]
        _check_bytes(begin, sum(sizes) * num * members * (config.iterate_average + 1))
        with RandomStream(begin.seed, self.name, "bottom", secret=key_of(self._secret)):
            networks = [build() for _ in range(members)]
        self.config = config
        self.seed, self.num_rows = begin.seed, begin.num_rows
        self.label_owners = begin.label_owners
        self.replicas = replicas_of(networks[0].to(self.device), num * members)
        if members > 1:
            own_P = torch.cat([vector_of(network) for network in networks])
            self._rows_of(self.replicas.values)[:] = own_P.to(self.device)
        self.optimizer = config.build([self.replicas.values])
        self.server = ServerOptimizer(config, self._rows_of(self.replicas.values)[0])
        self.kept_P: Tensor | None = None  # the best average so far
        self.iterates = Iterates(config.iterate_average)
        shards = [self.shared[owner] for owner in begin.label_owners]
        self._rows_S: Tensor | None = None  # of all label owners, one after the other
        if all(shared.x is shards[0].x for shared in shards):
            self._rows_S = torch.cat([shared.rows_S for shared in shards])
        limits = torch.tensor(begin.num_samples)
        self._bounds = torch.stack([limits, limits.cumsum(0) - limits])
        self._pending: tuple[int, tuple[int, ...]] | None = None  # step, and rows of each replica
        self.open_round: int | None = None  # steps were made in it, but no average yet
        release = within(
            self.budget, self.release, config.embeddings, what="its embeddings",
            key="[fedoptimus] embeddings = { clip = ..., noise = ... }",
        )  # fmt: skip
        if release is not None and self.released is None:
            rng = generator(begin.seed, self.name, "released") if self._secret is None else None
            self.released = Releasing(release, f"embeddings of {self.name!r}", rng)
        return DataReady()

    def _check_shard(self, owner: str, num_samples: int) -> None:
        shared = self.shared.get(owner)
        if shared is None or not len(shared.rows_S):
            raise ConfigError(
                f"it has no rows of the samples of label owner {owner!r} (it shares rows with "
                f"{sorted(self.shared)}); align with it, or leave one of the two out"
            )
        if len(shared.rows_S) != num_samples:
            raise AlignmentError(
                f"it shares {len(shared.rows_S)} samples with label owner {owner!r}, which says "
                f"{num_samples}; align again"
            )
        num_absent = int((shared.rows_S < 0).sum())
        if num_absent:
            raise ConfigError(
                f"it lacks {num_absent} of the {num_samples} samples of label owner {owner!r}; "
                "every data owner needs all of them, so align on those that all have"
            )

    def _rows_of(self, values: Tensor) -> Tensor:
        """(N, P) of all members of each label owner, of what has a row for every member."""
        own: Tensor = values.detach().view(len(self.label_owners), -1)
        return own

    def _for_members(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Each label owner's rows, once for every member."""
        return [part for part in parts for _ in range(self.config.members)]

    def _trained_rows(self, label_owners: Sequence[str]) -> Tensor:
        """(N, ...) rows of these label owners' samples, each once where they are of one table."""
        shards = [self.shared[owner] for owner in label_owners]
        if all(shared.x is shards[0].x for shared in shards):
            return shards[0].x[torch.cat([shared.rows_S for shared in shards]).unique()]
        return torch.cat([shared.x[shared.rows_S] for shared in shards])

    @handles
    def step(self, message: Step) -> Embeddings:
        """Learn from the last batches, and embed the next."""
        replicas = self.replicas
        assert replicas is not None
        self._check_gradient(message)
        x = self._rows(message)  # refused before anything is learned
        if self.open_round not in (None, message.round):
            self._average()  # it did not hear of the end of that round
        self._follow(message)
        self.open_round = message.round
        embedding_BE = self._side_by_side(replicas.forward(self._for_members(x)), message.sizes)
        self._pending = (message.step, message.sizes)
        if self.released is None:
            return Embeddings(embedding_BE.cpu())
        parts = zip(self.label_owners, message.samples_B.split(list(message.sizes)), strict=True)
        rows = [self.shared[owner].rows_S[samples] for owner, samples in parts]
        return self._noised(_COORDINATOR, torch.cat(rows), embedding_BE)

    def _side_by_side(self, embedding_BE: Tensor, sizes: Sequence[int]) -> Tensor:
        """(B, E) embeddings of line 7, of every member's, one after the other."""
        members = self.config.members
        if members == 1:
            return embedding_BE
        parts = embedding_BE.split([size * members for size in sizes])
        return torch.cat(
            [
                part.unflatten(0, (members, -1)).transpose(0, 1).flatten(1)
                for part in parts
                if len(part)
            ]
        )

    def _noised(self, receiver: str, rows_B: Tensor, embedding_BE: Tensor) -> Embeddings:
        """Embeddings of these rows of its table, as it has set."""
        assert self.released is not None
        sent = self.released.or_zeros(receiver, rows_B, embedding_BE.detach()).cpu()
        return noted(Embeddings(sent), self.released.cost(receiver))

    def spent(self) -> list[dict[str, Any]]:
        """Its embeddings, where they are noised."""
        return [] if self.released is None else self.released.spent("embeddings", _COORDINATOR)

    def _rows(self, message: Step) -> list[Tensor]:
        """Each replica's rows."""
        samples_B, sizes = message.samples_B, list(message.sizes)
        check_shape(message, "samples_B", (sum(sizes),), torch.int64)
        if len(sizes) != len(self.label_owners) or min(sizes) < 0 or not sum(sizes):
            raise MessageError(f"{message.wire_name()}: one batch or more, a size for each")
        shards = [self.shared[owner] for owner in self.label_owners]
        for shared, size in zip(shards, sizes, strict=True):
            if size > len(shared.rows_S):
                raise MessageError(f"{message.wire_name()}: a batch has each sample once")
        batches = samples_B.split(sizes)
        if self._rows_S is None:
            return [shared[batch] for shared, batch in zip(shards, batches, strict=True)]
        # Shards of one table, as usual: one look-up for all.
        limits, starts = self._bounds.repeat_interleave(torch.tensor(sizes), dim=1)
        if bool(((samples_B < 0) | (samples_B >= limits)).any()):
            for shared, batch in zip(shards, batches, strict=True):
                shared[batch]  # says whose samples they are
        return list(shards[0].x[self._rows_S[samples_B + starts]].split(sizes))

    @handles
    def end_round(self, message: Average) -> Averaged:
        """Learn from the round's last batches, and average."""
        self._check_gradient(message)
        self._follow(message)
        self._average()
        if message.keep:
            self.kept_P = self.server.w_P.clone()
        return Averaged(message.round)

    @handles
    def embed(self, message: Embed) -> Embeddings:
        """Embeddings of these samples; nothing is learned."""
        embedding_BE = self._embed(message)
        if self.released is None:
            return Embeddings(embedding_BE)
        held = (self.test if message.test else self.shared)[message.label_owner]
        trained = {id(each.x) for each in self.shared.values()}
        receiver = _COORDINATOR if id(held.x) in trained else _COORDINATOR_TEST
        return self._noised(receiver, held.rows_S[message.samples_B], embedding_BE)

    @handles
    def finish(self, message: FinishData) -> Finished:
        """Training is over: its bottom model is as it is."""
        return Finished()

    def _check_gradient(self, message: Step | Average) -> None:
        learned = message.learned
        check_shape(message, "gradient_BE", (sum(learned), self.config.embedding), torch.float32)
        _check_finite(message, "gradient_BE")
        if not message.previous or self._pending is None or self._pending[0] != message.previous:
            return  # there is none, or none that it can follow
        sizes = self._pending[1]
        if len(learned) != len(sizes) or any(
            rows not in (0, size) for rows, size in zip(learned, sizes, strict=True)
        ):
            raise MessageError(
                f"{message.wire_name()}: it embedded {sizes} rows in step {message.previous}, the "
                f"gradient is of {learned}"
            )

    def _follow(self, message: Step | Average) -> None:
        """Step along the gradient of the batches that were embedded last."""
        replicas = self.replicas
        assert replicas is not None
        pending, self._pending = self._pending, None
        if pending is None or not message.previous or pending[0] != message.previous:
            return
        if not sum(message.learned):
            return
        gradients = message.gradient_BE.to(self.device).split(list(message.learned))
        members = self.config.members
        if members > 1:
            gradients = tuple(part for own in gradients for part in own.chunk(members, dim=1))
        replicas.backward(gradients)
        still = [place for place, rows in enumerate(message.learned) if not rows]
        before = {name: own[still] for name, own in self._stepped().items()} if still else {}
        self.optimizer.step()
        if still:  # a replica without a batch made no step; an optimizer's memory starts at zero
            for name, own in self._stepped().items():
                own[still] = before.get(name, torch.zeros_like(own[still]))
        self.iterates.add(replicas.values)

    def _stepped(self) -> dict[str, Tensor]:
        """(N, P) tensors that a step changes: weights and the optimizer's memory of each."""
        assert self.replicas is not None
        values = self.replicas.values
        own = self.optimizer.state[values].items()
        memory = {name: kept for name, kept in own if isinstance(kept, Tensor) and kept.dim() == 2}
        return {name: self._rows_of(each) for name, each in {"values": values, **memory}.items()}

    def _average(self) -> None:
        """Replicas become one model again: lines 8 and 11 to 13."""
        replicas = self.replicas
        assert replicas is not None
        rows_NP = self._rows_of(self.iterates.mean(replicas.values))
        w_P = self.server.step(weighted_mean(rows_NP, self.num_rows))
        self._rows_of(replicas.values)[:] = w_P
        if replicas.statistics_NQ.numel():
            statistics_NQ = self._rows_of(replicas.statistics_NQ)
            statistics_NQ[:] = weighted_mean(statistics_NQ, self.num_rows)
        self._pending = None
        self.open_round = None

    def _embed(self, message: Embed) -> Tensor:
        held = self.test if message.test else self.shared
        shared = held.get(message.label_owner)
        if shared is None:
            raise MessageError(
                f"{message.wire_name()}: it shares no {'test ' if message.test else ''}rows with "
                f"{message.label_owner!r}"
            )
        if message.samples_B.numel() > len(shared.rows_S):
            raise MessageError(f"{message.wire_name()}: each sample once")
        place = 0  # of one that takes no part in training
        if message.label_owner in self.label_owners:
            place = self.label_owners.index(message.label_owner)
        network = self._network(place)
        return embed_rows(
            network, shared[message.samples_B], self.config.embedding, batch_size=1024
        )

    def _network(self, place: int = 0) -> nn.Module:
        """A label owner's replica as it is, of all members; the best average, where one is kept."""
        replicas, members = self.replicas, self.config.members
        assert replicas is not None
        networks = [replicas.network(place * members + member) for member in range(members)]
        if self.kept_P is not None:
            for network, own_P in zip(networks, self.kept_P.chunk(members), strict=True):
                write_vector(own_P, network)
        return networks[0] if members == 1 else MembersNetwork(networks)

    def features(self, label_owner: str, samples_B: Tensor) -> Tensor:
        """(B, E) embeddings by this label owner's replica as it is, for selection."""
        return self._embed(Embed(label_owner, samples_B, test=False))

    def bottom_model(self) -> Bottom:
        """The bottom model as it is, or as it was at its best: after a round replicas are alike."""
        if self.replicas is None:
            raise PartyError(self.name, "has no model before training began")
        members = self.config.members
        return Bottom(
            self.name,
            self._network().eval(),
            self.spec if members == 1 else MembersSpec(self.spec, members),
            self.shape,
            self.config.embedding,
            self.input,
            {"method": "fedoptimus", "seed": self.seed},
        )


# --- What a label owner executes ---------------------------------------------------------------


class _InOrder:
    """Outputs of a label owner's top for samples that come in order, some at a time.

    Args:
        samples_N: (N,) int64.

    Attributes:
        samples_N: as given.
        outputs: (n, C) each, of those that came.
    """

    def __init__(self, samples_N: Tensor) -> None:
        self.samples_N = samples_N
        self.outputs: list[Tensor] = []

    @property
    def num_done(self) -> int:
        return sum(map(len, self.outputs))

    @property
    def is_done(self) -> bool:
        return self.num_done == len(self.samples_N)

    def due(self) -> Tensor:
        """The samples that come next."""
        return self.samples_N[self.num_done : self.num_done + SCORED_AT_ONCE]


class LabelOwner(Party):
    """A party with labels: a top model on the mean of the data owners' embeddings.

    Args:
        name: the party.
        labels_S: (S,) labels of its samples, in the order shared with the data owners; -1 or NaN
            where there is none.
        task: what the labels say.
        samples: (N,) int64, those to train on; None: all that are labelled.
        test_labels: (T,) labels of the test samples, in their shared order.
        release: how its gradients leave; None: as the run says.
        budget: of its policy: no loss, no weight of its top and no score leaves; None: nothing is
            capped.
        max_scored: how often it scores its test samples in a run; 0: any number of times.
        device: where it computes.
        secret: of its home, mixed into all it draws; None in simulation.
    """

    has_local = False

    saved = ("top", "optimizer", "iterates", "batches", "number", "batch", "released", "kept_P")
    decided: Decided | None = None  # on samples that it kept out of training

    def __init__(
        self,
        name: str,
        labels_S: Tensor,
        task: Task,
        *,
        samples: Tensor | None = None,
        test_labels: Tensor | None = None,
        release: Release | None = None,
        budget: Budget | None = None,
        max_scored: int = 0,
        device: torch.device | None = None,
        secret: Secret | None = None,
    ) -> None:
        self._secret = secret
        self.name = name
        self.labels_S = labels_S
        self.task = task
        labelled_S = labels_S >= 0 if isinstance(task, Classification) else labels_S.isfinite()
        self.samples = labelled_S.nonzero().flatten() if samples is None else samples
        self._all_samples, self.held_out = self.samples, self.samples[:0]
        self._validated = self._tested = _InOrder(self.held_out)
        self._max_scored, self._num_scored = max_scored, 0
        tested = test_labels is not None and budget is None  # scores of them are not counted
        self.test_labels = test_labels if tested and test_labels is not None else torch.empty(0)
        self.device = device or torch.device("cpu")
        self.top: nn.Module | None = None
        self.release, self.budget = release, budget
        self.released: Releasing | None = None
        if not len(self.samples) or not bool(labelled_S[self.samples].all()):
            raise ConfigError(
                f"label owner {name!r} needs one training sample or more, each with a label; it "
                f"has {len(self.samples)}, of which {int(labelled_S[self.samples].sum())} have one"
            )

    def sizes(self) -> dict[str, int]:
        """E, the width of embeddings, and P, the parameters of its top."""
        if self.top is None:
            return {}
        num = sum(parameter.numel() for parameter in self.top.parameters())
        return {"E": self.config.embedding, "P": num}

    @handles
    def begin(self, begin: BeginLabels) -> LabelsReady:
        """Make its top."""
        config = _config(begin)
        release = within(
            self.budget, self.release, config.gradients, what="its gradients",
            key="[fedoptimus] gradients = { clip = ..., noise = ... }",
        )  # fmt: skip
        if self.budget is not None and config.average_tops:
            raise ConfigError(
                "its policy.privacy sets a budget of epsilon, and its top's weights would leave "
                "without noise; set fedoptimus.average_tops = false"
            )
        spec = top_of(config, self.task.num_outputs)
        with torch.device("meta"):  # takes no memory
            num_bytes = sum(each.nbytes for each in spec.build().parameters())
        _check_bytes(begin, num_bytes * (config.iterate_average + 1))
        self.config, self.spec, self.seed = config, spec, begin.seed
        with RandomStream(begin.seed, "top", secret=_start(begin)):  # w_0 is one model
            self.top = spec.build().to(self.device)
        if config.decide is not None:
            self.samples, self.held_out = hold_out(
                self._all_samples,
                self.labels_S[self._all_samples],
                seed=derive_seed(0, self.name, "threshold"),
                regression=not isinstance(self.task, Classification),
            )
        self._validated = self._tested = _InOrder(self.held_out)
        self._num_scored = 0
        labels_N = self.labels_S[self.samples]
        self.class_weights_C = on(
            self.device, class_weights(config.loss_weights, self.task, labels_N)
        )
        self.optimizer = config.build(self.top.parameters())
        self.iterates = Iterates(config.iterate_average)
        self.batches = Minibatches(
            self.samples,
            config.batch_size,
            generator(begin.seed, self.name, "batches", secret=key_of(self._secret)),
        )
        self.kept_P: Tensor | None = None  # the best top so far
        self.fold_S: Tensor | None = None  # which member leaves a sample out; none beyond members
        if config.patience is not None:
            drawn = generator(begin.seed, self.name, "folds", secret=key_of(self._secret))
            self.fold_S = torch.full((len(self.labels_S),), -1)
            order = torch.randperm(len(self.samples), generator=drawn)
            self.fold_S[self.samples[order]] = torch.arange(len(order)) % (_FOLDS * config.members)
        self.number = 1  # of the batch that comes next
        self.batch: Tensor | None = None
        if release is not None and self.released is None:
            rng = generator(begin.seed, self.name, "released") if self._secret is None else None
            self.released = Releasing(release, f"gradients of {self.name!r}", rng)
        task = json.dumps(self.task.to_json())
        return LabelsReady(len(self.samples), len(self.labels_S), len(self.test_labels), task)

    @handles
    def draw(self, message: Draw) -> Batch:
        """Its next batch."""
        return Batch(self.number, self._draw())

    def _draw(self) -> Tensor:
        if self.batch is None:
            self.batch = next(self.batches)
        return self.batch

    @handles
    def learn(self, message: Learn) -> Learned:
        """One step of its top."""
        top = self.top
        assert top is not None
        if self.batch is None or message.batch != self.number:
            raise PartyError(
                self.name, f"was sent batch {message.batch}, but batch {self.number} is due"
            )
        if message.give_top and not self.config.average_tops:
            raise MessageError(f"{message.wire_name()}: each label owner keeps its own top here")
        check_shape(message, "mean_BE", (len(self.batch), self.config.embedding), torch.float32)
        _check_finite(message, "mean_BE")
        mean_BE = message.mean_BE.detach().to(self.device).requires_grad_()
        labels_B = self.labels_S[self.batch].to(self.device)
        loss, held_out = self._loss(top, mean_BE, labels_B)
        if not loss.isfinite() and self.budget is None:
            raise TrainingError(
                f"its loss is {loss.item()}; lower the learning_rate ({self.config.learning_rate})"
            )
        self.optimizer.zero_grad()
        loss.backward()
        if loss.isfinite():  # else, under a budget, it goes on: a refusal would tell of labels
            self.optimizer.step()
        if self.config.iterate_average > 1:
            self.iterates.add(vector_of(top))
        assert mean_BE.grad is not None
        gradient_BE, cost = mean_BE.grad, None
        if self.released is not None:
            gradient_BE = self.released.or_zeros(_COORDINATOR, self.batch, gradient_BE)
            cost = self.released.cost(_COORDINATOR)
        self.number += 1
        self.batch = None
        top_P = torch.empty(0)
        if message.give_top:
            top_P = self.iterates.mean(vector_of(top)).cpu()  # line 8
        told = loss.item()
        if self.budget is not None:  # both tell of labels
            told = held_out = 0.0
        learned = Learned(told, gradient_BE.cpu(), self.number, self._draw(), top_P, held_out)
        return noted(learned, cost)

    def _smoothing(self) -> float:
        """As the run says, or by how many classes there are."""
        if self.config.smoothing != "classes":
            return self.config.smoothing
        return _SMOOTHING if self.task.num_outputs > 2 else 0.0

    def _loss(self, top: nn.Module, mean_BE: Tensor, labels_B: Tensor) -> tuple[Tensor, float]:
        """Of its batch; and the sum of what its rows lose by the members that leave them out.

        Members learn apart: a sum of their losses moves each as its own would.
        """
        loss_of = partial(
            supervised_loss,
            self.task,
            weights_C=self.class_weights_C,
            smoothing=self._smoothing(),
        )
        if not isinstance(top, MembersTop) or self.config.members == 1:
            return loss_of(top(mean_BE), labels_B), 0.0
        losses, held_out = [], 0.0
        for member, outputs_BC in enumerate(top.each(mean_BE)):
            out_B = torch.zeros(len(labels_B), dtype=torch.bool)
            if self.fold_S is not None:
                assert self.batch is not None
                out_B = self.fold_S[self.batch] == member
            if bool(out_B.any()):
                own = loss_of(outputs_BC[out_B].detach(), labels_B[out_B], reduction="sum")
                held_out += own.item()
            if not bool(out_B.all()):
                losses.append(loss_of(outputs_BC[~out_B], labels_B[~out_B]))
        return torch.stack(losses).sum(), _FOLDS * held_out

    def spent(self) -> list[dict[str, Any]]:
        """Its gradients, where they are noised."""
        return [] if self.released is None else self.released.spent("gradients", _COORDINATOR)

    @handles
    def take_top(self, message: TakeTop) -> TopTaken:
        """Go on from all label owners' top."""
        assert self.top is not None
        if not self.config.average_tops:
            raise MessageError(f"{message.wire_name()}: each label owner keeps its own top here")
        _check_finite(message, "top_P")
        write_vector(message.top_P.to(self.device), self.top)
        if message.keep:
            self.kept_P = message.top_P.clone()
        return TopTaken(message.round)

    @handles
    def measure(self, message: Measure) -> Measured:
        """How good its top is on its test samples, of which these come next."""
        anew = _InOrder(torch.arange(len(self.test_labels)))
        starts = torch.equal(message.samples_B, anew.due())
        if starts:  # once more, or where the coordinator fell
            if self._max_scored and self._num_scored >= self._max_scored:
                raise LimitError(
                    f"refuses to score its test samples more than {self._max_scored:,} times in "
                    "this run: its policy.max_uses; raise evaluate_every"
                )
            self._tested = anew
        measured = self._next(message, self._tested, self.test_labels)
        self._num_scored += starts
        return measured

    @handles
    def give_held_out(self, message: GiveHeldOut) -> HeldOut:
        """The samples that it kept out of training."""
        return HeldOut(self.held_out if self.budget is None else self.held_out[:0])

    @handles
    def validate(self, message: Validate) -> Measured:
        """How good its top is on samples that it kept out; after the last it decides."""
        if self.budget is not None:
            raise ConfigError("its policy.privacy counts epsilon, and a score is not counted")
        measured = self._next(message, self._validated, self.labels_S)
        decide = self.config.decide
        if decide is not None and self._validated.is_done:
            said = torch.cat(self._validated.outputs)
            self.decided = decide.decided(self.task, said, self.labels_S[self.held_out])
        return measured

    @torch.no_grad()
    def _next(self, message: Measure | Validate, scored: _InOrder, labels_S: Tensor) -> Measured:
        """Note what its top says of the samples that are due; with the last, how good it is."""
        due = scored.due()
        if not len(due) or not torch.equal(message.samples_B, due):
            raise MessageError(
                f"{message.wire_name()}: its {len(scored.samples_N)} samples come in order, "
                f"{SCORED_AT_ONCE} at a time, and once; {scored.num_done} came"
            )
        check_shape(message, "mean_BE", (len(due), self.config.embedding), torch.float32)
        _check_finite(message, "mean_BE")
        scored.outputs.append(self._best()(message.mean_BE.to(self.device)).cpu())
        if not scored.is_done:
            return Measured(0.0, 0, 0)
        outputs_NC, labels_N = torch.cat(scored.outputs), labels_S[scored.samples_N]
        loss = supervised_loss(self.task, outputs_NC, labels_N, reduction="sum").item()
        num_right = 0
        if isinstance(self.task, Classification):
            num_right = int((outputs_NC.argmax(dim=1) == labels_N).sum())
        return Measured(loss, num_right, len(labels_N))

    @handles
    def finish(self, message: FinishLabels) -> Finished:
        """Training is over: its top is as it is."""
        return Finished()

    def _best(self) -> nn.Module:
        """The top as it was at its best, where that is kept, or as it is."""
        assert self.top is not None
        if self.kept_P is None:
            return self.top
        top = self.spec.build().to(self.device)
        write_vector(self.kept_P.to(self.device), top)
        return top

    def model(self) -> Model:
        """The top as it is, or was at its best: mean embeddings to predictions."""
        if self.top is None:
            raise PartyError(self.name, "has no model before training began")
        return Model(
            party=self.name,
            task=self.task,
            network=self._best(),
            spec=self.spec,
            shapes={"embedding": (self.config.embedding,)},
            about={"method": "fedoptimus", "seed": self.seed},
        )


# --- What the coordinator executes: Algorithm 1 ------------------------------------------------


class Choose(Protocol):
    """Who takes part in each round (lines 4 and 5), where that is no random share."""

    def __call__(self, number: int, network: Engine, /) -> Sequence[str]:
        """Names of the data owners of a round."""

    def told(self) -> Mapping[str, Any]:
        """What the last choice was made by, for its round's line; {} where nothing is new."""

    def state(self) -> State: ...
    def restore(self, state: State) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Round(Played):
    """What one round did.

    Attributes:
        missed: party -> how many times it was left out.
        reasons: party -> why, the first time in this round.
    """

    missed: Mapping[str, int]
    reasons: Mapping[str, str]

    def line(self) -> dict[str, Any]:
        return {"round": self.number, **self.told, "seconds": self.seconds}

    def left_out(self) -> dict[str, Any]:
        return {"missed": self.missed, "reasons": self.reasons} if self.missed else {}


@dataclass(frozen=True, kw_only=True)
class Averaging(Round):
    """A round of one run, at whose end weights are averaged.

    Attributes:
        losses: label owner -> mean loss over its minibatches of this round.
        participants: the data owners that were asked (line 5).
    """

    losses: Mapping[str, float]
    participants: tuple[str, ...]


class Missed(dict[str, int]):
    """Party -> how many times it was left out; ``reasons`` has why, the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: dict[str, str] = {}

    def note(self, party: str, reason: str) -> None:
        self[party] = self.get(party, 0) + 1
        self.reasons.setdefault(party, reason)

    def __str__(self) -> str:
        return "; ".join(f"{party}: {reason}" for party, reason in self.reasons.items())


class Coordinator(Driver):
    """Drives a run, and has no data: means of embeddings, the global top, who takes part.

    Between rounds ``predicting``'s ``joint``, ``score`` and ``predict`` use the model; at the end
    owners are told that it is over.

    Args:
        config: the run's settings.
        data_owners, label_owners: names of the parties.
        seed: of everything random here and at the parties.
        secret: of its home; what label owners begin with is derived from it. None in simulation.
        choose: the data owners of a round (lines 4 and 5); None: a random ``Config.share`` of them.

    Attributes:
        participants: whose embeddings the tops know: the data owners that were chosen last, or all.
        measured: label owner -> scores that it has told, where it is elsewhere.
    """

    def __init__(
        self,
        config: Config,
        *,
        data_owners: Sequence[str],
        label_owners: Sequence[str],
        seed: int,
        secret: Secret | None = None,
        choose: Choose | None = None,
    ) -> None:
        key = key_of(secret)
        self._top_start = "" if key is None else derive_key(key, str(seed), "top").hex()
        for names, kind in ((data_owners, "data"), (label_owners, "label")):
            if not names or len(set(names)) < len(names):
                raise ConfigError(
                    f"a run needs one {kind} owner or more, each named once, got {list(names)}"
                )
        self.config = config
        self.data_owners = tuple(data_owners)
        self.label_owners = tuple(label_owners)
        self.participants = self.data_owners
        self.seed = seed
        self.choose = choose
        self.ready: dict[str, LabelsReady] = {}
        self.batches: dict[str, Batch] = {}  # label owner -> its next batch
        self.step = 0
        self.num_rounds = config.rounds or 0  # of epochs known when training has begun
        self.top: ServerOptimizer | None = None
        self.measured: dict[str, dict[str, float]] = {}
        self.scored_without: set[str] = set()  # data owners, as was said last
        self.held_out: dict[str, float] = {}
        self._num_outputs = 0
        self._rng = generator(seed, "participation")
        #: Of the epoch so far: sum of held-out losses, and of how many rows.
        self._held_out = (0.0, 0)
        self._best = (math.inf, 0)  # held-out loss of the best epoch, and its last round
        self._epochs_since = 0

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which the largest shard is passed over once; known when training has begun."""
        rows = max(ready.num_rows for ready in self.ready.values())
        return -(-rows // self.config.batch_size)

    def due(self, number: int, every: int) -> bool:
        """Whether an epoch (or round) that is to be scored ended with this round."""
        if self.config.rounds is not None:
            return super().due(number, every)
        steps, before = self.steps_per_epoch * every, self.step - self.config.sync_every
        return number == self.num_rounds or (
            every > 0 and self.step // steps > max(before, 0) // steps
        )

    def participants_of(self, label_owner: str) -> tuple[str, ...]:
        """The data owners whose embeddings this label owner's top knows."""
        return self.participants

    def scores(self) -> Mapping[str, Mapping[str, float]]:
        return self.measured

    def draw_participants(self) -> tuple[str, ...]:
        """A random share of the data owners, one at least (line 5 without scores)."""
        num = max(1, round(self.config.share * len(self.data_owners)))
        if num >= len(self.data_owners):
            return self.data_owners
        chosen = torch.randperm(len(self.data_owners), generator=self._rng)[:num].sort().values
        return tuple(self.data_owners[place] for place in chosen.tolist())

    def begin_data(self) -> BeginData:
        """What every data owner is told, when the label owners are ready."""
        ready = [self.ready[owner] for owner in self.label_owners]
        return BeginData(
            self.config.model_dump_json(),
            self.seed,
            self.label_owners,
            tuple(own.num_samples for own in ready),
            tuple(own.num_rows for own in ready),
        )

    def begin_labels(self) -> BeginLabels:
        """What every label owner is told."""
        return BeginLabels(self.config.model_dump_json(), self.seed, self._top_start)

    def start(self, num_outputs: int) -> None:
        """The global top before the first round, as every label owner draws it too."""
        self._num_outputs = num_outputs
        steps = self.config.epochs * self.steps_per_epoch  # the last epoch's last round is whole
        self.num_rounds = self.config.rounds or -(-steps // self.config.sync_every)  # line 2
        if self.config.average_tops:
            with RandomStream(self.seed, "top", secret=_start(self.begin_labels())):
                top = top_of(self.config, num_outputs).build()
            self.top = ServerOptimizer(self.config, vector_of(top))

    def state(self) -> State:
        """What the next round depends on."""
        return {
            "owners": [list(self.data_owners), list(self.label_owners)],
            "participants": list(self.participants),
            "ready": {owner: _fields_of(ready) for owner, ready in self.ready.items()},
            "batches": {owner: _fields_of(batch) for owner, batch in self.batches.items()},
            "step": self.step,
            "num_outputs": self._num_outputs,
            "top": None if self.top is None else self.top.state(),
            "rng": self._rng.get_state(),
            "choice": None if self.choose is None else self.choose.state(),
            "measured": self.measured,
            "held_out": [*self._held_out, *self._best, self._epochs_since],
        }

    def restore(self, state: State) -> None:
        """Go on from there.

        Raises:
            ConfigError: the state is of a run with other owners.
        """
        owners = [list(self.data_owners), list(self.label_owners)]
        if [list(names) for names in state["owners"]] != owners:
            raise ConfigError(
                f"the saved run is of owners {state['owners']}, this one of {owners}; resume with "
                "the same, or start anew with --overwrite"
            )
        self.participants = tuple(state["participants"])
        self.ready = {owner: LabelsReady(**ready) for owner, ready in state["ready"].items()}
        self.batches = {owner: Batch(**batch) for owner, batch in state["batches"].items()}
        self.step = state["step"]
        self.start(state["num_outputs"])
        if self.top is not None:
            self.top.restore(state["top"])
        self._rng.set_state(state["rng"])
        if self.choose is not None:
            self.choose.restore(state["choice"])
        self.measured = dict(state["measured"])
        total, rows, *best, self._epochs_since = state["held_out"]
        self._held_out, self._best = (total, rows), (best[0], best[1])

    def begin(self, network: Engine) -> None:
        """Open the run with every owner.

        Raises:
            ConfigError: label owners whose labels do not say the same.
            PartyError: one cannot begin.
        """
        labels = dict.fromkeys(self.label_owners, self.begin_labels())
        ready = network.ask(labels, LabelsReady).or_raise()
        first, *others = self.label_owners
        for owner, own in ready.items():
            if min(own.num_rows, own.num_samples) < 1 or own.num_test < 0:
                raise PartyError(owner, f"says that it has {own.num_rows} training samples")
        for owner in others:
            if ready[owner].task != ready[first].task:
                raise ConfigError(
                    f"all label owners learn one task, but {first!r} has {ready[first].task} and "
                    f"{owner!r} {ready[owner].task}; give both the same classes, in one order, or "
                    "of numbers the same label_scale"
                )
        self.ready = {owner: ready[owner] for owner in self.label_owners}
        data = dict.fromkeys(self.data_owners, self.begin_data())
        network.ask(data, DataReady).or_raise()
        self.start(_num_outputs(first, ready[first].task))

    def begin_again(self, behind: Mapping[str, int], network: Engine) -> None:
        """Owners that lost their disk take part again, from their beginning."""
        for name in behind:  # it stands at an older batch
            self.batches.pop(name, None)
        lost = [name for name, step in behind.items() if step == 0]
        data = [owner for owner in self.data_owners if owner in lost]
        labels = [owner for owner in self.label_owners if owner in lost]
        network.ask(dict.fromkeys(data, self.begin_data()), DataReady)
        network.ask(dict.fromkeys(labels, self.begin_labels()), LabelsReady)
        if self.top is not None and labels:
            take = TakeTop(0, self.top.w_P)
            network.ask(dict.fromkeys(labels, take), TopTaken)

    def finish(self, network: Engine) -> None:
        """Tell owners that their models are whole, so that each keeps its own at home.

        A data owner that the tops do not know is not told: no mean has a use for its network.
        """
        timeout_s = self.config.timeout_s
        if self.config.decide is not None:
            self.held_out = self._validated(network)
        labels = dict.fromkeys(self.label_owners, FinishLabels())
        end(network, labels, Finished, timeout_s=timeout_s)
        data = dict.fromkeys(self.participants, FinishData())
        end(network, data, Finished, timeout_s=timeout_s)

    def judged(self, network: Engine) -> dict[str, float]:
        """Label owner -> how good its model is on samples that it kept out of training."""
        return dict(self.held_out)

    def _validated(self, network: Engine) -> dict[str, float]:
        """The same, of those who answer; each then decides what its settings ask for."""
        found = {}
        timeout_s = self.config.timeout_s
        asked = dict.fromkeys(self.label_owners, GiveHeldOut())
        for owner, reply in network.ask(asked, HeldOut, timeout_s=timeout_s).items():
            samples_N = reply.samples_N
            if not len(samples_N):
                continue
            try:
                found[owner] = self._validate(owner, samples_N, network)
            except (PartyError, TrainingError) as failure:  # the others' models are whole
                _log.warning("%s decides nothing on rows that it kept out: %s", owner, failure)
        return found

    def _validate(self, owner: str, samples_N: Tensor, network: Engine) -> float:
        """How good a label owner's model is on these samples, the last of which let it decide.

        Raises:
            PartyError: it does not answer, or not with what can be.
            TrainingError: no data owner answers.
        """
        measured = asked_sums(
            Validate, owner, samples_N, self.participants, self.config, network, Missed()
        )
        is_number = json.loads(self.ready[owner].task)["kind"] == "regression"
        num = len(samples_N)
        return goodness_of_error(measured.loss / num) if is_number else measured.num_right / num

    def round(self, number: int, network: Engine) -> Averaging:
        """One round of Algorithm 1.

        Raises:
            ConfigError: a choice of nobody, or of somebody who is no data owner.
            TrainingError: no data owner, or no label owner, answered in a step.
        """
        config = self.config
        missed = Missed()
        asked = self._participants(number, network)  # lines 4 and 5
        losses: dict[str, list[float]] = {}
        tops: dict[str, Tensor] = {}
        nothing = _Gradient(0, torch.empty(0, config.embedding), (0,) * len(self.label_owners))
        gradients = dict.fromkeys(asked, nothing)
        for place in range(1, config.sync_every + 1):  # line 7, and K
            is_last = place == config.sync_every
            gradients = self._step(number, is_last, network, gradients, losses, tops, missed)
        keep, judged = self._judge(number)
        averages = {
            owner: Average(number, own.previous, own.gradient_BE, own.learned, keep)
            for owner, own in gradients.items()
        }
        replies = network.ask(averages, Averaged, timeout_s=config.timeout_s)  # lines 8, 11 to 13
        for owner, failure in replies.failures.items():
            missed.note(owner, failure.cause)
        if self.top is not None:
            self._average_tops(number, tops, network, missed, keep)
        means = {owner: sum(own) / len(own) for owner, own in losses.items()}
        told: dict[str, Any] = {
            "step": self.step,
            "loss": sum(means.values()) / len(means),
            "steps": config.sync_every,
            "bytes": num_bytes(network),
            **judged,
        }
        if self.choose is not None and (why := self.choose.told()):
            told |= {"participants": list(asked), **why}
        return Averaging(
            told=told,
            missed=dict(missed),
            reasons=missed.reasons,
            losses=means,
            participants=asked,
        )

    def _judge(self, number: int) -> tuple[bool, dict[str, float]]:
        """Whether an epoch ended with this round that is the best so far, and its held-out loss."""
        total, rows = self._held_out
        before, steps = self.step - self.config.sync_every, self.steps_per_epoch
        if not rows or self.step // steps == before // steps:
            return False, {}
        loss = total / rows
        self._held_out = (0.0, 0)
        self._epochs_since += self.step // steps - before // steps
        is_best = loss < self._best[0]
        if is_best:
            self._best, self._epochs_since = (loss, number), 0
        return is_best, {"held_out": loss}

    def ended(self, number: int) -> bool:
        """Whether the best epoch lies too far back."""
        patience = self.config.patience
        return patience is not None and self._best[1] > 0 and self._epochs_since >= patience

    def _participants(self, number: int, network: Engine) -> tuple[str, ...]:
        if self.choose is None:
            return self.draw_participants()
        chosen = set(self.choose(number, network))
        unknown = chosen - set(self.data_owners)
        if unknown or not chosen:
            raise ConfigError(
                f"round {number} is to be learned with {sorted(chosen) or 'nobody'}; choose one or "
                f"more of the data owners {list(self.data_owners)}"
            )
        before = self.participants
        self.participants = tuple(owner for owner in self.data_owners if owner in chosen)
        if self.participants != before:  # what was kept knows others
            self._best = (math.inf, 0)
        return self.participants

    def _step(
        self,
        number: int,
        is_last: bool,
        network: Engine,
        gradients: Mapping[str, _Gradient],
        losses: dict[str, list[float]],
        tops: dict[str, Tensor],
        missed: Missed,
    ) -> dict[str, _Gradient]:
        """One minibatch of every label owner; data owner -> the gradient it steps along next."""
        config, batches = self.config, self.batches
        self.step += 1
        self._draw(network, missed)
        present = [owner for owner in self.label_owners if owner in batches]
        samples_B = torch.cat([batches[owner].samples_B for owner in present])
        sizes = tuple(
            len(batches[owner].samples_B) if owner in batches else 0 for owner in self.label_owners
        )
        steps = {
            owner: Step(
                number, self.step, own.previous, own.gradient_BE, own.learned, samples_B, sizes
            )
            for owner, own in gradients.items()
        }
        replies = network.ask(steps, Embeddings, timeout_s=config.timeout_s)
        embeddings = checked_embeddings(
            replies, replies.failures, len(samples_B), config.embedding, missed
        )
        if not embeddings:
            raise TrainingError(f"no data owner answered in round {number} ({missed})")
        mean_BE = mean_embedding(list(embeddings.values()))  # line 10
        means = dict(zip(self.label_owners, mean_BE.split(list(sizes)), strict=True))
        give_top = is_last and config.average_tops
        learn = {owner: Learn(batches[owner].batch, means[owner], give_top) for owner in present}
        answers = network.ask(learn, Learned, timeout_s=config.timeout_s)
        for owner, failure in answers.failures.items():
            missed.note(owner, failure.cause)
            del batches[owner]
        parts: dict[str, Tensor] = {}
        for owner, answer in answers.items():
            try:
                self._check_learned(answer, means[owner], owner, give_top)
            except MessageError as cause:
                missed.note(owner, str(cause))
                del batches[owner]
                continue
            batches[owner] = Batch(answer.batch, answer.samples_B)
            losses.setdefault(owner, []).append(answer.loss / config.members)
            if config.patience is not None:
                total, rows = self._held_out
                self._held_out = (total + answer.held_out, rows + len(means[owner]))
            parts[owner] = answer.gradient_BE
            if give_top:
                tops[owner] = answer.top_P
        if not parts:
            raise TrainingError(f"no label owner answered in round {number} ({missed})")
        inside = [parts[owner] for owner in self.label_owners if owner in parts]
        gradient = _Gradient(
            self.step,
            torch.cat(inside) / len(embeddings),  # of the mean, by one embedding in it
            tuple(len(parts[owner]) if owner in parts else 0 for owner in self.label_owners),
        )
        nothing = _Gradient(0, torch.empty(0, config.embedding), (0,) * len(sizes))
        return {owner: gradient if owner in embeddings else nothing for owner in gradients}

    def _draw(self, network: Engine, missed: Missed) -> None:
        """Ask those label owners for a batch that have none: at first, and after a failure."""
        without = [owner for owner in self.label_owners if owner not in self.batches]
        if not without:
            return
        replies = network.ask(
            dict.fromkeys(without, Draw()), Batch, timeout_s=self.config.timeout_s
        )
        for owner, failure in replies.failures.items():
            missed.note(owner, failure.cause)
        for owner, batch in replies.items():
            try:
                self._check_batch(batch, owner)
                self.batches[owner] = batch
            except MessageError as cause:
                missed.note(owner, str(cause))
        if not self.batches:
            raise TrainingError(f"no label owner has a batch ({missed})")

    def _check_batch(self, message: Batch | Learned, owner: str) -> None:
        samples_B, most = message.samples_B, self.config.batch_size
        check_shape(message, "samples_B", (samples_B.numel(),), torch.int64)
        num_samples = self.ready[owner].num_samples
        if not 0 < len(samples_B) <= most:
            raise MessageError(
                f"{message.wire_name()}: a batch has 1 to {most} samples, got {len(samples_B)}"
            )
        if not 0 <= int(samples_B.min()) <= int(samples_B.max()) < num_samples:
            raise MessageError(
                f"{message.wire_name()}: samples outside the {num_samples} it shares"
            )

    def _check_learned(self, answer: Learned, mean_BE: Tensor, owner: str, give_top: bool) -> None:
        """Refuse what cannot be learned from: an owner that lies is left out of the step."""
        check_shape(answer, "gradient_BE", tuple(mean_BE.shape), torch.float32)
        _check_finite(answer, "gradient_BE")
        if not (math.isfinite(answer.loss) and math.isfinite(answer.held_out)):
            raise MessageError(f"{answer.wire_name()}: the loss is not finite")
        self._check_batch(answer, owner)
        num = len(self.top.w_P) if give_top and self.top is not None else 0
        check_shape(answer, "top_P", (num,), torch.float32)
        _check_finite(answer, "top_P")

    def _average_tops(
        self,
        number: int,
        tops: Mapping[str, Tensor],
        network: Engine,
        missed: Missed,
        keep: bool,
    ) -> None:
        """Lines 11 to 13 for the tops; every label owner goes on from the new one."""
        assert self.top is not None
        present = [owner for owner in self.label_owners if owner in tops]
        if present:
            weights = [self.ready[owner].num_rows for owner in present]
            self.top.step(weighted_mean(torch.stack([tops[o] for o in present]), weights))
        take = dict.fromkeys(self.label_owners, TakeTop(number, self.top.w_P, keep))
        taken = network.ask(take, TopTaken, timeout_s=self.config.timeout_s)
        for owner, failure in taken.failures.items():
            missed.note(owner, failure.cause)


def num_bytes(network: Engine) -> int:
    """What left all parties and the coordinator so far."""
    return sum(each["sent"] for each in network.ledger.bytes_by_party().values())


def _fields_of(message: LabelsReady | Batch) -> State:
    return {item.name: getattr(message, item.name) for item in fields(message)}


def _num_outputs(owner: str, task: str) -> int:
    try:
        described = json.loads(task)
        if described["kind"] == "regression":
            return 1
        num = len(described["classes"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise PartyError(owner, "does not say what its labels are") from None
    if not 1 <= num <= MAX_WIDTH:
        raise PartyError(owner, f"says that it has {num} classes")
    return num


@dataclass(frozen=True, eq=False)
class _Gradient:
    """What data owners step along next: fields of ``Step`` and ``Average``."""

    previous: int
    gradient_BE: Tensor
    learned: tuple[int, ...]


def asked_mean(
    network: Engine,
    owners: Sequence[str],
    request: Embed,
    embedding: int,
    timeout_s: float | None,
    missed: Missed,
) -> Tensor:
    """(B, E) mean embedding over the data owners that answer."""
    replies = network.ask(dict.fromkeys(owners, request), Embeddings, timeout_s=timeout_s)
    num = len(request.samples_B)
    embeddings = checked_embeddings(replies, replies.failures, num, embedding, missed)
    if not embeddings:
        raise TrainingError(f"no data owner answers ({missed})")
    return mean_embedding(list(embeddings.values()))


def asked_sums(
    message: type[Measure | Validate],
    label_owner: str,
    samples_N: Tensor,
    data_owners: Sequence[str],
    config: Config,
    network: Engine,
    missed: Missed,
) -> Measured:
    """How good a label owner's top is on all these samples, by messages.

    Args:
        message: ``Measure`` of test samples, ``Validate`` of those that it kept out of training.

    Raises:
        PartyError: it does not answer, or not with what can be.
        TrainingError: no data owner answers.
    """
    timeout_s, is_test = config.timeout_s, message is Measure
    measured = Measured(0.0, 0, 0)
    for first in range(0, len(samples_N), SCORED_AT_ONCE):
        part = samples_N[first : first + SCORED_AT_ONCE]
        request = Embed(label_owner, part, test=is_test)
        mean_BE = asked_mean(network, data_owners, request, config.embedding, timeout_s, missed)
        asked = {label_owner: message(part, mean_BE)}
        told = network.ask(asked, Measured, timeout_s=timeout_s).or_raise()[label_owner]
        is_last = first + len(part) == len(samples_N)
        measured = told.of(label_owner, len(samples_N) if is_last else 0)
    return measured


def checked_embeddings(
    replies: Mapping[str, Embeddings],
    failures: Mapping[str, PartyError],
    num: int,
    embedding: int,
    missed: Missed,
) -> dict[str, Tensor]:
    """Data owner -> its embeddings, of those that answered as asked."""
    for owner, failure in failures.items():
        missed.note(owner, failure.cause)
    embeddings = {}
    for owner, reply in replies.items():
        try:
            embeddings[owner] = checked_embedding(reply, num, embedding)
        except MessageError as cause:
            missed.note(owner, str(cause))
    return embeddings


def checked_embedding(reply: Embeddings, num: int, embedding: int) -> Tensor:
    """(num, E) embeddings, if they are as many and finite.

    Raises:
        MessageError: they are not.
    """
    check_shape(reply, "embedding_BE", (num, embedding), torch.float32)
    _check_finite(reply, "embedding_BE")
    return reply.embedding_BE
