"""APFed: partners help to train, the label owner predicts alone.

Liu, Wang, Wan, Zhang, Chen, Lu, Liu: "Active-Passive Federated Learning for Vertically
Partitioned Multi-view Data", arXiv:2409.04111v2.

One active party has labels. It turns each sample into a code and sends the code to passive
parties, who hold other columns of the same samples. Each of them scores the code by a loss of its
own and sends back how the code should move. After training the active party needs nobody.

    h^A = f_A(x^A)                                                     Eq. (5)
    L_A = mean_i l(g_T(h^A_i), y_i) + w_A r(Theta_A) + w_a r(Theta_T)  Eq. (6)
    L_p = mean_i l_p(h^A_i, x^p_i; Theta_p) + w_p r(Theta_p)           Eq. (7)
    L = L_A + sum_p lambda_p L_p                                       Eq. (8)
    dL/dh = dL_A/dh + sum_p lambda_p dL_p/dh                           Eq. (9)
    Theta_A -= alpha_A dL/dh dh/dTheta_A                               Eq. (10)
    Theta_T -= alpha_T dL_A/dTheta_T,  Theta_p -= alpha_p dL_p/dTheta_p
    y' = g_T(f_A(x^A))                                                 Eq. (11)

    APFed-R   l_p = || DEC_p(h^A) - x^p ||                             Eq. (12)
    APFed-C   h^p = ENC_p(x^p)                                         Eq. (13)
              l_p = -log(e^(s(h^A_i, h^p_i) / tau) / sum_j (           Eq. (14)
                  1[j != i] e^(s(h^A_i, h^A_j) / tau) + e^(s(h^A_i, h^p_j) / tau)))
              s(a, b) = a . b / (|a| |b|),  L_p = mean_i l_p           Eq. (15), (16)

    Paper          Here                         Shape    Lives at
    x^A            Active.x                     (N, ..)  active
    y              Active.targets               (N,)     active
    f_A, Theta_A   Active.encoder                        active
    g_T, Theta_T   Active.head                           active
    h^A            code_BD                      (B, D)   active; sent to every passive party
    x^p            Passive.shared               (S, ..)  passive p
    Theta_p        Passive.network                       passive p: DEC_p or ENC_p
    h^p            own_BD                       (B, D)   passive p
    dL_p/dh^A      gradient_BD                  (B, D)   passive p; sent back to the active party
    lambda_p       Config.trade_off                      active
    alpha_A, w_A   Config.learning_rate, .weight_decay   active
    alpha_T, w_a   Config.head_learning_rate, .head_weight_decay   active
    alpha_p, w_p   PassiveConfig.learning_rate, .weight_decay   passive p
    tau            PassiveConfig.temperature             passive p

    Letters: N rows, B rows of a minibatch, D code width (flattened), S shared samples.

Departures from the paper:
    - Eq. (12) leaves the norm open: it is the mean squared error, or the mean error (``norm``).
    - Eq. (14) prints lambda for the temperature, which the text below it calls tau.
    - Eq. (15) is exact for codes of norm ``min_norm`` or more: 1e-12 is the paper's. A shorter code
      counts as one of that norm: of zeros (all ReLUs off) there is no cosine.
    - The head's dropout is not in the paper's Tables 3 and 4; ``runs/apfed`` sets 0.5, 0 leaves it
      out.
    - A passive party that does not answer as asked is left out of that step, and asked again in
      the next.

What the paper has not are layers, each in a file of its own; ``methods/settings/apfed.py`` has
their settings beside the paper's:
    - missing labels, partial overlap, partners' limits, ``projection`` (``questions.py``)
    - rows of partners' gradients that are out of bounds (``bound.py``)
    - ``balance`` in place of Eq. (9) (``unify.py``); DP-SGD (``private.py``)
    - the best epoch by ``validation`` rows, and ``patience`` (``owner.py``)
    - class weights, labels by randomised response, ``spread`` (``methods/common_rows.py``)
    - ``codes`` and ``gradients`` that are clipped and noised (``federated/local.py``),
      ``decorrelate`` (``privacy/release.py``)
    - ``vicreg`` and ``clustering`` in place of Eq. (12) and (14) (``code_losses.py``)
With every lambda 0 training is bit for bit that of the active party alone; layers that keep
statistics of what passes (batch normalisation) see the shared batches too, and are excepted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dovetail import federated
from dovetail.data import Alignment, PartyData, SharedRows, Task
from dovetail.errors import PartyError
from dovetail.federated import Epoch, Local, Party, handles
from dovetail.methods.apfed import bound, unify
from dovetail.methods.apfed.code_losses import CODE_LOSSES
from dovetail.methods.apfed.networks import PartnerSpec, SoloNetwork, partner_network
from dovetail.methods.apfed.owner import LabelOwner
from dovetail.methods.apfed.questions import Partner
from dovetail.methods.common_rows import Targets
from dovetail.methods.limits import NO_LIMITS, limits_of
from dovetail.methods.settings.apfed import Config, Layers, PassiveConfig, PassiveLayers
from dovetail.models import EncoderSpec, Head, follow_back, network_input
from dovetail.models.optimizers import Optimizer, gradient_of, head_apart
from dovetail.models.tiles import in_tiles
from dovetail.network import Checkpoint, Engine, InProcess, Message, Numbers, Replies, Samples

# --- What crosses the boundary -----------------------------------------------------------------


class Begin(Message):
    """Active -> passive: training starts; what codes will look like.

    ``projected_width`` is 0 where codes are not projected. ``seed`` makes the run repeatable, if
    the passive party's site mixes the same secret in. ``run_loss`` is that of APFed-R or APFed-C;
    "" where each party has its own.
    """

    code_shape: tuple[int, ...]
    projected_width: int
    seed: int
    run_loss: str = ""


class Ready(Message):
    """Passive -> active: ready, and whether it wants codes projected (it contrasts) or whole.

    Beside it what its policy answers: about so many different samples or more in one message, and
    so often about one sample in the run (0: any number of times).
    """

    projected: bool
    min_rows: int = NO_LIMITS.min_rows
    max_uses: int = NO_LIMITS.max_uses


class Codes(Message):
    """Active -> passive: h^A of these shared samples (line 4)."""

    samples_B: Samples  # indices in the shared order
    code_BD: Numbers  # looked at where its loss is not finite


class CodeGradient(Message):
    """Passive -> active: dL_p/dh^A, how it wants those codes to move (line 7)."""

    gradient_BD: Numbers  # looked at with its bound


# --- What a passive party executes -------------------------------------------------------------

#: Whom a passive party's gradients are for, in its account.
_ACTIVE = "the active party"


def contrastive_loss(code_BD: Tensor, local_BD: Tensor, tau: float, norm: float = 1e-2) -> Tensor:
    """Eq. (16): mean over the batch of Eq. (14), with the cosine similarity of Eq. (15).

    Row i is pulled to the passive party's code of the same sample and pushed from both parties'
    codes of every other sample. Cost: 2 B^2 D.
    """
    code_BD, local_BD = (F.normalize(each, dim=1, eps=norm) for each in (code_BD, local_BD))
    rows_B = torch.arange(len(code_BD), device=code_BD.device)

    def losses(start: int, stop: int) -> Tensor:
        rows_T = rows_B[start:stop]
        across_TB = code_BD[start:stop] @ local_BD.T / tau
        within_TB = code_BD[start:stop] @ code_BD.T / tau
        within_TB = within_TB.masked_fill(rows_T[:, None] == rows_B, -torch.inf)  # 1[j != i]
        return F.cross_entropy(torch.cat([across_TB, within_TB], dim=1), rows_T, reduction="sum")

    return in_tiles(losses, len(code_BD)) / len(code_BD)


class Passive(Party):
    """A party that helps: holds columns, no labels; a black box to the active party.

    Args:
        shared: its rows by shared sample.
        config: its own settings.
        network: its encoder (contrastive) or decoder (reconstruction): a spec, a module of your
            own, or a function from (code shape, shape of its rows) to a module.
        local: its context.
    """

    saved = ("network", "optimizer", "random")

    def __init__(
        self, shared: SharedRows, config: PassiveConfig, network: PartnerSpec, local: Local
    ) -> None:
        self.shared, self.config, self._make, self._width = shared, config, network, 0

    def sizes(self) -> dict[str, int]:
        """D, the width of codes."""
        return {"D": self._width} if self._width else {}

    @handles
    def begin(self, begin: Begin) -> Ready:
        """Make its network."""
        bound.check_kind(begin.run_loss, self.config.loss)
        contrasts, shape = self.config.loss != "reconstruction", tuple(self.shared.x.shape[1:])
        codes = begin.code_shape, begin.projected_width
        self.random = self.local.stream("passive")
        with self.random:
            self.network = partner_network(self._make, *codes, shape, self.local, contrasts)
        projected = contrasts and begin.projected_width > 0
        self._width = begin.projected_width if projected else math.prod(begin.code_shape)
        self.optimizer = Optimizer.of(self.config, self.network.parameters())
        self.local.bound_releases(self.config.gradients, what="gradients", key="apfed.gradients")
        return Ready(projected)

    @handles
    def gradient(self, codes: Codes) -> CodeGradient:
        """How it wants these codes to move, at its parameters before their update."""
        samples_B, local = codes.samples_B, self.local
        x = network_input(self.shared[samples_B], local.device)
        code_BD = codes.code_BD.detach().to(local.device).requires_grad_()  # line 3
        bound.check_codes(code_BD)
        # With the contrast a row moves the gradients of all rows of its message.
        times = len(code_BD) if self.config.loss == "contrastive" else 1
        with self.random:
            loss = self.loss(code_BD, x)  # line 4, Eq. (7)
        bound.check_loss(loss, code_BD, self.name, self.config.loss, self.config.learning_rate)
        self.optimizer.zero_grad()
        loss.backward()  # line 6: dL_p/dh at the parameters before their update
        sent_BD = local.release("gradients", _ACTIVE, samples_B, gradient_of(code_BD), times=times)
        self.optimizer.step()  # line 8, Eq. (10); not if the release is refused
        return local.with_cost(CodeGradient(sent_BD), "gradients", _ACTIVE)  # line 7

    def loss(self, code_BD: Tensor, x: Tensor) -> Tensor:
        """L_p of a batch, Eq. (7); its L2 term is the optimizer's weight decay."""
        if self.config.loss == "reconstruction":
            error = F.mse_loss if self.config.norm == "l2" else F.l1_loss
            return error(self.network(code_BD), x)  # Eq. (12)
        local_BD = self.network(x).flatten(1)  # Eq. (13)
        if self.config.loss in CODE_LOSSES:
            return CODE_LOSSES[self.config.loss](code_BD, local_BD)
        return contrastive_loss(code_BD, local_BD, self.config.temperature, self.config.min_norm)


# --- What the active party executes, which drives: Algorithm 1 ---------------------------------


class Summed(unify.Unify):
    """Eq. (9): the gradients are added up; a layer may take its place."""

    def follow(self, step: unify.Gradients) -> None:
        """Gradients of both encoder and head stand at their weights."""
        codes, gradients = [step.code_BD], [step.task_BD]
        for each in step.helps:
            if each.code_BD is step.code_BD:
                step.task_BD.add_(each.gradient_BD, alpha=each.weight)  # Eq. (9)
            else:  # of other rows, or projected: autograd adds it where the graphs meet
                codes.append(each.code_BD)
                gradients.append(each.weight * each.gradient_BD)
        follow_back(codes, gradients)


class Active(LabelOwner):
    """The label owner: encoder, head and optimizer; after training, the model.

    Args:
        data: its rows and labels. Labels may be missing for some rows.
        alignment: rows by shared sample; None to learn alone.
        task: what the labels say.
        config: its settings.
        local: its context.
        seed: of everything random here.
        encoder: a spec, or a module of your own.
        head: a spec, or a module of your own, from flattened codes to outputs.
        loss: that every passive party is to have; "": each its own.

    Raises:
        ConfigError: no labelled row.
    """

    config: Config

    def __init__(
        self, data: PartyData, alignment: Alignment | None, task: Task, config: Config,
        local: Local, *, seed: int, encoder: EncoderSpec | nn.Module, head: Head | nn.Module,
        loss: str = "",
    ) -> None:  # fmt: skip
        local.begin(seed)
        self.loss = loss
        self.name, self.config, self.local, self.x = data.name, config, local, data.joined()
        self.targets = Targets(data, task, config, local)
        self.solo = SoloNetwork.make(data, task, encoder, head, local, config.projection)
        self.encoder, self.head = self.solo.encoder, self.solo.head
        self.optimizer = head_apart(config, self.solo.bottom(), self.head.parameters())
        self.random = local.stream("labelled")  # dropout
        self.add_layers(alignment, Summed())

    def encode(self, rows_B: Tensor) -> Tensor:
        """(B, D) codes h^A of these rows, Eq. (5), with their graph."""
        code: Tensor = self.encoder(network_input(self.x[rows_B], self.local.device))
        return code.flatten(1)

    def task_loss(self, code_BD: Tensor, rows_B: Tensor) -> Tensor:
        """L_A, Eq. (6): cross entropy or squared error; its L2 terms are the weight decay."""
        return self.targets.loss(self.head(code_BD), rows_B)

    def step(self, network: Engine) -> tuple[float, Mapping[str, PartyError]]:
        """Make a step of Algorithm 1; L_A of its batch, and the parties that were left out."""
        rows_B = next(self.questions.labelled)
        with self.random:
            code_BD = self.encode(rows_B)  # line 3
        asked = self.questions.ask(rows_B, code_BD)
        requests = self.questions.messages(asked, Codes)
        pending = network.send(requests, CodeGradient, timeout_s=self.config.timeout_s)  # line 4
        leaf_BD = code_BD.detach().requires_grad_()  # while the passive parties work
        with self.random:
            loss = self.task_loss(leaf_BD, rows_B)  # line 5
        self.optimizer.zero_grad()
        self.kept_apart(loss, leaf_BD, rows_B).backward()  # line 7
        replies, task_BD = pending.replies(), gradient_of(leaf_BD)  # line 8
        helps = self.bound.helps(task_BD, asked, replies, self.config.trade_off)
        self.unify.follow(unify.Gradients(rows_B, code_BD, task_BD, helps))  # line 9
        self.optimizer.step()  # line 10, Eq. (10)
        return loss.item(), replies.failures

    def begin(self, network: Engine) -> None:
        """Open the run with every passive party.

        Raises:
            PartyError: one cannot begin.
        """
        self.unify.open(network.parties, self.config.trade_off)
        ready = self.open(network.parties, network).or_raise()
        limits = limits_of(ready)
        self.questions.open({p: Partner(reply.projected, limits[p]) for p, reply in ready.items()})

    def open(self, parties: Iterable[str], network: Engine) -> Replies[Ready]:
        """Let these parties know that training starts."""
        projected = self.config.projection or 0
        message = Begin(self.solo.code_shape, projected, self.local.seed, self.loss)
        return network.ask(dict.fromkeys(parties, message), Ready)


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
