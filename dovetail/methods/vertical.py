"""Classic vertical federated learning: trains together, and must predict together.

The baseline of the APFed paper (Liu et al., arXiv:2409.04111v2, Section 2; "TVFL" in its Table 2).
Every party encodes its own columns, one party with labels holds the task module over all codes.

    h^p = f_Theta_p(x^p)                                       Eq. (2)
    L = mean_i l(g_Theta_S({h_i^p}), y_i)                      Eq. (3)
    y' = g_Theta_S({f_Theta_p(x^p)})                           Eq. (4)

    Paper       Here              Shape      Lives at
    x^p         Member.shared     (N, ..)    party p
    f_Theta_p   Member.encoder               party p
    h^p         code_BD           (B, D_p)   party p; sent to the label owner
    g_Theta_S   Owner.head                   label owner
    dl/dh^p     gradient_BD       (B, D_p)   label owner; sent back to party p

    Letters: B rows of a minibatch, D_p code width of party p (flattened).

When partners are gone, their codes are replaced (Section 5.1): by zeros (TVFL-0), by the average
of the label owner's own codes (TVFL-A), or by random values (TVFL-R).

Departures from the paper:
    - The label owner holds columns too and plays the server, as in the paper's experiments.
    - Section 5.1 leaves open over what -A averages and what -R draws: the mean runs over the
      label owner's training rows, and values are standard normal. Where code widths differ, -A
      repeats the mean's own average.
    - Only rows with a label that every party has are trained on.
    - Codes and gradients can be cut and noised row by row (``privacy/release.py``); where a budget
      is spent, zeros leave. Labels can be randomised, and codes of a class be pushed apart. None of
      it is the papers'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dovetail import federated
from dovetail.data import (
    Alignment,
    Classification,
    Minibatches,
    PartyData,
    SharedRows,
    Task,
)
from dovetail.errors import ConfigError, MessageError, PartyError, TrainingError
from dovetail.federated import Driver, Epoch, Party, handles
from dovetail.methods.limits import NO_LIMITS, Limits, limits_of
from dovetail.models import (
    EncoderSpec,
    Head,
    OptimizerConfig,
    RandomStream,
    Secret,
    follow_back,
    generator,
    key_of,
    network_input,
    output_shape,
)
from dovetail.models.decisions import ClassWeights, class_weights, on, supervised_loss
from dovetail.network import Checkpoint, Engine, Integers, Message, Numbers, State, noted
from dovetail.privacy import Release, Releasing, potential_energy, randomised, released_to

# --- Hyper-parameters --------------------------------------------------------------------------


class Config(OptimizerConfig):
    """Settings of the label owner, and in simulation of every party."""

    epochs: int = Field(default=30, ge=1)  # passes over the rows
    batch_size: int = Field(default=64, ge=1)  # rows a step
    steps_per_epoch: int | None = Field(default=None, ge=1)  # None: one pass over the rows
    loss_weights: ClassWeights | None = None  # of classes; a run's class_weights
    timeout_s: float | None = Field(default=None, gt=0)
    gradients: Release | None = None  # how dl/dh^p leaves; None: as it is
    label_epsilon: float | None = Field(default=None, gt=0, allow_inf_nan=False)  # of all labels
    label_stages: int = Field(default=1, ge=1, le=20)  # T of LP-MST; of 1 the prior is even
    spread: float | None = Field(default=None, ge=0, allow_inf_nan=False)  # codes of a class apart


#: No code that a network gives, and no gradient of one, has larger numbers, unless whoever sends it
#: is out of hand.
MAX_CODE = 1e6

#: Whom a party's codes are for, in its account; of test rows that are of another table, too.
_OWNER, _OWNER_TEST = "the label owner", "the label owner, of test rows"

#: What stands in for the code of a partner that is gone.
Substitute = Literal["zeros", "average", "random"]


# --- What crosses the boundary -----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Open(Message):
    """Label owner -> party: training starts."""

    seed: int


@dataclass(frozen=True, eq=False)
class Opened(Message):
    """Party -> label owner: how wide its codes are, and what its policy answers.

    That is: about so many different samples or more in one message, and so often about one sample
    in the run (0: any number of times).
    """

    code_width: int
    min_rows: int = NO_LIMITS.min_rows
    max_uses: int = NO_LIMITS.max_uses


@dataclass(frozen=True, eq=False)
class Encode(Message):
    """Label owner -> party: encode these shared samples; for training, or for inference only."""

    samples_B: Integers  # places in the shared order
    training: bool
    test: bool  # samples of the test table, in its own shared order


@dataclass(frozen=True, eq=False)
class Codes(Message):
    """Party -> label owner: h^p of the samples asked for."""

    code_BD: Numbers  # looked at with its bound


@dataclass(frozen=True, eq=False)
class CodeGradient(Message):
    """Label owner -> party: dl/dh^p of the codes sent last."""

    gradient_BD: Numbers  # looked at with its bound


@dataclass(frozen=True, eq=False)
class Updated(Message):
    """Party -> label owner: its encoder has made its step."""


# --- What a party without labels executes ------------------------------------------------------


class Member(Party):
    """A party that encodes its columns, in training and whenever somebody predicts.

    Args:
        shared: its training rows by shared sample.
        test: its test rows by shared sample, for inference; None if it has none.
        config: optimizer settings.
        encoder: a spec, or a module of your own.
        codes: how its codes leave; None: as they are.
        device: where it computes.
        secret: of its home, mixed into all it draws; None in simulation.
    """

    has_local = False

    saved = ("encoder", "optimizer", "random", "released")

    def __init__(
        self,
        shared: SharedRows,
        test: SharedRows | None,
        config: OptimizerConfig,
        encoder: EncoderSpec | nn.Module,
        *,
        codes: Release | None = None,
        device: torch.device | None = None,
        secret: Secret | None = None,
    ) -> None:
        self.name = shared.party
        self._codes = codes
        self.released: Releasing | None = None
        self.shared = shared
        self.test = test
        self.config = config
        self.device = device or torch.device("cpu")
        self._make = encoder
        self._secret = secret
        self._code_BD: Tensor | None = None

    @handles
    def begin(self, message: Open) -> Opened:
        """Make its encoder."""
        row_shape = tuple(self.shared.x.shape[1:])
        self.random = RandomStream(
            message.seed, self.name, "member", secret=key_of(self._secret), device=self.device
        )
        with self.random:
            made = self._make
            network = made if isinstance(made, nn.Module) else made.encoder(row_shape)
        self.encoder = network.to(self.device)
        self.optimizer = self.config.build(self.encoder.parameters())
        self._code_BD = None
        if self._codes is not None and self.released is None:
            rng = generator(message.seed, self.name, "released") if self._secret is None else None
            self.released = Releasing(self._codes, f"codes of {self.name!r}", rng)
        shape = output_shape(self.encoder, row_shape, self.device)
        return Opened(math.prod(shape))

    @handles
    def encode(self, message: Encode) -> Codes:
        """Codes of these samples."""
        table = self.test if message.test else self.shared
        if table is None:
            raise ConfigError("it has no test table to predict from")
        x = network_input(table[message.samples_B], self.device)
        self.encoder.train(message.training)
        with self.random, torch.set_grad_enabled(message.training):
            code_BD = self.encoder(x).flatten(1)  # Eq. (2)
        cost = None
        if self.released is not None:
            receiver = _OWNER_TEST if message.test and self.test is not self.shared else _OWNER
            code_BD = self.released.or_zeros(receiver, message.samples_B, code_BD)
            cost = self.released.cost(receiver)
        if message.training:
            self._code_BD = code_BD
        return noted(Codes(code_BD.detach()), cost)

    @handles
    def update(self, message: CodeGradient) -> Updated:
        """One step, as the label owner wants the last codes to move."""
        if self._code_BD is None:
            raise TrainingError("it was sent a gradient for codes it did not send")
        code_BD, self._code_BD = self._code_BD, None
        num_rows, width = code_BD.shape
        message.check(B=num_rows, D=width)
        if not message.gradient_BD.abs().max() <= MAX_CODE:
            raise TrainingError(f"it was sent a gradient that is not finite, or above {MAX_CODE:g}")
        if code_BD.requires_grad:  # zeros that left in place of codes have nothing to learn
            self.optimizer.zero_grad()
            follow_back([code_BD], [message.gradient_BD.to(self.device)])
            self.optimizer.step()
        return Updated()

    def spent(self) -> list[dict[str, Any]]:
        """Its codes, where they are noised."""
        return [] if self.released is None else self.released.spent("codes", _OWNER)


# --- What the label owner executes -------------------------------------------------------------


class Owner(Driver):
    """The label owner: its own encoder, the head over everybody's codes, and the labels.

    Args:
        data: its rows and labels.
        alignment: rows by shared sample.
        task: what the labels say.
        config: its settings.
        seed: of everything random here.
        encoder, head: specs.
        device: where it computes.
        secret: of its home, mixed into all it draws; None in simulation.
    """

    saved = (
        "code_widths",
        "limits",
        "encoder",
        "head",
        "optimizer",
        "random",
        "batches",
        "released",
    )
    lenient = False

    def __init__(
        self,
        data: PartyData,
        alignment: Alignment,
        task: Task,
        config: Config,
        *,
        seed: int,
        encoder: EncoderSpec,
        head: Head,
        device: torch.device | None = None,
        secret: Secret | None = None,
    ) -> None:
        if data.labels is None:
            raise ConfigError(f"party {data.name!r} has no labels; the label owner is who has them")
        self.name = data.name
        self.task = task
        self.config = config
        self.seed = seed
        self.device = device or torch.device("cpu")
        self._key = key_of(secret)
        self.x = data.joined()
        self.labels = data.labels
        for name in ("label_epsilon", "spread"):
            if getattr(config, name) and not isinstance(task, Classification):
                raise ConfigError(
                    f"party {self.name!r}: {name} is for classes, its label is a number; leave it "
                    "out"
                )
        if config.label_epsilon is not None:
            rng = generator(seed, self.name, "randomised labels", secret=self._key)
            self.labels = randomised(
                data.labels, network_input(self.x), task.num_outputs, config.label_epsilon, rng,
                stages=config.label_stages,
            )  # fmt: skip
        self.released: Releasing | None = None
        if config.gradients is not None:
            drawn = generator(seed, self.name, "released gradients") if secret is None else None
            self.released = Releasing(config.gradients, f"gradients of {self.name!r}", drawn)
        self.class_weights_C = on(
            self.device, class_weights(config.loss_weights, task, self.labels)
        )
        self.rows_S = alignment.rows[self.name]
        self._head_spec = head
        with self._stream("networks"):
            self.encoder = encoder.encoder(tuple(self.x.shape[1:])).to(self.device)
        self.random = self._stream("labelled")
        labelled = torch.zeros(len(self.x), dtype=torch.bool)
        labelled[data.labelled_rows()] = True
        everywhere = alignment.shared(*alignment.rows)
        samples = everywhere[labelled[self.rows_S[everywhere]]]
        # In the order of its rows: numbers of samples are random in each alignment, batches not.
        self.samples = samples[self.rows_S[samples].argsort()]
        if not len(self.samples):
            raise ConfigError(
                f"no row of {self.name!r} has both a label and a match at every party; "
                "classic vertical learning needs such rows"
            )
        self.min_rows = 1  # of one message
        self.number = 0  # of the epoch that was done last
        self.batches = self._batches()

    def _batches(self) -> Minibatches:
        rng = generator(self.seed, self.name, "labelled batches", secret=self._key)
        return Minibatches(self.samples, self.config.batch_size, rng, least=self.min_rows)

    def _stream(self, purpose: str) -> RandomStream:
        return RandomStream(self.seed, self.name, purpose, secret=self._key, device=self.device)

    def open(
        self, code_widths: Mapping[str, int], limits: Mapping[str, Limits] | None = None
    ) -> None:
        """Build the head over one's own code and those of the parties, in their order.

        Raises:
            ConfigError: a run that would not keep a party's limits.
        """
        self.limits = dict(limits or {})
        self.min_rows = max([1, *(each.min_rows for each in self.limits.values())])
        if self.min_rows > 1:
            self.batches = self._batches()
        num_steps = self.config.steps_per_epoch or self.batches.steps_per_pass
        passes = self.config.epochs * num_steps / self.batches.steps_per_pass
        for party, own in self.limits.items():
            num_samples, batch_size = len(self.samples), self.config.batch_size
            own.check_run(party, num_samples, batch_size=batch_size, passes=passes)
        row_shape = tuple(self.x.shape[1:])
        own_width = math.prod(output_shape(self.encoder, row_shape, self.device))
        self.code_widths = {self.name: own_width, **code_widths}
        with self._stream("head"):
            self.head = self._head_spec.build(
                sum(self.code_widths.values()), self.task.num_outputs
            ).to(self.device)
        self.optimizer = self.config.build([*self.encoder.parameters(), *self.head.parameters()])

    def loss(self, codes_BD: Sequence[Tensor], rows_B: Tensor) -> Tensor:
        """L of a batch, Eq. (3)."""
        with self.random:
            outputs = self.head(torch.cat(list(codes_BD), dim=1))
        target = self.labels[rows_B].to(self.device)
        return supervised_loss(self.task, outputs, target, self.class_weights_C)

    def eval(self) -> None:
        """Dropout off, until the next step."""
        self.encoder.eval()
        self.head.eval()

    def encode(self, x: Tensor) -> Tensor:
        """(B, D) codes of the label owner's own rows."""
        with self.random:
            code_BD: Tensor = self.encoder(network_input(x, self.device)).flatten(1)
        return code_BD

    def spent(self) -> list[dict[str, Any]]:
        """Its gradients, where they are noised, to each party."""
        return released_to(self.released, "gradients")

    def restore(self, state: State) -> None:
        """Go on from there, with the same parties."""
        widths = dict(state["code_widths"])
        widths.pop(self.name)
        self.open(widths, {party: Limits(**own) for party, own in state["limits"].items()})
        super().restore(state)

    # --- What the driver executes ---------------------------------------------------------------

    @property
    def num_rounds(self) -> int:  # type: ignore[override]
        """Epochs."""
        return self.config.epochs

    def begin(self, network: Engine) -> None:
        """Open the run with every party.

        Raises:
            PartyError: one cannot begin.
            ConfigError: there is nobody, or a run that would not keep a party's limits.
        """
        if not network.parties:
            raise ConfigError("the baseline 'tvfl' needs at least one party beside the active one")
        opened = network.ask(dict.fromkeys(network.parties, Open(self.seed)), Opened).or_raise()
        self.open({party: each.code_width for party, each in opened.items()}, limits_of(opened))

    def round(self, number: int, network: Engine) -> Epoch:
        """All steps of one epoch.

        Raises:
            TrainingError: the loss is no longer finite.
        """
        num_steps = self.config.steps_per_epoch or self.batches.steps_per_pass
        total = 0.0
        for place in range(1, num_steps + 1):
            loss = step(self, network)
            if not math.isfinite(loss):
                raise TrainingError(
                    f"party {self.name!r}: its loss is {loss} in epoch {number}, step {place}; "
                    f"lower the learning_rate ({self.config.learning_rate})"
                )
            total += loss
        self.number = number
        return Epoch(told={"loss": total / num_steps}, num_steps=num_steps)


def train(owner: Owner, network: Engine, checkpoint: Checkpoint | None = None) -> Iterator[Epoch]:
    """Trains epoch by epoch; afterwards ``predict`` asks the parties, ``predict_alone`` not.

    Args:
        owner: the label owner, which drives.
        network: reaches the other parties.
        checkpoint: saves each epoch, and goes on from what it saved; None saves nothing.

    Raises:
        PartyError: a party does not answer; classic vertical learning cannot do without it.
        TrainingError: the loss is no longer finite.
    """
    return federated.train(owner, network, checkpoint)


def step(owner: Owner, network: Engine) -> float:
    """Forward (Eq. 2-3) and back-propagation of one minibatch; its loss."""
    timeout_s = owner.config.timeout_s
    samples_B = next(owner.batches)
    rows_B = owner.rows_S[samples_B]
    request = Encode(samples_B, training=True, test=False)
    pending = network.send(dict.fromkeys(network.parties, request), Codes, timeout_s=timeout_s)
    owner.encoder.train()
    owner.head.train()
    own_BD = owner.encode(owner.x[rows_B])
    replies = pending.replies().or_raise()
    codes = {party: _code(owner, party, replies[party], len(rows_B)) for party in replies}
    loss = owner.loss([own_BD, *codes.values()], rows_B)
    if not loss.isfinite():
        return loss.item()  # nobody is sent what came of it
    owner.optimizer.zero_grad()
    apart = loss
    if owner.config.spread:
        labels_B = owner.labels[rows_B].to(owner.device)
        energies = [potential_energy(code_BD, labels_B) for code_BD in codes.values()]
        apart = loss + owner.config.spread * torch.stack(energies).sum()
    apart.backward()
    gradients: dict[str, Message] = {}
    for party, code_BD in codes.items():
        assert code_BD.grad is not None
        gradients[party] = CodeGradient(code_BD.grad)
        if owner.released is not None:
            noised_BD = owner.released.or_zeros(party, samples_B, code_BD.grad)
            gradients[party] = noted(CodeGradient(noised_BD), owner.released.cost(party))
    updating = network.send(gradients, Updated, timeout_s=timeout_s)
    owner.optimizer.step()
    updating.replies().or_raise()
    return loss.item()


def predict(owner: Owner, network: Engine, x: Tensor, samples_N: Tensor) -> Tensor:
    """(N, C) outputs with every party present, Eq. (4).

    Args:
        owner: after training.
        network: reaches the parties that took part.
        x: (N, ...) the label owner's rows.
        samples_N: their places in the shared order of the test tables.
    """
    outputs = []
    owner.eval()
    with torch.no_grad():
        sizes = _parts(len(x), 512, owner.min_rows)
        for x_B, samples_B in zip(x.split(sizes), samples_N.split(sizes), strict=True):
            request = Encode(samples_B, training=False, test=True)
            pending = network.send(dict.fromkeys(network.parties, request), Codes)
            own_BD = owner.encode(x_B)
            replies = pending.replies().or_raise()
            codes = [_code(owner, party, replies[party], len(x_B)) for party in replies]
            outputs.append(owner.head(torch.cat([own_BD, *codes], dim=1)).cpu())
    return torch.cat(outputs)


def _parts(num: int, most: int, least: int) -> list[int]:
    """Sizes of consecutive parts; a last one that is too small joins the one before.

    >>> _parts(1030, 512, 16), _parts(1030, 512, 1), _parts(5, 512, 16)
    ([512, 518], [512, 512, 6], [5])
    """
    whole, rest = divmod(num, most)
    sizes = [most] * whole
    if rest >= least or not sizes:
        return [*sizes, rest] if rest else sizes
    return [*sizes[:-1], most + rest]


def predict_alone(owner: Owner, x: Tensor) -> dict[Substitute, Tensor]:
    """Substitute -> (N, C) outputs, every partner gone and its code replaced (Section 5.1)."""
    random = generator(owner.seed, owner.name, "substitute")
    average_D = _average_code(owner)
    substitutes: dict[Substitute, Callable[[int, int], Tensor]] = {
        "zeros": lambda num_rows, width: torch.zeros(num_rows, width),
        "average": lambda num_rows, width: (
            average_D if len(average_D) == width else average_D.mean().expand(width)
        ).expand(num_rows, width),
        "random": lambda num_rows, width: torch.randn(num_rows, width, generator=random),
    }
    widths = [width for party, width in owner.code_widths.items() if party != owner.name]
    outputs: dict[Substitute, list[Tensor]] = {name: [] for name in substitutes}
    owner.eval()
    with torch.no_grad():
        for x_B in x.split(512):
            own_BD = owner.encode(x_B)
            for name, make in substitutes.items():
                codes = [make(len(x_B), width).to(owner.device) for width in widths]
                outputs[name].append(owner.head(torch.cat([own_BD, *codes], dim=1)).cpu())
    return {name: torch.cat(parts) for name, parts in outputs.items()}


def _code(owner: Owner, party: str, reply: Codes, num_rows: int) -> Tensor:
    """A party's code as a leaf of the label owner's graph.

    Raises:
        PartyError: codes of another shape, or that are not finite.
    """
    try:
        reply.check(B=num_rows, D=owner.code_widths[party])
    except MessageError as cause:
        raise PartyError(party, str(cause)) from None
    largest = reply.code_BD.abs().max() if num_rows else torch.zeros(())
    if not largest <= MAX_CODE:
        what = f"above {MAX_CODE:g}" if largest.isfinite() else "not finite"
        raise PartyError(party, f"its codes are {what}; lower its learning_rate")
    return reply.code_BD.detach().to(owner.device).requires_grad_()


def _average_code(owner: Owner) -> Tensor:
    """(D,) mean of the label owner's codes over its training rows."""
    owner.eval()
    rows = owner.rows_S[owner.samples]
    with torch.no_grad():
        total = sum(owner.encode(owner.x[part]).sum(dim=0) for part in rows.split(512))
    assert isinstance(total, Tensor)
    return total / len(rows)
