"""APFed: partners help to train, the label owner predicts alone.

Liu, Wang, Wan, Zhang, Chen, Lu, Liu: "Active-Passive Federated Learning for Vertically
Partitioned Multi-view Data", arXiv:2409.04111v2.

One active party has labels. It turns each sample into a code and sends the code to passive
parties, who hold other columns of the same samples. Each of them scores the code by a loss of its
own and sends back how the code should move. After training the active party needs nobody.

    L = L_A + sum_p lambda_p L_p                              Eq. (8)
    dL/dh = dL_A/dh + sum_p lambda_p dL_p/dh                  Eq. (9)

    Paper       Here               Shape    Lives at
    x^A         Active.x           (N, ..)  active
    f_Theta_A   Active.encoder              active
    g_Theta_T   Active.head                 active
    h^A         code_BD            (B, D)   active; sent to every passive party
    x^p         Passive.shared     (N, ..)  passive p
    Theta_p     Passive.network             passive p: decoder (Eq. 12) or encoder (Eq. 13)
    h^p         own_BD             (B, D)   passive p
    dL_p/dh^A   gradient_BD        (B, D)   passive p; sent back to the active party
    lambda_p    Config.trade_off            active
    tau         PassiveConfig.temperature   passive p

    Letters: B rows of a minibatch, D code width (flattened), S shared samples.

Departures from the paper:
    - Eq. (12) leaves the norm open: it is the mean squared error.
    - Eq. (14) prints lambda for the temperature, which the text below it calls tau.
    - The head's dropout is not in the paper's Tables 3 and 4; ``runs/apfed`` sets 0.5, 0 leaves it
      out.
    - ``projection`` puts one linear layer before the contrast on each side; None is the paper.
    - Labels may be missing for some of the active party's rows. L_A then runs over labelled rows
      and each L_p over rows shared with p, labelled or not: a step draws a labelled batch and a
      shared batch. Where the two sets are the same rows it draws one batch, as in the paper.
    - Rows that only the active party has still train L_A, and each L_p uses the rows that p shares
      (pairwise). ``overlap = "common"`` is the paper: every loss runs over the set I of Eq. (1),
      the rows that all parties share.
    - With every lambda 0 training is bit for bit that of the active party alone; layers that keep
      statistics of what passes (batch normalisation) see the shared batches too, and are excepted.
    - ``codes`` and ``gradients`` bound and noise what leaves (``privacy/release.py``); the labels
      of L_A can be randomised (``label_epsilon``), codes be driven away from columns
      (``decorrelate``: squared distance correlation beside L_A), those of a class from each other
      (``spread``: potential energy beside L_A), and the model be trained by DP-SGD
      (``private``, ``private.py``). None of them is the paper's.
    - With ``validation`` a share of the labelled rows trains nothing: the model is that of the
      epoch with the least loss on them, and ``patience`` epochs without a better end the run. The
      paper trains for so many epochs and keeps the last; so do we where these would be few rows.
    - ``balance`` is not in the paper, whose lambda is one number for all steps, though gradients of
      partners and of the task shrink at different times: it makes them comparable in each step,
      and takes away what undoes the task's own step (Yu et al. 2020, "Gradient surgery").
    - A passive party that does not answer as asked is left out of that step, and asked again in
      the next.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from dovetail import federated
from dovetail.data import Alignment, Classification, Minibatches, PartyData, SharedRows, Task
from dovetail.errors import ConfigError, MessageError, PartyError, TrainingError
from dovetail.federated import Driver, Epoch, LeftOut, Party, handles
from dovetail.methods.apfed.private import Solo
from dovetail.methods.limits import NO_LIMITS, Limits, limits_of
from dovetail.models import (
    Convolutional,
    EncoderHead,
    EncoderHeadNetwork,
    EncoderSpec,
    Head,
    Model,
    OptimizerConfig,
    Perceptron,
    RandomStream,
    Secret,
    follow_back,
    generator,
    key_of,
    network_input,
    output_shape,
)
from dovetail.models.decisions import ClassWeights, class_weights, on, supervised_loss
from dovetail.network import (
    Checkpoint,
    Engine,
    InProcess,
    Integers,
    Message,
    Numbers,
    Replies,
    State,
    noted,
)
from dovetail.privacy import (
    PrivateSteps,
    Release,
    Releasing,
    distance_correlation,
    potential_energy,
    randomised,
    released_to,
)

_log = logging.getLogger(__name__)

# --- Hyper-parameters --------------------------------------------------------------------------


Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


#: Fewer validation rows than this cannot tell one epoch from another.
MIN_VALIDATION = 30


class Config(OptimizerConfig):
    """The active party's settings."""

    trade_off: Weight | Mapping[str, Weight] = 1.0  # lambda_p, Eq. (8); one for all, or by party
    epochs: int = Field(default=30, ge=1)  # passes over the rows
    batch_size: int = Field(default=64, ge=1)  # N' of Eq. (14)
    steps_per_epoch: int | None = Field(default=None, ge=1)  # None: one pass over labelled rows
    validation: float = Field(default=0.0, ge=0, lt=1)  # share of labelled rows; they choose when
    patience: int | None = Field(default=None, ge=1)  # stop after so many epochs without a better
    # rho: each partner's part of the encoder's gradient is made rho times as long as the task's
    # own, times trade_off, without what points against it; none: the trade_off alone, Eq. (8).
    balance: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    projection: int | None = Field(default=None, ge=1)  # width before the contrast; None: none
    overlap: Literal["pairwise", "common"] = "pairwise"  # common: train on the set I only, Eq. (1)
    # The largest row of a dL_p/dh, in multiples of dL_A/dh's median row at its largest so far.
    clip: float | None = Field(default=1e4, gt=0, allow_inf_nan=False)  # None: any
    loss_weights: ClassWeights | None = None  # of classes; a run's class_weights
    timeout_s: float | None = Field(default=None, gt=0)  # how long a step waits for an answer
    codes: Release | None = None  # how codes leave; None: as they are
    gradients: Release | None = None  # of classic vertical learning: how dl/dh^p leaves
    label_epsilon: float | None = Field(default=None, gt=0, allow_inf_nan=False)  # of all labels
    label_stages: int = Field(default=1, ge=1, le=20)  # T of LP-MST; of 1 the prior is even
    decorrelate: float | None = Field(default=None, ge=0, allow_inf_nan=False)  # codes from columns
    spread: float | None = Field(default=None, ge=0, allow_inf_nan=False)  # codes of a class apart
    # DP-SGD of encoder and head; all labelled rows then train, and the last epoch's model is kept
    private: PrivateSteps | None = None

    @model_validator(mode="after")
    def _rows_are_apart(self) -> Config:
        together = [
            name for name in ("decorrelate", "spread", "balance") if getattr(self, name) is not None
        ]
        if self.private is not None and together:
            raise ValueError(
                f"private cuts each row's own gradient, and {together[0]} makes it depend on the "
                "other rows of a batch; leave one of them out"
            )
        return self

    def weight(self, party: str) -> float:
        """lambda_p.

        Raises:
            ConfigError: trade-offs by party that leave this one out.
        """
        if not isinstance(self.trade_off, Mapping):
            return self.trade_off
        if party not in self.trade_off:
            raise ConfigError(
                f"trade_off names {sorted(self.trade_off)} but not party {party!r}; add its weight"
            )
        return self.trade_off[party]


class PassiveConfig(OptimizerConfig):
    """A passive party's own settings; they never leave it."""

    # Eq. (16) or Eq. (12); vicreg is not the paper's.
    loss: Literal["contrastive", "reconstruction", "vicreg"] = "contrastive"
    temperature: float = Field(default=1.0, gt=0)  # tau, Eq. (14)
    gradients: Release | None = None  # how dL_p/dh leaves; None: as it is
    codes: Release | None = None  # of classic vertical learning: how its codes leave


# --- What crosses the boundary -----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Begin(Message):
    """Active -> passive: training starts; what codes will look like.

    ``projected_width`` is 0 where codes are not projected. ``seed`` makes the run repeatable, where
    the passive party's home mixes the same secret in.
    """

    code_shape: tuple[int, ...]
    projected_width: int
    seed: int


@dataclass(frozen=True, eq=False)
class Ready(Message):
    """Passive -> active: ready, and whether it wants codes projected (it contrasts) or whole.

    Beside it what its policy answers: about so many different samples or more in one message, and
    so often about one sample in the run (0: any number of times).
    """

    projected: bool
    min_rows: int = NO_LIMITS.min_rows
    max_uses: int = NO_LIMITS.max_uses


@dataclass(frozen=True, eq=False)
class Codes(Message):
    """Active -> passive: h^A of these shared samples (line 4)."""

    samples_B: Integers  # places in the shared order
    code_BD: Numbers  # looked at where its loss is not finite


@dataclass(frozen=True, eq=False)
class CodeGradient(Message):
    """Passive -> active: dL_p/dh^A, how it wants those codes to move (line 7)."""

    gradient_BD: Numbers  # looked at with its bound


# --- What a passive party executes -------------------------------------------------------------


#: A code of a smaller norm counts as one of this norm in Eq. (15). Of zeros (all ReLUs off) there
#: is no cosine, and its gradient would be divided by 1e-12. With this one, such rows of the demo
#: get up to 600 times what the task gives a row: far below ``Config.clip``, which accuses.
MIN_NORM = 1e-2

#: Whom a passive party's gradients are for, in its account.
_ACTIVE = "the active party"

#: No code that a network gives has larger numbers, unless it, or whoever sends it, is out of hand.
MAX_CODE = 1e6


def contrastive_loss(code_BD: Tensor, own_BD: Tensor, temperature: float) -> Tensor:
    """Mean over the batch of Eq. (14), with the cosine similarity of Eq. (15).

    Row i is pulled to the passive party's code of the same sample and pushed from both parties'
    codes of every other sample. Cost: 2 B^2 D.
    """
    code_BD = F.normalize(code_BD, dim=1, eps=MIN_NORM)
    own_BD = F.normalize(own_BD, dim=1, eps=MIN_NORM)
    across_BB = code_BD @ own_BD.T / temperature
    within_BB = code_BD @ code_BD.T / temperature
    itself = torch.eye(len(code_BD), dtype=torch.bool, device=code_BD.device)
    within_BB = within_BB.masked_fill(itself, -torch.inf)  # 1[j != i]
    logits = torch.cat([across_BB, within_BB], dim=1)
    return F.cross_entropy(logits, torch.arange(len(code_BD), device=logits.device))  # Eq. (16)


def vicreg_loss(code_BD: Tensor, own_BD: Tensor) -> Tensor:
    """Bardes, Ponce, LeCun 2022, Eq. (6), divided by its 25: both codes of a sample are to be one.

    Each number of a code is to vary over the batch (standard deviation 1 or more), and no two of
    them together. No other sample is pushed away, so that samples of one class may be alike.
    """
    loss = F.mse_loss(code_BD, own_BD)
    if len(code_BD) < 2:  # nothing varies
        return loss
    for each_BD in (code_BD, own_BD):
        centred_BD = each_BD - each_BD.mean(dim=0)
        spread_D = (centred_BD.square().sum(dim=0) / (len(each_BD) - 1) + 1e-4).sqrt()
        covariance_DD = centred_BD.T @ centred_BD / (len(each_BD) - 1)
        off_DD = covariance_DD - covariance_DD.diag().diag()
        loss = loss + F.relu(1 - spread_D).mean()
        loss = loss + 0.04 * off_DD.square().sum() / each_BD.shape[1]
    return loss


def reconstruction_loss(x_hat: Tensor, x: Tensor) -> Tensor:
    """Eq. (12) with the mean squared error."""
    return F.mse_loss(x_hat, x)


#: The widest code a passive party accepts: 64 MiB a row.
MAX_CODE_WIDTH = 2**24

#: The most that a network may take whose size ``Begin`` sets: a decoder's or a projection's
#: parameters. Measured before anything of that size is made; a function that makes the network is
#: the party's own code, and sees the code's shape for itself.
MAX_PARAMETER_BYTES = 2**28

#: Makes a passive party's network from the shapes of a code and of its own rows.
NetworkFactory = Callable[[tuple[int, ...], tuple[int, ...]], nn.Module]


class Passive(Party):
    """A party that helps: holds columns, no labels; a black box to the active party.

    Args:
        shared: its rows by shared sample.
        config: its own settings.
        network: its encoder (contrastive) or decoder (reconstruction): a spec, a module of your
            own, or a function from (code shape, shape of its rows) to a module.
        device: where it computes.
        secret: of its home, mixed into all it draws; None in simulation.
    """

    has_local = False

    saved = ("network", "optimizer", "random", "released")

    def __init__(
        self,
        shared: SharedRows,
        config: PassiveConfig,
        network: EncoderSpec | nn.Module | NetworkFactory,
        *,
        device: torch.device | None = None,
        secret: Secret | None = None,
    ) -> None:
        self.name = shared.party
        self.shared = shared
        self.config = config
        self.device = device or torch.device("cpu")
        self._make = network
        self._secret = secret
        self.network: nn.Module | None = None
        self.released: Releasing | None = None

    def sizes(self) -> dict[str, int]:
        """D, the width of codes."""
        return {} if self.network is None else {"D": self._width}

    @handles
    def begin(self, begin: Begin) -> Ready:
        """Make its network."""
        width = max(math.prod(begin.code_shape), begin.projected_width)
        if (
            not begin.code_shape
            or min(begin.code_shape) < 1
            or begin.projected_width < 0
            or width > MAX_CODE_WIDTH
        ):
            raise MessageError(
                f"{begin.wire_name()}: no codes have shape {begin.code_shape} and projected width "
                f"{begin.projected_width}"
            )
        projected = self.config.loss != "reconstruction" and begin.projected_width > 0
        self.random = RandomStream(
            begin.seed, self.name, "passive", secret=key_of(self._secret), device=self.device
        )
        with self.random:
            self.network = self._build(begin).to(self.device)
        self.network.train()
        self._width = begin.projected_width if projected else math.prod(begin.code_shape)
        self.optimizer = self.config.build(self.network.parameters())
        if self.config.gradients is not None:
            rng = generator(begin.seed, self.name, "released") if self._secret is None else None
            what = f"gradients of {self.name!r}"
            # Of a driver that has it begin again or go back, no release is forgotten.
            self.released = Releasing(self.config.gradients, what, rng, before=self.released)
        return Ready(projected)

    def _build(self, begin: Begin) -> nn.Module:
        row_shape = tuple(self.shared.x.shape[1:])
        made = self._make
        compares = self.config.loss != "reconstruction"
        if isinstance(made, nn.Module):
            network = made
        elif isinstance(made, Perceptron | Convolutional) and compares:
            network = made.encoder(row_shape)
        elif isinstance(made, Perceptron | Convolutional):
            with torch.device("meta"):  # takes no memory, and draws no random number
                sizes = made.decoder(begin.code_shape, row_shape).parameters()
            _check_size(begin, sum(each.nbytes for each in sizes))
            network = made.decoder(begin.code_shape, row_shape)
        else:
            network = made(begin.code_shape, row_shape)
        if not compares:
            return network
        width = math.prod(output_shape(network, row_shape, torch.device("cpu")))
        if begin.projected_width:
            _check_size(begin, 4 * (width + 1) * begin.projected_width)
            return nn.Sequential(network, nn.Flatten(), nn.Linear(width, begin.projected_width))
        code_width = math.prod(begin.code_shape)
        if width != code_width:
            raise ConfigError(
                f"the contrast compares codes of one width: the active party's is {code_width}, "
                "that of this party's encoder is another; change the encoder's last width, or set "
                "projection at the active party"
            )
        return network

    @handles
    def gradient(self, codes: Codes) -> CodeGradient:
        """How it wants these codes to move, at its parameters before their update."""
        x = network_input(self.shared[codes.samples_B], self.device)
        code_BD = codes.code_BD.detach().to(self.device).requires_grad_()  # line 3
        if len(code_BD) and MAX_CODE < codes.code_BD.abs().max() < math.inf:
            raise TrainingError(f"it was sent codes above {MAX_CODE:g}")
        # With the contrast a row moves the gradients of all rows of its message.
        times = len(code_BD) if self.config.loss == "contrastive" else 1
        if self.released is not None and not self.released.allowed(
            _ACTIVE, codes.samples_B, times=times
        ):
            raise PartyError(self.name, "has spent its budget of epsilon, and answers no more")
        with self.random:
            loss = self.loss(code_BD, x)  # line 4, Eq. (7)
        if not loss.isfinite():
            if not code_BD.isfinite().all():
                raise TrainingError("it was sent codes that are not finite")
            _log.warning(
                "party %r: its %s loss is %s; lower its learning_rate (%s)",
                self.name,
                self.config.loss,
                loss.item(),
                self.config.learning_rate,
            )
            raise TrainingError("its loss is not finite; lower its learning_rate")
        self.optimizer.zero_grad()
        loss.backward()  # lines 6 and 8: dL_p/dh at the parameters before their update
        self.optimizer.step()  # Eq. (10)
        assert code_BD.grad is not None
        if self.released is not None:
            noised_BD = self.released(_ACTIVE, codes.samples_B, code_BD.grad, times=times)
            return noted(CodeGradient(noised_BD), self.released.cost(_ACTIVE))
        return CodeGradient(code_BD.grad)

    def loss(self, code_BD: Tensor, x: Tensor) -> Tensor:
        """L_p of a batch, Eq. (7); its L2 term is the optimizer's weight decay."""
        assert self.network is not None
        if self.config.loss != "reconstruction":
            own_BD = self.network(x).flatten(1)  # Eq. (13)
            if self.config.loss == "vicreg":
                return vicreg_loss(code_BD, own_BD)
            return contrastive_loss(code_BD, own_BD, self.config.temperature)
        return reconstruction_loss(self.network(code_BD), x)

    def spent(self) -> list[dict[str, Any]]:
        """Its gradients, where they are noised."""
        return released_to(self.released, "gradients")


def _check_size(begin: Begin, num_bytes: int) -> None:
    """Refuse codes that would take more memory than they are worth."""
    if num_bytes > MAX_PARAMETER_BYTES:
        raise MessageError(
            f"{begin.wire_name()}: codes of shape {begin.code_shape} and projected width "
            f"{begin.projected_width} ask for a network of more than {MAX_PARAMETER_BYTES} bytes "
            "of parameters here"
        )


# --- What the active party executes ------------------------------------------------------------


@dataclass(frozen=True)
class Best:
    """The epoch of the least loss on validation rows so far; 0 before the first."""

    loss: float = math.inf
    epoch: int = 0
    weights: Mapping[str, Tensor] = field(default_factory=dict)


class Active(Driver):
    """The label owner: encoder, head and optimizer; after training, the model.

    Args:
        data: its rows and labels. Labels may be missing for some rows.
        alignment: rows by shared sample; None to learn alone.
        task: what the labels say.
        config: its settings.
        seed: of everything random here.
        encoder: a spec, or a module of your own.
        head: a spec, or a module of your own, from flattened codes to outputs.
        device: where it computes.
        secret: of its home, mixed into all it draws; None in simulation.

    Raises:
        ConfigError: no labelled row.
    """

    saved = (
        "networks",
        "optimizer",
        "random",
        "random_shared",
        "usual",
        "labelled",
        "shared",
        "wants_projected",
        "limits",
        "more",
        "released",
        "solo",
        "best",
    )

    def __init__(
        self,
        data: PartyData,
        alignment: Alignment | None,
        task: Task,
        config: Config,
        *,
        seed: int,
        encoder: EncoderSpec | nn.Module,
        head: Head | nn.Module,
        device: torch.device | None = None,
        secret: Secret | None = None,
    ) -> None:
        self.name = data.name
        self.task = task
        self.config = config
        self.seed = seed
        self.device = device or torch.device("cpu")
        self._key = key_of(secret)
        self.x = data.joined()
        self.block = next(iter(data.blocks)) if len(data.blocks) == 1 else "joined"
        self.input_shape = tuple(self.x.shape[1:])
        # Several blocks are joined, and nothing says how raw columns become what is joined.
        self.inputs = dict(data.inputs) if len(data.blocks) == 1 else {}
        self.label = data.label
        labelled = data.labelled_rows()
        if data.labels is None or not len(labelled):
            raise ConfigError(
                f"party {self.name!r} has no labelled row; the active party is the one with labels"
            )
        self.labels = data.labels.to(self.device)
        if config.spread and not isinstance(task, Classification):
            raise ConfigError(
                f"party {self.name!r}: spread is for classes, its label is a number; leave it out"
            )
        if config.label_epsilon is not None:
            self.labels = self._randomised(data.labels, task).to(self.device)
        self.released: Releasing | None = None
        if config.codes is not None:
            rng = generator(seed, self.name, "released") if secret is None else None
            self.released = Releasing(config.codes, f"codes of {self.name!r}", rng)
        weights_C = class_weights(config.loss_weights, task, self.labels)
        self.class_weights_C = on(self.device, weights_C)
        self.alignment = alignment
        self.left_out = LeftOut()
        self.spec: EncoderHead | None = None
        if not isinstance(encoder, nn.Module) and not isinstance(head, nn.Module):
            self.spec = EncoderHead(encoder, head, self.input_shape, task.num_outputs)
        with self._stream("networks"):
            self.encoder = (
                encoder if isinstance(encoder, nn.Module) else encoder.encoder(self.input_shape)
            ).to(self.device)
            self.code_shape = output_shape(self.encoder, self.input_shape, self.device)
            self.code_width = math.prod(self.code_shape)
            self.head = (
                head
                if isinstance(head, nn.Module)
                else head.build(self.code_width, task.num_outputs)
            ).to(self.device)
        self.projection: nn.Linear | None = None
        if config.projection:
            with RandomStream(seed, self.name, "projection", secret=self._key):
                self.projection = nn.Linear(self.code_width, config.projection).to(self.device)
        self.networks = nn.ModuleDict({"encoder": self.encoder, "head": self.head})
        if self.projection is not None:
            self.networks["projection"] = self.projection
        self.optimizer = config.build(self.networks.parameters())
        # Streams of their own, so that helpers change neither the labelled batches nor their
        # dropout: with every lambda 0, training is bit for bit that of the active party alone.
        self.random = self._stream("labelled")
        self.random_shared = self._stream("shared")
        # The largest median row of dL_A/dh so far, or a tenth of a row's share of a mean.
        self.usual = torch.tensor(0.1 / config.batch_size, device=self.device)
        self.cut: dict[str, int] = {}  # party -> rows of its gradients that were, in this epoch
        self.solo: Solo | None = None
        if config.private is not None:
            self.solo = Solo(
                config.private,
                self.name,
                task,
                len(self.x),
                encoder=self.encoder,
                head=self.head,
                projection=self.projection,
                weights_C=self.class_weights_C,
                rng=generator(seed, self.name, "private steps", secret=self._key),
                released=self.released,
            )
        self.validation_rows = self._draw_validation(labelled)
        self.best = Best()
        self._draw_labelled(labelled[~torch.isin(labelled, self.validation_rows)])

    def _randomised(self, labels: Tensor, task: Task) -> Tensor:
        """Labels by randomised response: nothing that leaves says more of them."""
        assert self.config.label_epsilon is not None
        if not isinstance(task, Classification):
            raise ConfigError(
                f"party {self.name!r}: label_epsilon is for classes, its label is a number; leave "
                "it out"
            )
        rng = generator(self.seed, self.name, "randomised labels", secret=self._key)
        x, stages = network_input(self.x), self.config.label_stages
        return randomised(
            labels, x, len(task.classes), self.config.label_epsilon, rng, stages=stages
        )

    def _stream(self, purpose: str) -> RandomStream:
        return RandomStream(self.seed, self.name, purpose, secret=self._key, device=self.device)

    def _batches(self, rows: Tensor, purpose: str, *, least: int = 1) -> Minibatches:
        # With the secret: who knew the order of batches would know where rows lie in the table.
        rng = generator(self.seed, self.name, purpose, secret=self._key)
        return Minibatches(rows, self.config.batch_size, rng, least=least)

    def _draw_validation(self, labelled: Tensor) -> Tensor:
        """The rows that choose the epoch; none where they would be too few."""
        # Which epoch is best would be one more thing told of rows, and is not counted.
        share = 0.0 if self.solo is not None else self.config.validation
        num_rows = round(share * len(labelled))
        if not MIN_VALIDATION <= num_rows < len(labelled):
            return labelled[:0]
        rng = generator(self.seed, self.name, "validation rows", secret=self._key)
        return labelled[torch.randperm(len(labelled), generator=rng)[:num_rows]].sort().values

    def _draw_labelled(self, rows: Tensor, *, least: int = 1) -> None:
        """From here on, labelled batches are drawn from these rows, no fewer than ``least``."""
        self._labelled_rows = rows
        self.labelled = self._batches(rows, "labelled batches", least=least)
        self.steps_per_epoch = self.config.steps_per_epoch or self.labelled.steps_per_pass

    def share(
        self, wants_projected: Mapping[str, bool], limits: Mapping[str, Limits] | None = None
    ) -> None:
        """Fix which rows are shared with whom, who wants projected codes, and what each answers.

        Called once, when passive parties are ready.

        Raises:
            ConfigError: nothing is shared with a party, or too little for its limits.
        """
        self.wants_projected = dict(wants_projected)
        self.limits = {party: (limits or {}).get(party, NO_LIMITS) for party in wants_projected}
        parties = tuple(wants_projected)
        if self.solo is not None and any(self.config.weight(party) for party in parties):
            self.solo.check_codes()
        self.sample_of_row: dict[str, Tensor] = {}  # (N,) each, -1 where not shared
        self.more: dict[str, Minibatches] = {}  # of who could be asked about too few rows
        self.shared: Minibatches | None = None  # None: the labelled batch serves
        if not parties:
            return
        if self.alignment is None:
            raise ConfigError("passive parties take part, so the active party needs an alignment")
        own_S = self.alignment.rows[self.name]
        common = self.alignment.shared(self.name, *parties)
        for party in parties:
            samples = (
                common
                if self.config.overlap == "common"
                else self.alignment.shared(self.name, party)
            )
            if not len(samples):
                raise ConfigError(
                    f"party {party!r} shares no sample with {self.name!r}"
                    + (" and all others" if self.config.overlap == "common" else "")
                    + "; check the id columns, or leave the party out"
                )
            self.sample_of_row[party] = torch.full((len(self.x),), -1)
            self.sample_of_row[party][own_S[samples]] = samples
        held = torch.stack([sample_N >= 0 for sample_N in self.sample_of_row.values()])
        shared = held.any(dim=0).nonzero().flatten()
        shared = shared[~torch.isin(shared, self.validation_rows)]
        if self.config.overlap == "common":
            labelled = self._labelled_rows[torch.isin(self._labelled_rows, shared)]
            if not len(labelled):
                raise ConfigError(
                    f"none of the {len(shared)} rows that all parties share has a label at "
                    f'{self.name!r}; overlap = "pairwise" trains on its other rows too'
                )
            self._draw_labelled(labelled)
        least = max(each.min_rows for each in self.limits.values())
        if not torch.equal(shared, self._labelled_rows):
            self.shared = self._batches(shared, "shared batches", least=least)
        elif least > 1:
            self._draw_labelled(self._labelled_rows, least=least)
        batches = self.shared or self.labelled
        passes = self.config.epochs * self.steps_per_epoch / batches.steps_per_pass
        for party, own in self.limits.items():
            rows = (self.sample_of_row[party] >= 0).nonzero().flatten()
            own.check_run(party, len(rows), batch_size=self.config.batch_size, passes=passes)
            if own.min_rows > 1 and len(rows) < len(shared):
                rng = generator(self.seed, self.name, "more rows", party, secret=self._key)
                self.more[party] = Minibatches(rows, 1, rng)

    def codes_to_send(self, rows_B: Tensor, code_BD: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Party -> (samples, their codes with graph), of this step's shared batch.

        The shared batch is the labelled one where both are drawn from the same rows.
        """
        if self.shared is not None:
            rows_B = next(self.shared)
            with self.random_shared:
                code_BD = self.encode(rows_B)
        projected_BD = code_BD
        if self.projection is not None and any(self.wants_projected.values()):
            projected_BD = self.projection(code_BD)
        sent = {}
        for party, wants in self.wants_projected.items():
            samples_B = self.sample_of_row[party][rows_B]
            held = samples_B >= 0
            code = projected_BD if wants else code_BD
            if held.all():
                sent[party] = samples_B, code
            elif held.any():
                sent[party] = samples_B[held], code[held.to(self.device)]
                if len(sent[party][0]) < self.limits[party].min_rows:
                    sent[party] = self._with_more(party, *sent[party], wants=wants)
        if self.released is not None:
            sent = {
                party: (samples, self.released(party, samples, code))
                for party, (samples, code) in sent.items()
                if self.released.allowed(party, samples)
            }
        return sent

    def _with_more(
        self, party: str, samples_B: Tensor, code_BD: Tensor, *, wants: bool
    ) -> tuple[Tensor, Tensor]:
        """A question with as many more of the party's rows as its limits ask for."""
        known = set(samples_B.tolist())
        rows: list[Tensor] = []
        while len(known) < self.limits[party].min_rows:
            row = next(self.more[party])
            sample = int(self.sample_of_row[party][row])
            if sample not in known:
                known.add(sample)
                rows.append(row)
        more = torch.cat(rows)
        with self.random_shared:
            code = self.encode(more)
        if wants and self.projection is not None:
            code = self.projection(code)
        return torch.cat([samples_B, self.sample_of_row[party][more]]), torch.cat([code_BD, code])

    def rows_of(self, samples_B: Tensor) -> Tensor:
        """The rows of these shared samples."""
        assert self.alignment is not None
        return self.alignment.rows[self.name][samples_B]

    def is_projected(self, party: str) -> bool:
        """Whether its codes are projected before they leave."""
        return self.projection is not None and self.wants_projected[party]

    def measure(self, gradient_BD: Tensor) -> None:
        """Remember how large rows of dL_A/dh are: what others' are compared with."""
        if self.config.clip is not None:
            rows_B = torch.linalg.vector_norm(gradient_BD, math.inf, dim=1)
            self.usual = torch.maximum(self.usual, rows_B.median())

    def bounded(self, party: str, gradient_BD: Tensor) -> Tensor:
        """A partner's gradient; rows out of bounds are cut off, and it is named.

        Raises:
            MessageError: it is not finite.
        """
        rows_B = torch.linalg.vector_norm(gradient_BD, math.inf, dim=1)
        bound = math.inf if self.config.clip is None else self.config.clip * self.usual
        if bool((rows_B <= bound).all()) and (self.config.clip or rows_B.isfinite().all()):
            return gradient_BD
        if not rows_B.isfinite().all():
            raise MessageError(f"{CodeGradient.wire_name()}: the gradient is not finite")
        beyond_B = rows_B > bound
        if party not in self.cut:
            _log.warning(
                "party %r: %d rows of its gradient are up to %.3g, more than apfed.clip = %g times "
                "the task's own; they are cut off, here and from now on",
                party,
                int(beyond_B.sum()),
                rows_B.max(),
                self.config.clip,
            )
        self.cut[party] = self.cut.get(party, 0) + int(beyond_B.sum())
        # To nothing: at the bound, which is generous, they would still push codes far away.
        return gradient_BD.masked_fill(beyond_B.unsqueeze(1), 0.0)

    def balance(self, helps: Sequence[tuple[float, Tensor, Tensor]]) -> None:
        """Add the partners' parts to the encoder's gradient, each rho times as long as it is.

        A part whose product with the task's gradient is negative loses what points against it.
        """
        networks = [self.encoder] if self.projection is None else [self.encoder, self.projection]
        weights = [[w for w in each.parameters() if w.requires_grad] for each in networks]
        own = [torch.zeros_like(w) if w.grad is None else w.grad.clone() for w in weights[0]]
        task_norm = torch.stack([each.norm() for each in own]).norm()
        for weight, code, gradient in helps:
            if not weight:
                continue
            every = [w for each in weights for w in each]
            found = torch.autograd.grad(
                code, every, gradient, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            part = found[: len(own)]
            norm = torch.stack([each.norm() for each in part]).norm()
            if not norm or not task_norm:
                continue
            against = sum((a * b).sum() for a, b in zip(part, own, strict=True)) / task_norm**2
            scale = weight * (self.config.balance or 0.0) * task_norm / norm
            for w, each in zip(every, found, strict=True):
                w.grad = each * scale if w.grad is None else w.grad.add_(each * scale)
            if against < 0:
                for w, each in zip(weights[0], own, strict=True):
                    assert w.grad is not None
                    w.grad.sub_(each * (against * scale))

    def encode(self, rows_B: Tensor) -> Tensor:
        """(B, D) codes h^A of these rows, Eq. (5), with their graph."""
        code: Tensor = self.encoder(network_input(self.x[rows_B], self.device))
        return code.flatten(1)

    def task_loss(self, code_BD: Tensor, rows_B: Tensor) -> Tensor:
        """L_A, Eq. (6): cross entropy or squared error; its L2 terms are the weight decay."""
        outputs = self.head(code_BD)
        target = self.labels[rows_B.to(self.device)]
        return supervised_loss(self.task, outputs, target, self.class_weights_C)

    def judge(self, number: int) -> None:
        """Keep these networks if no epoch before did better on the validation rows."""
        if not len(self.validation_rows):
            return
        self.networks.eval()
        with torch.no_grad():
            parts = self.validation_rows.split(4096)
            losses = [self.task_loss(self.encode(rows), rows) * len(rows) for rows in parts]
        self.networks.train()
        loss = float(torch.stack(losses).sum()) / len(self.validation_rows)
        if loss < self.best.loss:
            weights = {n: w.detach().clone() for n, w in self.networks.state_dict().items()}
            self.best = Best(loss, number, weights)

    def ended(self, number: int) -> bool:
        """Whether epoch ``number`` comes too long after the best, or is not paid for."""
        patience = self.config.patience
        if self.solo is not None:
            return not self.solo.pays(*self._visits())
        return bool(patience and self.best.epoch and number - self.best.epoch > patience)

    def _visits(self) -> tuple[int, int]:
        """The most that an epoch visits a row, and sends its codes, to all partners together."""

        def most(batches: Minibatches) -> int:
            passes, rest = divmod(self.steps_per_epoch, batches.steps_per_pass)
            return passes + (2 if rest else 0)

        visits = most(self.labelled)
        if self.shared is None:
            return visits, visits * len(self.wants_projected)
        sent = most(self.shared)
        more = sum(most(each) * self.limits[party].min_rows for party, each in self.more.items())
        return visits + sent + more, sent * len(self.wants_projected) + more

    def model(self) -> Model:
        """The best model so far, or as it is now: predicts alone, Eq. (11)."""
        encoder, head = self.encoder, self.head
        if self.best.epoch:
            networks = copy.deepcopy(self.networks)
            networks.load_state_dict(self.best.weights)
            encoder, head = networks["encoder"], networks["head"]
        return Model(
            party=self.name,
            task=self.task,
            network=EncoderHeadNetwork(encoder, head),
            spec=self.spec,
            shapes={self.block: self.input_shape},
            inputs=self.inputs,
            about={"method": "apfed", "seed": self.seed}
            | ({} if self.label is None else {"label": self.label}),
        )

    def restore(self, state: State) -> None:
        """Go on from there, with the same passive parties."""
        limits = {party: Limits(**own) for party, own in state["limits"].items()}
        self.share(state["wants_projected"], limits)
        super().restore(state)

    def spent(self) -> list[dict[str, Any]]:
        """Its codes, where they are noised, and its model."""
        model = {} if self.solo is None else self.solo.told()
        told = [{"to": "who has it", "what": "the solo model", **model}] if model else []
        return told + released_to(self.released, "codes")

    # --- What the driver executes: Algorithm 1 --------------------------------------------------

    @property
    def num_rounds(self) -> int:  # type: ignore[override]
        """Epochs."""
        return self.config.epochs

    def begin(self, network: Engine) -> None:
        """Open the run with every passive party.

        Raises:
            PartyError: one cannot begin.
        """
        for party in network.parties:
            self.config.weight(party)  # a missing trade-off is found before any work
        ready = _ask_to_begin(self, network, network.parties).or_raise()
        self.share({party: each.projected for party, each in ready.items()}, limits_of(ready))

    def begin_again(self, behind: Mapping[str, int], network: Engine) -> None:
        """One that lost its disk helps again, from its beginning."""
        lost = tuple(name for name, done in behind.items() if not done)
        for failure in _ask_to_begin(self, network, lost).failures.values() if lost else ():
            _log.warning("it does not begin anew: %s", failure)

    def round(self, number: int, network: Engine) -> Epoch:
        """All steps of one epoch.

        Raises:
            TrainingError: L_A is no longer finite.
        """
        total = 0.0
        missed: dict[str, int] = {}
        reasons: dict[str, str] = {}
        for place in range(1, self.steps_per_epoch + 1):
            loss, failures = step(self, network)
            if not math.isfinite(loss):
                raise TrainingError(
                    f"party {self.name!r}: its loss is {loss} in epoch {number}, step {place}; "
                    f"lower its learning_rate ({self.config.learning_rate}) or trade_off"
                )
            total += loss
            for party, failure in failures.items():
                missed[party] = missed.get(party, 0) + 1
                reason = f"epoch {number}, step {place}: {failure.cause}"
                reasons.setdefault(party, reason)
                self.left_out.tell(party, reason, network)
        self.judge(number)
        cut = {party: count for party, count in self.cut.items() if count}
        self.cut = dict.fromkeys(self.cut, 0)
        num_steps = self.steps_per_epoch
        return Epoch(
            told={"loss": total / num_steps},
            num_steps=num_steps,
            missed=missed,
            reasons=reasons,
            cut=cut,
        )


def train(
    active: Active, network: Engine | None = None, checkpoint: Checkpoint | None = None
) -> Iterator[Epoch]:
    """Trains epoch by epoch; between them ``active.model()`` is the model so far.

    Args:
        active: the label owner, which drives.
        network: reaches the passive parties; None trains alone ("SingleVL" in the paper).
        checkpoint: saves each epoch, and goes on from what it saved; None saves nothing.

    Raises:
        PartyError: a passive party cannot begin.
        TrainingError: L_A is no longer finite.
    """
    return federated.train(active, network or InProcess({}, driver=active.name), checkpoint)


def _ask_to_begin(active: Active, network: Engine, parties: tuple[str, ...]) -> Replies[Ready]:
    message = Begin(active.code_shape, active.config.projection or 0, active.seed)
    return network.ask(dict.fromkeys(parties, message), Ready)


def step(active: Active, network: Engine) -> tuple[float, dict[str, PartyError]]:
    """One step of Algorithm 1: L_A of its batch, and the parties that were left out."""
    rows_B = next(active.labelled)
    with active.random:
        code_BD = active.encode(rows_B)  # line 3
    sent = active.codes_to_send(rows_B, code_BD)
    requests = {party: Codes(samples, code.detach()) for party, (samples, code) in sent.items()}
    if active.released is not None:
        for party, request in requests.items():
            noted(request, active.released.cost(party))
    pending = network.send(requests, CodeGradient, timeout_s=active.config.timeout_s)  # line 4

    # While the passive parties work.
    leaf_BD = code_BD.detach().requires_grad_()
    with active.random:
        loss = active.task_loss(leaf_BD, rows_B)  # line 5
    active.optimizer.zero_grad()
    apart = loss
    if active.config.decorrelate:
        own_BF = network_input(active.x[rows_B], active.device)
        apart = loss + active.config.decorrelate * distance_correlation(own_BF, leaf_BD)
    if active.config.spread:
        labels_B = active.labels[rows_B.to(active.device)]
        apart = apart + active.config.spread * potential_energy(leaf_BD, labels_B)
    apart.backward()  # line 7: dL_A/dh, and the head's gradient
    assert leaf_BD.grad is not None
    if active.solo is None:  # of which nothing may follow from rows but what is noised
        active.measure(leaf_BD.grad)

    replies = pending.replies()  # line 8
    codes, gradients = [code_BD], [leaf_BD.grad]
    helps: list[tuple[float, Tensor, Tensor]] = []  # weight, code and its gradient, to be balanced
    returned: list[tuple[Tensor, Tensor, bool]] = []  # of DP-SGD: rows, lambda_p dL_p/dh, projected
    for party, reply in replies.items():
        code = sent[party][1]
        try:
            gradient = active.bounded(party, _checked(reply, code))
        except MessageError as cause:
            replies.failures[party] = PartyError(party, str(cause))
            continue
        weight = active.config.weight(party)
        if active.solo is not None:
            rows = active.rows_of(sent[party][0])
            returned.append((rows, weight * gradient, active.is_projected(party)))
        elif active.config.balance is not None:
            helps.append((weight, code, gradient))
        elif code is code_BD:
            gradients[0].add_(gradient, alpha=weight)  # line 9, Eq. (9)
        else:  # rows of the batch, or projected: autograd adds it where the graphs meet
            codes.append(code)
            gradients.append(weight * gradient)
    if active.solo is not None:
        active.optimizer.zero_grad()
        columns = network_input(active.x[rows_B], active.device)
        with active.random:
            active.solo.step(
                (rows_B, columns, active.labels[rows_B.to(active.device)]), returned, active.x
            )
    else:
        follow_back(codes, gradients, retain_graph=bool(helps))
        active.balance(helps)
    active.optimizer.step()  # line 10, Eq. (10)
    return loss.item(), replies.failures


def _checked(reply: CodeGradient, code_BD: Tensor) -> Tensor:
    """The gradient, on the code's device, if it is one: a party that lies is left out."""
    num_rows, width = code_BD.shape
    reply.check(B=num_rows, D=width)
    return reply.gradient_BD.to(code_BD.device)
