"""CHFL: columns that all parties have are learned together, the others at home.

Mori, Teranishi, Furukawa: "Continual Horizontal Federated Learning for Heterogeneous Data",
arXiv:2203.02108.

Several parties have different samples, the same labels, some columns in common and some of their
own. A network of two columns reads them: the common column is trained by FedAvg, and the own one
at home, leaning on the first through lateral connections. Nothing flows back into the common
column, so that each party's own features do not disturb what all learn together. In the end every
party has a model that reads all its features and asks nobody.

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
    K            participants of a round

    Letters: K members, N rows, B rows of a minibatch, F features, C columns of a table, P
    parameters of the common column.

What crosses the boundary, besides theta_c: names and types of the columns a member offers as
common, its classes, how many rows it has, and accuracy and loss on its validation rows; for each of
those columns also how many values there are, their mean and squared deviation, or each category's
count: so all encode them alike.

Departures from the paper:
    - Eq. (6) prints the activation a at the last layer too; logits are added, so it has none there.
    - Below Eq. (7) the joint loss is said to use theta_c^t; it uses theta_(c,k), which line 14 has
      just updated, as the sentence before says.
    - Lines 15 and 16 are one step: both gradients are taken at the same parameters.
    - The common column's Adam starts anew each round, when its parameters are replaced; that of the
      own column goes on. A member that trains alone (``method = "local"``) replaces nothing and
      starts nothing anew.
    - ``choose``: V-A3 has each client tune on its own validation rows. "each" does so for the
      round; "mean" (the default) takes the round of the best mean accuracy for all; "loss" the one
      of the least loss, every validation row of every member counting alike.
    - T is not given in the paper; ``patience`` stops when the rounds no longer improve.
    - ``weights``, ``participation``, ``proximal``, ``secure``, ``gate``, ``zero_start`` and
      ``unique_weight_decay`` are not in the paper; their defaults leave them out.
    - The simple method of V-B5 reads "the output of the common network": its class probabilities.
    - A party without columns of its own has the common column alone.

Baselines, as ``method``: "common" is FedAvg on the common columns (FedProx with ``proximal`` > 0),
"local" is each member alone with all its columns, "simple" is V-B5. Pooled on common is "local"
with one member that has everyone's rows and nothing but the common columns.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, ValidationError, model_validator
from torch import Tensor

from dovetail.data import (
    CategorySummary,
    Classification,
    Minibatches,
    NumberSummary,
    PartyData,
    Summary,
    Table,
    TableEncoder,
    Task,
    agree,
    common_first,
    fit_rest,
    spelled_alike,
    summarise,
)
from dovetail.data.common_unique import BLOCK
from dovetail.errors import (
    ConfigError,
    DataError,
    MessageError,
    ModelError,
    PartyError,
    TrainingError,
)
from dovetail.federated import Driver, Party, end, handles
from dovetail.federated import Round as BaseRound
from dovetail.federated import train as train  # chfl.train(coordinator, network)
from dovetail.methods.outcome import goodness
from dovetail.models import (
    Column,
    Columns,
    ColumnsSpec,
    Model,
    OptimizerConfig,
    RandomStream,
    Secret,
    generator,
    key_of,
)
from dovetail.models.decisions import ClassWeights, Decide, class_weights, on, supervised_loss
from dovetail.models.optimizers import Optimizer
from dovetail.models.vectors import vector_of, write_vector
from dovetail.network import (
    Bytes,
    Doubles,
    Engine,
    Floats,
    Integers,
    Message,
    Replies,
    Values,
    noted,
)
from dovetail.network.identity import MAX_PROOF_BYTES
from dovetail.privacy import (
    KEY_BYTES,
    MIN_MEMBERS,
    Budget,
    PrivateSteps,
    SecretSums,
    Stepping,
    check_weights,
    from_fixed,
    total,
    within,
)

# --- Hyper-parameters --------------------------------------------------------------------------

#: What ``by_party`` may set.
OWN_SETTINGS = frozenset({"learning_rate", "mu"})

#: The same with ``secure``, of which the sum that the coordinator sees does not depend.
OWN_IN_SECRET = frozenset({"mu"})

#: The gates that are tried: what the own column's logits are multiplied by.
GATES = (0.0, 0.25, 0.5, 0.75, 1.0)

#: Said where a loss is no number.
LARGEST_LOSS = 1e30

#: So many rows' worth of belief that the common column is enough: chosen on held-out rows of four
#: hospitals (benchmarks/chfl_gate.py), where 0 and 10 left more parties below their common column.
GATE_ROWS = 30

#: Training rows up to which the own column's weight decay is what is set; whole batches of them.
DECAY_ROWS = 256


class Config(OptimizerConfig):
    """Settings of a run; the coordinator's, sent to every member."""

    method: Literal["chfl", "common", "local", "simple"] = "chfl"  # V-A2, V-B5
    widths: tuple[int, ...] = Field(default=(512, 256, 128), min_length=1)  # V-A2
    mu: float = Field(default=1.0, ge=0, le=1)  # mu, IV-C
    rounds: int = Field(default=30, ge=1)  # T
    local_epochs: int = Field(default=5, ge=1)  # E, V-A3
    batch_size: int = Field(default=64, ge=1)  # V-A3
    optimizer: Literal["sgd", "adam"] = "adam"  # V-A3
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    # Of the own column, of DECAY_ROWS rows or fewer; None: as of the common one.
    unique_weight_decay: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    zero_start: bool = False  # the own column's last layer and U begin at zero
    gate: bool = False  # how much the own column counts is chosen on validation rows
    weights: Literal["even", "samples"] = "even"  # line 7: 1/K; or N_k / sum N
    participation: float = Field(default=1.0, gt=0, le=1)  # share of the members in a round
    proximal: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # FedProx's mu
    secure: bool = False  # sum the common columns under masks (privacy.masks)
    private: PrivateSteps | None = None  # how common columns are trained (privacy.steps)
    choose: Literal["mean", "loss", "each", "last"] = "mean"  # which round's parameters are kept
    patience: int | None = Field(default=None, ge=1)  # stop after so many rounds without a better
    max_categories: int = Field(default=100, ge=1)  # of a common column that members encode alike
    loss_weights: ClassWeights | None = None  # of classes; a run's class_weights
    # what parties decide on validation rows; a run's threshold and calibrate
    decide: Decide | None = Field(default=None, exclude_if=lambda value: value is None)
    timeout_s: float | None = Field(default=None, gt=0)  # how long a round waits for an answer
    # Member -> learning_rate and mu of its own; V-A3 has each tune them.
    by_party: dict[str, dict[str, float]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if min(self.widths) < 1:
            raise ValueError(f"widths must be positive, got {self.widths}")
        if self.method == "local" and (self.secure or self.proximal or self.participation < 1):
            raise ValueError(
                "method 'local' sends nothing: secure, proximal, participation are off"
            )
        for name, own in self.by_party.items():
            if wrong := own.keys() - OWN_SETTINGS:
                raise ValueError(f"by_party sets {sorted(OWN_SETTINGS)}, not {wrong} ({name})")
            if self.secure and not own.keys() <= OWN_IN_SECRET:
                raise ValueError(
                    f"by_party sets a learning_rate of {name}, and with secure all have one: who "
                    "hardly learns has weights that the coordinator knows, and the sum tells "
                    "another's"
                )
            self.of(name)
        return self

    def of(self, member: str) -> Config:
        """What this member is told: no other's settings."""
        values = self.model_dump(exclude={"by_party"})
        return Config(**{**values, **self.by_party.get(member, {})})

    def of_unique(self, num_batches: int) -> Config:
        """With which the own column's optimizer is built, of so many batches a pass.

        Its decay is a belief held before any row was seen, and means of losses are over rows: of
        more than ``DECAY_ROWS`` it counts in proportion less.
        """
        if self.unique_weight_decay is None:
            return self
        share = min(1.0, DECAY_ROWS / (num_batches * self.batch_size))
        return self.model_copy(update={"weight_decay": self.unique_weight_decay * share})


# --- What crosses the boundary -----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Describe(Message):
    """Coordinator -> member: what do you offer?"""


@dataclass(frozen=True, eq=False)
class Description(Message):
    """Member -> coordinator: the columns it offers as common, its classes, how many rows it has.

    ``kinds`` are "numbers" and "categories". Category i is one of column ``category_columns[i]``.
    """

    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    # As JSON, so that 1 and "1" differ; of labels that are numbers one, with their mean and scale.
    classes: tuple[str, ...]
    num_rows: int
    counts_C: Integers  # rows with a value
    missing_C: Integers  # rows without
    means_C: Doubles
    squares_C: Doubles  # sums of squared deviations from the mean
    categories: tuple[str, ...]
    category_columns: tuple[int, ...]
    category_counts: tuple[int, ...]

    def check(self, **sizes: int) -> None:
        """Refuse lists that do not belong together."""
        num = len(self.columns)
        if len(self.kinds) != num or len(set(self.columns)) != num:
            raise MessageError(f"{self.wire_name()}: each column has one name and one kind")
        if not len(self.category_columns) == len(self.category_counts) == len(self.categories):
            raise MessageError(f"{self.wire_name()}: each category has one column and one count")
        super().check(**sizes, C=num)
        if (self.squares_C < 0).any():
            raise MessageError(f"{self.wire_name()}.squares_C: a sum of squares is negative")
        counts = [self.num_rows, *self.category_counts]
        if min(counts) < 0 or (self.counts_C < 0).any() or (self.missing_C < 0).any():
            raise MessageError(f"{self.wire_name()}: a number of rows is negative")
        if not all(0 <= place < num for place in self.category_columns):
            raise MessageError(f"{self.wire_name()}: a category is of a column that is none")


@dataclass(frozen=True, eq=False)
class Begin(Message):
    """Coordinator -> member: training starts, on these common columns.

    ``settings`` is the ``Config`` as JSON; ``agreed`` says how common columns are encoded, ""
    where there are none.
    """

    settings: str
    seed: int
    common: tuple[str, ...]
    agreed: str


@dataclass(frozen=True, eq=False)
class Ready(Message):
    """Member -> coordinator: how many features its common column reads."""

    num_common: int


@dataclass(frozen=True, eq=False)
class Average(Message):
    """Coordinator -> member: theta_c after round ``number`` (line 4 of the next).

    ``best`` is the best round before this one, 0 where there is none. Nothing in ``common_P`` where
    each member trains alone.
    """

    number: int
    best: int
    common_P: Floats


@dataclass(frozen=True, eq=False)
class Scored(Message):
    """Member -> coordinator: its model's accuracy on its validation rows; 0 of 0 without any.

    ``loss`` is the mean loss on them where the run chooses by it, else 0.
    """

    accuracy: float
    num_rows: int
    loss: float

    def check(self, **sizes: int) -> None:
        """Refuse what is no share of rows."""
        if not 0 <= self.accuracy <= 1 or self.num_rows < 0:
            what = f"{self.accuracy} of {self.num_rows} rows is no accuracy"
            raise MessageError(f"{self.wire_name()}: {what}")
        if not self.loss >= 0:
            raise MessageError(f"{self.wire_name()}: {self.loss} is no mean loss")


@dataclass(frozen=True, eq=False)
class Train(Message):
    """Coordinator -> member: do round ``number`` from the theta_c you have (line 5)."""

    number: int


@dataclass(frozen=True, eq=False)
class Trained(Message):
    """Member -> coordinator: theta_(c,k) (line 19); nothing in it where it is summed in secret."""

    common_P: Floats
    loss: float  # means over the round's minibatches, before their steps
    joint_loss: float


@dataclass(frozen=True, eq=False)
class GiveKey(Message):
    """Coordinator -> member: a new public key, for this round's sum."""

    number: int


@dataclass(frozen=True, eq=False)
class PublicKey(Message):
    """Member -> coordinator, which hands it to the others of this sum.

    ``proof`` is a certificate and its signature of key, run and round; empty where members have no
    certificates.
    """

    key: Annotated[Tensor, Values(torch.uint8, f"{KEY_BYTES}")]
    proof: Annotated[Tensor, Values(torch.uint8, "N", most=MAX_PROOF_BYTES)]


@dataclass(frozen=True, eq=False)
class GiveShare(Message):
    """Coordinator -> member: your share of the sum over these members, at these weights.

    All is in the order of ``members``; proofs stand end to end.
    """

    number: int
    weights: tuple[float, ...]
    members: tuple[str, ...]
    keys_K32: Bytes
    proofs: Annotated[Tensor, Values(torch.uint8, "N")]
    proof_bytes: tuple[int, ...]

    def check(self, **sizes: int) -> None:
        """Refuse keys and proofs that are not one a member."""
        if len(self.proof_bytes) != len(self.members) or min(self.proof_bytes, default=0) < 0:
            raise MessageError(f"{self.wire_name()}: one proof a member, of 0 bytes or more")
        super().check(**{**sizes, "K": len(self.members), "N": sum(self.proof_bytes)})


@dataclass(frozen=True, eq=False)
class Share(Message):
    """Member -> coordinator: weight x theta_(c,k) in fixed point, masked."""

    masked_P: Integers


@dataclass(frozen=True, eq=False)
class Finish(Message):
    """Coordinator -> member: training is over; keep the parameters after round ``best``."""

    best: int


@dataclass(frozen=True, eq=False)
class Finished(Message):
    """Member -> coordinator: the round whose parameters it kept."""

    number: int


#: The most that a member's network may take whose widths ``Begin`` sets, in bytes of parameters;
#: counted before anything of that size is made.
MAX_PARAMETER_BYTES = 2**28

#: Rounds in a row in which no member shares in a secret sum: a coordinator that goes on from an
#: older state repeats rounds that were summed, and not again with others.
MAX_REFUSED = 20

#: The widest layer, and the most layers, that a member counts at all.
MAX_WIDTH, MAX_LAYERS = 2**24, 1000

#: Batches whose rows are copied together.
_BATCHES_AT_ONCE = 64


# --- What a member has -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Prepared:
    """A member's rows as its network reads them.

    Attributes:
        x, validation, test: features of its rows; None where it has no such rows.
        common, unique: places of those that all members have, and of its own.
        input: how raw columns become features.
    """

    x: Tensor
    validation: Tensor | None
    test: Tensor | None
    common: tuple[int, ...]
    unique: tuple[int, ...]
    input: TableEncoder


@dataclass(frozen=True, eq=False)
class Home:
    """What a member has: raw rows, which are encoded as all members agree when training begins.

    Attributes:
        train: training rows and labels.
        task: what the labels say.
        common: columns that it offers as common; the others stay its own.
        validation: rows to choose hyper-parameters on.
        test: rows to score on.
        categorical: names of number columns whose values are names, such as postcodes.
        max_categories: of its own columns; see ``TableEncoder.fit``.
        secure: take part only where common columns are summed in secret.
        members: whom it sums with; None: whoever is certified.
        private: how its common column is trained, whatever the run says; None: as that says.
        budget: of its policy: no loss and no accuracy leaves; None: nothing is capped.
    """

    train: PartyData
    task: Task
    common: Sequence[str]
    validation: PartyData | None = None
    test: PartyData | None = None
    categorical: Sequence[str] = ()
    max_categories: int = 100
    secure: bool = False
    members: tuple[str, ...] | None = None
    private: PrivateSteps | None = None
    budget: Budget | None = None

    def __post_init__(self) -> None:
        absent = [name for name in self.common if name not in set(self.table.names)]
        if absent:
            raise ConfigError(f"party {self.name!r} has no column {absent[0]!r} to share")

    @property
    def name(self) -> str:
        return self.train.name

    @property
    def label(self) -> str:
        """What the labels are called."""
        return self.train.label or ""

    @property
    def table(self) -> Table:
        """Its training rows."""
        return self.train.tables[BLOCK]

    def summaries(self) -> dict[str, Summary]:
        """Of each column that it offers, what others must know to encode it alike."""
        return summarise(self.table, self.common, categorical=self.categorical, party=self.name)

    def prepare(self, common: Sequence[str], agreed: str) -> Prepared:
        """Its rows, common columns first.

        Raises:
            MessageError: an encoding that is none of these columns.
        """
        try:
            shared = TableEncoder("all", ())
            if common:
                shared = TableEncoder.from_json(json.loads(agreed))
        except (ValueError, ModelError) as error:
            raise MessageError(f"the agreed encoding cannot be read ({error})") from None
        if shared.columns != tuple(common):
            raise MessageError("the agreed encoding is not of the common columns")
        own = fit_rest(self.table, common, self.categorical, self.max_categories, party=self.name)
        encoder = common_first(shared, own, party=self.name).watching(self.table)

        def encoded(rows: PartyData | None) -> Tensor | None:
            if rows is None:
                return None
            return encoder.transform(rows.tables[BLOCK], allow_unseen=True)

        return Prepared(
            encoder.transform(self.table),
            encoded(self.validation),
            encoded(self.test),
            tuple(range(shared.num_features)),
            tuple(range(shared.num_features, encoder.num_features)),
            encoder,
        )


# --- What a member executes --------------------------------------------------------------------


def pull(parameters: Iterable[Tensor], anchor: Iterable[Tensor], strength: float) -> None:
    """Add the gradient of FedProx's term strength/2 |theta - theta^t|^2 to what is there."""
    for parameter, start in zip(parameters, anchor, strict=True):
        assert parameter.grad is not None
        parameter.grad.add_(parameter.detach() - start, alpha=strength)


class Member(Party):
    """A party that learns with the others: keeps its rows, its own column and U.

    Args:
        home: what it has.
        device: where it computes.
        sums: what it shares in secret sums, and with whom.
        secret: of its home, mixed into all it draws; None in simulation.
    """

    has_local = False

    saved = (
        "columns",
        "common_optimizer",
        "unique_optimizer",
        "batches",
        "installed",
        "trained",
        "told",
        "latest",
        "best",
        "best_accuracy",
        "stepping",
    )

    def __init__(
        self,
        home: Home,
        *,
        device: torch.device | None = None,
        sums: SecretSums | None = None,
        secret: Secret | None = None,
    ) -> None:
        self._secret = secret
        self.name = home.name
        self.sums = sums or SecretSums(home.name)
        self.home = home
        self.task = home.task
        self.device = device or torch.device("cpu")
        self.columns: Columns | None = None
        self.ahead: tuple[float, float] | None = None  # losses of a round already trained
        self.stepping: Stepping | None = None

    def sizes(self) -> dict[str, int]:
        """P, the parameters of theta_c."""
        if self.columns is None or self.config.method == "local":
            return {"P": 0}
        return {"P": sum(each.numel() for each in self.columns.common.parameters())}

    @handles(before_begin=True)
    def describe(self, ask: Describe) -> Description:
        """What it offers, and what others must know of it."""
        summaries = self.home.summaries()
        listed = [
            (place, category, count)
            for place, summary in enumerate(summaries.values())
            if isinstance(summary, CategorySummary)
            for category, count in summary.counts.items()
        ]
        is_number = [s if isinstance(s, NumberSummary) else None for s in summaries.values()]
        return Description(
            tuple(summaries),
            tuple("categories" if s is None else "numbers" for s in is_number),
            labels_said(self.task),
            len(self.home.train.labelled_rows()),
            torch.tensor([s.count if s else 0 for s in is_number], dtype=torch.int64),
            torch.tensor([s.missing for s in summaries.values()], dtype=torch.int64),
            torch.tensor([s.mean if s else 0.0 for s in is_number], dtype=torch.float64),
            torch.tensor([s.squares if s else 0.0 for s in is_number], dtype=torch.float64),
            tuple(category for _, category, _ in listed),
            tuple(place for place, _, _ in listed),
            tuple(int(count) for _, _, count in listed),
        )

    @handles
    def begin(self, begin: Begin) -> Ready:
        """Build its network, and take its batches from the start."""
        try:
            config = Config.model_validate_json(begin.settings)
        except ValidationError as error:
            raise MessageError(f"{begin.wire_name()}: settings that cannot be ({error})") from None
        if self.home.secure and config.method != "local" and not config.secure:
            raise ConfigError(
                "refuses to show its common column: its file says chfl.secure, so the run must, too"
            )
        if max(config.widths) > MAX_WIDTH or len(config.widths) > MAX_LAYERS:
            raise MessageError(
                f"{begin.wire_name()}: at most {MAX_LAYERS} layers of width {MAX_WIDTH}"
            )
        offered = set(self.home.common)
        if not (begin.common or config.method == "local") or not set(begin.common) <= offered:
            raise MessageError(f"{begin.wire_name()}: it does not offer {list(begin.common)}")
        prepared = self.home.prepare(begin.common, begin.agreed)
        labels, held = self.home.train.labels, self.home.train.labelled_rows()
        if labels is None or not len(held):
            raise ConfigError("it has no labelled training rows; leave it out")
        common, unique = prepared.common, prepared.unique
        if config.method == "local":
            common, unique = tuple(range(prepared.x.shape[1])), ()
        elif config.method == "common":
            unique = ()
        spec = ColumnsSpec(
            common,
            unique,
            config.widths,
            self.task.num_outputs,
            config.mu,
            "input" if config.method == "simple" else "sum",
            gated=config.gate and config.method == "chfl" and bool(unique),
        )
        with torch.device("meta"):  # takes no memory
            num_bytes = sum(each.nbytes for each in spec.build().parameters())
        if num_bytes > MAX_PARAMETER_BYTES:
            raise MessageError(
                f"{begin.wire_name()}: widths {list(config.widths)[:5]} make a network of more "
                f"than {MAX_PARAMETER_BYTES} bytes of parameters here"
            )
        self.config = config
        self.prepared = prepared
        self.spec = spec
        # Streams of their own: neither the batches nor the common column depend on what is unique.
        key = key_of(self._secret)
        with RandomStream(begin.seed, self.name, "common column", secret=key):
            common_column = self.spec.build_common()  # replaced by theta_c unless it trains alone
        with RandomStream(begin.seed, self.name, "unique column", secret=key):
            unique_column = self.spec.build_unique()
        if config.zero_start and config.method == "chfl" and unique_column is not None:
            unique_column.start_at_zero()
        self.columns = self.spec.join_columns(common_column, unique_column).to(self.device)
        # Only one that goes on from round to round is kept; see ``optimizer``.
        self.common_optimizer: Optimizer | None = None
        if config.method == "local":
            self.common_optimizer = config.build(self.columns.common.parameters())
        self.batches = Minibatches(
            held, config.batch_size, generator(begin.seed, self.name, "batches", secret=key)
        )
        self.unique_optimizer: Optimizer | None = None
        if self.columns.unique is not None:
            own = config.of_unique(self.batches.steps_per_pass)
            self.unique_optimizer = own.build(self.columns.unique.trained())
        self.x_common = _columns(prepared.x, common).to(self.device)
        self.x_unique = _columns(prepared.x, unique).to(self.device)
        self.labels = labels.to(self.device)
        weights_C = class_weights(config.loss_weights, self.task, labels)
        self.class_weights_C = on(self.device, weights_C)
        self.validation: tuple[Tensor, Tensor] | None = None
        chosen_on = self.home.validation
        if prepared.validation is not None and chosen_on is not None:
            held = chosen_on.labelled_rows()
            if chosen_on.labels is not None and len(held):
                self.validation = (
                    prepared.validation[held].to(self.device),
                    chosen_on.labels[held].to(self.device),
                )
        private = within(
            None if config.method == "local" else self.home.budget,
            self.home.private,
            config.private,
            what="weights of its common column",
            key="[chfl] private = { clip = ..., noise = ... }",
        )
        if private is not None and self.stepping is None:  # of a second begin, nothing is forgotten
            rng = generator(begin.seed, self.name, "private steps") if key is None else None
            self.stepping = Stepping(private, self.name, len(self.labels), rng)
        self.seed = begin.seed
        self.installed = -1  # the round after which theta_c is in place
        self.trained = -1  # the round it did last
        # What its common column follows from, as far as the coordinator says it to all: in secret
        # sums it goes into the masks. ``mu`` weighs the own column, and may be one's own.
        alike = config.model_dump_json(exclude={"mu", "by_party"})
        self._opened = json.dumps([alike, begin.seed, begin.common, begin.agreed])
        self.told = ""
        self.latest: tuple[int, dict[str, Tensor]] | None = None  # parameters as last scored
        self.best: tuple[int, dict[str, Tensor]] | None = None
        self.best_accuracy = -1.0
        return Ready(len(common))

    @handles
    def average(self, message: Average) -> Scored:
        """Take theta_c over, and score with it."""
        assert self.columns is not None
        if self.config.method != "local":
            write_vector(message.common_P, self.columns.common)
        self._keep(message.best)
        self.installed = message.number
        self.trained = -1  # what it did is gone
        given = self._opened.encode() + message.common_P.numpy().tobytes()
        self.told = hashlib.sha256(given).hexdigest()
        self.choose_gate()
        accuracy, num_rows, loss = self.scored()
        self.latest = (message.number, self._parameters())
        if self.config.choose == "each" and message.number and accuracy > self.best_accuracy:
            self.best_accuracy = accuracy
            self.best = self.latest
        if self.home.budget is not None:
            return Scored(0.0, 0, 0.0)  # not counted, so not told
        return Scored(accuracy, num_rows, loss)

    def _keep(self, best: int) -> None:
        """The coordinator says that this round was the best so far."""
        latest = self.latest
        if self.config.choose != "each" and best and latest is not None and latest[0] == best:
            self.best = latest

    def _parameters(self) -> dict[str, Tensor]:
        assert self.columns is not None
        return {name: value.clone() for name, value in self.columns.state_dict().items()}

    def loss(self, outputs: Tensor, labels_B: Tensor) -> Tensor:
        """Of a batch: cross entropy, or of numbers the squared error."""
        return supervised_loss(self.task, outputs, labels_B, self.class_weights_C)

    def row_loss(self, call: Callable[..., Tensor], x_1F: Tensor, label_1: Tensor) -> Tensor:
        """Of one row, whose mean over a batch is ``loss`` where classes count alike."""
        weights_C = self.class_weights_C
        return supervised_loss(self.task, call(x_1F), label_1, weights_C, reduction="sum")

    def spent(self) -> list[dict[str, Any]]:
        """Its weights, where they are noised."""
        told = None if self.stepping is None else self.stepping.told()
        return [] if told is None else [{"to": "the coordinator", "what": "weights", **told}]

    @torch.no_grad()
    def choose_gate(self) -> None:
        """Let the own column count as much as is best on the validation rows.

        The gate of the least loss, times N / (N + ``GATE_ROWS``) of N validation rows: few rows
        choose wrongly, and what they say leans towards the common column. Without validation rows
        all of it counts, Eq. (7).
        """
        columns = self.columns
        if columns is None or columns.gate is None:
            return
        columns.gate.fill_(1.0)
        if self.validation is None:
            return
        x, labels = self.validation
        parts = x.split(8192)
        joint = torch.cat([columns(part) for part in parts])
        columns.gate.fill_(0.0)
        common = torch.cat([columns(part) for part in parts])

        losses = {gate: float(self.loss(torch.lerp(common, joint, gate), labels)) for gate in GATES}
        best, num_rows = min(GATES, key=losses.__getitem__), len(labels)
        columns.gate.fill_(best * num_rows / (num_rows + GATE_ROWS))

    def accuracy(self) -> tuple[float, int]:
        """Share of its validation rows that are classified rightly, and their number.

        Of numbers 1 / (1 + mean squared error, in squares of their scale): 1 where all are right.
        """
        return self.scored()[:2]

    @torch.no_grad()
    def scored(self) -> tuple[float, int, float]:
        """The same, and the mean loss on these rows where the run chooses by it, else 0."""
        if self.validation is None or self.columns is None:
            return 0.0, 0, 0.0
        x, labels = self.validation
        outputs = torch.cat([self.columns(part) for part in x.split(8192)])
        loss = 0.0
        if self.config.choose == "loss":
            loss = float(self.loss(outputs, labels))
            loss = loss if math.isfinite(loss) else LARGEST_LOSS
        return goodness(self.task, outputs, labels), len(labels), loss

    def can_train(self, message: Train) -> bool:
        """Whether it has the theta_c that this round starts from."""
        return self.columns is not None and message.number == self.installed + 1

    @handles
    def train(self, message: Train) -> Trained:
        """ClientLocalLearning."""
        if not self.can_train(message):
            raise PartyError(
                self.name,
                f"was asked for round {message.number} but has the weights after round "
                f"{self.installed}",
            )
        losses, self.ahead = self.ahead, None
        loss, joint_loss = losses or local_learning(self)
        # Of weights of somebody's making an exact loss tells what noise on a step is to hide: then
        # none is told, nor whether it is a number.
        capped = self.stepping is not None or self.home.budget is not None
        if not capped and not (math.isfinite(loss) and math.isfinite(joint_loss)):
            raise TrainingError(
                f"its loss is {loss}, its joint loss {joint_loss} in round {message.number}; lower "
                f"the learning_rate ({self.config.learning_rate})"
            )
        self.trained = message.number
        sent = self.config.method != "local" and not self.config.secure
        if capped:
            loss = joint_loss = 0.0
        trained = Trained(self.common_vector() if sent else torch.empty(0), loss, joint_loss)
        return noted(trained, None if self.stepping is None else self.stepping.told())

    def common_vector(self) -> Tensor:
        """(P,) theta_(c,k)."""
        assert self.columns is not None
        return vector_of(self.columns.common).cpu()

    def _check_trained(self, number: int) -> None:
        if not self.config.secure or self.trained != number or self.installed >= number:
            raise PartyError(self.name, f"has no weights to sum for round {number}")

    @handles
    def key(self, message: GiveKey) -> PublicKey:
        """A new key for this round's sum."""
        self._check_trained(message.number)
        return PublicKey(*map(_bytes, self.sums.key(message.number)))

    @handles
    def share(self, message: GiveShare) -> Share:
        """Its share of the sum."""
        self._check_trained(message.number)
        keys = [bytes(key.tolist()) for key in message.keys_K32]
        parts = message.proofs.split(list(message.proof_bytes))
        proofs = [bytes(proof.tolist()) for proof in parts]
        sums, theta_P = self.sums, self.common_vector()
        share = sums.share(
            message.number,
            message.members,
            message.weights,
            keys,
            proofs,
            theta_P,
            told=self.told,
        )
        return Share(share)

    @handles
    def finish(self, message: Finish) -> Finished:
        """Keep the parameters of the round that was chosen."""
        assert self.columns is not None
        self._keep(message.best)
        kept = self.best or self.latest
        if kept is None:
            raise PartyError(self.name, "has no finished round to keep")
        self.best = kept
        self.columns.load_state_dict(kept[1])
        return Finished(kept[0])

    def model(self) -> Model:
        """The model as it is now: predicts alone from all of this party's features, Eq. (7)."""
        assert self.columns is not None
        return Model(
            party=self.name,
            task=self.task,
            network=self.columns,
            spec=self.spec,
            shapes={BLOCK: (self.prepared.x.shape[1],)},
            inputs={BLOCK: self.prepared.input},
            about={"method": self.config.method, "seed": self.seed},
        )

    def optimizer(self) -> Optimizer:
        """The common column's: a fresh one where its parameters were replaced."""
        assert self.columns is not None
        return self.common_optimizer or self.config.build(self.columns.common.parameters())

    def next_pass(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Batches of one pass: rows, their common features, own features and labels."""
        steps = self.batches.steps_per_pass
        order = torch.cat([next(self.batches) for _ in range(steps)]).to(self.device)
        size = self.config.batch_size
        for rows in order.split(_BATCHES_AT_ONCE * size):  # all of them would be the table again
            parts = rows, self.x_common[rows], self.x_unique[rows], self.labels[rows]
            yield from zip(*(part.split(size) for part in parts), strict=True)


def _columns(x_NF: Tensor, places: Sequence[int]) -> Tensor:
    """These features; no copy where they stand side by side."""
    if places and tuple(places) == tuple(range(places[0], places[-1] + 1)):
        return x_NF[:, places[0] : places[-1] + 1]
    return x_NF[:, list(places)]


def labels_said(task: Task) -> tuple[str, ...]:
    """What must be the same at all members: the classes, or how a number is standardised."""
    if isinstance(task, Classification):
        return tuple(json.dumps(name) for name in task.classes)
    return (json.dumps(task.to_json()),)


def _tables(said: Iterable[str]) -> list[str]:
    """Those that are objects of JSON, which no class is."""
    return [each for each in said if each.startswith("{")]


def local_learning(member: Member) -> tuple[float, float]:
    """ClientLocalLearning, lines 10-19: E passes; mean losses of the common column and of all."""
    columns, config = member.columns, member.config
    assert columns is not None
    common_optimizer = member.optimizer()
    parameters = list(columns.common.parameters())
    anchor = [parameter.detach().clone() for parameter in parameters] if config.proximal else []
    losses = torch.zeros((), device=member.device)
    joint_losses = torch.zeros((), device=member.device)
    stepping = member.stepping
    allowed = stepping is None or stepping.allowed(config.local_epochs)
    for _ in range(config.local_epochs):  # line 12
        for rows_B, x_common, x_unique, labels_B in member.next_pass():  # line 13
            common_optimizer.zero_grad()
            if stepping is None:
                loss = member.loss(columns.common(x_common), labels_B)
                loss.backward()
            elif allowed:
                loss = stepping.gradient(
                    columns.common, member.row_loss, rows_B, x_common, labels_B
                )
            else:
                with torch.no_grad():
                    loss = member.loss(columns.common(x_common), labels_B)
            if allowed:
                if config.proximal:
                    pull(parameters, anchor, config.proximal)
                common_optimizer.step()  # line 14
            losses += loss.detach()
            if member.unique_optimizer is None:
                joint_losses += loss.detach()
                continue
            with torch.no_grad():  # the common column is fixed: no gradient reaches it
                z_common = columns.common.outputs(x_common)
            joint_loss = member.loss(columns.joint(x_unique, z_common), labels_B)
            member.unique_optimizer.zero_grad()
            joint_loss.backward()
            member.unique_optimizer.step()  # lines 15 and 16
            joint_losses += joint_loss.detach()
    num_steps = config.local_epochs * member.batches.steps_per_pass
    return losses.item() / num_steps, joint_losses.item() / num_steps


# --- What the coordinator executes: Algorithm 2 ------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Round(BaseRound):
    """What one round did, with the losses' means over its participants in ``told``.

    Attributes:
        accuracies: member -> accuracy on its validation rows.
        participants: members whose common column is in the average; of a secret sum that failed,
            none: theta_c is as it was before.
    """

    accuracies: Mapping[str, float]
    participants: tuple[str, ...]


class Coordinator(Driver):
    """Drives a run, and has no data: theta_c, who takes part, and which round was the best.

    A round closes at its deadline with those who answered; who did not is asked again in the next.

    Args:
        config: the run's settings.
        seed: of everything random here and at the members.
    """

    saved = (
        "opening",
        "num_common",
        "common_P",
        "num_rows",
        "current",
        "best",
        "best_figure",
        "best_of",
        "improved",
        "resting",
        "rng",
        "accuracies",
    )

    def __init__(self, config: Config, *, seed: int) -> None:
        self.config = config
        self.seed = seed
        self.num_rounds = config.rounds  # line 2
        self.opening: tuple[tuple[str, ...], str] = ((), "")  # common columns, their encoding
        self.num_common = 0
        self.common_P = torch.empty(0)
        self.num_rows: dict[str, int] = {}
        self.current: tuple[str, ...] = ()  # members that have theta_c as it is now
        self.best = 0
        self.best_figure = -math.inf  # what rounds are compared by: mean accuracy, or less the loss
        self.best_of: dict[str, float] = {}
        self.accuracies: dict[str, float] = {}  # of the best round
        self.improved = 0  # the last round in which what counts got better
        self.resting: tuple[str, ...] = ()  # members whose loss cost the last secret sum
        self.refused = 0  # rounds in a row in which nobody shared
        self.rng = generator(seed, "participation")

    def initial(self, num_common: int, num_outputs: int) -> None:
        """Draw theta_c^0."""
        self.num_common = num_common
        with RandomStream(self.seed, "common column"):
            column = Column.build(num_common, self.config.widths, num_outputs)
        self.common_P = vector_of(column).cpu()

    def participants(self, members: Sequence[str]) -> tuple[str, ...]:
        """Who takes part in the next round."""
        least = MIN_MEMBERS if self.config.secure else 1
        num = max(least, round(self.config.participation * len(members)))
        if num >= len(members):
            return tuple(members)
        chosen = torch.randperm(len(members), generator=self.rng)[:num].sort().values
        return tuple(members[place] for place in chosen.tolist())

    def weights_of(self, members: Sequence[str]) -> dict[str, float]:
        """Each member's weight in the average; they sum to 1."""
        if self.config.weights == "even":
            return dict.fromkeys(members, 1 / len(members))
        rows = sum(self.num_rows[member] for member in members)
        return {member: self.num_rows[member] / rows for member in members}

    def note(self, number: int, scored: Mapping[str, Scored]) -> dict[str, float]:
        """Mean accuracy after this round, and loss where that counts; remembers the best.

        The loss is a mean over rows, so that a member of five does not count as one of fifty.

        Args:
            number: of the round.
            scored: member -> of its validation rows, of those who have some.
        """
        choose = self.config.choose
        if not scored:
            self.improved = self.best = number  # nothing to stop or to choose by
            return {}
        accuracies = {member: reply.accuracy for member, reply in scored.items()}
        means = {"validation": sum(accuracies.values()) / len(accuracies)}
        figure = means["validation"]
        if choose == "loss":
            rows = sum(reply.num_rows for reply in scored.values())
            means["validation_loss"] = (
                sum(reply.loss * reply.num_rows for reply in scored.values()) / rows
            )
            figure = -means["validation_loss"]
        if choose == "each":
            for member, own in accuracies.items():
                if own > self.best_of.get(member, -1.0):
                    self.best_of[member] = own
                    self.improved = number
        if choose == "last":
            self.best = number
        if figure > self.best_figure:
            self.best_figure = figure
            if choose != "last":
                self.best = number
            if choose != "each":
                self.improved = number
        if self.best == number:
            self.accuracies = accuracies
        return means

    def begin(self, network: Engine) -> None:
        """Find the common columns, agree on their encoding, and send theta_c^0.

        Raises:
            ConfigError: no common column, label sets that differ, columns of different types.
            PartyError: a member cannot begin.
        """
        members = network.parties
        if not members:
            raise ConfigError("there is no member to train with; name at least one party")
        asked = network.ask(dict.fromkeys(members, Describe()), Description)
        described = asked.fitting().or_raise()
        self.opening = agree_on(described, self.config)
        self.num_rows = {member: described[member].num_rows for member in members}
        strangers = [name for name in self.config.by_party if name not in members]
        if strangers:
            raise ConfigError(
                f"by_party has settings of {strangers[0]!r}, who is no member; they are "
                f"{list(members)}"
            )
        requests = {member: self._begin(member) for member in members}
        ready = network.ask(requests, Ready).or_raise()
        first = members[0]
        if self.config.method != "local":
            for member, reply in ready.items():
                if reply.num_common != ready[first].num_common or reply.num_common < 1:
                    raise PartyError(
                        member,
                        f"its common columns make {reply.num_common} features, those of {first!r} "
                        f"{ready[first].num_common}",
                    )
            self.initial(ready[first].num_common, len(described[first].classes))
        self.send_average(0, members, network).or_raise()

    def _begin(self, member: str) -> Begin:
        return Begin(self.config.of(member).model_dump_json(), self.seed, *self.opening)

    def begin_again(self, behind: Mapping[str, int], network: Engine) -> None:
        """Who is behind gets theta_c before it trains; who has nothing begins anew."""
        self.current = tuple(name for name in self.current if name not in behind)
        lost = [name for name, step in behind.items() if not step]
        if lost:
            network.ask({member: self._begin(member) for member in lost}, Ready)

    def ended(self, number: int) -> bool:
        """Whether the rounds no longer improve."""
        patience = self.config.patience
        return patience is not None and number - self.improved > patience

    def round(self, number: int, network: Engine) -> Round:
        """One round of Algorithm 2.

        Raises:
            TrainingError: nobody answered.
        """
        config, timeout_s = self.config, self.config.timeout_s
        missed: dict[str, str] = {}
        chosen = self.participants(network.parties)
        stale = [member for member in chosen if member not in self.current]
        if stale:  # they missed the last average, or come back after a fall
            late = self.send_average(number - 1, stale, network)
            missed.update({member: failure.cause for member, failure in late.failures.items()})
        asked = [member for member in chosen if member in self.current]
        replies = network.ask(
            dict.fromkeys(asked, Train(number)), Trained, timeout_s=timeout_s
        )  # lines 3-6
        sent = config.method != "local" and not config.secure
        replies.fitting(P=len(self.common_P) if sent else 0)
        missed.update({member: failure.cause for member, failure in replies.failures.items()})
        participants = tuple(replies)
        if not participants:
            reasons = "; ".join(f"{member}: {why}" for member, why in missed.items())
            raise TrainingError(f"no member finished round {number} ({reasons})")
        if config.secure:
            participants = _sum_in_secret(number, participants, missed, self, network)
        elif config.method != "local":
            weights = self.weights_of(participants)
            mean_P = torch.zeros(len(self.common_P), dtype=torch.float64)
            for member in participants:
                mean_P.add_(replies[member].common_P.double(), alpha=weights[member])
            self.common_P = mean_P.float()  # line 7
        trained = [replies[member] for member in participants or replies]
        self.current = ()
        scored = self.send_average(number, network.parties, network)
        for member, failure in scored.failures.items():
            missed.setdefault(member, failure.cause)
        judging = {member: reply for member, reply in scored.items() if reply.num_rows}
        means = self.note(number, judging)
        accuracies = {member: reply.accuracy for member, reply in judging.items()}
        told = {
            "loss": sum(reply.loss for reply in trained) / len(trained),
            "joint_loss": sum(reply.joint_loss for reply in trained) / len(trained),
            "best": self.best,
            **means,
        }
        if not participants:
            told["skipped"] = True
        return Round(told=told, missed=missed, accuracies=accuracies, participants=participants)

    def send_average(self, number: int, members: Sequence[str], network: Engine) -> Replies[Scored]:
        """Give these members theta_c as it is now; their scores."""
        message = Average(number, self.best if self.best < number else 0, self.common_P)
        asked = dict.fromkeys(members, message)
        scored = network.ask(asked, Scored, timeout_s=self.config.timeout_s).fitting()
        self.current = (*self.current, *scored)
        return scored

    def finish(self, network: Engine) -> None:
        """Every member keeps the parameters that were chosen."""
        over = dict.fromkeys(network.parties, Finish(self.best))
        end(network, over, Finished, timeout_s=self.config.timeout_s)

    def judged(self, network: Engine) -> dict[str, float]:
        """Member -> the same as ``scores``, as it was told already."""
        return dict(self.accuracies)

    def scores(self) -> dict[str, dict[str, float]]:
        """Member -> its accuracy on its validation rows, in the round that was chosen."""
        return {member: {"validation": accuracy} for member, accuracy in self.accuracies.items()}


def agree_on(described: Mapping[str, Description], config: Config) -> tuple[tuple[str, ...], str]:
    """The columns that all offer, in the first member's order, and how raw ones are encoded.

    Raises:
        ConfigError: none, types that differ, or label sets that differ.
    """
    first, *others = described
    for member in others:
        if set(described[member].classes) != set(described[first].classes):
            odd = set(described[member].classes) ^ set(described[first].classes)
            if any("regression" in json.loads(each).get("kind", "") for each in _tables(odd)):
                raise ConfigError(
                    f"labels that are numbers are learned by one mean and scale, but {first!r} and "
                    f"{member!r} have {' and '.join(sorted(odd))}; give both the same "
                    "label_scale = [MEAN, SCALE] below [chfl] in their files"
                )
            said = {name: described[name].classes for name in (first, member)}
            texts = {name: [each.strip('"') for each in own] for name, own in said.items()}
            alike = "".join(f"; {each}" for each in spelled_alike(texts))
            raise ConfigError(
                f"all members need one label set (Eq. 3), but {sorted(odd)[0]} is a class at only "
                f"one of {first!r} and {member!r}; give both the same classes{alike}"
            )
        if described[member].classes != described[first].classes:
            raise ConfigError(
                f"{first!r} and {member!r} number their classes in different orders; sort both"
            )
    shared = set.intersection(*(set(own.columns) for own in described.values()))
    common = tuple(name for name in described[first].columns if name in shared)
    if not common and config.method == "local":
        return (), ""
    if not common:
        raise ConfigError(
            "the members have no common column (Eq. 4): "
            + "; ".join(
                f"{member!r} offers {list(own.columns)[:5]}" for member, own in described.items()
            )
            + ". Name the same columns as common at each"
        )
    kinds = {
        member: dict(zip(own.columns, own.kinds, strict=True)) for member, own in described.items()
    }
    for name in common:
        for member in others:
            if kinds[member][name] != kinds[first][name]:
                raise ConfigError(
                    f"the common column {name!r} holds {kinds[first][name]} at {first!r} but "
                    f"{kinds[member][name]} at {member!r}; make them one type, or leave it out of "
                    "the common columns"
                )
    try:
        summaries = {member: _summaries(own, common) for member, own in described.items()}
        encoder = agree(summaries, max_categories=config.max_categories)
    except DataError as error:
        raise ConfigError(str(error)) from None
    return common, json.dumps(encoder.to_json())


def _summaries(described: Description, names: Sequence[str]) -> dict[str, Summary]:
    """Column -> what this member's rows add to its encoding."""
    summaries: dict[str, Summary] = {}
    for name in names:
        place = described.columns.index(name)
        missing = int(described.missing_C[place])
        if described.kinds[place] == "categories":
            counts = {
                category: count
                for category, column, count in zip(
                    described.categories,
                    described.category_columns,
                    described.category_counts,
                    strict=True,
                )
                if column == place
            }
            summaries[name] = CategorySummary(counts, missing)
        else:
            mean, squares = float(described.means_C[place]), float(described.squares_C[place])
            summaries[name] = NumberSummary(int(described.counts_C[place]), missing, mean, squares)
    return summaries


def _sum_in_secret(
    number: int,
    members: tuple[str, ...],
    missed: dict[str, str],
    coordinator: Coordinator,
    network: Engine,
) -> tuple[str, ...]:
    """Line 7 under masks: who is in the sum; nobody where a member was lost in the midst of it.

    Then theta_c stays what it was: a member shares once in a round, as of two sums the difference
    would be somebody's values. Who was lost is left out of the next round's sum.

    Raises:
        TrainingError: fewer members are left than share in a sum.
    """
    timeout_s = coordinator.config.timeout_s
    rested = tuple(member for member in members if member not in coordinator.resting)
    if len(rested) >= MIN_MEMBERS:
        members = rested
    coordinator.resting = ()
    asked = dict.fromkeys(members, GiveKey(number))
    keys = network.ask(asked, PublicKey, timeout_s=timeout_s).fitting()
    missed.update({member: failure.cause for member, failure in keys.failures.items()})
    members = tuple(keys)
    if len(members) < MIN_MEMBERS:
        raise TrainingError(
            f"a secret sum needs three or more members, round {number} has {len(members)} left "
            f"({'; '.join(f'{name}: {why}' for name, why in missed.items())})"
        )
    weights = coordinator.weights_of(members)
    try:
        check_weights(tuple(weights.values()))
    except MessageError as cause:
        raise TrainingError(str(cause)) from None
    request = GiveShare(
        number,
        tuple(weights[member] for member in members),
        members,
        torch.stack([keys[member].key for member in members]),
        torch.cat([keys[member].proof for member in members]),
        tuple(len(keys[member].proof) for member in members),
    )
    replies = network.ask(dict.fromkeys(members, request), Share, timeout_s=timeout_s)
    replies.fitting(P=len(coordinator.common_P))
    lost = {member: failure.cause for member, failure in replies.failures.items()}
    shares = [reply.masked_P for reply in replies.values()]
    if not lost:
        coordinator.common_P = from_fixed(total(shares))
        coordinator.refused = 0
        return members
    missed.update(lost)
    if shares:
        coordinator.resting = tuple(lost)
        return ()
    coordinator.refused += 1  # rounds that were summed before, with others
    if coordinator.refused > MAX_REFUSED:
        raise TrainingError(
            f"no member shares in the secret sum of round {number} "
            f"({'; '.join(f'{name}: {why}' for name, why in lost.items())})"
        )
    return ()


def _bytes(data: bytes) -> Tensor:
    """(N,) uint8"""
    return torch.tensor(list(data), dtype=torch.uint8)
