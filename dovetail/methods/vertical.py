"""Classic vertical federated learning: trains together, and must predict together.

The baseline of the APFed paper (Liu et al., arXiv:2409.04111v2, Section 2; "TVFL" in its Table 2).
Every party encodes its own columns, one party with labels holds the task module over all codes.

    h^p = f_Theta_p(x^p)                                       Eq. (2)
    L = mean_i l(g_Theta_S({h_i^p}), y_i)                      Eq. (3)
    y' = g_Theta_S({f_Theta_p(x^p)})                           Eq. (4)

    Paper       Here              Shape      Lives at
    x^p         Member.shared     (S, ..)    party p
    f_Theta_p   Member.encoder               party p
    h^p         code_BD           (B, D_p)   party p; sent to the label owner
    y           Owner.targets     (N,)       label owner
    g_Theta_S   Owner.head                   label owner
    dl/dh^p     gradient_BD       (B, D_p)   label owner; sent back to party p

    Letters: N rows, S shared samples, B rows of a minibatch, D_p code width of party p (flattened).

When partners are gone, their codes are replaced (Section 5.1; ``substitutes.py``).

Departures from the paper:
    - The label owner plays the server. It may hold columns too, as in the paper's experiments; the
      code of one that has none has width 0 (Section 2's independent server).
    - Only rows with a label that every party has are trained on.

What the paper has not are layers: batches that keep partners' limits, and codes that are looked at
before they are used, class weights, labels by randomised response and ``spread`` (all in
``common_rows.py``); codes and gradients that are clipped and noised row by row, and zeros once a
budget is spent (``federated/local.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dovetail import federated
from dovetail.data import Alignment, PartyData, SharedRows, Task
from dovetail.errors import ConfigError, PartyError
from dovetail.federated import Driver, Epoch, Local, Party, handles
from dovetail.methods.common_rows import CommonRows, Targets, due, leaves, released
from dovetail.methods.epochs import Epochs
from dovetail.methods.limits import NO_LIMITS, limits_of
from dovetail.methods.settings.shared import EpochSettings, TargetSettings
from dovetail.models import Extractor, Head, network_input, output_shape
from dovetail.models.optimizers import Optimizer, follow_back, head_apart
from dovetail.network import Checkpoint, Engine, Message, Numbers, Samples, State
from dovetail.settings.models import HeadConfig, OptimizerConfig
from dovetail.settings.privacy import Release


class Config(TargetSettings, EpochSettings, HeadConfig):
    """Settings of the label owner, and in simulation of every party."""

    gradients: Release | None = None  # how dl/dh^p leaves; None: as it is


#: Whom a party's codes are for, in its account; of test rows that are of another table, too.
_OWNER, _OWNER_TEST = "the label owner", "the label owner, of test rows"


# --- What crosses the boundary -----------------------------------------------------------------


class Open(Message):
    """Label owner -> party: training starts."""

    seed: int


class Opened(Message):
    """Party -> label owner: how wide its codes are, and what its policy answers.

    That is: about so many different samples or more in one message, and so often about one sample
    in the run (0: any number of times).
    """

    code_width: int
    min_rows: int = NO_LIMITS.min_rows
    max_uses: int = NO_LIMITS.max_uses


class Encode(Message):
    """Label owner -> party: encode these shared samples; for training, or for inference only."""

    samples_B: Samples  # indices in the shared order
    training: bool
    test: bool  # samples of the test table, in its own shared order


class Codes(Message):
    """Party -> label owner: h^p of the samples asked for."""

    code_BD: Numbers  # looked at with its bound


class CodeGradient(Message):
    """Label owner -> party: dl/dh^p of the codes sent last."""

    gradient_BD: Numbers  # looked at with its bound


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
        local: its context.
        codes: how its codes leave; None: as they are.
    """

    goes_on = False  # its driver would go on with weights of no run, so it says the step
    saved = ("encoder", "optimizer", "random")

    def __init__(
        self, shared: SharedRows, test: SharedRows | None, config: OptimizerConfig,
        encoder: Extractor | nn.Module, local: Local, *, codes: Release | None = None,
    ) -> None:  # fmt: skip
        self.shared, self.test, self.config = shared, test, config
        self._make, self._codes = encoder, codes

    @handles
    def begin(self, message: Open) -> Opened:
        """Make its encoder."""
        made, shape = self._make, tuple(self.shared.x.shape[1:])
        self.random = self.local.stream("member")
        with self.random:
            network = made if isinstance(made, nn.Module) else made.encoder(shape)
        self.encoder = network.to(self.local.device)
        self.optimizer = Optimizer.of(self.config, self.encoder.parameters())
        self.local.bound_releases(self._codes, what="codes", key="apfed.codes")
        self._sent: list[Tensor] = []
        return Opened(math.prod(output_shape(self.encoder, shape, self.local.device)))

    @handles
    def encode(self, message: Encode) -> Codes:
        """Codes of these samples."""
        table, samples_B = self.test if message.test else self.shared, message.samples_B
        if table is None:
            raise ConfigError("it has no test table to predict from")
        self.encoder.train(message.training)
        with self.random, torch.set_grad_enabled(message.training):  # Eq. (2)
            code_BD = self.encoder(network_input(table[samples_B], self.local.device)).flatten(1)
        to = _OWNER_TEST if message.test and self.test is not self.shared else _OWNER
        code_BD = self.local.release("codes", to, samples_B, code_BD, or_zeros=True)
        self._sent = [code_BD] if message.training else self._sent
        return self.local.with_cost(Codes(code_BD.detach()), "codes", to)

    @handles
    def update(self, message: CodeGradient) -> Updated:
        """Make a step, as the label owner wants the last codes to move."""
        code_BD = due(self._sent, message)
        if code_BD.requires_grad:  # zeros that left in place of codes have nothing to learn
            self.optimizer.zero_grad()
            follow_back([code_BD], [message.gradient_BD.to(code_BD.device)])
            self.optimizer.step()
        return Updated()

    def unsaved(self) -> str:
        return "a gradient is due for its codes" if getattr(self, "_sent", None) else ""


# --- What the label owner executes -------------------------------------------------------------


class Owner(Driver):
    """The label owner: its own encoder, the head over everybody's codes, and the labels.

    Args:
        data: its rows and labels.
        alignment: rows by shared sample.
        task: what the labels say.
        config: its settings.
        local: its context.
        seed: of everything random here.
        encoder, head: specs.
    """

    saved = ("opened", "encoder", "head", "optimizer", "random", "rows", "local")
    tolerate_missing = False

    def __init__(
        self, data: PartyData, alignment: Alignment, task: Task, config: Config, local: Local,
        *, seed: int, encoder: Extractor, head: Head,
    ) -> None:  # fmt: skip
        local.begin(seed)
        self.name, self.config, self.local, self.x = data.name, config, local, data.joined()
        self.targets = Targets(data, task, config, local)
        self.rows = CommonRows(self.targets.rows, alignment, config, local)
        with local.stream("networks"):
            self.encoder = encoder.encoder(tuple(self.x.shape[1:])).to(local.device)
        self.random, self._head = local.stream("labelled"), head
        purpose = "released gradients"
        local.bound_releases(config.gradients, what="gradients", key="gradients", purpose=purpose)
        self.num_rounds, self.number = config.epochs, 0  # the epoch that was done last
        self._epochs = Epochs(self.name, f"the learning_rate ({config.learning_rate})", self.step)

    def begin(self, network: Engine) -> None:
        """Open the run with every party.

        Raises:
            PartyError: one cannot begin.
            ConfigError: there is nobody, or a run that would not keep a party's limits.
        """
        asked = dict.fromkeys(network.parties, Open(self.local.seed))
        self.open(network.ask(asked, Opened).or_raise())

    def open(self, opened: Mapping[str, Opened]) -> None:
        """Build the head over one's own code and those of the parties, in their order."""
        self.opened = dict(opened)
        self.rows.open(limits_of(opened))
        width = math.prod(output_shape(self.encoder, tuple(self.x.shape[1:]), self.local.device))
        width += sum(each.code_width for each in opened.values())
        with self.local.stream("head"):
            self.head = self._head.build(width, self.targets.task.num_outputs).to(self.local.device)
        self.optimizer = head_apart(self.config, self.encoder.parameters(), self.head.parameters())

    def restore(self, state: State) -> None:
        """Go on from there, with the same parties."""
        self.open({party: Opened(**fields) for party, fields in state["opened"].items()})
        super().restore(state)

    def spent(self) -> Sequence[Mapping[str, Any]]:
        """Privacy costs of its gradients to each party, if they are noised."""
        return self.local.spent()

    def encode(self, x: Tensor) -> Tensor:
        """(B, D) codes of the label owner's own rows, Eq. (2)."""
        with self.random:
            code_BD: Tensor = self.encoder(network_input(x, self.local.device)).flatten(1)
        return code_BD

    def codes(
        self, network: Engine, x_B: Tensor, samples_B: Tensor, *, training: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(B, D) codes of its own rows, and party -> those of the same samples, as leaves."""
        request = Encode(samples_B, training=training, test=not training)
        timeout_s = self.config.timeout_s if training else None
        pending = network.send(dict.fromkeys(network.parties, request), Codes, timeout_s=timeout_s)
        self.encoder.train(training)
        self.head.train(training)
        local_BD = self.encode(x_B)
        return local_BD, leaves(pending.replies().or_raise(), self.opened, local_BD)

    def round(self, number: int, network: Engine) -> Epoch:
        """All steps of one epoch."""
        self.number = number
        return self._epochs.play(number, self.rows.steps_per_epoch, network)

    def step(self, network: Engine) -> tuple[float, Mapping[str, PartyError]]:
        """Forward and back-propagation of one minibatch; its loss, and nobody who was missing."""
        samples_B, rows_B = self.rows.draw()
        local_BD, codes = self.codes(network, self.x[rows_B], samples_B, training=True)
        with self.random:
            outputs_BC = self.head(torch.cat([local_BD, *codes.values()], dim=1))
        loss = self.targets.loss(outputs_BC, rows_B)  # Eq. (3)
        if not loss.isfinite():
            return loss.item(), {}  # nobody is sent what came of it
        self.optimizer.zero_grad()
        self.targets.spread(loss, list(codes.values()), rows_B).backward()
        gradients = released(self.local, samples_B, codes, CodeGradient)
        updating = network.send(gradients, Updated, timeout_s=self.config.timeout_s)
        self.optimizer.step()
        updating.replies().or_raise()
        return loss.item(), {}


def train(owner: Owner, network: Engine, checkpoint: Checkpoint | None = None) -> Iterator[Epoch]:
    """Trains epoch by epoch; afterwards ``predict`` asks the parties.

    Args:
        owner: the label owner, which drives.
        network: reaches the other parties.
        checkpoint: saves each epoch, and goes on from what it saved; None saves nothing.

    Raises:
        PartyError: a party does not answer; classic vertical learning cannot do without it.
        TrainingError: the loss is no longer finite.
    """
    return federated.train(owner, network, checkpoint)


def predict(owner: Owner, network: Engine, x: Tensor, samples_N: Tensor) -> Tensor:
    """(N, C) outputs with every party present, Eq. (4).

    Rows are named by samples' numbers, which are drawn: a table's own order is often that of its
    labels.

    Args:
        owner: after training.
        network: reaches the parties that took part.
        x: (N, ...) the label owner's rows.
        samples_N: their indices in the shared order of the test tables.
    """
    outputs, order = [], samples_N.argsort()
    with torch.no_grad():
        for rows_B in order.split(owner.rows.parts(len(x))):
            local_BD, codes = owner.codes(network, x[rows_B], samples_N[rows_B], training=False)
            outputs.append(owner.head(torch.cat([local_BD, *codes.values()], dim=1)).cpu())
    return torch.cat(outputs)[order.argsort()]
