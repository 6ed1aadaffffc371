"""HyFEM: any columns, any rows.

Zhang, Yin, Chen, Hong: "Hybrid Federated Learning for Feature & Sample Heterogeneity: Algorithms
and Implementation", Transactions on Machine Learning Research, 04/2024.

Each party has some blocks of some samples, and their labels; no party need have all blocks or all
classes, and no two need share a sample. A party's model is one extractor for each of its blocks
and a classifier over their features. The server, which has no data, has an extractor for every
block and a classifier over all; a party's classifier is a pruned copy of it, and which neurons are
whose is found by matching.

    min sum_m p_m (f_m(Theta_m, w_m) + mu_1 r_1 + mu_2 r_2)   Eq. (6)
    r_1 = 1/2 |Theta_m - P_m Theta_0|^2                       Eq. (4)
    r_2 = 1/2 |w_m - Pi_m w_0|^2                              Eq. (5), (18)

    Paper            Here                        Lives at
    x_m, y           Member.blocks, .labels      party m
    Theta_m, w_m     Member.network              party m; sent to the server after Q steps
    P_m              Holding.blocks              both
    Theta_0          Coordinator.extractors      server; party m is sent P_m Theta_0
    w_0              Coordinator.classifier      server; party m is sent Pi_m w_0
    Pi_m             Coordinator.assignments     server; see models/matching.py
    p_m              Coordinator.weights()       server
    T, Q, eta        Config.rounds, .local_steps, .learning_rate
    P                Config.sweeps               times M
    mu_1, mu_2       Config.mu_1, .mu_2

    Letters: M parties, B rows of a minibatch, D features, H hidden neurons.

What leaves a party: its weights after each round, and once the names and shapes of its blocks, its
hidden widths, its number of rows, and of each class whether it has any (how many, where
``class_weights`` are asked for). Of raw columns also each one's number of values, mean and
deviation, or its categories and how many rows have each, so that all parties encode a block alike.
With ``calibrate``, after the last round, each class's number of rows and the mean and covariance of
its features, and how many of the rows it kept for judging are right.

Departures from the paper:
    - Algorithm 2 restarts each party at the server's slice in every round (line 2), Eq. (22a)
      goes on from its own weights: ``restart`` is True or False.
    - Parties begin at the server's weights (Alg. 1 line 1), so that neuron j of each is neuron j of
      all; ``start = "own"`` begins with classifiers of their own, matched from nothing in round 1.
    - "Sweeps": Algorithm 3 picks a random party P times, Algorithm 2 goes over all of them P
      times. Here each sweep goes over all, one after the other in random order.
    - Alg. 3 line 5's inverse does not exist for a weight that no party holds: it is 0 (only where
      parties differ in width, or the server's grows).
    - Eq. (20) leaves the cost open. "pfnm" is Yurochkin et al.'s; "distance" is what an assignment
      adds to (11), so that the server step never raises it.
    - The server's width is fixed, as Theorem 1 assumes, unless ``width = "free"``.
    - A party that does not answer by the deadline, or not as asked, keeps its last known place in
      (6): the server step uses the weights it last sent, or began with. It is named in the round.
    - ``class_weights`` weighs rows of the output layer by how many samples of that class a party
      has; off is the paper.
    - A momentum or Adam state starts anew each round, as the parameters were replaced.
    - ``schedule``, ``average_last``, ``scale_blocks`` and ``calibrate`` (Luo et al. 2021) are not
      in the paper (whose Theorem 1 has eta fall with T); their defaults here leave them out.
    - A new party (Remark 2) takes those server neurons that most parties have.
    - After the last round each party is sent its slice once more (line 9): that is its model.
    - BatchNorm's running means are averaged like weights, but not pulled.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from dovetail.data import (
    Classification,
    Minibatches,
    NumberSummary,
    PartyData,
    Summary,
    TableEncoder,
    Task,
    agree,
    summarise,
)
from dovetail.errors import ConfigError, DovetailError, MessageError, PartyError, TrainingError
from dovetail.federated import Driver, Party, end, handles
from dovetail.federated import Round as BaseRound
from dovetail.methods.outcome import goodness
from dovetail.models import (
    Model,
    OptimizerConfig,
    RandomStream,
    Secret,
    derive_seed,
    generator,
    key_of,
    matching,
)
from dovetail.models.blocks import (
    BlocksNetwork,
    BlocksSpec,
    Extractor,
    classifier,
    extractor_from_json,
)
from dovetail.models.decisions import ClassWeights, Decide, class_weights, on, supervised_loss
from dovetail.models.learners import hold_out, make_folds
from dovetail.models.moments import Moments as ClassMoments
from dovetail.models.moments import moments_of, refitted, together
from dovetail.models.networks import Shape, network_input
from dovetail.models.vectors import (
    classifier_vector,
    extractors_vector,
    layers_of,
    load_classifier,
    load_extractors,
    tensors_of,
)
from dovetail.network import Engine, Floats, Integers, Message, Replies, State, Values, noted
from dovetail.privacy import Budget, PrivateSteps, Stepping, within

_log = logging.getLogger(__name__)

_SUMMARIES: TypeAdapter[dict[str, Summary]] = TypeAdapter(dict[str, Summary])

# --- Hyper-parameters --------------------------------------------------------------------------


class Config(OptimizerConfig):
    """One setting for all parties."""

    learning_rate: float = Field(default=0.05, gt=0, allow_inf_nan=False)  # eta
    # How eta goes over the rounds: as it is, or towards 0 along half a cosine.
    schedule: Literal["constant", "cosine"] = "constant"
    average_last: int = Field(default=1, ge=1)  # the model is the mean over so many last rounds
    scale_blocks: bool = False  # features count as if a party held all blocks
    calibrate: bool = False  # the classifier is refitted on draws of classes' features (CCVR)
    momentum: float = Field(default=0.0, ge=0, lt=1)  # the paper: none
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # the paper: none
    rounds: int = Field(default=128, ge=1)  # T
    local_steps: int = Field(default=32, ge=1)  # Q
    batch_size: int = Field(default=64, ge=1)  # rows a step
    mu_1: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # pull of extractors, Eq. (4)
    mu_2: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # of classifiers, Eq. (5)
    start: Literal["server", "own"] = "server"  # own: classifiers begin apart at each party
    restart: bool = True  # Alg. 2 line 2; False: Eq. (22a)
    weights: Literal["size", "even"] = "size"  # p_m = |N_m| / |N|, or 1/M
    classifier: Literal["matched", "own", "frozen"] = "matched"  # own: Remark 3.4; frozen: 3.2
    cost: Literal["pfnm", "distance"] = "pfnm"  # Eq. (20)
    sigma: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # of the noise of a party's neuron
    sigma_0: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # of a neuron before it is seen
    mu_0: float = Field(default=0.0, allow_inf_nan=False)  # a neuron's mean before it is seen
    # how easily the server gets a new neuron
    gamma: float = Field(default=7.0, gt=0, allow_inf_nan=False)
    sweeps: int = Field(default=1, ge=1)  # P / M
    width: int | tuple[int, ...] | Literal["widest", "free"] = "widest"  # of the server's layers
    match_rounds: int | None = Field(default=None, ge=0)  # rounds with matching; None: all
    class_weights: bool = False  # weigh output rows by the samples of their class
    loss_weights: ClassWeights | None = None  # of classes; a run's class_weights
    # what parties decide on validation rows; a run's threshold and calibrate
    decide: Decide | None = Field(default=None, exclude_if=lambda value: value is None)
    private: PrivateSteps | None = None  # how weights that are sent are trained (privacy.steps)
    timeout_s: float | None = Field(default=None, gt=0)  # when a round closes

    def of_round(self, number: int) -> OptimizerConfig:
        """With what round ``number``, from 1, is trained."""
        if self.schedule == "constant":
            return self
        gone = (min(number, self.rounds) - 1) / self.rounds  # beyond the last, as in the last
        share = 0.5 * (1 + math.cos(math.pi * gone))
        return self.model_copy(update={"learning_rate": share * self.learning_rate})

    def matching_cost(self) -> matching.Cost:
        if self.cost == "distance":
            return matching.Distance()
        return matching.Pfnm(self.sigma, self.sigma_0, self.mu_0, self.gamma)


def alone(config: Config) -> Config:
    """For one party and its own coordinator: T Q plain steps."""
    update = {"mu_1": 0.0, "mu_2": 0.0, "match_rounds": 0, "calibrate": False}
    return config.model_copy(update=update)


def fedprox(config: Config, mu: float) -> Config:
    """For parties that hold the same blocks: Li et al.'s method (Remark 3.2, Appendix C.1)."""
    update = {"mu_1": mu, "mu_2": mu, "match_rounds": 0, "restart": True, "width": "widest"}
    off = {"class_weights": False, "calibrate": False}
    return config.model_copy(update={**update, **off, "classifier": "matched"})


def fedavg(config: Config) -> Config:
    """For parties that hold the same blocks: McMahan et al.'s method (Remark 3.3)."""
    return fedprox(config, 0.0)


def fedper(config: Config) -> Config:
    """Extractors are shared, each party's classifier is its own (Remark 3.4)."""
    update = {"mu_1": 0.0, "mu_2": 0.0, "classifier": "own", "calibrate": False}
    return config.model_copy(update=update)


# --- What crosses the boundary -----------------------------------------------------------------

#: Theta and w, each as one vector: block after block, layer after layer.
Extractors = Annotated[Tensor, Values(torch.float32, "E")]
Classifier = Annotated[Tensor, Values(torch.float32, "W")]


@dataclass(frozen=True, eq=False)
class Hello(Message):
    """Server -> party: what do you hold?"""

    count_classes: bool  # else only whether it has any of a class


@dataclass(frozen=True, eq=False)
class Holding(Message):
    """Party -> server: its blocks, their shapes ("3x16x16"), hidden widths, rows and classes.

    Of a block of raw columns there is no shape yet, but a summary, in JSON: column -> what this
    party's rows add to how all parties encode it.
    """

    blocks: tuple[str, ...]
    shapes: tuple[str, ...]  # "" for raw columns
    summaries: tuple[str, ...]  # "" for all else
    widths: tuple[int, ...]
    num_rows: int
    classes: tuple[int, ...]  # of each class how many rows, or 0 and 1; empty for a regression


@dataclass(frozen=True, eq=False)
class Begin(Message):
    """Server -> party: training starts, with these settings and extractors, in JSON."""

    settings: str
    extractors: tuple[str, ...]  # in the order of its blocks
    encodings: tuple[str, ...]  # of each block of raw columns, "" for all else
    task: str
    seed: int
    num_blocks: int  # that there are in all


@dataclass(frozen=True, eq=False)
class Ready(Message):
    """Party -> server: its networks are made."""


@dataclass(frozen=True, eq=False)
class Train(Message):
    """Server -> party: P_m Theta_0 and Pi_m w_0, from where it makes Q steps (Alg. 1 line 4)."""

    extractors: Extractors
    classifier: Classifier
    number: int  # of the round, from 1


@dataclass(frozen=True, eq=False)
class Trained(Message):
    """Party -> server: Theta_m and w_m after its steps (line 5), and their mean loss f_m."""

    extractors: Extractors
    classifier: Classifier  # empty if it keeps its own
    loss: float


@dataclass(frozen=True, eq=False)
class GiveMoments(Message):
    """Server -> party: what are your features, class by class, at these extractors?"""

    extractors: Extractors


@dataclass(frozen=True, eq=False)
class Moments(Message):
    """Party -> server: of each class its rows, and the mean and covariance of their features.

    Zeros of a class of which it has few.
    """

    counts_C: Integers
    means_CD: Floats
    covariances_CDD: Floats

    def check(self, **sizes: int) -> None:
        """Refuse what are no counts."""
        super().check(**sizes)
        if len(self.counts_C) and int(self.counts_C.min()) < 0:
            raise MessageError(f"{self.wire_name()}.counts_C: a count is negative")


@dataclass(frozen=True, eq=False)
class Judge(Message):
    """Server -> party: how right is this slice on the rows that you kept for judging?"""

    extractors: Extractors
    classifier: Classifier


@dataclass(frozen=True, eq=False)
class Judged(Message):
    """Party -> server: so many of so many rows."""

    right: int
    num_rows: int

    def check(self, **sizes: int) -> None:
        """Refuse what is no share of rows."""
        if not 0 <= self.right <= self.num_rows:
            what = f"{self.right} of {self.num_rows} rows cannot be right"
            raise MessageError(f"{self.wire_name()}: {what}")


@dataclass(frozen=True, eq=False)
class GiveScore(Message):
    """Server -> party: how good is your model, on rows that you kept out of training?"""


@dataclass(frozen=True, eq=False)
class Score(Message):
    """Party -> server: accuracy on so many rows; of numbers 1 / (1 + mean squared error)."""

    goodness: float
    num_rows: int

    def check(self, **sizes: int) -> None:
        """Refuse what is no score."""
        if not 0 <= self.goodness <= 1 or self.num_rows < 0:
            what = f"{self.goodness} of {self.num_rows} rows is no score"
            raise MessageError(f"{self.wire_name()}: {what}")


@dataclass(frozen=True, eq=False)
class Finish(Message):
    """Server -> party: its slice of the server's model, to use alone (line 9)."""

    extractors: Extractors
    classifier: Classifier


@dataclass(frozen=True, eq=False)
class Finished(Message):
    """Party -> server: it has its model."""


#: The most that a party's network may take, whose extractors ``Begin`` sets, in bytes of
#: parameters; counted before anything of that size is made.
MAX_PARAMETER_BYTES = 2**28

#: The widest layer of an extractor, and the most layers, that a party counts at all.
MAX_WIDTH, MAX_LAYERS = 2**24, 1000

#: The most blocks that there may be in all.
MAX_BLOCKS = 2**16

#: With ``calibrate``, a party keeps one in so many of its labelled rows for judging.
JUDGED_ONE_IN = 10


def _check_size(begin: Begin, extractors: Sequence[Extractor]) -> None:
    """Refuse what takes long even to count."""
    for each in extractors:
        sizes = [size for value in asdict(each).values() for size in _whole(value)]
        if len(sizes) > MAX_LAYERS or max(sizes, default=0) > MAX_WIDTH:
            raise MessageError(
                f"{begin.wire_name()}: at most {MAX_LAYERS} layers of width {MAX_WIDTH}"
            )


def _whole(value: Any) -> list[int]:
    values = value if isinstance(value, tuple) else (value,)
    return [each for each in values if isinstance(each, int)]


# --- What a party executes ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Home:
    """What a party has; blocks of raw columns are encoded as all agree when training begins.

    Attributes:
        train: training rows; those without a label are left out.
        task: what the labels say; the same at all parties, also of classes it has no sample of.
        widths: hidden widths of its classifier; parties may differ in widths, not in depth.
        test: rows to score on.
        categorical: names of number columns whose values are names.
        private: how its weights are trained, whatever the run says; None: as that says.
        moments: whether it tells means and covariances of its features, for ``calibrate``.
        budget: of its policy: no loss leaves; None: nothing is capped.

    Raises:
        ConfigError: no labelled row, or no block.
    """

    train: PartyData
    task: Task
    widths: tuple[int, ...] = (64,)
    test: PartyData | None = None
    categorical: Sequence[str] = ()
    private: PrivateSteps | None = None
    moments: bool = False
    budget: Budget | None = None

    def __post_init__(self) -> None:
        if not len(self.train.labelled_rows()):
            raise ConfigError(
                f"party {self.name!r} has no labelled sample; every party of HyFEM trains on its "
                "own labels, so leave it out"
            )
        if not self.blocks:
            raise ConfigError(f"party {self.name!r} has no block; give it one, or leave it out")

    @property
    def name(self) -> str:
        return self.train.name

    @property
    def label(self) -> str:
        """What the labels are called, where that is known."""
        return self.train.label or ""

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of all."""
        return (*self.train.blocks, *self.train.tables)

    def only(self, blocks: Iterable[str]) -> Home:
        """The same, with these blocks only."""
        wanted = set(blocks)
        encoded = {name: x for name, x in self.train.blocks.items() if name in wanted}
        tables = {name: own for name, own in self.train.tables.items() if name in wanted}
        return replace(self, train=replace(self.train, blocks=encoded, tables=tables))

    def summary(self, block: str) -> str:
        """What its rows add to how all encode this block of raw columns, in JSON."""
        table = self.train.tables[block]
        found = summarise(table, table.names, categorical=self.categorical, party=self.name)
        return json.dumps({name: asdict(summary) for name, summary in found.items()})


def _split(columns: Sequence[str], others: Sequence[str]) -> str:
    """How a party names the columns that another has, too, as a block, and the rest as another."""
    shared = [column for column in columns if column in others]
    rest = [column for column in columns if column not in others]
    named = {"shared": shared, "own": rest}
    return " and ".join(f"blocks.{name} = {json.dumps(own)}" for name, own in named.items() if own)


class Member(Party):
    """A party with blocks and labels of its samples.

    Args:
        home: what it has.
        device: where it computes.
        secret: of its home, mixed into all it draws; None in simulation.
    """

    has_local = False

    saved = ("network", "started", "batches", "stepping")

    def __init__(
        self, home: Home, *, device: torch.device | None = None, secret: Secret | None = None
    ) -> None:
        self._secret = secret
        self.name = home.name
        self.home = home
        self.task = home.task
        self.device = device or torch.device("cpu")
        self.blocks = dict(home.train.blocks)
        self.inputs: dict[str, TableEncoder] = {}
        assert home.train.labels is not None
        self.labels = home.train.labels.to(self.device)
        self.class_weights_C: Tensor | None = None
        self._rows = home.train.labelled_rows()
        self.network: BlocksNetwork | None = None
        self.stepping: Stepping | None = None

    def sizes(self) -> dict[str, int]:
        """E and W, the numbers of its extractors and of its classifier."""
        if self.network is None:
            return {}
        network = self.network
        return {
            "E": sum(x.numel() for x in tensors_of(network.extractors)),
            "W": sum(x.numel() for x in tensors_of(network.classifier)),
        }

    @handles(before_begin=True)
    def hold(self, hello: Hello) -> Holding:
        """What it has."""
        counts: tuple[int, ...] = ()
        if isinstance(self.task, Classification):
            labels = self.labels[self._rows.to(self.device)].cpu()
            found = torch.bincount(labels, minlength=self.task.num_outputs)
            counts = tuple(found.tolist() if hello.count_classes else found.clamp(max=1).tolist())
        encoded, tables = self.home.train.blocks, self.home.train.tables
        return Holding(
            self.home.blocks,
            (
                *("x".join(map(str, block.shape[1:])) for block in encoded.values()),
                *("" for _ in tables),
            ),
            (*("" for _ in encoded), *map(self.home.summary, tables)),
            self.home.widths,
            len(self._rows),
            counts,
        )

    @handles
    def begin(self, begin: Begin) -> Ready:
        """Make its networks."""
        own = _task_text(self.task)
        if begin.task != own:
            raise ConfigError(
                f"its labels are {own[:200]}, the server's are {begin.task[:200]}; name all "
                "classes of the federation in the party's file"
            )
        names = self.home.blocks
        if not len(begin.extractors) == len(begin.encodings) == len(names):
            raise MessageError(
                f"{begin.wire_name()}: expected {len(names)} extractors and encodings, "
                f"got {len(begin.extractors)} and {len(begin.encodings)}"
            )
        if not len(names) <= begin.num_blocks <= MAX_BLOCKS:
            raise MessageError(f"{begin.wire_name()}: {begin.num_blocks} blocks in all cannot be")
        encodings = dict(zip(names, begin.encodings, strict=True))
        for name, table in self.home.train.tables.items():
            try:
                encoder = TableEncoder.from_json(json.loads(encodings[name]))
            except (ValueError, DovetailError) as error:
                raise MessageError(f"{begin.wire_name()}: it cannot be read ({error})") from None
            if encoder.columns != table.names:
                raise MessageError(f"{begin.wire_name()}: another block's encoding of {name!r}")
            self.inputs[name] = encoder.watching(table)
            self.blocks[name] = encoder.transform(table, allow_unseen=True)
        try:
            self.config = Config.model_validate_json(begin.settings)
            extractors = tuple(extractor_from_json(json.loads(each)) for each in begin.extractors)
        except (ValidationError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise MessageError(f"{begin.wire_name()}: it cannot be read ({error})") from None
        weights_C = class_weights(self.config.loss_weights, self.task, self.labels)
        self.class_weights_C = on(self.device, weights_C)
        _check_size(begin, extractors)
        self.spec = BlocksSpec(
            tuple(self.blocks),
            tuple(tuple(block.shape[1:]) for block in self.blocks.values()),
            extractors,
            self.home.widths,
            self.task.num_outputs,
            begin.num_blocks if self.config.scale_blocks else 0,
        )
        try:
            with torch.device("meta"):  # takes no memory
                num_bytes = sum(each.nbytes for each in self.spec.build().parameters())
        except (ConfigError, RuntimeError) as error:  # a network that this block cannot have
            raise MessageError(f"{begin.wire_name()}: {error}") from None
        if num_bytes > MAX_PARAMETER_BYTES:
            raise MessageError(
                f"{begin.wire_name()}: its extractors make a network of more than "
                f"{MAX_PARAMETER_BYTES} bytes of parameters here"
            )
        self.seed = begin.seed
        key = key_of(self._secret)
        self._check_calibrates()
        rows, self.judged = self._rows, self._rows[:0]
        if self.config.decide is not None:
            rows, self.judged = hold_out(
                self._rows,
                self.labels[rows.to(self.device)].cpu(),
                seed=derive_seed(0, self.name, "threshold"),
                regression=not isinstance(self.task, Classification),
            )
        elif self.config.calibrate and len(rows) >= JUDGED_ONE_IN:
            folds = make_folds(
                self.labels[rows.to(self.device)].cpu(),
                JUDGED_ONE_IN,
                seed=derive_seed(begin.seed, self.name, "judged rows"),
            )
            rows, self.judged = self._rows[folds != 0], self._rows[folds == 0]
        self.learned = rows
        with RandomStream(begin.seed, self.name, "hyfem", secret=key):
            self.network = self.spec.build()
        self.network.to(self.device).train()
        self.network.classifier.requires_grad_(self.config.classifier != "frozen")
        self.started = False  # its weights are not the server's yet
        self.batches = Minibatches(
            rows,
            self.config.batch_size,
            generator(begin.seed, self.name, "hyfem batches", secret=key),
        )
        private = within(
            self.home.budget,
            self.home.private,
            self.config.private,
            what="its weights",
            key="[hyfem] private = { clip = ..., noise = ... }",
        )
        averages = [each for each in self.network.modules() if isinstance(each, _BatchNorm)]
        if private is not None and averages:
            raise ConfigError(
                "its weights are trained with noise (private), and an extractor with BatchNorm "
                "sends means of rows as they are; choose another extractor"
            )
        if private is not None and self.stepping is None:  # of a second begin, nothing is forgotten
            rng = generator(begin.seed, self.name, "private steps") if key is None else None
            self.stepping = Stepping(private, self.name, len(self.labels), rng)
        return Ready()

    @handles
    def update(self, train: Train) -> Trained:
        """Alg. 2, ClientUpdate."""
        if train.number < 1:
            raise MessageError(f"{train.wire_name()}: there is no round {train.number}")
        network = self._with_slice(train, load=self.config.restart or not self.started)
        self.started = True
        network.train()
        shared = list(network.extractors.parameters())
        own = [each for each in network.classifier.parameters() if each.requires_grad]
        pulls = [
            (parameter, target, mu)
            for parameters, targets, mu in (
                (shared, self._target_shared, self.config.mu_1),
                (own, self._target_own, self.config.mu_2),
            )
            if mu and not (parameters is own and self.config.classifier == "own")
            for parameter, target in zip(parameters, targets, strict=True)
        ]
        optimizer = self.config.of_round(train.number).build([*shared, *own])
        total = torch.zeros((), device=self.device)
        stepping, steps = self.stepping, self.config.local_steps
        # A row is in one batch of a pass.
        visits = -(-steps // self.batches.steps_per_pass) + 1
        allowed = stepping is None or stepping.allowed(visits)
        for _ in range(steps):  # lines 3-6
            rows_B = next(self.batches)
            optimizer.zero_grad()
            if stepping is None:
                loss = self._loss(network, rows_B)
                loss.backward()
            elif allowed:
                loss = stepping.gradient(network, self._row_loss, rows_B, *self._batch(rows_B))
            else:  # the server gets back what it sent
                with torch.no_grad():
                    total += self._loss(network, rows_B)
                continue
            for parameter, target, mu in pulls:
                assert parameter.grad is not None
                parameter.grad.add_(parameter.detach() - target, alpha=mu)  # Eq. (4), (5)
            optimizer.step()
            total += loss.detach()
        extractors = extractors_vector(network.extractors)
        weights = torch.empty(0)
        if self.config.classifier == "matched":
            weights = classifier_vector(network.classifier)
        mean = (total / self.config.local_steps).item()
        # Of weights of somebody's making an exact loss tells what noise on a step is to hide: then
        # none is told, nor whether it is a number.
        capped = self.stepping is not None or self.home.budget is not None
        mean = 0.0 if capped else mean
        if not (math.isfinite(mean) and extractors.isfinite().all() and weights.isfinite().all()):
            raise TrainingError(
                f"its loss is {mean} after {self.config.local_steps} steps; lower learning_rate "
                f"({self.config.learning_rate}), mu_1 or mu_2"
            )
        cost = None if self.stepping is None else self.stepping.told()
        return noted(Trained(extractors, weights, mean), cost)

    def spent(self) -> list[dict[str, Any]]:
        """Its weights, where they are noised."""
        told = None if self.stepping is None else self.stepping.told()
        return [] if told is None else [{"to": "the coordinator", "what": "weights", **told}]

    def _batch(self, rows_B: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        x = {name: network_input(block[rows_B], self.device) for name, block in self.blocks.items()}
        return x, self.labels[rows_B.to(self.device)]

    def _row_loss(
        self, call: Callable[..., Tensor], x: Mapping[str, Tensor], label_1: Tensor
    ) -> Tensor:
        """Of one row."""
        weights_C = self.class_weights_C
        return supervised_loss(self.task, call(x), label_1, weights_C, reduction="sum")

    def _loss(self, network: BlocksNetwork, rows_B: Tensor) -> Tensor:
        x, target = self._batch(rows_B)
        return supervised_loss(self.task, network(x), target, self.class_weights_C)  # Eq. (3)

    def _check_calibrates(self) -> None:
        """Refuse what its file does not allow, and what a budget of noise does not cover."""
        if not self.config.calibrate:
            return
        if not self.home.moments:
            raise ConfigError(
                "refuses to tell means and covariances of its features: the run says "
                "hyfem.calibrate, and its file does not say hyfem.moments = true"
            )
        if self.home.private is not None or self.config.private is not None:
            raise ConfigError("hyfem.calibrate tells of rows without noise; leave private out")
        if not isinstance(self.task, Classification):
            raise ConfigError("hyfem.calibrate is for classes, and the labels are numbers")

    @handles
    @torch.no_grad()
    def moments(self, message: GiveMoments) -> Moments:
        """CCVR: its features' first two moments, class by class."""
        assert self.network is not None
        assert isinstance(self.task, Classification)
        if not self.config.calibrate:
            raise ConfigError("is asked for moments in a run without hyfem.calibrate")
        network = copy.deepcopy(self.network).eval()
        load_extractors(network.extractors, message.extractors)
        features = [network.joined(self._batch(rows)[0]) for rows in self.learned.split(1024)]
        labels = self.labels[self.learned.to(self.device)]
        found = moments_of(torch.cat(features), labels, self.task.num_outputs)
        return Moments(
            torch.from_numpy(found.counts_C),
            torch.from_numpy(found.means_CD).float(),
            torch.from_numpy(found.covariances_CDD).float(),
        )

    @handles
    @torch.no_grad()
    def judge(self, message: Judge) -> Judged:
        """How many of the rows that did not train are right with this slice."""
        assert self.network is not None
        if not self.config.calibrate:
            raise ConfigError("is asked for a judgement in a run without hyfem.calibrate")
        network = copy.deepcopy(self.network).eval()
        load_extractors(network.extractors, message.extractors)
        load_classifier(network.classifier, message.classifier)
        right = 0
        for rows_B in self.judged.split(1024):
            x, labels_B = self._batch(rows_B)
            right += int((network(x).argmax(dim=1) == labels_B).sum())
        return Judged(right, len(self.judged))

    def held_out(self) -> tuple[Tensor, Tensor] | None:
        """What its model says of the rows that did not train, and their labels; None without."""
        if not len(self.judged):
            return None
        x = {name: block[self.judged] for name, block in self.blocks.items()}
        return self.model().outputs(x), self.labels[self.judged.to(self.device)].cpu()

    @handles
    def tell_score(self, message: GiveScore) -> Score:
        """How good its model is on rows that did not train."""
        held = self.held_out() if self.home.budget is None else None
        return Score(0.0, 0) if held is None else Score(goodness(self.task, *held), len(held[1]))

    @handles
    def finish(self, finish: Finish) -> Finished:
        """Take its slice over."""
        self.started = True
        self._with_slice(finish, load=True)
        return Finished()

    def _with_slice(self, message: Train | Finish, *, load: bool) -> BlocksNetwork:
        """Its network, at the server's slice if ``load``; what pulls it is kept."""
        network = self.network
        assert network is not None
        keeps_own = self.config.classifier == "own" if self.started else self.config.start == "own"
        kept = extractors_vector(network.extractors), classifier_vector(network.classifier)
        with torch.no_grad():
            load_extractors(network.extractors, message.extractors)
            load_classifier(network.classifier, message.classifier)
            self._target_shared = [p.detach().clone() for p in network.extractors.parameters()]
            self._target_own = [p.detach().clone() for p in network.classifier.parameters()]
            if not load:
                load_extractors(network.extractors, kept[0])
            if not load or keeps_own:
                load_classifier(network.classifier, kept[1])
            if not self.started:  # a classifier of its own is not pulled to what it never was
                self._target_own = [p.detach().clone() for p in network.classifier.parameters()]
        return network

    def model(self) -> Model:
        """The model as it is now: predicts alone."""
        if self.network is None:
            raise TrainingError(f"party {self.name!r} has no model before training began")
        return Model(
            party=self.name,
            task=self.task,
            network=self.network,
            spec=self.spec,
            shapes=dict(zip(self.spec.blocks, self.spec.shapes, strict=True)),
            inputs=dict(self.inputs),
            about={"method": "hyfem", "seed": self.seed},
        )


# --- What the server executes ------------------------------------------------------------------


class Coordinator(Driver):
    """The server: drives, combines, and has no data.

    Args:
        task: what the parties' labels say; its classes are all that any party has.
        extractors: block -> its extractor, of every block; their order is that of the features.
        config: the settings, for all parties.
        seed: of everything random.
        name: what it is called in the ledger.
    """

    def __init__(
        self,
        task: Task,
        extractors: Mapping[str, Extractor],
        config: Config,
        *,
        seed: int,
        name: str = "server",
    ) -> None:
        self.name = name
        self.task = task
        self.config = config
        self.seed = seed
        self.blocks = tuple(extractors)
        self.specs = dict(extractors)
        self.holdings: dict[str, Holding] = {}
        self.shapes: dict[str, Shape] = {}
        self.encodings: dict[str, TableEncoder] = {}  # of blocks of raw columns
        self.extractors: dict[str, Tensor] = {}  # Theta_0
        self.classifier: list[np.ndarray] = []  # w_0
        self.assignments: dict[str, matching.Assignment] = {}  # Pi
        self.known: dict[str, tuple[Tensor, Tensor]] = {}  # party -> (Theta_m, w_m), last sent
        self.num_rounds = config.rounds
        self.combined = 0  # rounds so far
        self.summed = 0  # of the last rounds, so many are in the sums, for ``average_last``
        self.sum_extractors: dict[str, Tensor] = {}
        self.sum_classifier: list[np.ndarray] = []
        self.calibrated: dict[str, Any] | None = None  # what came of ``calibrate``

    def hold(self, holdings: Mapping[str, Holding]) -> None:
        """Take note of what parties hold; the server's model is made of it.

        Raises:
            ConfigError: a block or class that no party holds.
            PartyError: what a party holds does not fit the others.
        """
        self._agree(holdings)
        for party, holding in holdings.items():
            self._note(party, holding)
        held = {block for holding in self.holdings.values() for block in holding.blocks}
        missing = [block for block in self.blocks if block not in held]
        if missing:
            raise ConfigError(
                f"no party holds the block {missing[0]!r}; parties hold {sorted(held)}: leave it "
                "out, or ask a party that has it"
            )
        # One party alone may lack classes: it is the baseline of those that learn together.
        if isinstance(self.task, Classification) and len(self.holdings) > 1:
            counts = np.array([holding.classes for holding in self.holdings.values()]).sum(axis=0)
            unseen = [name for name, n in zip(self.task.classes, counts, strict=True) if n == 0]
            if unseen:
                raise ConfigError(
                    f"no party has a sample of class {unseen[0]!r}; leave the class out, or ask a "
                    "party that has some"
                )
        features = self._spec((), self.blocks).features()
        self.num_features = dict(zip(self.blocks, features, strict=True))
        self._begin_model()

    def _agree(self, holdings: Mapping[str, Holding]) -> None:
        """How each block of raw columns is encoded, by what all that hold it have in it."""
        summaries: dict[str, dict[str, dict[str, Summary]]] = {}
        for party, holding in holdings.items():
            for block, text in zip(holding.blocks, holding.summaries, strict=False):
                if text and block not in self.encodings:
                    summaries.setdefault(block, {})[party] = _summary_of(party, block, text)
        for block, each in summaries.items():
            first, *others = each
            for party in others:
                if list(each[party]) != list(each[first]):
                    raise PartyError(
                        party,
                        f"its block {block!r} has the columns {list(each[party])}, that of "
                        f"{first!r} has {list(each[first])}; a block must be the same at all "
                        "parties that have it: name one for what is shared and one for the rest, "
                        "for example " + _split(list(each[party]), list(each[first])),
                    )
            self.encodings[block] = agree(each)

    def _note(self, party: str, holding: Holding) -> None:
        unknown = [block for block in holding.blocks if block not in self.specs]
        if unknown:
            raise PartyError(
                party, f"it holds a block {unknown[0]!r}; this run's are {list(self.blocks)}"
            )
        sizes = (
            len(holding.blocks),
            len(set(holding.blocks)),
            len(holding.shapes),
            len(holding.summaries),
        )
        classes = self.task.num_outputs if isinstance(self.task, Classification) else 0
        if not holding.blocks or len(set(sizes)) > 1 or len(holding.classes) != classes:
            raise PartyError(party, f"what it says it holds does not fit together: {holding}")
        if (
            holding.num_rows < 1
            or min(holding.widths, default=1) < 1
            or min(holding.classes, default=0) < 0
        ):
            raise PartyError(
                party,
                f"it has {holding.num_rows} samples and hidden widths {holding.widths}; both "
                "must be 1 or more",
            )
        for other, known in self.holdings.items():
            if len(known.widths) != len(holding.widths):
                raise ConfigError(
                    f"party {party!r} has a classifier of {len(holding.widths)} hidden layers, "
                    f"party {other!r} of {len(known.widths)}; all need the same depth, widths may "
                    "differ"
                )
        for block, text, summary in zip(
            holding.blocks, holding.shapes, holding.summaries, strict=True
        ):
            try:
                shape = tuple(int(size) for size in text.split("x")) if text else ()
            except ValueError:
                raise PartyError(party, f"block {block!r} has no shape {text!r}") from None
            if summary and block in self.encodings:
                columns = tuple(_summary_of(party, block, summary))
                if columns != self.encodings[block].columns:
                    raise PartyError(
                        party,
                        f"its block {block!r} has the columns {list(columns)}, other parties' has "
                        f"{list(self.encodings[block].columns)}; a block must be the same at all "
                        "parties that have it",
                    )
                shape = (self.encodings[block].num_features,)
            if not shape:
                raise PartyError(party, f"block {block!r} has neither a shape nor a summary")
            if self.shapes.setdefault(block, shape) != shape:
                raise PartyError(
                    party,
                    f"its block {block!r} has rows of shape {shape}, other parties' have "
                    f"{self.shapes[block]}; a block must be the same at all parties that have it",
                )
        self.holdings[party] = holding

    def _begin_model(self) -> None:
        """Theta_0^0, w_0^0 and Pi^0 (Alg. 1 line 1); parties begin at their slices."""
        width = self._width()
        own = [holding.widths for holding in self.holdings.values()]
        start = width or tuple(map(max, zip(*own, strict=True)))
        self.classifier = []
        for block in self.blocks:  # a stream for each, so that one more leaves the others alone
            with RandomStream(self.seed, self.name, "extractor", block):
                self.extractors[block] = extractors_vector(
                    self.specs[block].encoder(self.shapes[block])
                )
        with RandomStream(self.seed, self.name, "classifier"):
            network = classifier(sum(self._sizes()), start, self.task.num_outputs)
        self.classifier = layers_of(network)
        self.assignments = dict(zip(self.holdings, matching.by_position(own, start), strict=True))
        self._check_widths()
        self.known = {party: self._slice(party) for party in self.holdings}

    def _width(self) -> tuple[int, ...] | None:
        own = [holding.widths for holding in self.holdings.values()]
        depth = len(own[0])
        match self.config.width:
            case "free":
                return None
            case "widest":
                return tuple(map(max, zip(*own, strict=True)))
            case int(width):
                return (width,) * depth
            case widths:
                if len(widths) != depth:
                    raise ConfigError(
                        f"width names {len(widths)} hidden layers, the parties' classifiers have "
                        f"{depth}; give one width for each"
                    )
                return tuple(int(width) for width in widths)

    def _check_widths(self) -> None:
        """Find a width that cannot be before anybody trains."""
        if self.config.match_rounds == 0 and self.config.width == "free":
            return
        matching.check_widths(
            [holding.widths for holding in self.holdings.values()],
            self.config.matching_cost(),
            self._width(),
        )

    def weights(self) -> dict[str, float]:
        """p_m."""
        sizes = {party: holding.num_rows for party, holding in self.holdings.items()}
        if self.config.weights == "even":
            sizes = dict.fromkeys(sizes, 1)
        total = sum(sizes.values())
        return {party: size / total for party, size in sizes.items()}

    def _sizes(self) -> list[int]:
        return [self.num_features[block] for block in self.blocks]

    def _places(self, party: str) -> tuple[int, ...]:
        """P_m: its blocks' places among the server's, rising."""
        return tuple(sorted(self.blocks.index(block) for block in self.holdings[party].blocks))

    def _slice(self, party: str) -> tuple[Tensor, Tensor]:
        """P_m Theta_0 and Pi_m w_0, in the order of the party's own blocks."""
        layers = matching.matched_slice(
            self.classifier, self._places(party), self.assignments[party], self._sizes()
        )
        layers[0] = layers[0][:, self._reorder(party, to_party=True)]
        weights = torch.from_numpy(np.concatenate([layer.ravel() for layer in layers])).float()
        blocks = self.holdings[party].blocks
        return torch.cat([self.extractors[block] for block in blocks]), weights

    def _reorder(self, party: str, *, to_party: bool) -> np.ndarray:
        """Columns of a first layer, from the server's order of blocks to the party's, or back."""
        own = self.holdings[party].blocks
        ordered = [block for block in self.blocks if block in own]
        source, wanted = (ordered, own) if to_party else (own, ordered)
        begins, place = {}, 0
        for block in source:
            begins[block] = place
            place += self.num_features[block]
        spans = [np.arange(begins[b], begins[b] + self.num_features[b]) for b in wanted]
        return np.concatenate([*spans, [place]])

    def slices(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Party -> P_m Theta_0 and Pi_m w_0 (line 9)."""
        return {party: self._slice(party) for party in self.holdings}

    def receive(self, party: str, reply: Trained) -> None:
        """Take note of a party's new weights.

        Raises:
            MessageError: they are not what was asked for: a party that lies is left out.
        """
        shared, own = self._slice(party)
        num_own = len(own) if self.config.classifier == "matched" else 0
        reply.check(E=len(shared), W=num_own)
        self.known[party] = reply.extractors.cpu(), reply.classifier.cpu() if num_own else own

    def combine(self) -> None:
        """The server step: Alg. 1 lines 7 and 8, of what each party last sent."""
        p = self.weights()
        for block in self.blocks:  # line 7, the exact minimum of (10)
            holders = [party for party in self.holdings if block in self.holdings[party].blocks]
            total = sum(p[party] * self._known_block(party, block).double() for party in holders)
            assert isinstance(total, Tensor)
            self.extractors[block] = (total / sum(p[party] for party in holders)).float()
        self.combined += 1
        if self.config.classifier != "matched":
            return
        parties = [self._classifier_of(party) for party in self.holdings]
        assignments = list(self.assignments.values())
        limit, first = self.config.match_rounds, self.combined == 1
        if limit is None or self.combined <= limit:  # line 8
            assignments = matching.match(
                parties,
                self._sizes(),
                list(p.values()),
                cost=self.config.matching_cost(),
                width=self._width(),
                sweeps=self.config.sweeps,
                rng=np.random.default_rng(
                    derive_seed(self.seed, self.name, "matching", str(self.combined))
                ),
                start=None if self.config.start == "own" and first else assignments,
            )
            self.assignments = dict(zip(self.holdings, assignments, strict=True))
        counts = None
        if self.config.class_weights and isinstance(self.task, Classification):
            counts = np.array([each.classes for each in self.holdings.values()], dtype=np.float64)
        self.classifier = matching.average(
            parties, assignments, self._sizes(), list(p.values()), counts
        )

    def add_to_mean(self, number: int) -> None:
        """Add the server's model to those of the last rounds, once it is one of them.

        A server that grew begins again: of neurons that were not there is no mean.
        """
        if self.config.average_last == 1 or number <= self.num_rounds - self.config.average_last:
            return
        shapes = [layer.shape for layer in self.classifier]
        if [layer.shape for layer in self.sum_classifier] != shapes:
            self.summed = 0
            self.sum_extractors = {
                block: torch.zeros(vector.shape, dtype=torch.float64)
                for block, vector in self.extractors.items()
            }
            self.sum_classifier = [np.zeros(shape) for shape in shapes]
        self.summed += 1
        for block, vector in self.extractors.items():
            self.sum_extractors[block] = self.sum_extractors[block] + vector
        for place, layer in enumerate(self.classifier):
            self.sum_classifier[place] = self.sum_classifier[place] + layer

    def take_mean(self) -> None:
        """The server's model becomes the mean over the last rounds."""
        if self.summed:
            self.extractors = {
                block: (vector / self.summed).float()
                for block, vector in self.sum_extractors.items()
            }
            self.classifier = [layer / self.summed for layer in self.sum_classifier]
            self.summed, self.sum_classifier = 0, []

    def _known_block(self, party: str, block: str) -> Tensor:
        """theta_{m,i}: one block's part of what the party last sent."""
        place = 0
        for other in self.holdings[party].blocks:
            size = len(self.extractors[other])
            if other == block:
                return self.known[party][0][place : place + size]
            place += size
        raise AssertionError(f"{party} does not hold {block}")

    def _classifier_of(self, party: str) -> matching.Classifier:
        """w_m, its features in the server's order of blocks."""
        holding = self.holdings[party]
        num_inputs = sum(self.num_features[block] for block in holding.blocks)
        sizes = [num_inputs, *holding.widths, self.task.num_outputs]
        layers, place = [], 0
        flat = self.known[party][1].numpy()
        for before, after in pairwise(sizes):
            layers.append(flat[place : place + after * (before + 1)].reshape(after, before + 1))
            place += after * (before + 1)
        layers[0] = layers[0][:, self._reorder(party, to_party=False)]
        return matching.Classifier(self._places(party), tuple(layers))

    def disagreement(self) -> tuple[float, float]:
        """sum_m p_m r_1 and sum_m p_m r_2 of (6): what the server step makes smaller."""
        p = self.weights()
        shared = sum(
            0.5
            * p[party]
            * (self._known_block(party, block) - self.extractors[block])
            .double()
            .square()
            .sum()
            .item()
            for party in self.holdings
            for block in self.holdings[party].blocks
        )
        own = matching.objective(
            [self._classifier_of(party) for party in self.holdings],
            list(self.assignments.values()),
            self._sizes(),
            list(p.values()),
            self.classifier,
        )
        return float(shared), own

    def widths(self) -> tuple[int, ...]:
        """Hidden widths of the server's classifier."""
        return tuple(len(layer) for layer in self.classifier[:-1])

    def _spec(self, widths: tuple[int, ...], blocks: Iterable[str]) -> BlocksSpec:
        blocks = tuple(blocks)
        return BlocksSpec(
            blocks,
            tuple(self.shapes[block] for block in blocks),
            tuple(self.specs[block] for block in blocks),
            widths,
            self.task.num_outputs,
            len(self.blocks) if self.config.scale_blocks else 0,
        )

    def model(self) -> Model:
        """The server's model: predicts from all blocks, or from those a table has.

        Raises:
            TrainingError: the parties keep their classifiers, so that the server has none.
        """
        self._check_has_classifier()
        flat = torch.from_numpy(np.concatenate([layer.ravel() for layer in self.classifier]))
        shared = torch.cat([self.extractors[block] for block in self.blocks])
        return self._model(self.name, self._spec(self.widths(), self.blocks), shared, flat.float())

    def model_of(self, party: str) -> Model:
        """A party's slice of the server's model, as ``Finish`` would send it.

        Raises:
            TrainingError: the parties keep their classifiers.
        """
        self._check_has_classifier()
        holding = self.holdings[party]
        return self._model(party, self._spec(holding.widths, holding.blocks), *self._slice(party))

    def _check_has_classifier(self) -> None:
        if self.config.classifier == "own":
            raise TrainingError(
                'the server has no classifier with classifier = "own"; each party has its model'
            )

    def _model(self, party: str, spec: BlocksSpec, shared: Tensor, own: Tensor) -> Model:
        with torch.random.fork_rng(devices=[]):
            network = spec.build()
        with torch.no_grad():
            load_extractors(network.extractors, shared)
            load_classifier(network.classifier, own)
        return Model(
            party=party,
            task=self.task,
            network=network.eval(),
            spec=spec,
            shapes=dict(zip(spec.blocks, spec.shapes, strict=True)),
            inputs={
                block: self.encodings[block] for block in spec.blocks if block in self.encodings
            },
            about={
                "method": "hyfem",
                "seed": self.seed,
                **({} if self.calibrated is None else {"calibrated": self.calibrated}),
            },
        )

    def welcome(self, party: str, holding: Holding) -> None:
        """Remark 2: a new party with blocks the server knows; its slice is ready at once.

        It takes the server's neurons that most parties have, and counts from the next round on.

        Raises:
            PartyError: what it holds does not fit the others.
        """
        if any(own > whole for own, whole in zip(holding.widths, self.widths(), strict=False)):
            raise PartyError(
                party, f"its hidden widths {holding.widths} exceed the server's {self.widths()}"
            )
        self._note(party, holding)
        chosen = []
        for i, width in enumerate(holding.widths):
            held = np.concatenate([assignment[i] for assignment in self.assignments.values()])
            popularity = np.bincount(held, minlength=self.widths()[i])
            chosen.append(np.sort(np.argsort(-popularity, kind="stable")[:width]))
        self.assignments[party] = tuple(chosen)
        self.known[party] = self._slice(party)

    def state(self) -> State:
        """What its next round depends on; to be saved when training has begun."""
        return {
            "holdings": {party: asdict(each) for party, each in self.holdings.items()},
            "encodings": {
                block: json.dumps(each.to_json()) for block, each in self.encodings.items()
            },
            "extractors": dict(self.extractors),
            "classifier": [torch.from_numpy(layer) for layer in self.classifier],
            "assignments": {
                party: [torch.from_numpy(places) for places in assignment]
                for party, assignment in self.assignments.items()
            },
            "known": {party: list(vectors) for party, vectors in self.known.items()},
            "num_rounds": self.combined,
            "summed": self.summed,
            "sum_extractors": dict(self.sum_extractors),
            "sum_classifier": [torch.from_numpy(layer) for layer in self.sum_classifier],
        }

    def restore(self, state: State) -> None:
        """Go on from there."""
        self.holdings, self.shapes = {}, {}
        stored_encodings: dict[str, str] = state["encodings"]
        self.encodings = {
            block: TableEncoder.from_json(json.loads(text))
            for block, text in stored_encodings.items()
        }
        holdings: dict[str, dict[str, Any]] = state["holdings"]
        self.hold({party: Holding(**stored) for party, stored in holdings.items()})
        self.extractors = dict(state["extractors"])
        self.classifier = [layer.numpy() for layer in state["classifier"]]
        self.assignments = {
            party: tuple(places.numpy() for places in assignment)
            for party, assignment in state["assignments"].items()
        }
        self.known = {party: (pair[0], pair[1]) for party, pair in state["known"].items()}
        self.combined = int(state["num_rounds"])
        self.summed = int(state.get("summed", 0))
        self.sum_extractors = dict(state.get("sum_extractors", {}))
        self.sum_classifier = [layer.numpy() for layer in state.get("sum_classifier", [])]

    # --- Algorithm 1 ---------------------------------------------------------------------------

    def begin(self, network: Engine) -> None:
        """Ask what each party holds, and have it make its networks.

        Raises:
            ConfigError: blocks, classes or widths that do not fit together.
            PartyError: a party cannot begin.
        """
        holdings = self.ask(network, Hello(self.config.class_weights), Holding)
        if not holdings:
            raise ConfigError("HyFEM needs one party or more, got none")
        self.hold(dict(holdings))
        self._ask_to_begin(network, network.parties).or_raise()

    def _ask_to_begin(self, network: Engine, parties: Iterable[str]) -> Replies[Ready]:
        requests = {
            party: Begin(
                self.config.model_dump_json(),
                tuple(
                    json.dumps(self.specs[block].to_json()) for block in self.holdings[party].blocks
                ),
                tuple(
                    json.dumps(self.encodings[block].to_json()) if block in self.encodings else ""
                    for block in self.holdings[party].blocks
                ),
                _task_text(self.task),
                self.seed,
                len(self.blocks),
            )
            for party in parties
        }
        return network.ask(requests, Ready)

    def begin_again(self, behind: Mapping[str, int], network: Engine) -> None:
        """Who has nothing begins anew, and goes on from its slice."""
        lost = [party for party, step in behind.items() if not step]
        if lost:
            for failure in self._ask_to_begin(network, lost).failures.values():
                _log.warning("it does not begin anew: %s", failure)

    def round(self, number: int, network: Engine) -> Round:
        """Lines 3-9; closes at the deadline with who answered.

        Raises:
            TrainingError: nobody answered as asked.
        """
        requests = {party: Train(*weights, number) for party, weights in self.slices().items()}
        replies = network.ask(requests, Trained, timeout_s=self.config.timeout_s)  # lines 3-5
        failures = dict(replies.failures)
        losses = {}
        for party, reply in replies.items():
            try:
                self.receive(party, reply)
            except MessageError as cause:
                failures[party] = PartyError(party, str(cause))
            else:
                losses[party] = reply.loss
        if not losses:
            raise TrainingError(
                f"round {number}: no party answered as asked; the first says: "
                f"{next(iter(failures.values()))}"
            )
        self.combine()  # lines 6-8
        self.add_to_mean(number)
        told: dict[str, Any] = {"loss": statistics.fmean(losses.values())}
        if self.config.width == "free":
            told["widths"] = list(self.widths())
        missed = {party: f"round {number}: {failure.cause}" for party, failure in failures.items()}
        return Round(told=told, missed=missed, losses=losses)

    def calibrate(self, network: Engine) -> None:
        """Refit the classifier on draws of all classes' features (CCVR); keep it where it helps.

        Gate: it is kept where it is right on more of the parties' judged rows, all counted.
        """
        timeout_s = self.config.timeout_s
        num_classes = self.task.num_outputs
        asked = {party: GiveMoments(shared) for party, (shared, _) in self.slices().items()}
        replies = network.ask(asked, Moments, timeout_s=timeout_s)
        begins = dict(zip(self.blocks, np.cumsum([0, *self._sizes()]), strict=False))
        spans = {
            block: slice(begins[block], begins[block] + self.num_features[block])
            for block in self.blocks
        }
        told = []
        for party, reply in replies.items():
            held = [spans[block] for block in self.holdings[party].blocks]
            places = np.concatenate([np.arange(span.start, span.stop) for span in held])
            try:
                reply.check(C=num_classes, D=len(places))
            except MessageError as cause:
                _log.warning("%s's moments are left out: %s", party, cause)
                continue
            parts = reply.counts_C, reply.means_CD.double(), reply.covariances_CDD.double()
            told.append((ClassMoments(*(part.cpu().numpy() for part in parts)), places))
        before, classifier_before = self._right(network), self.classifier
        if told and sum(int(own.counts_C.sum()) for own, _ in told):
            whole = classifier(sum(self._sizes()), self.widths(), num_classes)
            flat = np.concatenate([layer.ravel() for layer in self.classifier])
            load_classifier(whole, torch.from_numpy(flat).float())
            subsets = [[spans[b] for b in own.blocks] for own in self.holdings.values()]
            of = len(self.blocks) if self.config.scale_blocks else 0
            refitted(
                whole,
                together(told, sum(self._sizes())),
                subsets,
                {len(own): of / len(own) for own in subsets} if of else {},
                rng=generator(self.seed, self.name, "calibration"),
            )
            self.classifier = layers_of(whole)
        after = self._right(network)
        kept = after[0] > before[0] and after[1] == before[1]
        if not kept:
            self.classifier = classifier_before
        self.calibrated = {"kept": kept, "rows": before[1], "before": before[0], "after": after[0]}
        _log.info("calibration: %s", self.calibrated)

    def _right(self, network: Engine) -> tuple[int, int]:
        """How many of all parties' judged rows are right with the classifier as it is."""
        asked = {party: Judge(*weights) for party, weights in self.slices().items()}
        replies = network.ask(asked, Judged, timeout_s=self.config.timeout_s)
        judged = [(reply.right, reply.num_rows) for reply in replies.fitting().values()]
        return sum(right for right, _ in judged), sum(rows for _, rows in judged)

    def finish(self, network: Engine) -> None:
        """Send each party its slice, to use alone; who is not reached keeps its last weights."""
        self.take_mean()
        if self.config.calibrate and self.config.classifier == "matched":
            self.calibrate(network)
        requests = {party: Finish(*weights) for party, weights in self.slices().items()}
        end(network, requests, Finished, timeout_s=self.config.timeout_s)

    def judged(self, network: Engine) -> dict[str, float]:
        """Party -> how good its model is on rows that it kept out of training."""
        replies = self.ask(network, GiveScore(), Score)
        return {party: reply.goodness for party, reply in replies.items() if reply.num_rows}

    def invite(self, network: Engine, party: str) -> None:
        """Remark 2: a new party gets its model at once, and takes part from the next round on.

        Raises:
            PartyError: it cannot begin, or holds what does not fit the others.
        """
        hello = Hello(self.config.class_weights)
        self.welcome(party, network.ask({party: hello}, Holding).or_raise()[party])
        self._ask_to_begin(network, [party]).or_raise()
        slice_ = Finish(*self.known[party])
        network.ask({party: slice_}, Finished, timeout_s=self.config.timeout_s).or_raise()


@dataclass(frozen=True, kw_only=True)
class Round(BaseRound):
    """What one round did.

    Attributes:
        losses: party -> mean of f_m over its steps, of those that answered.
    """

    losses: Mapping[str, float]


# --- Tasks and summaries as text ---------------------------------------------------------------


def _task_text(task: Task) -> str:
    """What must be the same at all: the classes in their order, or that it is a number."""
    return json.dumps(task.to_json()) if isinstance(task, Classification) else "a number"


def _summary_of(party: str, block: str, text: str) -> dict[str, Summary]:
    """Column -> summary, of what a party sent.

    Raises:
        PartyError: it cannot be.
    """
    try:
        found = _SUMMARIES.validate_json(text)
    except ValidationError as error:
        cause = str(error.errors()[0]["msg"])
    else:
        wrong = [name for name, summary in found.items() if not _can_be(summary)]
        if found and not wrong:
            return found
        cause = f"{wrong} are no counts, mean and deviation" if wrong else "it has no column"
    raise PartyError(party, f"its summary of block {block!r} cannot be read ({cause})")


def _can_be(summary: Summary) -> bool:
    if isinstance(summary, NumberSummary):
        numbers = (summary.count, summary.missing, summary.squares)
        return min(numbers) >= 0 and math.isfinite(summary.mean) and math.isfinite(summary.squares)
    return min(summary.missing, *summary.counts.values(), 0) >= 0
